"""A checkpoint's own files say all there is to know, and what is not computed here is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from model.encoder.checkpoint import SUPPORTED_ARCHITECTURES, Checkpoint, read_checkpoint
from model.encoder.errors import CheckpointError, UnsupportedCheckpointError
from model.encoder.weights import load_encoder
from tests.model.encoder.checkpoints import (
    FAMILIES,
    LABELS,
    VOCABULARY,
    change_json,
    reference_model,
    save_checkpoint,
)


def bert(folder: Path, head: str = "none", **config: Any) -> Path:
    """The small BERT in ``folder``, with changes to its config.json."""
    save_checkpoint(reference_model("bert", head), folder)
    change_json(folder / "config.json", **config)
    return folder


def as_sentence_model(folder: Path) -> None:
    """Add what sentence-transformers adds."""
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    change_json(folder / "1_Pooling" / "config.json", pooling_mode_mean_tokens=True)
    change_json(folder / "sentence_bert_config.json", max_seq_length=24)
    change_json(folder / "config_sentence_transformers.json", prompts={"query": "query: "})
    (folder / "README.md").write_text("---\nlanguage: zh\nlicense: mit\n---\n")


def test_everything_the_files_state_is_read(tmp_path: Path) -> None:
    """From a folder laid out like a hub snapshot of a sentence-transformers model."""
    folder = bert(tmp_path / "small-bert")
    as_sentence_model(folder)
    checkpoint = read_checkpoint(folder)
    assert (checkpoint.name, checkpoint.hub_id, checkpoint.revision) == ("small-bert", None, None)
    assert (checkpoint.family, checkpoint.architecture) == ("bert", "BertModel")
    assert (checkpoint.pooling, checkpoint.normalize, checkpoint.max_tokens) == ("mean", True, 24)
    assert (checkpoint.prompts, checkpoint.default_prompt_name) == ({"query": "query: "}, None)
    assert (checkpoint.licence, checkpoint.languages) == ("MIT", ("zh",))
    assert checkpoint.labels == ()
    assert checkpoint.config.vocab_size == len(VOCABULARY)
    assert json.loads(checkpoint.tokenizer_json())["model"]["vocab"]["alpha"] == 5


@pytest.mark.parametrize(
    ("family", "stated", "expected"),
    [
        ("bert", None, 32),
        ("bert", 20, 20),
        ("bert", 4096, 32),
        # Two rows of RoBERTa's position table come before the first token's.
        ("roberta", None, 30),
        ("roberta", 32, 30),
    ],
)
def test_max_tokens_never_exceeds_the_position_table(
    family: str, stated: int | None, expected: int, tmp_path: Path
) -> None:
    """A stated length may be shorter; one that is longer would read past the table."""
    save_checkpoint(reference_model(family), tmp_path)
    change_json(tmp_path / "tokenizer_config.json", model_max_length=stated)
    assert read_checkpoint(tmp_path).max_tokens == expected
    change_json(tmp_path / "tokenizer_config.json", model_max_length=10**30)
    change_json(tmp_path / "sentence_bert_config.json", max_seq_length=stated)
    assert read_checkpoint(tmp_path).max_tokens == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_come_in_logit_order(family: str, tmp_path: Path) -> None:
    """JSON gives the numbers as text, and in any order."""
    save_checkpoint(reference_model(family, "token-classification"), tmp_path)
    shuffled = {str(index): LABELS[index] for index in (3, 0, 4, 2, 1)}
    change_json(tmp_path / "config.json", id2label=shuffled)
    assert read_checkpoint(tmp_path).labels == LABELS


@pytest.mark.parametrize(
    ("id2label", "said"),
    [
        (None, "no id2label"),
        ({"0": "O", "2": "B-PER"}, "without gaps"),
        ({"O": "0"}, "numbers to names"),
        ({"0": "O", "1": "O"}, "twice"),
    ],
)
def test_labels_that_do_not_number_the_logits_are_refused(
    id2label: dict[str, str] | None, said: str, tmp_path: Path
) -> None:
    """Entities under a wrong name are worse than none."""
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(bert(tmp_path, "token-classification", id2label=id2label))


@pytest.mark.parametrize(
    ("config", "labels", "activation"),
    [
        ({}, LABELS, "softmax"),
        ({"problem_type": "single_label_classification"}, LABELS, "softmax"),
        ({"problem_type": "multi_label_classification"}, LABELS, "sigmoid"),
        ({"problem_type": "regression"}, LABELS, "none"),
        ({"id2label": {"0": "relevant"}}, ("relevant",), "sigmoid"),
        ({"id2label": {"0": "stars"}, "problem_type": "regression"}, ("stars",), "none"),
        ({"id2label": None, "label2id": None}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"id2label": None, "num_labels": 1}, ("LABEL_0",), "sigmoid"),
    ],
)
def test_a_sequence_classifier_says_what_its_logits_mean(
    config: dict[str, Any], labels: tuple[str, ...], activation: str, tmp_path: Path
) -> None:
    """Labels and function as transformers' pipeline would have them, left-out defaults included."""
    checkpoint = read_checkpoint(bert(tmp_path, "sequence-classification", **config))
    assert checkpoint.task == "sequence-classification"
    assert (checkpoint.labels, checkpoint.label_activation) == (labels, activation)


