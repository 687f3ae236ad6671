"""Bundles that are read ahead: the same results and errors, and nothing where something is measured."""

from pathlib import Path

import pytest

from model.runtime.bundle import BundleError
from model.runtime.engine_choice import EngineUnavailableError
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from service import bundle_reading
from service.bundle_reading import BundleReader, ReadBundle, StreamsError, begin_reading
from tests.fakes import HANG_LIMIT_S, until
from tests.service.fakes_http import tiny_settings, write_bundles


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the bundles that were read, as often as they were."""
    names: list[str] = []
    read = BundleReader._read

    def note(reader: BundleReader, path: Path, **how: bool) -> ReadBundle:
        names.append(path.name)
        return read(reader, path, **how)

    monkeypatch.setattr(BundleReader, "_read", note)
    return names


def test_what_was_begun_is_read_once_and_in_order(tmp_path: Path, noted: list[str]) -> None:
    """The first model is what the FAQ waits for."""
    folder = write_bundles(tmp_path)
    settings = tiny_settings(folder)
    reader = begin_reading(settings).result(HANG_LIMIT_S)
    for name in ("tiny-ner", "tiny-embedding"):
        read = reader.read(folder / name)
        assert read.bundle.manifest.name == name
        read.engine.close()
    assert noted[:2] == ["tiny-embedding", "tiny-ner"]
    assert len(noted) == len(set(noted))
    reader.read(folder / "tiny-ner").engine.close()
    assert noted.count("tiny-ner") == 2  # asked for again, read again


def test_a_changed_byte_is_refused_whoever_read_it(tmp_path: Path) -> None:
    """The check that fails is named to whoever asks for the model."""
    folder = write_bundles(tmp_path)
    weights = folder / "tiny-embedding" / "encoder.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    settings = tiny_settings(folder)
    reader = begin_reading(settings).result(HANG_LIMIT_S)
    with pytest.raises(BundleError, match="sha256"):
        reader.read(folder / "tiny-embedding")
    reader.read(folder / "tiny-ner").engine.close()
    reader.close()


def test_streams_need_a_thread_each(tmp_path: Path) -> None:
    """Said at the start, with both settings: which of them is wrong is for the operator to know."""
    settings = tiny_settings(write_bundles(tmp_path), threads=2, streams=3)
    with pytest.raises(StreamsError, match=r"CONCHE_STREAMS=3: .* are 2 \(CONCHE_THREADS=2\)"):
        BundleReader.of(settings)


def test_nothing_is_read_ahead_of_a_measurement(tmp_path: Path, noted: list[str]) -> None:
    """What runs beside it would be measured with it, and kept."""
    folder = write_bundles(tmp_path)
    settings = tiny_settings(folder, batching={"max_batch_tokens": "auto"})
    reader = begin_reading(settings).result(HANG_LIMIT_S)
    assert reader.is_to_measure(folder / "tiny-embedding")
    assert noted == []
    reader.read(folder / "tiny-embedding").engine.close()


def test_what_was_compiled_is_kept_where_it_is_read_ahead(tmp_path: Path) -> None:
    """At a start, then; later the interpreter has others to serve."""
    folder = write_bundles(tmp_path)
    settings = tiny_settings(folder, engine="openvino", precision="float32", streams=1)
    kept = tmp_path / "cache" / "engines"

    reader = BundleReader.of(settings, cache_folder=tmp_path / "cache")
    reader.read(folder / "tiny-embedding").engine.close()
    assert not list(kept.glob("*.compiled"))
    reader.begin([folder / "tiny-embedding"])
    reader.read(folder / "tiny-embedding").engine.close()
    assert len(list(kept.glob("*.compiled"))) == 1


async def test_what_nobody_asked_for_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start may fail before it comes to the second model."""
    closed: list[OnnxRuntimeEngine] = []

    def closing(engine: OnnxRuntimeEngine) -> None:
        closed.append(engine)

    monkeypatch.setattr(OnnxRuntimeEngine, "close", closing)
    folder = write_bundles(tmp_path)
    settings = tiny_settings(folder)
    reader = begin_reading(settings).result(HANG_LIMIT_S)
    begun = len(reader._begun)
    assert begun > 1
    reader.close()
    await until(lambda: len(closed) == begun)


def test_an_engine_that_is_not_there_is_told_by_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts the service knows which setting it was."""

    def missing(*_: object, **__: object) -> None:
        raise EngineUnavailableError("not here")

    monkeypatch.setattr(bundle_reading, "EngineChooser", missing)
    with pytest.raises(EngineUnavailableError, match="not here"):
        begin_reading(tiny_settings(tmp_path)).result(HANG_LIMIT_S)
