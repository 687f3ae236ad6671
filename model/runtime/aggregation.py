"""Entities put together from tokens as the Hugging Face token-classification pipeline does.

=========  =================================================================================
none       each token that is not O by itself, under the model's own label (``B-PER``); a
           character of several tokens (a Han character and the word-start mark before it, or
           its bytes) is in each of them
simple     tokens by their likeliest label; neighbours of one type join until one begins anew
first      as simple, over words: a word has the label of its first token
average    a word has the likeliest label of the mean of its tokens' probabilities
max        a word has the label of the token that is surest of its own
=========  =================================================================================

A score is the mean over the tokens or words joined. Labels are chosen one by one, so an ``I-`` may stand
anywhere: ``tagging.find_entities`` is stricter and better, these are for those who need the other's answers.

Differences, each where the pipeline goes wrong: words are those of ``tagging.words_of``, by the
pre-tokeniser's word numbers, and not guessed from lengths; E, L, S and U end an entity; borders are widened
to whole visible characters; spaces at an end of a token are no part of it, nor is a token of spaces alone
given; and under the others than ``none`` no two entities overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model.runtime.decoding import softmax
from model.runtime.label_schemes import LabelScheme
from model.runtime.tagging import Entity, Trimmer, words_of
from model.runtime.tokenization import TokenizedText

PipelineStrategy = Literal["none", "simple", "first", "average", "max"]


@dataclass(frozen=True, slots=True)
class _Unit:
    """A token or a word: ``text[start:end]``, its label's index and probability."""

    start: int
    end: int
    label: int
    score: float


def aggregate(
    text: str,
    tokenized: TokenizedText,
    logits: NDArray[np.float32] | NDArray[np.float64],
    scheme: LabelScheme,
    strategy: PipelineStrategy,
) -> list[Entity]:
    """Entities of ``text`` by one of the strategies, in order.

    Args:
        text: one paragraph of the caller's text.
        tokenized: its S tokens.
        logits: [S, L], finite, in the scheme's order.
        scheme: the labels.
        strategy: see the module's docstring.
    """
    probabilities = softmax(logits)
    if strategy in ("none", "simple"):
        units = _tokens(tokenized, probabilities)
    else:
        units = _words(text, tokenized, probabilities, strategy)
    groups = [[unit] for unit in units] if strategy == "none" else _joined(units, scheme)
    trimmer = Trimmer(text)
    entities = []
    free_from = 0
    for group in groups:
        entity_type = scheme.types[group[0].label]
        if entity_type is None:
            continue
        start, end = trimmer.widen(group[0].start, group[-1].end)
        if strategy != "none":
            start, free_from = max(start, free_from), end
        if start < end:
            label = scheme.labels[group[0].label] if strategy == "none" else entity_type
            score = float(np.mean([unit.score for unit in group]))
            entities.append(Entity(start, end, label, min(score, 1.0)))
    return entities


def _tokens(tokenized: TokenizedText, probabilities: NDArray[np.float64]) -> list[_Unit]:
    best = probabilities.argmax(axis=1)
    return [
        _Unit(start, end, int(best[index]), float(probabilities[index, best[index]]))
        for index, (start, end) in enumerate(tokenized.offsets.tolist())
        if start < end
    ]


def _words(
    text: str,
    tokenized: TokenizedText,
    probabilities: NDArray[np.float64],
    strategy: PipelineStrategy,
) -> list[_Unit]:
    words = words_of(text, tokenized.offsets, tokenized.word_ids)
    ends = [word.first_token for word in words[1:]] + [len(tokenized)]
    filled = tokenized.offsets[:, 1] > tokenized.offsets[:, 0]
    units = []
    for word, end in zip(words, ends, strict=True):
        own = probabilities[word.first_token : end][filled[word.first_token : end]]
        of_word = _of_word(own, strategy)
        label = int(of_word.argmax())
        units.append(_Unit(word.start, word.end, label, float(of_word[label])))
    return units


def _of_word(probabilities: NDArray[np.float64], strategy: PipelineStrategy) -> NDArray[np.float64]:
    """[L] that speak for a word, out of [tokens, L]."""
    chosen: NDArray[np.float64]
    if strategy == "first":
        chosen = probabilities[0]
    elif strategy == "max":
        chosen = probabilities[int(probabilities.max(axis=1).argmax())]
    else:
        chosen = probabilities.mean(axis=0)
    return chosen


def _joined(units: Sequence[_Unit], scheme: LabelScheme) -> list[list[_Unit]]:
    groups: list[list[_Unit]] = []
    for unit in units:
        before = groups[-1][-1].label if groups else scheme.outside
        if (
            scheme.types[unit.label] is not None
            and scheme.types[unit.label] == scheme.types[before]
            and not scheme.begins[unit.label]
            and not scheme.ends[before]
        ):
            groups[-1].append(unit)
        else:
            groups.append([unit])
    return groups
