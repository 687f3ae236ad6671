"""Imported weights give what transformers gives, for every family, file layout and head.

The tolerance is float32 rounding in another order of operations over a few layers; a parameter in the
wrong place shows as 0.1 and more.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.encoder.checkpoint import read_checkpoint
from model.encoder.weights import load_encoder, load_sequence_classifier, load_token_classifier
from tests.model.encoder.checkpoints import (
    FAMILIES,
    LABELS,
    LAYOUTS,
    Layout,
    ragged_batch,
    reference_model,
    save_checkpoint,
)

TOLERANCE = 1e-5


def largest_difference(ours: Tensor, theirs: Tensor, attention_mask: Tensor) -> float:
    """Largest absolute difference over real positions."""
    return (ours - theirs)[attention_mask.bool()].abs().max().item()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_last_hidden_state_is_that_of_transformers(family: str, layout: Layout, tmp_path: Path) -> None:
    """Real positions of a ragged batch; RoBERTa's position offset shows here."""
    reference = reference_model(family)
    encoder, report = load_encoder(read_checkpoint(save_checkpoint(reference, tmp_path, layout=layout)))
    input_ids, attention_mask = ragged_batch()
    with torch.inference_mode():
        theirs = reference(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        ours = encoder(input_ids, attention_mask)
    assert largest_difference(ours, theirs, attention_mask) <= TOLERANCE
    assert report.loaded == len(list(encoder.parameters()))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_segments_reach_the_network(family: str, tmp_path: Path) -> None:
    """The second row of the segment table counts as well."""
    reference = reference_model(family)
    encoder, _ = load_encoder(read_checkpoint(save_checkpoint(reference, tmp_path)))
    input_ids, attention_mask = ragged_batch()
    token_type_ids = (torch.arange(input_ids.shape[1]) >= 3).long().expand_as(input_ids)
    with torch.inference_mode():
        theirs = reference(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        ours = encoder(input_ids, attention_mask, token_type_ids)
        unsegmented = encoder(input_ids, attention_mask)
    assert largest_difference(ours, theirs, attention_mask) <= TOLERANCE
    assert largest_difference(unsegmented, theirs, attention_mask) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """A token classifier's head and label order come over with its encoder."""
    reference = reference_model(family, "token-classification")
    checkpoint = read_checkpoint(save_checkpoint(reference, tmp_path))
    classifier, report = load_token_classifier(checkpoint)
    input_ids, attention_mask = ragged_batch()
    with torch.inference_mode():
        theirs = reference(input_ids=input_ids, attention_mask=attention_mask).logits
        ours = classifier(input_ids, attention_mask)
    assert largest_difference(ours, theirs, attention_mask) <= TOLERANCE
    assert checkpoint.labels == classifier.labels == LABELS
    assert report.unused == ()


@pytest.mark.parametrize("layout", ["safetensors", "bin"])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:1]])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_texts_are_those_of_transformers(
    family: str, labels: tuple[str, ...], layout: Layout, tmp_path: Path
) -> None:
    """Classifier and cross-encoder, each head in its family's way; ragged, with segments and alone."""
    reference = reference_model(family, "sequence-classification", label_names=labels)
    classifier, report = load_sequence_classifier(
        read_checkpoint(save_checkpoint(reference, tmp_path, layout=layout))
    )
    input_ids, attention_mask = ragged_batch()
    token_type_ids = (torch.arange(input_ids.shape[1]) >= 3).long().expand_as(input_ids)
    segments = {} if family == "distilbert" else {"token_type_ids": token_type_ids}
    with torch.inference_mode():
        for extra in ({}, segments):
            theirs = reference(input_ids=input_ids, attention_mask=attention_mask, **extra).logits
            ours = classifier(input_ids, attention_mask, extra.get("token_type_ids"))
            assert ours.shape == (len(input_ids), len(labels))
            assert (ours - theirs).abs().max().item() <= TOLERANCE
        row, length = input_ids[2:3], int(attention_mask[2].sum())
        alone = classifier(row[:, :length], attention_mask[2:3, :length], token_type_ids[2:3, :length])
    assert (alone - theirs[2:3]).abs().max().item() <= TOLERANCE
    assert classifier.labels == labels
    assert report.unused == ()


@pytest.mark.parametrize("head", ["pre-training", "token-classification"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_comes_out_from_under_its_head(family: str, head: str, tmp_path: Path) -> None:
    """With a head, names carry the family's prefix; the head is reported, and changes nothing."""
    reference = reference_model(family, head)
    encoder, report = load_encoder(read_checkpoint(save_checkpoint(reference, tmp_path)))
    input_ids, attention_mask = ragged_batch()
    with torch.inference_mode():
        theirs = reference.base_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        ours = encoder(input_ids, attention_mask)
    assert largest_difference(ours, theirs, attention_mask) <= TOLERANCE
    body = {f"{reference.base_model_prefix}.{name}" for name in reference.base_model.state_dict()}
    head_names = set(reference.state_dict()) - body
    assert head_names
    assert set(report.unused) >= head_names


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["safetensors", "bin"])
def test_half_precision_is_widened_exactly(dtype: torch.dtype, layout: Layout, tmp_path: Path) -> None:
    """Weights of 16 bits are computed with in float32, without a second rounding."""
    reference = reference_model("bert")
    folder = save_checkpoint(reference, tmp_path, layout=layout, dtype=dtype)
    encoder, report = load_encoder(read_checkpoint(folder))
    assert report.stored_types == (str(dtype).removeprefix("torch."),)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    reference.to(dtype).float()
    input_ids, attention_mask = ragged_batch()
    with torch.inference_mode():
        theirs = reference(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        ours = encoder(input_ids, attention_mask)
    assert largest_difference(ours, theirs, attention_mask) <= TOLERANCE
