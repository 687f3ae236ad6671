"""Pooling, normalisation, length and prompts as sentence-transformers stored them, or a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest

from model.encoder.errors import CheckpointError, UnsupportedCheckpointError
from model.encoder.sentence_modules import SentenceSettings, read_sentence_settings

FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Write JSON files below ``folder``."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def modules(*kinds: str, transformer: str = "") -> list[dict[str, Any]]:
    """modules.json for a chain of module types."""
    return [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind.rpartition('.')[2]}" if index else transformer,
            "type": kind if "." in kind else f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]


def pooling(*flags: str, **more: Any) -> dict[str, Any]:
    """1_Pooling/config.json with these modes on."""
    return {f"pooling_mode_{flag}": flag in flags for flag in FLAGS} | more


def test_a_folder_without_the_files_states_nothing(tmp_path: Path) -> None:
    """A bare transformers model: pooling is for whoever imports it to choose."""
    assert read_sentence_settings(tmp_path) == SentenceSettings(transformer_path=tmp_path)


@pytest.mark.parametrize(("flag", "expected"), [("cls_token", "cls"), ("mean_tokens", "mean")])
@pytest.mark.parametrize("normalize", [True, False])
def test_pooling_and_normalisation_are_read(
    flag: str, expected: str, normalize: bool, tmp_path: Path
) -> None:
    """BGE pools the first token, MiniLM and E5 take the mean; not all normalise."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    write(tmp_path, {"modules.json": modules(*kinds), "1_Pooling/config.json": pooling(flag)})
    settings = read_sentence_settings(tmp_path)
    assert (settings.pooling, settings.normalize) == (expected, normalize)


def test_types_of_newer_releases_are_recognised(tmp_path: Path) -> None:
    """Classes have moved within the package, and pooling may be named by one word."""
    chain = modules(
        "sentence_transformers.base.modules.transformer.Transformer",
        "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    )
    write(tmp_path, {"modules.json": chain, "1_Pooling/config.json": {"pooling_mode": "mean"}})
    assert read_sentence_settings(tmp_path).pooling == "mean"


def test_a_dense_layer_after_pooling_is_refused_by_name(tmp_path: Path) -> None:
    """Leaving it out would give vectors of another width without an error."""
    dense = {"in_features": 16, "out_features": 6, "activation_function": "torch.nn.modules.activation.Tanh"}
    write(
        tmp_path,
        {
            "modules.json": modules("Transformer", "Pooling", "Dense"),
            "1_Pooling/config.json": pooling("mean_tokens"),
            "2_Dense/config.json": dense,
        },
    )
    with pytest.raises(UnsupportedCheckpointError, match=r"module 2 \(2_Dense\) is a Dense"):
        read_sentence_settings(tmp_path)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["Transformer", "Pooling", "WeightedLayerPooling"], "WeightedLayerPooling"),
        (["custom_model.Transformer", "Pooling"], r"custom_model\.Transformer"),
        (["CLIPModel"], "CLIPModel"),
        (["StaticEmbedding"], "StaticEmbedding"),
        (["Transformer", "Normalize", "Pooling"], "chains Transformer, Normalize, Pooling"),
        ([], "no module"),
    ],
)
def test_other_chains_are_refused_by_name(kinds: list[str], said: str, tmp_path: Path) -> None:
    """An author's own module of a familiar name is not the familiar module."""
    write(tmp_path, {"modules.json": modules(*kinds), "1_Pooling/config.json": pooling("mean_tokens")})
    with pytest.raises(UnsupportedCheckpointError, match=said):
        read_sentence_settings(tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (pooling("max_tokens"), "max"),
        (pooling("lasttoken"), "lasttoken"),
        (pooling("cls_token", "mean_tokens"), r"cls \+ mean"),
        (pooling(), "no kind"),
        ({"pooling_mode": "max"}, "max"),
    ],
)
def test_other_pooling_is_refused_by_name(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Mean in place of max is a near miss nobody would notice."""
    write(tmp_path, {"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": config})
    with pytest.raises(UnsupportedCheckpointError, match=said):
        read_sentence_settings(tmp_path)


def test_pooling_that_skips_the_prompt_is_refused_where_there_are_prompts(tmp_path: Path) -> None:
    """The prompt's tokens take part in our mean."""
    files = {
        "modules.json": modules("Transformer", "Pooling"),
        "1_Pooling/config.json": pooling("mean_tokens", include_prompt=False),
    }
    assert read_sentence_settings(write(tmp_path, files)).pooling == "mean"
    write(tmp_path, {"config_sentence_transformers.json": {"prompts": {"query": "Find: "}}})
    with pytest.raises(UnsupportedCheckpointError, match="include_prompt"):
        read_sentence_settings(tmp_path)


def test_length_case_and_prompts_are_read(tmp_path: Path) -> None:
    """The three files that change what the network is given."""
    write(
        tmp_path,
        {
            "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": True},
            "config_sentence_transformers.json": {
                "prompts": {"query": "query: ", "passage": "passage: "},
                "default_prompt_name": "query",
            },
        },
    )
    settings = read_sentence_settings(tmp_path)
    assert (settings.max_seq_length, settings.do_lower_case) == (256, True)
    assert settings.prompts == {"query": "query: ", "passage": "passage: "}
    assert settings.default_prompt_name == "query"


def test_the_transformer_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    """As models of 2019 and 2020 have it."""
    chain = modules("Transformer", "Pooling", transformer="0_Transformer")
    write(
        tmp_path,
        {
            "modules.json": chain,
            "1_Pooling/config.json": pooling("mean_tokens"),
            "0_Transformer/sentence_xlm-roberta_config.json": {"max_seq_length": 128},
        },
    )
    settings = read_sentence_settings(tmp_path)
    assert (settings.transformer_path, settings.max_seq_length) == (tmp_path / "0_Transformer", 128)


@pytest.mark.parametrize("path", ["../elsewhere", "/elsewhere"])
def test_modules_cannot_point_outside_the_folder(path: str, tmp_path: Path) -> None:
    """A checkpoint is a stranger's; it may name its own files only."""
    write(tmp_path, {"modules.json": modules("Transformer", transformer=path)})
    with pytest.raises(CheckpointError, match="outside its own"):
        read_sentence_settings(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("modules.json", {"0": "Transformer"}, "not a list of modules"),
        ("modules.json", [{"type": "x"}], "not a list of modules"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length"),
        ("sentence_bert_config.json", [], "not a JSON object"),
        ("config_sentence_transformers.json", {"prompts": ["query: "]}, "prompts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "none of its prompts"),
    ],
)
def test_broken_files_are_named(name: str, content: object, said: str, tmp_path: Path) -> None:
    """A value that makes no sense is not passed over."""
    write(tmp_path, {name: content})
    with pytest.raises(CheckpointError, match=said):
        read_sentence_settings(tmp_path)


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    """With the place of the fault."""
    (tmp_path / "modules.json").write_text("[{]")
    with pytest.raises(CheckpointError, match=r"modules\.json is not JSON"):
        read_sentence_settings(tmp_path)
