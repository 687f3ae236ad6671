"""Golden vectors: a bundle's own proof, checked at every start.

They catch what digests cannot: a tokenizer or engine of another version that answers differently here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model.runtime.bundle import Bundle, BundleError, LabelActivation, reading
from model.runtime.crf import LinearChainCrf
from model.runtime.decoding import SequenceDecoder
from model.runtime.engine import OUTPUT_NAMES, PER_TOKEN_OUTPUTS, Engine, pad_batch
from model.runtime.label_schemes import LabelScheme
from model.runtime.label_scores import label_scores
from model.runtime.sequences import TokenSequence, read_sequences
from model.runtime.tagging import find_entities
from model.runtime.tokenization import TokenizedText, Tokenizer

GOLDEN_NAME = "golden.json"
LEAST_COSINE: Final = 0.999
"""Of each golden text's output in bfloat16 with the one in ``golden.json``."""
LARGEST_SCORE_DIFFERENCE: Final = 0.02
"""Of each label's score of a whole text, the same; the cosine of a single logit says nothing."""

# Of so many texts or more some are run together and the others alone, with which both ways are tried.
_FEWEST_TO_SHARE: Final = 8
_TOGETHER: Final = 4


class Golden(BaseModel):
    """What ``golden.json`` holds, one entry per text throughout.

    Attributes:
        tolerance: largest absolute difference allowed.
        texts: tokenised without a prefix.
        second_texts: of pairs; None for a text by itself, or throughout.
        input_ids: [S_i] per text.
        token_type_ids: [S_i] per text; None = all 0.
        outputs: by output name; [H] or [L] per text, [S_i, L] if per token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tolerance: float = Field(gt=0)
    texts: list[str] = Field(min_length=1)
    second_texts: list[str | None] | None = None
    input_ids: list[list[int]]
    token_type_ids: list[list[int]] | None = None
    outputs: dict[str, list[list[float]] | list[list[list[float]]]] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """Outcome of a check that passed; ``max_difference`` is the largest absolute one, over all outputs."""

    texts: int
    outputs: tuple[str, ...]
    tolerance: float
    max_difference: float


@dataclass(frozen=True, slots=True)
class LikenessReport:
    """Outcome of a check that passed; ``least_cosine`` is the smallest, over all texts and outputs."""

    texts: int
    outputs: tuple[str, ...]
    least_cosine: float


def check_golden(bundle: Bundle, tokenizer: Tokenizer, engine: Engine, *, once: bool = False) -> GoldenReport:
    """Tokenise and run the golden texts, in padded batches and one by one, and compare.

    Args:
        bundle: whose texts they are.
        tokenizer: of the bundle.
        engine: that computes in float32.
        once: run each of many texts once, some in a padded batch and the others one by one.

    Raises:
        BundleError: check "golden" (the file itself), "golden-tokens" or "golden-outputs", naming the text.
    """
    golden, tokenized = _tokenise(bundle, tokenizer)
    largest = 0.0
    for name, index, actual in _answers(golden, tokenized, tokenizer.pad_token_id, engine, once=once):
        largest = max(largest, _compare(bundle, golden, name, index, actual))
    return GoldenReport(len(tokenized), tuple(sorted(golden.outputs)), golden.tolerance, largest)


def check_alike(
    bundle: Bundle, tokenizer: Tokenizer, engine: Engine, *, once: bool = False
) -> LikenessReport:
    """Hold an engine that computes less exactly than float32 to what its answers are for.

    The golden texts are run as by ``check_golden``. Each text's output has a cosine of at least
    ``LEAST_COSINE`` with the golden one, a tagger finds the same entities, and scores of whole texts are
    within ``LARGEST_SCORE_DIFFERENCE``.

    Raises:
        BundleError: as ``check_golden``.
    """
    golden, tokenized = _tokenise(bundle, tokenizer)
    least = 1.0
    decoder = _decoder(bundle) if bundle.manifest.task == "token-classification" else None
    words = [] if decoder is None else tokenizer.tokenize(golden.texts)
    for name, index, actual in _answers(golden, tokenized, tokenizer.pad_token_id, engine, once=once):
        expected = np.array(golden.outputs[name][index], dtype=np.float64)
        where = f"{bundle.path.name}: {name} of text {index}"
        if actual.shape != expected.shape:
            raise BundleError("golden-outputs", f"{where} has shape {actual.shape}, not {expected.shape}")
        with np.errstate(invalid="ignore", divide="ignore"):
            product = np.vdot(actual.astype(np.float64), expected)
            cosine = float(product / (np.linalg.norm(expected) * np.linalg.norm(actual)))
        if not cosine >= LEAST_COSINE:  # written so that what is no number fails, too
            raise BundleError("golden-outputs", f"{where} has cosine {cosine:.5f}, under {LEAST_COSINE}")
        least = min(least, cosine)
        if decoder is not None:
            text, own = golden.texts[index], words[index]
            if _entities(text, own, actual, decoder) != _entities(text, own, expected, decoder):
                raise BundleError("golden-outputs", f"{where} gives other entities")
        if bundle.manifest.label_activation is not None:
            # By the sigmoid where a bundle has bare logits, whose range nobody knows.
            bounded: LabelActivation = (
                "softmax" if bundle.manifest.label_activation == "softmax" else "sigmoid"
            )
            before, after = (
                label_scores(one.astype(np.float32)[None], bounded) for one in (expected, actual)
            )
            if not (difference := float(np.abs(before - after).max())) <= LARGEST_SCORE_DIFFERENCE:
                raise BundleError("golden-outputs", f"{where} gives scores that are off by {difference:.3g}")
    return LikenessReport(len(tokenized), tuple(sorted(golden.outputs)), least)


def prove(bundle: Bundle, tokenizer: Tokenizer, engine: Engine) -> None:
    """Check an engine as strictly as its precision allows: ``check_golden`` or ``check_alike``.

    Each text is run once, for somebody waits; the bundle's export ran them all in both ways.

    Raises:
        BundleError: it does not pass.
    """
    if engine.precision == "float32":
        check_golden(bundle, tokenizer, engine, once=True)
    else:
        check_alike(bundle, tokenizer, engine, once=True)


def _tokenise(bundle: Bundle, tokenizer: Tokenizer) -> tuple[Golden, list[TokenSequence]]:
    golden = _read(bundle)
    seconds = golden.second_texts or [None] * len(golden.texts)
    items = [
        first if second is None else (first, second)
        for first, second in zip(golden.texts, seconds, strict=True)
    ]
    tokenized = read_sequences(tokenizer, items, token_types=bundle.manifest.pair_token_types)
    for index, text in enumerate(tokenized):
        types = [0] * len(text) if golden.token_type_ids is None else golden.token_type_ids[index]
        if text.input_ids.tolist() != golden.input_ids[index]:
            raise BundleError("golden-tokens", f"{bundle.path.name}: text {index} gives other token ids")
        if text.token_type_ids.tolist() != types:
            raise BundleError("golden-tokens", f"{bundle.path.name}: text {index} gives other token types")
    for name in golden.outputs:
        _check_width(bundle, golden, name)
    return golden, tokenized


def _answers(
    golden: Golden, tokenized: list[TokenSequence], pad_token_id: int, engine: Engine, *, once: bool
) -> Iterator[tuple[str, int, NDArray[np.float32]]]:
    """(output, text, what the engine gives) of each text, in a padded batch or alone or both."""
    names = sorted(golden.outputs)
    runs = sorted(_runs(tokenized, once=once), key=len)

    def arrays_of(indices: list[int]) -> dict[str, NDArray[np.float32]]:
        batch = pad_batch(
            [tokenized[index].input_ids for index in indices],
            pad_token_id,
            token_types=[tokenized[index].token_type_ids for index in indices],
        )
        return engine.run(batch, names)

    # An engine may compute a text by itself in one way, and in another runs beside each other, of which there
    # are as many as there will be at work.
    with ThreadPoolExecutor(engine.streams, thread_name_prefix="conche-golden") as callers:
        by_itself = callers.submit(arrays_of, runs[0]).result()
        for indices, arrays in zip(runs, chain([by_itself], callers.map(arrays_of, runs[1:])), strict=True):
            for name in names:
                for place, index in enumerate(indices):
                    # The rest of a padded row means nothing.
                    own = slice(len(tokenized[index].input_ids)) if name in PER_TOKEN_OUTPUTS else slice(None)
                    yield name, index, arrays[name][place][own]


def _runs(tokenized: Sequence[TokenSequence], *, once: bool) -> list[list[int]]:
    """Which texts to run together: all in padded batches and then alone, or each of them once.

    Neither puts all texts into a batch: one long text would be most of a start. The shipped models' come to
    16 rows of 164 and 199 tokens, and 428 and 500 tokens without padding.
    """
    order = sorted(range(len(tokenized)), key=lambda index: len(tokenized[index]))
    if once and len(order) >= _FEWEST_TO_SHARE:
        # The shortest with longer ones, but the longest: padding is to be there, not to be paid for.
        together = [order[place * (len(order) - 2) // (_TOGETHER - 1)] for place in range(_TOGETHER)]
        return [together, *([index] for index in order if index not in together)]
    padded = [order] if len(order) < 4 else [[order[0], order[-1]], order[1:-1]]
    return [*padded, *([index] for index in range(len(order)))]


def _decoder(bundle: Bundle) -> SequenceDecoder:
    manifest = bundle.manifest
    try:
        scheme = LabelScheme.from_labels(manifest.labels, manifest.label_scheme)
        return SequenceDecoder(scheme, LinearChainCrf.from_bundle(bundle))
    except ValueError as error:
        raise BundleError("golden", f"{bundle.path.name}: {error}") from error


def _entities(
    text: str, tokenized: TokenizedText, logits: NDArray[np.floating], decoder: SequenceDecoder
) -> list[tuple[int, int, str]]:
    found = find_entities(text, tokenized.offsets, tokenized.word_ids, logits.astype(np.float32), decoder)
    return [(entity.start, entity.end, entity.label) for entity in found]


def _read(bundle: Bundle) -> Golden:
    where = f"{bundle.path.name}/{GOLDEN_NAME}"
    with reading("golden", where):
        content = bundle.file(GOLDEN_NAME).read_bytes()
    try:
        golden = Golden.model_validate_json(content)
    except ValidationError as error:
        raise BundleError("golden", f"{where}: {error}") from error
    counts = {len(golden.texts), len(golden.input_ids), *(len(rows) for rows in golden.outputs.values())}
    counts |= {len(one) for one in (golden.second_texts, golden.token_type_ids) if one is not None}
    if len(counts) != 1:
        raise BundleError("golden", f"{where} has lists of different lengths: {sorted(counts)}")
    unknown = sorted(set(golden.outputs) - set(OUTPUT_NAMES[bundle.manifest.task]))
    if unknown:
        raise BundleError("golden", f"{where} names outputs that the task does not have: {unknown}")
    longest = max(len(ids) for ids in golden.input_ids)
    if longest > bundle.manifest.max_tokens:
        raise BundleError("golden", f"{where} has a text of {longest} tokens, over max_tokens")
    return golden


def _check_width(bundle: Bundle, golden: Golden, name: str) -> None:
    """Hold the manifest's labels and dimensions to what the graph gives.

    Raises:
        BundleError: they differ; every answer would be wrong or fail.
    """
    manifest = bundle.manifest
    promised = manifest.dimensions if manifest.task == "embedding" else len(manifest.labels)
    given = np.array(golden.outputs[name][0]).shape[-1]
    if given != promised:
        raise BundleError(
            "golden-outputs",
            f"{bundle.path.name}: {name} has {given} numbers, the manifest promises {promised}",
        )


def _compare(bundle: Bundle, golden: Golden, name: str, index: int, actual: NDArray[np.float32]) -> float:
    """Largest absolute difference of one text's output.

    Raises:
        BundleError: it exceeds the tolerance, is not a number, or the shapes differ.
    """
    expected = np.array(golden.outputs[name][index], dtype=np.float64)
    where = f"{bundle.path.name}: {name} of text {index}"
    if actual.shape != expected.shape:
        raise BundleError("golden-outputs", f"{where} has shape {actual.shape}, not {expected.shape}")
    difference = float(np.abs(actual - expected).max(initial=0.0))
    # Written so that a NaN, which compares false with everything, fails.
    if not difference <= golden.tolerance:
        raise BundleError(
            "golden-outputs", f"{where} is off by {difference:.3g}, over {golden.tolerance:.3g}"
        )
    return difference
