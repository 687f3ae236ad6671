"""A classifier's bundle scores texts and pairs as transformers' own model and tokeniser do.

The tolerance is float32 rounding in another order of operations over a few layers; the words are all in the
vocabulary, since the small RoBERTa pads with the token for unknown ones.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from model.encoder.checkpoint import read_checkpoint
from model.export.from_checkpoint import Choices, contents_of
from model.export.writer import renew_graph, write_bundle
from model.runtime.bundle import Bundle
from model.runtime.engine import pad_batch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.sequences import TextOrPair, read_sequences, truncate_sequence
from model.runtime.tokenization import Tokenizer
from tests.model.encoder.checkpoints import LABELS, reference_model, save_checkpoint, tiny_tokenizer

TOLERANCE = 1e-5
LONG = "alpha beta 张三 去 北京 hello world 上海 的 人 cafe"
ITEMS: tuple[TextOrPair, ...] = (
    "hello world",
    ("张三 去 北京", "alpha betas."),
    "人",
    (LONG, f"{LONG}，hello"),  # too long for all of them
    (f"{LONG}!", "cafe"),
)


@dataclass(frozen=True)
class Exported:
    """A model of transformers, and the bundle made of it."""

    reference: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    bundle: Bundle


@pytest.fixture(
    scope="module",
    params=[
        ("bert", LABELS, {}, "softmax"),
        ("xlm-roberta", LABELS[:1], {"type_vocab_size": 1}, "sigmoid"),
        ("distilbert", LABELS[:3], {"problem_type": "multi_label_classification"}, "sigmoid"),
    ],
    ids=lambda param: param[0],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A classifier, a cross-encoder, and one of several labels at once."""
    family, labels, config, activation = request.param
    reference = reference_model(family, "sequence-classification", label_names=labels, **config)
    folder = tmp_path_factory.mktemp(family)
    checkpoint = read_checkpoint(save_checkpoint(reference, folder / "checkpoint"))
    contents, _ = contents_of(checkpoint, Choices(name="tiny"))
    written = write_bundle(contents, folder / "tiny")
    assert written.manifest.task == "sequence-classification"
    assert (written.manifest.labels, written.manifest.label_activation) == (labels, activation)
    assert written.manifest.pair_token_types == (family == "bert")
    assert (written.manifest.pooling, written.manifest.dimensions) == (None, None)
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if family == "bert" else [])]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(), model_input_names=inputs, pad_token="[PAD]"
    )
    return Exported(reference, tokenizer, Bundle.load(written.path))


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_of_texts_and_pairs_are_those_of_transformers(exported: Exported, side: str) -> None:
    """Singles and pairs in one ragged batch, and one by one; cut as transformers cuts them."""
    manifest = exported.bundle.manifest
    tokenizer = Tokenizer.from_bundle(exported.bundle)
    sequences = [
        truncate_sequence(sequence, manifest.max_tokens, from_start=side == "left")
        for sequence in read_sequences(tokenizer, ITEMS, token_types=manifest.pair_token_types)
    ]
    assert [bool(sequence.truncated_tokens) for sequence in sequences] == [False, False, False, True, False]

    expected = []
    exported.tokenizer.truncation_side = side
    for item in ITEMS:
        texts = (item,) if isinstance(item, str) else item
        encoded = exported.tokenizer(
            *texts, truncation="longest_first", max_length=manifest.max_tokens, return_tensors="pt"
        )
        with torch.inference_mode():
            expected.append(exported.reference(**encoded).logits[0].numpy())

    engine = OnnxRuntimeEngine(exported.bundle, threads=1)
    for chosen in ([*range(len(ITEMS))], *([index] for index in range(len(ITEMS)))):
        batch = pad_batch(
            [sequences[index].input_ids for index in chosen],
            tokenizer.pad_token_id,
            token_types=[sequences[index].token_type_ids for index in chosen],
        )
        logits = engine.run(batch, ["sequence_logits"])["sequence_logits"]
        np.testing.assert_allclose(logits, [expected[index] for index in chosen], atol=TOLERANCE, rtol=0)


def test_golden_texts_hold_pairs(exported: Exported) -> None:
    """The start of the service proves segments and separators, too; an embedding is not to be had."""
    golden = exported.bundle.file("golden.json").read_text(encoding="utf-8")
    assert '"second_texts"' in golden
    assert ('"token_type_ids"' in golden) == exported.bundle.manifest.pair_token_types


def test_a_renewed_graph_is_the_exported_one(exported: Exported, tmp_path: Path) -> None:
    """The manifest tells head, labels and segments; the rest is in the weights."""
    path = tmp_path / "tiny"
    shutil.copytree(exported.bundle.path, path)
    renew_graph(path)
    assert (path / "graph.onnx").read_bytes() == exported.bundle.file("graph.onnx").read_bytes()