@pytest.mark.parametrize(
    ("config", "said"),
    [({"problem_type": "ranking"}, "'ranking'"), ({"id2label": None, "num_labels": 0}, "num_labels")],
)
def test_a_sequence_classifier_that_makes_no_sense_is_refused(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """A guess would give scores that mean something else."""
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(bert(tmp_path, "sequence-classification", **config))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "tokenizer_config",
    [{}, {"tokenizer_class": "XLMRobertaTokenizerFast"}, {"model_input_names": ["input_ids"]}],
)
def test_token_types_are_used_where_transformers_uses_them(
    family: str, tokenizer_config: dict[str, Any], tmp_path: Path
) -> None:
    """A multilingual BERT with XLM-R's tokeniser was never told which text is the second."""
    folder = save_checkpoint(reference_model(family, "sequence-classification"), tmp_path)
    change_json(folder / "tokenizer_config.json", **tokenizer_config)
    assert read_checkpoint(folder).pair_token_types == (family == "bert" and not tokenizer_config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"model_type": "deberta-v2", "architectures": ["DebertaV2Model"]}, "DebertaV2Model"),
        ({"model_type": "mpnet", "architectures": ["MPNetModel"]}, "MPNetModel"),
        ({"model_type": None}, "type None"),
        ({"architectures": ["BertForMultipleChoice"]}, "BertForMultipleChoice"),
        ({"architectures": ["BertLMHeadModel"]}, "BertLMHeadModel"),
        ({"architectures": ["JinaBertForMaskedLM"]}, "JinaBertForMaskedLM"),
        ({"auto_map": {"AutoModel": "modeling_own.BertModel"}}, "auto_map AutoModel"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "gelu_new"}, "gelu_new"),
        ({"hidden_act": "tanh"}, "tanh"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_computed_here_is_refused_by_name(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Each would load into our encoder without a misfit, and answer something else."""
    folder = bert(tmp_path, **changes)
    with pytest.raises(UnsupportedCheckpointError, match=said) as caught:
        read_checkpoint(folder)
    assert "support" in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_refusal_lists_what_is_supported(tmp_path: Path) -> None:
    """So that the next model tried is one that works."""
    with pytest.raises(UnsupportedCheckpointError) as caught:
        read_checkpoint(bert(tmp_path, model_type="gpt2", architectures=["GPT2Model"]))
    for family, architectures in SUPPORTED_ARCHITECTURES.items():
        assert family in str(caught.value)
        assert all(name in str(caught.value) for name in architectures)


def test_a_config_without_its_class_is_read_by_its_type(tmp_path: Path) -> None:
    """Early checkpoints do not name a class."""
    checkpoint = read_checkpoint(bert(tmp_path, architectures=None))
    assert (checkpoint.family, checkpoint.architecture) == ("bert", None)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_robertas_unstated_padding_id_is_1(family: str, tmp_path: Path) -> None:
    """The default there, on which the position of the first token depends; BERT's is 0."""
    save_checkpoint(reference_model(family), tmp_path)
    change_json(tmp_path / "config.json", pad_token_id=None)
    config = read_checkpoint(tmp_path).config
    assert (config.pad_token_id, config.position_offset) == (1, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_attention_heads": 5}, "num_attention_heads 5"),
        ({"hidden_size": "wide"}, "wide"),
        ({"vocab_size": {}}, r"config\.json"),
    ],
)
def test_a_broken_config_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """File and entry, not a traceback."""
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(bert(tmp_path, **changes))


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    """The commonest slip: the folder above the snapshot."""
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        read_checkpoint(tmp_path)


def test_a_tokeniser_with_more_ids_than_rows_is_refused(tmp_path: Path) -> None:
    """A tokeniser of another model would index past the word table."""
    folder = bert(tmp_path)
    vocabulary = [*VOCABULARY, "surplus"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"ids up to {len(VOCABULARY)}.*{len(VOCABULARY)} rows"):
        read_checkpoint(folder).tokenizer_json()


def test_a_transformer_in_a_folder_of_its_own_is_found(tmp_path: Path) -> None:
    """Weights, configuration and tokeniser below 0_Transformer; the model card stays above."""
    bert(tmp_path / "0_Transformer")
    modules = [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.path, checkpoint.licence) == (tmp_path / "0_Transformer", "MIT")
    load_encoder(checkpoint)


def cached(folder: Path, commit: str, seed: float) -> Path:
    """A snapshot in the hub's cache layout, whose first word vector is ``seed``."""
    path = save_checkpoint(reference_model("bert"), folder / "snapshots" / commit)
    state = reference_model("bert").state_dict()
    state["embeddings.word_embeddings.weight"][0] = seed
    torch.save(dict(state), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    return path


def first_word(checkpoint: Checkpoint) -> float:
    """The number that ``cached`` put in."""
    encoder, _ = load_encoder(checkpoint)
    return encoder.embeddings.word.weight[0, 0].item()


def test_the_hubs_cache_folder_is_read_as_the_model_it_holds(tmp_path: Path) -> None:
    """Copied from another machine, and given as the model or as one of its snapshots."""
    folder = tmp_path / "models--org--small-bert"
    older, newer = cached(folder, "a" * 40, 1.0), cached(folder, "b" * 40, 2.0)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("b" * 40)
    for given, revision, expected in (
        (folder, None, newer),
        (folder, "a" * 40, older),
        (older, None, older),
    ):
        checkpoint = read_checkpoint(given, revision=revision)
        assert (checkpoint.name, checkpoint.hub_id) == ("org/small-bert", "org/small-bert")
        assert checkpoint.revision == expected.name
        assert first_word(checkpoint) == (1.0 if expected == older else 2.0)
    with pytest.raises(CheckpointError, match=f"no snapshot of v2; it has: {'a' * 40}, {'b' * 40}"):
        read_checkpoint(folder, revision="v2")
