"""A load accounts for every tensor, or stops and lists all that does not fit."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.encoder.checkpoint import read_checkpoint
from model.encoder.errors import CheckpointError, WeightsError
from model.encoder.weights import (
    TABLES,
    load_encoder,
    load_sequence_classifier,
    load_token_classifier,
    parameter_names,
)
from tests.model.encoder.checkpoints import (
    HIDDEN_SIZE,
    TEXT,
    change_json,
    reference_model,
    save_checkpoint,
    save_tensors,
    tiny_tokenizer,
)

_OLD_NORMS = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def bert_state(head: str = "none") -> dict[str, Tensor]:
    """The tensors of the small BERT, as its class saves them."""
    return {name: value.clone() for name, value in reference_model("bert", head).state_dict().items()}


def plain(folder: Path) -> Path:
    """A BertModel checkpoint without the pooler, whose tensors are all of use."""
    model = reference_model("bert")
    save_checkpoint(model, folder)
    save_tensors({name: value for name, value in bert_state().items() if "pooler" not in name}, folder)
    return folder


def vector(folder: Path) -> Tensor:
    """The mean vector of ``TEXT`` from the encoder in ``folder``."""
    encoder, _ = load_encoder(read_checkpoint(folder))
    input_ids = torch.tensor([tiny_tokenizer().encode(TEXT).ids])
    with torch.inference_mode():
        return encoder(input_ids, torch.ones_like(input_ids)).mean(dim=1)[0]


def test_old_names_give_the_same_vectors_and_list_what_is_unused(tmp_path: Path) -> None:
    """``gamma``/``beta``, a prefix, a stored ``position_ids`` and heads are how BERT came in 2018.

    LayerNorm left at its initial values would be the quiet failure.
    """
    state = {name: value for name, value in bert_state().items() if "pooler" not in name}
    old = {}
    for name, value in state.items():
        renamed = re.sub(r"LayerNorm\.(weight|bias)$", lambda match: _OLD_NORMS[match[0]], name)
        old[f"bert.{renamed}"] = value
    extra = {
        "bert.embeddings.position_ids": torch.arange(32)[None],
        "bert.pooler.dense.weight": torch.zeros(HIDDEN_SIZE, HIDDEN_SIZE),
        "bert.pooler.dense.bias": torch.zeros(HIDDEN_SIZE),
        "cls.predictions.bias": torch.zeros(28),
        "cls.seq_relationship.weight": torch.zeros(2, HIDDEN_SIZE),
    }
    assert any("gamma" in name for name in old)
    current, renamed_folder = plain(tmp_path / "plain"), plain(tmp_path / "old")
    save_tensors(old | extra, renamed_folder)
    _, report = load_encoder(read_checkpoint(renamed_folder))
    assert report.unused == tuple(sorted(extra))
    torch.testing.assert_close(vector(renamed_folder), vector(current), rtol=0, atol=1e-6)


def test_shards_give_the_vectors_of_the_whole_file_and_a_missing_one_is_named(tmp_path: Path) -> None:
    """An interrupted download must not become half a model."""
    whole = save_checkpoint(reference_model("bert"), tmp_path / "whole")
    shards = save_checkpoint(reference_model("bert"), tmp_path / "shards", layout="sharded safetensors")
    torch.testing.assert_close(vector(shards), vector(whole), rtol=0, atol=1e-6)
    (shards / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00002\.safetensors"):
        read_checkpoint(shards)


def test_everything_that_does_not_fit_is_listed_at_once(tmp_path: Path) -> None:
    """One import, one complete answer: not a name a try."""
    state = bert_state()
    state["encoder.layer.0.attention.self.rotary.weight"] = torch.zeros(3)
    state["mystery"] = torch.zeros(1)
    del state["encoder.layer.2.output.dense.weight"]
    del state["embeddings.LayerNorm.bias"]
    state["encoder.layer.1.intermediate.dense.weight"] = torch.zeros(41, HIDDEN_SIZE)
    state["encoder.layer.1.attention.self.key.bias"] = torch.zeros(HIDDEN_SIZE, dtype=torch.int8)
    state["encoder.layer.0.output.LayerNorm.weight"][3] = torch.nan
    save_tensors(state, plain(tmp_path))
    with pytest.raises(WeightsError) as caught:
        load_encoder(read_checkpoint(tmp_path))
    assert caught.value.unknown == ("encoder.layer.0.attention.self.rotary.weight", "mystery")
    assert caught.value.missing == (
        "embeddings.LayerNorm.bias [16]",
        "encoder.layer.2.output.dense.weight [16, 40]",
    )
    assert sorted(caught.value.misshapen) == [
        "encoder.layer.0.output.LayerNorm.weight: holds NaN or infinity",
        "encoder.layer.1.attention.self.key.bias: holds int8, not floating-point weights",
        "encoder.layer.1.intermediate.dense.weight [41, 16]: config.json asks for [40, 16]",
    ]
    for name in (*caught.value.unknown, *caught.value.missing, *caught.value.misshapen):
        assert name in str(caught.value)


@pytest.mark.parametrize("layers", [2, 4])
def test_another_number_of_layers_than_the_file_has_stops_the_load(layers: int, tmp_path: Path) -> None:
    """A config.json of another size of model neither drops layers nor leaves them random."""
    change_json(plain(tmp_path) / "config.json", num_hidden_layers=layers)
    with pytest.raises(WeightsError) as caught:
        load_encoder(read_checkpoint(tmp_path))
    surplus, lack = caught.value.unknown, caught.value.missing
    assert (len(surplus), len(lack)) == ((16, 0) if layers == 2 else (0, 16))
    assert all(name.startswith(f"encoder.layer.{min(layers, 3)}.") for name in surplus + lack)


def test_two_tensors_for_one_parameter_stop_the_load(tmp_path: Path) -> None:
    """With and without prefix, old name and new: which of them is meant cannot be known."""
    state = bert_state()
    state["embeddings.LayerNorm.gamma"] = torch.ones(HIDDEN_SIZE)
    state["bert.encoder.layer.0.output.dense.bias"] = torch.ones(HIDDEN_SIZE)
    save_tensors(state, plain(tmp_path))
    with pytest.raises(WeightsError) as caught:
        load_encoder(read_checkpoint(tmp_path))
    assert len(caught.value.unknown) == 2
    assert all("fills the same parameter" in line for line in caught.value.unknown)


def test_segments_that_the_config_denies_are_not_dropped(tmp_path: Path) -> None:
    """``type_vocab_size`` 0 beside a segment table: the vectors would lack an addend."""
    change_json(plain(tmp_path) / "config.json", type_vocab_size=0)
    with pytest.raises(WeightsError, match=r"token_type_embeddings\.weight: config\.json describes"):
        load_encoder(read_checkpoint(tmp_path))


def test_a_classifier_is_not_made_from_a_bare_encoder(tmp_path: Path) -> None:
    """Without a trained head there is nothing to import."""
    with pytest.raises(CheckpointError, match=r"BertModel.*ForTokenClassification"):
        load_token_classifier(read_checkpoint(plain(tmp_path)))


@pytest.mark.parametrize(
    ("family", "lost"),
    [
        ("bert", "pooler.dense.weight [16, 16]"),
        ("roberta", "classifier.out_proj.weight [5, 16]"),
        ("xlm-roberta", "classifier.dense.weight [16, 16]"),
        ("distilbert", "pre_classifier.weight [16, 16]"),
    ],
)
def test_a_lost_head_stops_a_sequence_classifier(family: str, lost: str, tmp_path: Path) -> None:
    """Each part of it, called as the family calls it."""
    model = reference_model(family, "sequence-classification")
    folder = save_checkpoint(model, tmp_path)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    (gone,) = [name for name in state if name.endswith(lost.partition(" ")[0])]
    del state[gone]
    save_tensors(state, folder)
    with pytest.raises(WeightsError) as caught:
        load_sequence_classifier(read_checkpoint(folder))
    assert caught.value.missing == (lost,)


@pytest.mark.parametrize("family", TABLES)
def test_a_sequence_classifier_is_neither_an_encoder_nor_a_tagger(family: str, tmp_path: Path) -> None:
    """Its token vectors were not trained to be pooled, nor to be labelled one by one."""
    checkpoint = read_checkpoint(
        save_checkpoint(reference_model(family, "sequence-classification"), tmp_path)
    )
    with pytest.raises(CheckpointError, match="makes no embedding model"):
        load_encoder(checkpoint)
    with pytest.raises(CheckpointError, match=r"ForSequenceClassification.*ForTokenClassification"):
        load_token_classifier(checkpoint)


def test_a_sequence_classifier_is_not_made_from_a_tagger(tmp_path: Path) -> None:
    """Its labels are of tokens."""
    folder = save_checkpoint(reference_model("bert", "token-classification"), tmp_path)
    with pytest.raises(CheckpointError, match="ForSequenceClassification"):
        load_sequence_classifier(read_checkpoint(folder))


def test_a_lost_head_stops_a_classifier(tmp_path: Path) -> None:
    """A random head would still answer."""
    save_checkpoint(reference_model("bert", "token-classification"), tmp_path)
    state = bert_state("token-classification")
    del state["classifier.weight"]
    save_tensors(state, tmp_path)
    with pytest.raises(WeightsError) as caught:
        load_token_classifier(read_checkpoint(tmp_path))
    assert caught.value.missing == ("classifier.weight [5, 16]",)


def test_labels_and_head_of_different_sizes_stop_a_classifier(tmp_path: Path) -> None:
    """A label list edited by hand no longer says what the logits are."""
    save_checkpoint(reference_model("bert", "token-classification"), tmp_path)
    change_json(tmp_path / "config.json", id2label={"0": "O", "1": "B-PER"})
    with pytest.raises(WeightsError) as caught:
        load_token_classifier(read_checkpoint(tmp_path))
    assert caught.value.misshapen == (
        "classifier.bias [5]: config.json asks for [2]",
        "classifier.weight [5, 16]: config.json asks for [2, 16]",
    )


@pytest.mark.parametrize("family", TABLES)
def test_a_table_fills_each_parameter_from_one_place(family: str) -> None:
    """But for LayerNorm's old names, which are the same rows."""
    names = parameter_names(family, 3)
    current = [
        target for source, target in names.items() if target and not source.endswith(("gamma", "beta"))
    ]
    assert len(set(current)) == len(current)
    assert set(current) == {target for target in names.values() if target}
