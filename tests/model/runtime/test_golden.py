"""A bundle that answers differently here than where it was made is refused, saying in what."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.runtime.bundle import Bundle, BundleError
from model.runtime.engine import Engine, Precision, TokenBatch
from model.runtime.golden import GoldenReport, check_alike, check_golden, prove
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.tokenization import Tokenizer
from tests.bundles import (
    refresh_manifest,
    write_tiny_classifier_bundle,
    write_tiny_embedding_bundle,
    write_tiny_ner_bundle,
    write_tiny_reranker_bundle,
)
from tests.fakes import HANG_LIMIT_S


def check(folder: Path) -> GoldenReport:
    """Load everything in ``folder`` and check it."""
    bundle = Bundle.load(folder)
    return check_golden(bundle, Tokenizer.from_bundle(bundle), OnnxRuntimeEngine(bundle, threads=1))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change ``golden.json`` and give it a fitting digest, as a wrong export would."""
    path = folder / "golden.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    refresh_manifest(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A valid embedding bundle."""
    return write_tiny_embedding_bundle(tmp_path / "tiny")


@pytest.mark.parametrize(
    "write",
    [
        write_tiny_classifier_bundle,
        write_tiny_embedding_bundle,
        write_tiny_ner_bundle,
        write_tiny_reranker_bundle,
    ],
)
def test_a_sound_bundle_passes_and_reports_its_difference(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    """The report goes into the start-up log."""
    report = check(write(tmp_path / "tiny"))
    assert report.texts >= 4
    assert report.max_difference <= 1e-6 < report.tolerance


def test_other_token_ids_name_the_text(folder: Path) -> None:
    """Another tokenizer version; vectors would drift without any error."""
    edit(folder, lambda golden: golden["input_ids"][2].append(3))
    with pytest.raises(BundleError, match="tiny: text 2") as caught:
        check(folder)
    assert caught.value.check == "golden-tokens"


def test_other_token_types_name_the_pair(tmp_path: Path) -> None:
    """A template that lost its segments gives the same ids."""
    folder = write_tiny_reranker_bundle(tmp_path / "tiny")
    edit(folder, lambda golden: golden["token_type_ids"][2].__setitem__(-1, 0))
    with pytest.raises(BundleError, match="text 2 gives other token types") as caught:
        check(folder)
    assert caught.value.check == "golden-tokens"
    refresh_manifest(write_tiny_reranker_bundle(tmp_path / "told-nothing"), pair_token_types=False)
    with pytest.raises(BundleError, match="text 2 gives other token types"):
        check(tmp_path / "told-nothing")


@pytest.mark.parametrize(
    ("write", "output", "where"),
    [
        (write_tiny_embedding_bundle, "embeddings_cls_normalized", (3, 5)),
        (write_tiny_ner_bundle, "logits", (1, 2, 0)),
        (write_tiny_classifier_bundle, "sequence_logits", (3, 1)),
    ],
)
def test_another_value_names_output_and_text(
    tmp_path: Path, write: Callable[[Path], Path], output: str, where: tuple[int, ...]
) -> None:
    """Just over the tolerance of 1e-4."""
    folder = write(tmp_path / "tiny")

    def shift(golden: dict[str, Any]) -> None:
        values = golden["outputs"][output]
        for index in where[:-1]:
            values = values[index]
        values[where[-1]] += 1.5e-4

    edit(folder, shift)
    with pytest.raises(BundleError, match=f"{output} of text {where[0]}") as caught:
        check(folder)
    assert caught.value.check == "golden-outputs"


class FaultyEngine(OnnxRuntimeEngine):
    """Spoils what the real one answers."""

    def __init__(self, bundle: Bundle, spoil: Callable[[TokenBatch, NDArray[np.float32]], None]) -> None:
        """``spoil`` changes an output array in place."""
        super().__init__(bundle, threads=1)
        self._spoil = spoil

    def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """As the real one, then spoilt."""
        arrays = super().run(batch, outputs)
        for array in arrays.values():
            self._spoil(batch, array)
        return arrays


def test_the_proof_runs_as_many_at_a_time_as_there_are_streams(tmp_path: Path) -> None:
    """An engine may compute those in a way of its own; and before them one text by itself, in another."""
    bundle = Bundle.load(write_tiny_embedding_bundle(tmp_path / "tiny"))
    both = threading.Barrier(2, timeout=HANG_LIMIT_S)

    def meet(batch: TokenBatch, array: NDArray[np.float32]) -> None:
        if any(one is batch for one in batches):  # called for each output
            return
        batches.append(batch)
        if len(batches) == 1:
            time.sleep(0.1)
            assert len(batches) == 1, "another one beside the first"
        elif len(batches) < 4:
            both.wait()

    batches: list[TokenBatch] = []
    engine = FaultyEngine(bundle, meet)
    engine.streams = 2
    prove(bundle, Tokenizer.from_bundle(bundle), engine)
    assert len(batches[0].input_ids) == 1
    assert len(batches) >= 3


def only_batches(batch: TokenBatch, array: NDArray[np.float32]) -> None:
    """A graph that lets padding in."""
    if len(batch.input_ids) > 1:
        array[-1] += 0.01


def only_single(batch: TokenBatch, array: NDArray[np.float32]) -> None:
    """A graph whose batch of one takes another path."""
    if len(batch.input_ids) == 1:
        array[0] += 0.01


def not_a_number(_: TokenBatch, array: NDArray[np.float32]) -> None:
    """Compares false with everything, so it would pass a careless check."""
    array[0] = np.nan


@pytest.mark.parametrize("spoil", [only_batches, only_single, not_a_number])
def test_texts_are_run_together_and_alone(
    folder: Path, spoil: Callable[[TokenBatch, NDArray[np.float32]], None]
) -> None:
    """Either alone would miss a fault of the other."""
    bundle = Bundle.load(folder)
    with pytest.raises(BundleError) as caught:
        check_golden(bundle, Tokenizer.from_bundle(bundle), FaultyEngine(bundle, spoil))
    assert caught.value.check == "golden-outputs"


def three_times_as_many(golden: dict[str, Any]) -> None:
    """Have as many texts as shipped bundles do."""
    for name in ("texts", "input_ids"):
        golden[name] *= 3
    golden["outputs"] = {name: output * 3 for name, output in golden["outputs"].items()}


def test_a_start_runs_each_of_many_texts_once(folder: Path) -> None:
    """Some beside each other, with padding, and others alone; an export runs each in both ways."""
    edit(folder, three_times_as_many)
    bundle = Bundle.load(folder)
    tokenizer = Tokenizer.from_bundle(bundle)
    masks: list[NDArray[np.int64]] = []

    def note(batch: TokenBatch, _: NDArray[np.float32]) -> None:
        if not masks or masks[-1] is not batch.attention_mask:  # else another output of the same run
            masks.append(batch.attention_mask)

    engine = FaultyEngine(bundle, note)
    report = check_golden(bundle, tokenizer, engine, once=True)
    assert sum(len(mask) for mask in masks) == report.texts >= 8
    assert {1, 4} == {len(mask) for mask in masks}
    assert any(not mask.all() for mask in masks)
    masks.clear()
    check_golden(bundle, tokenizer, engine)
    assert sum(len(mask) for mask in masks) == 2 * report.texts


@pytest.mark.parametrize("spoil", [only_batches, only_single, not_a_number])
def test_a_start_finds_what_is_wrong_in_either_way(
    folder: Path, spoil: Callable[[TokenBatch, NDArray[np.float32]], None]
) -> None:
    """Running each text once leaves neither way out."""
    edit(folder, three_times_as_many)
    bundle = Bundle.load(folder)
    with pytest.raises(BundleError) as caught:
        prove(bundle, Tokenizer.from_bundle(bundle), FaultyEngine(bundle, spoil))
    assert caught.value.check == "golden-outputs"


@pytest.mark.parametrize(
    "change",
    [
        lambda golden: golden.clear(),
        lambda golden: golden["texts"].pop(),
        lambda golden: golden["outputs"].update(logits=golden["outputs"].popitem()[1]),
        lambda golden: golden.update(tolerance=0),
        lambda golden: golden["input_ids"].__setitem__(0, [5] * 100),
        lambda golden: golden.update(texts=[], input_ids=[], outputs={}),
    ],
    ids=["empty", "one text less", "output of another task", "no tolerance", "over-long", "no texts"],
)
def test_a_golden_file_out_of_shape_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    """A check that checks nothing must not pass."""
    edit(folder, change)
    with pytest.raises(BundleError) as caught:
        check(folder)
    assert caught.value.check == "golden"


def test_a_vector_of_another_length_is_refused(folder: Path) -> None:
    """Numpy would otherwise compare a single number with all."""
    edit(
        folder,
        lambda golden: golden["outputs"].update(embeddings_mean_normalized=[[0.1]] * len(golden["texts"])),
    )
    with pytest.raises(BundleError, match="the manifest promises 32") as caught:
        check(folder)
    assert caught.value.check == "golden-outputs"


def test_golden_vectors_that_are_gone_fail_their_check(folder: Path) -> None:
    """The folder may be replaced while the service starts."""
    bundle = Bundle.load(folder)
    tokenizer, engine = Tokenizer.from_bundle(bundle), OnnxRuntimeEngine(bundle, threads=1)
    (folder / "golden.json").unlink()
    with pytest.raises(BundleError, match=r"tiny/golden\.json") as caught:
        check_golden(bundle, tokenizer, engine)
    assert caught.value.check == "golden"


def test_labels_that_the_graph_does_not_have_are_refused(tmp_path: Path) -> None:
    """A manifest with a label too few would turn every request into an internal error."""
    folder = write_tiny_ner_bundle(tmp_path / "tiny")
    labels = Bundle.load(folder).manifest.labels
    refresh_manifest(folder, labels=labels[:-1])
    with pytest.raises(BundleError, match="the manifest promises") as caught:
        check(folder)
    assert caught.value.check == "golden-outputs"


def in_bfloat16(_: TokenBatch, array: NDArray[np.float32]) -> None:
    """Round to bfloat16's eight bits, to the nearest."""
    bits = array.view(np.uint32)
    array[...] = ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def in_two_bits(_: TokenBatch, array: NDArray[np.float32]) -> None:
    """Too coarse to be the same vector."""
    array[...] = np.round(array * 4) / 4


def inexact(folder: Path, spoil: Callable[[TokenBatch, NDArray[np.float32]], None]) -> tuple[Bundle, Engine]:
    """A bundle, and an engine that says it computes in bfloat16."""
    bundle = Bundle.load(folder)
    engine = FaultyEngine(bundle, spoil)
    engine.precision: Precision = "bfloat16"
    return bundle, engine


@pytest.mark.parametrize("write", [write_tiny_embedding_bundle, write_tiny_ner_bundle])
def test_bfloat16_is_alike_and_not_equal(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """Rounding of that size misses the tolerance of float32, and is what the other check allows."""
    bundle, engine = inexact(write(tmp_path / "tiny"), in_bfloat16)
    tokenizer = Tokenizer.from_bundle(bundle)
    assert 0.9999 < check_alike(bundle, tokenizer, engine).least_cosine < 1
    prove(bundle, tokenizer, engine)
    with pytest.raises(BundleError, match="is off by"):
        check_golden(bundle, tokenizer, engine)


@pytest.mark.parametrize("spoil", [in_two_bits, only_batches, only_single, not_a_number])
def test_what_is_not_alike_is_refused(
    folder: Path,
    spoil: Callable[[TokenBatch, NDArray[np.float32]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a batch, alone, or for not being a number; small faults by a cosine that only equals have."""
    if spoil in {only_batches, only_single}:
        monkeypatch.setattr("model.runtime.golden.LEAST_COSINE", 0.99999)
    bundle, engine = inexact(folder, spoil)
    with pytest.raises(BundleError, match="has cosine") as caught:
        prove(bundle, Tokenizer.from_bundle(bundle), engine)
    assert caught.value.check == "golden-outputs"


def test_float32_is_never_held_to_less_than_its_tolerance(folder: Path) -> None:
    """Whichever engine it is."""
    bundle = Bundle.load(folder)
    with pytest.raises(BundleError, match="is off by"):
        prove(bundle, Tokenizer.from_bundle(bundle), FaultyEngine(bundle, in_bfloat16))


def test_other_entities_are_refused_however_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One label of a long text hardly moves a cosine; these texts are short, so the cosine is let go."""
    monkeypatch.setattr("model.runtime.golden.LEAST_COSINE", 0.5)

    def nobody(_: TokenBatch, array: NDArray[np.float32]) -> None:
        """The second token of each text gets a little more of another label than of its own."""
        array[:, 1, 5] = array[:, 1].max(axis=-1) + 0.1
        array[:, 1, :5] /= 2

    bundle, engine = inexact(write_tiny_ner_bundle(tmp_path / "tiny"), nobody)
    with pytest.raises(BundleError, match="gives other entities"):
        check_alike(bundle, Tokenizer.from_bundle(bundle), engine)
