"""A bundle is written whole and proven, or not at all."""

import dataclasses
import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.export import writer
from model.export.golden import TEXTS, FidelityError
from model.export.graph import GraphModule, trace
from model.export.parity import ParityError
from model.export.writer import (
    ExportError,
    Measured,
    WrittenBundle,
    read_bundle_weights,
    record_quality,
    renew_graph,
    write_bundle,
)
from model.runtime.bundle import Bundle, BundleError
from model.runtime.engine import pad_batch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.tokenization import Tokenizer
from tests.bundles import refresh_manifest
from tests.model.export.models import LABELS, MAX_TOKENS, contents, encoder, tagger


@pytest.fixture(scope="module", autouse=True)
def traced_once() -> Iterator[None]:
    """A traced graph does not depend on weights, and tracing takes seconds: one a kind of model will do."""
    graphs: dict[object, object] = {}

    def once(module: GraphModule) -> object:
        kind = (module.outputs, module.vocab_size)
        if kind not in graphs:
            graphs[kind] = trace(module)
        return graphs[kind]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "trace", once)
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> WrittenBundle:
    """A 4-bit embedding bundle of an encoder whose weights four bits hold exactly."""
    target = tmp_path_factory.mktemp("models") / "small"
    return write_bundle(contents(encoder(grid="q4_block32")), target, storage="q4_block32")


def test_the_bundle_serves_what_pytorch_computes(written: WrittenBundle) -> None:
    """From a text to its vector through the runtime alone, against our encoder in PyTorch."""
    bundle = Bundle.load(written.path)
    tokenizer = Tokenizer.from_bundle(bundle)
    row = tokenizer.tokenize(["how do I return my order"])[0].input_ids
    engine = OnnxRuntimeEngine(bundle, threads=1)
    output = engine.run(pad_batch([row], tokenizer.pad_token_id), ["embeddings_mean_normalized"])
    engine.close()
    ids = torch.from_numpy(row)[None]
    with torch.inference_mode():
        mean = encoder(grid="q4_block32")(ids, torch.ones_like(ids)).mean(dim=1)
    expected = (mean / mean.norm()).numpy()
    np.testing.assert_allclose(output["embeddings_mean_normalized"], expected, rtol=0, atol=1e-5)


def test_the_manifest_says_what_is_there(written: WrittenBundle) -> None:
    """Whoever serves or lists the bundle reads nothing else."""
    manifest = Bundle.load(written.path).manifest
    assert (manifest.name, manifest.task, manifest.dimensions) == ("small", "embedding", 64)
    assert (manifest.pooling, manifest.normalize, manifest.max_tokens) == ("mean", True, 32)
    assert manifest.prompts == {"query": "query: "}
    assert manifest.precision.storage.model_dump() == {
        "embeddings": "q4_block32",
        "linear": "q4_block32",
        "other": "float32",
    }
    assert manifest.architecture.parameters == sum(p.numel() for p in encoder().parameters())
    assert (written.path / "NOTICE").read_text() == "ours\n"


def test_the_parity_report_covers_the_grid(written: WrittenBundle) -> None:
    """Batches 1, 2, 5, 16 and lengths up to the longest input, padded and not, all within tolerance."""
    report = json.loads((written.path / "parity.json").read_text())
    shapes = {(case["batch"], case["sequence"], case["padded"]) for case in report["cases"]}
    assert {(1, 1, False), (16, 32, True), (5, 3, True), (2, 17, False)} <= shapes
    assert all(report["worst"][name] <= limit for name, limit in report["tolerances"].items())
    assert report["worst"]["embeddings_mean_normalized"] <= 1e-5
    assert report["cosine_to_original_weights"]["embeddings_mean_normalized"] == pytest.approx(1, abs=1e-6)


def test_golden_texts_are_those_that_fit(written: WrittenBundle) -> None:
    """The long text has no room in 32 tokens; the others are there in order."""
    golden = json.loads((written.path / "golden.json").read_text())
    assert "好" in golden["texts"]
    assert TEXTS[-1] not in golden["texts"]
    assert golden["texts"] == [text for text in TEXTS if text in golden["texts"]]
    assert {len(vector) for vector in golden["outputs"]["embeddings_cls_normalized"]} == {64}


def test_training_can_start_from_a_bundle(written: WrittenBundle) -> None:
    """The weights come back under our parameters' names, to the bit where the storage is exact."""
    weights = read_bundle_weights(written.path)
    model = encoder(grid="q4_block32")
    assert weights.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(weights[name], parameter.detach().numpy())


