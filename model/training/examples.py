"""Labelled texts as a network sees them: windows of token ids, with labels for tokens and for words."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from model.runtime.documents import read_documents
from model.runtime.tagging import words_of
from model.runtime.windows import plan_windows
from model.training.spans import IGNORED_LABEL, Span, align
from model.training.word_fit import misfits_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from model.runtime.documents import Document
    from model.runtime.label_schemes import LabelScheme
    from model.runtime.tokenization import Tokenizer
    from model.training.spans import LabelledText


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One window of a text; S tokens, W words.

    Attributes:
        input_ids: [S] int64.
        label_ids: [S] int64; ``IGNORED_LABEL`` for special tokens.
        word_tokens: [W] int64, the token that decides for each word, as in ``model.runtime.tagging``.
        word_labels: [W] int64, a sequence that the label scheme allows.
    """

    input_ids: NDArray[np.int64]
    label_ids: NDArray[np.int64]
    word_tokens: NDArray[np.int64]
    word_labels: NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """Examples, and what is to be known about them.

    Attributes:
        examples: One a window.
        misfits: Spans that no labelling of the words can give back; see ``word_fit``.
        split: Paragraphs that were longer than a window.
    """

    examples: list[Example]
    misfits: list[Span]
    split: int


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredText:
    """A text to be read whole and scored."""

    document: Document
    spans: tuple[Span, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """B examples padded to S tokens and W words.

    Attributes:
        input_ids: [B, S] int64.
        attention_mask: [B, S] int64; 1 = token.
        label_ids: [B, S] int64; ``IGNORED_LABEL`` where there is none.
        word_tokens: [B, W] int64; 0 at padding.
        word_labels: [B, W] int64; 0 at padding.
        word_mask: [B, W] bool; True = word.
    """

    input_ids: Tensor
    attention_mask: Tensor
    label_ids: Tensor
    word_tokens: Tensor
    word_labels: Tensor
    word_mask: Tensor


def prepare(
    texts: Sequence[LabelledText], tokenizer: Tokenizer, scheme: LabelScheme, *, max_tokens: int
) -> Prepared:
    """Read texts as the service does, paragraph by paragraph; label them and cut them into windows.

    Args:
        texts: Labelled texts; labels outside the scheme are an error, not dropped.
        tokenizer: The tagger's.
        scheme: ``O``, ``B-X``, ``I-X``, in logit order.
        max_tokens: In a window. Longer paragraphs become several windows, one after another, so that nothing
            is lost and nothing is learned twice.

    Raises:
        KeyError: A span has a label that the scheme lacks.
    """
    number_of = {name: index for index, name in enumerate(scheme.labels)}
    examples: list[Example] = []
    misfits: list[Span] = []
    split = 0
    documents = read_documents([text.text for text in texts], tokenizer, max_tokens=max_tokens)
    for labelled, document in zip(texts, documents, strict=True):
        misfits += [misfit.span for misfit in misfits_in(labelled.spans, document)]
        for paragraph in document.paragraphs:
            tokenized = paragraph.tokenized
            spans = [
                Span(span.start - paragraph.start, span.end - paragraph.start, span.label)
                for span in labelled.spans
                if paragraph.start <= span.start and span.end <= paragraph.start + len(paragraph.text)
            ]
            label_of = np.array(align(spans, tokenized.offsets, number_of), dtype=np.int64)
            words = words_of(paragraph.text, tokenized.offsets, tokenized.word_ids)
            if not words:
                continue
            deciding = np.array([word.first_token for word in words], dtype=np.int64)
            windows = plan_windows(paragraph.text, tokenized, max_tokens=max_tokens, overlap=0)
            split += len(windows) > 1
            for window in windows:
                inside = deciding[np.isin(deciding, window.positions)]
                examples.append(
                    Example(
                        window.input_ids,
                        label_of[window.positions],
                        np.searchsorted(window.positions, inside),
                        _allowed(label_of[inside], scheme),
                    )
                )
    return Prepared(examples, misfits, split)


def measured_texts(
    texts: Sequence[LabelledText], tokenizer: Tokenizer, *, max_tokens: int
) -> list[MeasuredText]:
    """Read texts as the service does."""
    documents = read_documents([text.text for text in texts], tokenizer, max_tokens=max_tokens)
    return [
        MeasuredText(document, labelled.spans) for labelled, document in zip(texts, documents, strict=True)
    ]


def collate(examples: Sequence[Example], *, pad_token_id: int) -> Batch:
    """Pad to the longest."""
    tokens = max(len(example.input_ids) for example in examples)
    words = max(1, *(len(example.word_tokens) for example in examples))
    input_ids = torch.full((len(examples), tokens), pad_token_id)
    attention_mask = torch.zeros_like(input_ids)
    label_ids = torch.full_like(input_ids, IGNORED_LABEL)
    word_tokens = torch.zeros(len(examples), words, dtype=torch.int64)
    word_labels = torch.zeros_like(word_tokens)
    word_mask = torch.zeros_like(word_tokens, dtype=torch.bool)
    for row, example in enumerate(examples):
        length, count = len(example.input_ids), len(example.word_tokens)
        input_ids[row, :length] = torch.from_numpy(example.input_ids)
        attention_mask[row, :length] = 1
        label_ids[row, :length] = torch.from_numpy(example.label_ids)
        word_tokens[row, :count] = torch.from_numpy(example.word_tokens)
        word_labels[row, :count] = torch.from_numpy(example.word_labels)
        word_mask[row, :count] = True
    return Batch(input_ids, attention_mask, label_ids, word_tokens, word_labels, word_mask)


def shuffled_batches(examples: Sequence[Example], *, size: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of one epoch's batches: like lengths together, sorted within stretches of twenty batches.

    The order follows from the numbers alone, so that an interrupted epoch can be gone on with.
    """
    chooser = random.Random(f"{seed} {epoch}")  # noqa: S311 - shuffling, not secrets
    order = list(range(len(examples)))
    chooser.shuffle(order)
    batches = []
    for first in range(0, len(order), size * 20):
        stretch = sorted(order[first : first + size * 20], key=lambda i: len(examples[i].input_ids))
        batches += [stretch[k : k + size] for k in range(0, len(stretch), size)]
    chooser.shuffle(batches)
    return batches


def _allowed(labels: NDArray[np.int64], scheme: LabelScheme) -> NDArray[np.int64]:
    """An I-X with nothing before it (a window or a span that begins inside a word) becomes B-X."""
    repaired = labels.copy()
    for index, label in enumerate(labels.tolist()):
        before = int(repaired[index - 1]) if index else None
        fits = scheme.may_start[label] if before is None else scheme.may_follow[before, label]
        if not fits:
            repaired[index] = scheme.labels.index(f"B-{scheme.types[label]}")
    return repaired
