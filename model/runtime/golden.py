"""Golden vectors: a bundle's own proof, checked at every start.

They catch what digests cannot: a tokenizer or engine of another version that answers differently here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model.runtime.bundle import Bundle, BundleError, reading
from model.runtime.engine import OUTPUT_NAMES, Engine, pad_batch
from model.runtime.tokenization import Tokenizer

GOLDEN_NAME = "golden.json"


class Golden(BaseModel):
    """What ``golden.json`` holds, one entry per text throughout.

    Attributes:
        tolerance: largest absolute difference allowed.
        texts: tokenised without a prefix.
        input_ids: [S_i] per text.
        outputs: by output name; [H] per text if pooled, [S_i, L] if per token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tolerance: float = Field(gt=0)
    texts: list[str] = Field(min_length=1)
    input_ids: list[list[int]]
    outputs: dict[str, list[list[float]] | list[list[list[float]]]] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """Outcome of a check that passed; ``max_difference`` is the largest absolute one, over all outputs."""

    texts: int
    outputs: tuple[str, ...]
    tolerance: float
    max_difference: float


def check_golden(bundle: Bundle, tokenizer: Tokenizer, engine: Engine) -> GoldenReport:
    """Tokenise and run the golden texts, as one padded batch and one by one, and compare.

    Raises:
        BundleError: check "golden" (the file itself), "golden-tokens" or "golden-outputs", naming the text.
    """
    golden = _read(bundle)
    rows = []
    for index, tokenized in enumerate(tokenizer.tokenize(golden.texts)):
        if tokenized.input_ids.tolist() != golden.input_ids[index]:
            raise BundleError("golden-tokens", f"{bundle.path.name}: text {index} gives other token ids")
        rows.append(tokenized.input_ids)
    names = sorted(golden.outputs)
    for name in names:
        _check_width(bundle, golden, name)
    largest = 0.0
    everything = list(range(len(rows)))
    for indices in (everything, *([index] for index in everything)):
        arrays = engine.run(pad_batch([rows[index] for index in indices], tokenizer.pad_token_id), names)
        for name in names:
            for place, index in enumerate(indices):
                largest = max(largest, _compare(bundle, golden, name, index, arrays[name][place]))
    return GoldenReport(len(rows), tuple(names), golden.tolerance, largest)


def _read(bundle: Bundle) -> Golden:
    where = f"{bundle.path.name}/{GOLDEN_NAME}"
    with reading("golden", where):
        content = bundle.file(GOLDEN_NAME).read_bytes()
    try:
        golden = Golden.model_validate_json(content)
    except ValidationError as error:
        raise BundleError("golden", f"{where}: {error}") from error
    counts = {len(golden.texts), len(golden.input_ids), *(len(rows) for rows in golden.outputs.values())}
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
    if expected.ndim == 2:
        actual = actual[: len(golden.input_ids[index])]  # the rest of a padded row means nothing
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