@pytest.mark.parametrize("how", ["hard link", "copy", "link"])
def test_a_tagger_may_share_the_tables(
    written: WrittenBundle, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tagger was fine-tuned on the frozen word table, whose file it takes as it is.

    It may be copied elsewhere by itself, unless a link was asked for.
    """

    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    if how == "copy":
        monkeypatch.setattr(Path, "hardlink_to", refused)
    target = written.path.with_name(f"tagger-{how.replace(' ', '-')}")
    result = write_bundle(
        contents(tagger(grid="q4_block32"), target.name),
        target,
        storage="int8_row",
        share_embeddings_of=written.path,
        link_embeddings=how == "link",
    )
    tables, theirs = (path / "embeddings.safetensors" for path in (target, written.path))
    assert tables.samefile(theirs) == (how != "copy")
    assert tables.is_symlink() == (how == "link")
    if how == "link":
        assert tables.readlink() == Path("../small/embeddings.safetensors")
    else:
        assert (
            Bundle.load(shutil.copytree(target, tmp_path / "copy", symlinks=True)).manifest == result.manifest
        )
    manifest = Bundle.load(target).manifest
    assert manifest.labels == LABELS
    assert (manifest.pooling, manifest.dimensions) == (None, None)
    assert manifest.precision.storage.embeddings == "q4_block32"
    assert manifest.precision.storage.linear == "int8_row"
    assert set(result.parity.worst()) == {"logits"}
    assert read_bundle_weights(target)["classifier.weight"].shape == (len(LABELS), 64)


def test_other_tables_are_not_shared(written: WrittenBundle, tmp_path: Path) -> None:
    """A link to tables that differ in one weight would change every answer a little."""
    model = tagger(grid="q4_block32")
    with torch.no_grad():
        model.encoder.embeddings.position.weight[3, 3] += 1e-6
    with pytest.raises(ExportError, match=r"embeddings\.position\.weight"):
        write_bundle(contents(model), written.path.parent / "other", share_embeddings_of=written.path)
    with pytest.raises(ExportError, match="must lie beside"):
        write_bundle(
            contents(model), tmp_path / "other", share_embeddings_of=written.path, link_embeddings=True
        )
    assert sorted(path.name for path in written.path.parent.iterdir() if path.name.startswith(".")) == []


def test_too_coarse_a_storage_is_refused(tmp_path: Path) -> None:
    """Four bits ruin weights that were not made for them; the cosine says so, and nothing is left behind."""
    with pytest.raises(FidelityError, match="finer --storage"):
        write_bundle(contents(encoder()), tmp_path / "bundle", storage="q4_block32")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_off_by_more_than_its_tolerance_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from outside as an error and an empty folder."""
    real = OnnxRuntimeEngine.run

    def slightly_off(self: OnnxRuntimeEngine, *arguments: object) -> object:
        outputs = real(self, *arguments)  # type: ignore[arg-type]
        outputs["embeddings_cls_normalized"] = outputs["embeddings_cls_normalized"] + np.float32(2e-5)
        return outputs

    monkeypatch.setattr(OnnxRuntimeEngine, "run", slightly_off)
    with pytest.raises(
        ParityError, match=r"embeddings_cls_normalized differs by 2\.\d*e-05, more than 1e-05"
    ):
        write_bundle(contents(encoder()), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "my model"}, "cannot be called 'my model'"),
        ({"name": "模型"}, "cannot be called"),
        ({"notices": {"LICENSE (MIT).txt": ""}}, r"LICENSE \(MIT\)\.txt"),
        ({"default_prompt_name": "absent"}, "default_prompt_name 'absent' is not among"),
        ({"max_tokens": MAX_TOKENS + 1}, "max_tokens 41 exceeds"),
    ],
)
def test_what_no_manifest_can_say_is_refused_before_the_slow_part(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model is traced and compared for minutes; the fault is in the command line."""
    monkeypatch.setattr(writer, "trace", lambda _: pytest.fail("traced"))
    with pytest.raises(ExportError, match=message):
        write_bundle(dataclasses.replace(contents(encoder()), **changes), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_is_there_stays_unless_told(written: WrittenBundle) -> None:
    """An export must not destroy what a service may be serving."""
    before = (written.path / "manifest.json").read_bytes()
    with pytest.raises(ExportError, match="exists"):
        write_bundle(contents(encoder()), written.path)
    assert (written.path / "manifest.json").read_bytes() == before


def test_overwriting_keeps_the_old_bundle_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second export that fails leaves the first; one that succeeds replaces it."""
    target = tmp_path / "bundle"
    target.mkdir()
    (target / "old").write_text("old")
    monkeypatch.setattr(writer, "_measure", lambda *_: (_ for _ in ()).throw(ParityError("off")))
    with pytest.raises(ParityError):
        write_bundle(contents(encoder()), target, overwrite=True)
    assert (target / "old").read_text() == "old"
    monkeypatch.undo()
    write_bundle(contents(encoder()), target, overwrite=True)
    Bundle.load(target)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_quality_is_recorded_without_touching_the_rest(tmp_path: Path, written: WrittenBundle) -> None:
    """Figures are measured after the export, through the bundle itself."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in written.path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    record_quality(copy, {"sts": {"spearman_x100": 80.0}})
    record_quality(copy, {"faq": {"accuracy_at_1": 70.0}})
    manifest = Bundle.load(copy).manifest
    assert manifest.quality == {"sts": {"spearman_x100": 80.0}, "faq": {"accuracy_at_1": 70.0}}
    assert manifest.files == written.manifest.files


def test_what_is_measured_on_the_finished_bundle_goes_in_with_it(tmp_path: Path) -> None:
    """A card with figures is part of the bundle from the moment that it has its name, or nothing is there."""
    target = tmp_path / "small"

    def measure(folder: Path) -> Measured:
        assert Bundle.load(folder).manifest.quality == {}
        assert not target.exists()
        return Measured({"set": {"f1": 91.0}}, {"MODEL_CARD.md": "# small\n"})

    written = write_bundle(contents(encoder()), target, measure=measure)
    bundle = Bundle.load(target)
    assert bundle.manifest == written.manifest
    assert bundle.manifest.quality == {"set": {"f1": 91.0}}
    assert bundle.file("MODEL_CARD.md").read_text(encoding="utf-8") == "# small\n"

    def fail(folder: Path) -> Measured:
        raise FloatingPointError

    with pytest.raises(FloatingPointError):
        write_bundle(contents(encoder()), tmp_path / "other", measure=fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]


def test_a_damaged_bundle_gives_no_weights(tmp_path: Path) -> None:
    """Training from half a file would look like training."""
    with pytest.raises(BundleError):
        read_bundle_weights(tmp_path)


def test_padding_is_declared(written: WrittenBundle) -> None:
    """A tokenizer whose padding token has a name of its own must still say which it is."""
    content = json.loads((written.path / "tokenizer.json").read_text(encoding="utf-8"))
    assert content["padding"]["pad_id"] == 0
    assert content["truncation"] is None


def test_a_tokenizer_without_the_padding_token_is_refused(tmp_path: Path) -> None:
    """The model would be padded with some other word."""
    model = encoder(vocab_size=2000, pad_token_id=1999)
    with pytest.raises(ExportError, match="no token 1999"):
        write_bundle(contents(model), tmp_path / "bundle")


def test_a_graph_is_renewed_and_nothing_else(written: WrittenBundle, tmp_path: Path) -> None:
    """The bundle of an older exporter gets today's graph; its weights stay the same, links stay links."""
    models = tmp_path / "models"
    shutil.copytree(written.path, models / "base")
    renewed = models / "small"
    shutil.copytree(written.path, renewed)
    (renewed / "embeddings.safetensors").unlink()
    (renewed / "embeddings.safetensors").symlink_to("../base/embeddings.safetensors")
    (renewed / "graph.onnx").write_bytes(b"of another time")
    refresh_manifest(renewed)
    stale = json.loads((renewed / "manifest.json").read_text())
    kept = {path.name: path.read_bytes() for path in renewed.iterdir()}
    report = renew_graph(renewed)
    assert report.worst()["embeddings_mean_normalized"] <= 1e-5
    changed = {path.name for path in renewed.iterdir() if path.read_bytes() != kept[path.name]}
    assert {"graph.onnx", "manifest.json"} <= changed <= {"graph.onnx", "manifest.json", "parity.json"}
    assert (renewed / "graph.onnx").read_bytes() == (written.path / "graph.onnx").read_bytes()
    assert (renewed / "embeddings.safetensors").is_symlink()
    now = json.loads((renewed / "manifest.json").read_text())
    assert {**now, "files": {}} == {**stale, "files": {}}
    assert "cosine_to_original_weights" in json.loads((renewed / "parity.json").read_text())
    assert [path.name for path in models.iterdir() if path.name.startswith(".")] == []


def test_a_renewed_graph_that_answers_otherwise_is_not_kept(written: WrittenBundle, tmp_path: Path) -> None:
    """The recorded answers decide: the old bundle stays as it was."""
    path = tmp_path / "small"
    shutil.copytree(written.path, path)
    golden = json.loads((path / "golden.json").read_text())
    golden["outputs"]["embeddings_mean_normalized"][0][0] += 0.01
    (path / "golden.json").write_text(json.dumps(golden))
    refresh_manifest(path)
    before = (path / "manifest.json").read_bytes()
    with pytest.raises(BundleError, match="golden"):
        renew_graph(path)
    assert (path / "manifest.json").read_bytes() == before
