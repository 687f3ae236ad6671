"""service.lifespan: what is opened, within which bounds, and how it is closed."""

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from model.runtime import openvino_engine, threads
from model.runtime.batch_budget import BudgetTuner
from model.runtime.bundle import Bundle
from model.runtime.engine_choice import EngineChooser
from service import lifespan
from service.bundle_reading import BundleReader
from service.errors import UnavailableError
from service.faq.calibration import texts_to_measure
from service.faq.entries import FaqEntry
from service.faq.store import FaqStore
from service.inference import EmbeddingOptions
from service.lifespan import Services, StartupError, open_services
from service.metrics import Metrics
from service.settings import Settings
from tests.bundles import refresh_manifest
from tests.fakes import HANG_LIMIT_S, FakeEngine, until
from tests.service.fakes_http import running, tiny_settings, write_bundles


@pytest.mark.parametrize(("quota", "workers"), [(1.5, 2), (3.0, 3)])
async def test_threads_follow_the_quota(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, quota: float, workers: int
) -> None:
    """The pool of asyncio is sized by the cores of the host, of which a container may have a few."""
    monkeypatch.setattr(threads, "_affinity", lambda: 64)
    monkeypatch.setattr(threads, "cgroup_quota", lambda *_: quota)
    gate = threading.Event()
    busy: set[str] = set()

    def work() -> None:
        busy.add(threading.current_thread().name)
        gate.wait(HANG_LIMIT_S)

    async with open_services(tiny_settings(models_folder, threads="auto"), Metrics()) as services:
        assert services.threads == int(quota)
        jobs = [asyncio.create_task(asyncio.to_thread(work)) for _ in range(20)]
        await until(lambda: len(busy) == workers)
        gate.set()
        await asyncio.gather(*jobs)
    assert len(busy) == workers


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
async def test_streams_change_when_answers_come_and_not_what_they_are(
    models_folder: Path, engine: str
) -> None:
    """Requests of both models at once, each divided between two runs at a time."""
    texts = [["hello world"] * 3 + ["怎么退货"] * 2, ["cat " * 40], ["return order", "hello"]]

    async def answers(expected_streams: int, **changes: object) -> list[object]:
        settings = tiny_settings(models_folder, faq_store="none", engine=engine, **changes)
        async with running(settings) as client:
            requests = [
                client.post(path, json={"inputs": one}) for one in texts * 4 for path in ("/embed", "/ner")
            ]
            found = await asyncio.gather(*requests)
            assert {answer.status_code for answer in found} == {200}
            assert (await client.get("/info")).json()["streams"] == expected_streams
            return [answer.json() for answer in found]

    together = await answers(2, threads=2, streams=2)
    by_itself = await answers(2 if engine == "onnxruntime" else 1, threads=2)
    for one, other in zip(together + by_itself, 2 * await answers(1, threads=1), strict=True):
        if isinstance(one[0], list) and one[0] and isinstance(one[0][0], float):  # type: ignore[index]
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)  # type: ignore[arg-type]
        else:
            assert _rounded(one) == _rounded(other)


async def test_openvino_follows_the_load_and_answers_as_before(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches at a time while clients wait for each other, one afterwards; no request is lost on the way.

    Needs two cores, as streams do.
    """
    real = openvino_engine._Form.infer

    def infer(*arguments: Any) -> dict[str, NDArray[np.float32]]:
        time.sleep(0.01)  # a model that takes no time is never at work
        return real(*arguments)

    monkeypatch.setattr(openvino_engine._Form, "infer", infer)
    texts = ["hello world", "怎么退货", "cat " * 40]
    settings = tiny_settings(models_folder, faq_store="none", engine="openvino", threads=2)
    async with running(settings) as client:

        async def streams() -> dict[str, str]:
            lines = (await client.get("/metrics")).text
            return dict(re.findall(r'(?m)^conche_inference_streams\{model="(.*)"\} (\S+)$', lines))

        async def vectors() -> object:
            answer = await client.post("/embed", json={"inputs": texts})
            assert answer.status_code == 200
            return answer.json()

        async def keep_asking() -> None:
            while not done.is_set():
                np.testing.assert_allclose(await vectors(), expected, rtol=0, atol=1e-5)  # type: ignore[arg-type]

        expected, done = await vectors(), asyncio.Event()
        at_rest = await streams()
        assert set(at_rest.values()) == {"1.0"}
        callers = [asyncio.create_task(keep_asking()) for _ in range(6)]
        await _until_it_is(streams, {**at_rest, "tiny-embedding": "2.0"})  # the others have nothing to do
        assert (await client.get("/info")).json()["streams"] == 2
        done.set()
        await asyncio.gather(*callers)
        await _until_it_is(streams, at_rest)
        np.testing.assert_allclose(await vectors(), expected, rtol=0, atol=1e-5)  # type: ignore[arg-type]


async def _until_it_is(read: Callable[[], Awaitable[object]], value: object) -> None:
    async with asyncio.timeout(HANG_LIMIT_S):
        while await read() != value:  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.01)


def _rounded(value: object) -> object:
    """As JSON has it, with scores to five places."""
    return json.loads(json.dumps(value), parse_float=lambda number: round(float(number), 5))


async def test_where_openvino_runs_all_models_there_is_no_onnx_runtime(models_folder: Path) -> None:
    """20 MiB that nothing would use."""
    program = f"""
import asyncio, json, sys
from pathlib import Path
from tests.service.fakes_http import running, tiny_settings

async def main():
    async with running(tiny_settings(Path({str(models_folder)!r}), engine="openvino")) as client:
        assert (await client.get("/readyz")).status_code == 200
        vectors = (await client.post("/embed", json={{"inputs": ["hello world"]}})).json()
        found = (await client.post("/search", json={{"query": "return order"}})).json()
    print(json.dumps([vectors, found["results"][0]["hits"][0]["id"], "onnxruntime" in sys.modules]))

asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=3 * HANG_LIMIT_S,
        cwd=Path(__file__).parents[2],
    )
    vectors, first_hit, imported = json.loads(done.stdout.splitlines()[-1])
    assert not imported
    assert first_hit == "refund"
    async with running(tiny_settings(models_folder)) as client:
        expected = await client.post("/embed", json={"inputs": ["hello world"]})
    np.testing.assert_allclose(vectors, expected.json(), rtol=0, atol=1e-5)


async def test_the_tagger_is_loaded_beside_the_faq(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves the processor to the other for half of its time, and somebody waits for the start."""
    both = threading.Barrier(2, timeout=HANG_LIMIT_S)
    read, open_store = BundleReader.read, lifespan.open_faq_store

    def read_beside(reader: BundleReader, path: Path) -> object:
        if path.name == "tiny-ner":
            both.wait()
        return read(reader, path)

    def open_store_beside(settings: Settings, folder: Path) -> FaqStore:
        both.wait()
        return open_store(settings, folder)

    monkeypatch.setattr(BundleReader, "read", read_beside)
    monkeypatch.setattr(lifespan, "open_faq_store", open_store_beside)
    settings = tiny_settings(models_folder, faq_file="none")
    async with open_services(settings, Metrics()) as services:
        assert services.tagger is not None
        assert services.catalogue is not None


@pytest.mark.parametrize("measures", [EngineChooser, BudgetTuner])
async def test_a_model_that_is_measured_is_loaded_before_the_faq(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, measures: type
) -> None:
    """Embedding beside it takes the cores that are measured, and what comes of it is kept."""
    order: list[str] = []
    asked: list[str] = []
    read, open_store = BundleReader.read, lifespan.open_faq_store

    def note_read(reader: BundleReader, path: Path) -> object:
        found = read(reader, path)
        order.append(path.name)
        return found

    def note_store(settings: Settings, folder: Path) -> FaqStore:
        order.append("store")
        return open_store(settings, folder)

    def is_to_measure(_: object, bundle: Bundle) -> bool:
        asked.append(bundle.manifest.name)
        return bundle.manifest.name == "tiny-classifier"

    monkeypatch.setattr(measures, "is_to_measure", is_to_measure)
    monkeypatch.setattr(BundleReader, "read", note_read)
    monkeypatch.setattr(lifespan, "open_faq_store", note_store)
    async with open_services(tiny_settings(models_folder, faq_file="none"), Metrics()):
        pass
    assert asked == ["tiny-ner", "tiny-classifier"]
    assert order == ["tiny-embedding", "tiny-ner", "tiny-classifier", "store"]


async def test_a_broken_tagger_is_told_of_before_the_faq_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embedding a large FAQ takes minutes; what it was at is given up, and closed."""
    folder = write_bundles(tmp_path)
    (folder / "tiny-ner" / "manifest.json").write_text("{}", encoding="utf-8")
    given_up = asyncio.Event()
    stores: list[FaqStore] = []
    read, open_store = BundleReader.read, lifespan.open_faq_store
    loop = asyncio.get_running_loop()
    begun = threading.Event()

    def read_late(reader: BundleReader, path: Path) -> object:
        if path.name == "tiny-ner":
            begun.wait(HANG_LIMIT_S)
        return read(reader, path)

    def keep_store(settings: Settings, folder: Path) -> FaqStore:
        stores.append(open_store(settings, folder))
        return stores[-1]

    async def embed_for_ever(*_: object, **__: object) -> None:
        begun.set()
        try:
            await loop.create_future()
        finally:
            given_up.set()

    monkeypatch.setattr(BundleReader, "read", read_late)
    monkeypatch.setattr(lifespan, "open_faq_store", keep_store)
    monkeypatch.setattr(lifespan, "bring_in", embed_for_ever)
    async with asyncio.timeout(HANG_LIMIT_S):
        with pytest.raises(StartupError, match="/ner: CONCHE_NER_BUNDLE: bundle tiny-ner is refused"):
            async with open_services(tiny_settings(folder), Metrics()):
                pass
    assert given_up.is_set()
    with pytest.raises(UnavailableError, match="closed"):
        stores[0].collections()


async def test_a_broken_faq_is_told_of_while_the_tagger_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be stopped; nobody waits for it."""
    folder = write_bundles(tmp_path)
    (folder / "faq.jsonl").write_text(UNREADABLE, encoding="utf-8")
    gate = threading.Event()
    ended: list[Path] = []
    read = BundleReader.read

    def read_for_ever(reader: BundleReader, path: Path) -> object:
        if path.name == "tiny-ner":
            gate.wait(HANG_LIMIT_S)
            ended.append(path)
        return read(reader, path)

    monkeypatch.setattr(BundleReader, "read", read_for_ever)
    try:
        with pytest.raises(StartupError, match="/search: CONCHE_FAQ_FILE: "):
            async with open_services(tiny_settings(folder), Metrics()):
                pass
        assert ended == []
    finally:
        gate.set()


UNREADABLE = '{"id": "blank", "question": "\\u200b", "answer": "Nobody can ask for it."}\n'


async def test_an_faq_entry_that_the_model_cannot_read_stops_the_start_with_its_name(tmp_path: Path) -> None:
    """One line that an operator can act on, and no traceback."""
    folder = write_bundles(tmp_path)
    (folder / "faq.jsonl").write_text(UNREADABLE, encoding="utf-8")
    with pytest.raises(
        StartupError, match=r"/search: CONCHE_FAQ_FILE: .*faq.jsonl cannot be used: .*'blank'"
    ):
        async with running(tiny_settings(folder)):
            pass


async def test_an_faq_entry_that_the_model_cannot_read_leaves_the_rest_served(tmp_path: Path) -> None:
    """If that is what the settings say; the probe is red, so somebody looks."""
    folder = write_bundles(tmp_path)
    (folder / "faq.jsonl").write_text(UNREADABLE, encoding="utf-8")
    async with running(tiny_settings(folder, on_bundle_error="serve")) as client:
        assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 200
        assert (await client.post("/search", json={"query": "hello"})).status_code == 503
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "'blank'" in " ".join(answer.json()["reasons"])


async def test_a_tokenising_thread_that_hangs_turns_the_probe_red(client: httpx.AsyncClient) -> None:
    """Every route would wait for it, so another process has to take over."""
    services: Services = client.app.state.services  # type: ignore[attr-defined]
    assert services.embedder is not None
    services.embedder._model._budget.lane(1).give_up("tokenising hangs")
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert "tokenising hangs" in " ".join(answer.json()["reasons"])
    assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 503
    page = (await client.get("/metrics")).text
    assert 'conche_model_healthy{model="tiny-embedding"} 0.0' in page
    assert 'conche_model_healthy{model="tiny-ner"} 0.0' in page


@pytest.mark.parametrize("fault", ["hang", "raise", "nan"])
async def test_a_model_that_is_lost_turns_the_probe_red_and_is_told_of(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Whatever the engine does: callers get 503 and when to come back, and the server learns of it."""
    engine = FakeEngine(size=32)
    monkeypatch.setattr("model.runtime.engine_choice.open_engine", lambda *_, **__: engine)
    monkeypatch.setattr("model.runtime.engine_choice.prove", lambda *_: None)
    settings = tiny_settings(models_folder, faq_store="none", batching={"stall_timeout_seconds": 0.02})
    async with running(settings) as client:
        services: Services = client.app.state.services  # type: ignore[attr-defined]
        assert (await client.get("/readyz")).status_code == 200
        assert services.lost() == []
        if fault == "hang":
            engine.gate.clear()
        elif fault == "raise":
            engine.error = RuntimeError("out of order")
        else:
            engine.broken = True
        for _ in range(2):  # the one that finds out, and the next
            answer = await client.post("/embed", json={"inputs": "hello"})
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/livez")).status_code == 200
        assert services.lost()[0].startswith("tiny-embedding: ")
        engine.gate.set()


async def test_a_bundle_that_failed_at_the_start_is_not_lost(tmp_path: Path) -> None:
    """Another start would find it as this one did; the process would end again and again."""
    folder = write_bundles(tmp_path)
    (folder / "tiny-ner" / "manifest.json").unlink()
    settings = tiny_settings(folder, on_bundle_error="serve", faq_store="none")
    async with open_services(settings, Metrics()) as services:
        assert services.not_ready()
        assert services.lost() == []


async def test_closing_takes_no_longer_than_the_grace(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orchestrator kills what is still there when its own patience ends."""
    engine = FakeEngine(size=32)
    monkeypatch.setattr("model.runtime.engine_choice.open_engine", lambda *_, **__: engine)
    monkeypatch.setattr("model.runtime.engine_choice.prove", lambda *_: None)
    settings = tiny_settings(models_folder, faq_store="none", shutdown_grace_seconds=0)
    async with asyncio.timeout(HANG_LIMIT_S):  # less than the batcher's own patience
        async with open_services(settings, Metrics()) as services:
            assert services.embedder is not None
            engine.gate.clear()
            call = asyncio.create_task(services.embedder.embed(["hello"], EmbeddingOptions()))
            await until(lambda: engine.entered == 1)
        with pytest.raises(UnavailableError, match="shutting down"):
            await call
    engine.gate.set()


async def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    """Entries, deletions and settings; the file that filled the collection does not undo them."""
    settings = tiny_settings(write_bundles(tmp_path))
    async with open_services(settings, Metrics()) as services:
        assert services.catalogue is not None
        await services.catalogue.delete("default", ids=["refund"])
        await services.catalogue.upsert("shop", [FaqEntry(id="a", question="my order", answer="")])
    async with open_services(settings, Metrics()) as services:
        assert services.catalogue is not None
        assert [info.name for info in await services.catalogue.collections()] == ["default", "shop"]
        entries, _ = await services.catalogue.page("default", after=None, limit=10)
        assert [entry.id for entry in entries] == ["password", "delivery"]
        [found] = await services.catalogue.search("shop", ["my order"])
        assert [one.hit.id for one in found.hits] == ["a"]


async def test_the_second_start_does_not_measure_the_model_again(tmp_path: Path) -> None:
    """Nor embed anything: what the first one came to is in the data folder."""
    settings = tiny_settings(write_bundles(tmp_path), data_dir=tmp_path / "fresh")
    texts = []
    for _ in range(2):
        metrics = Metrics()
        async with open_services(settings, metrics):
            page = metrics.render()[0].decode()
            texts.append(float(re.findall(r'conche_texts_total{model="tiny-embedding"} (\S+)', page)[0]))
    assert texts[0] > len(texts_to_measure())
    assert texts[1] == 0


async def test_a_damaged_store_stops_the_start_with_its_name(tmp_path: Path) -> None:
    """Rather than a service that answers nothing, or one that begins anew over somebody's entries."""
    settings = tiny_settings(write_bundles(tmp_path))
    (settings.data_dir / "faq.sqlite").write_bytes(b"no database at all")
    with pytest.raises(StartupError, match=r"/search: .*faq\.sqlite.*CONCHE_DATA_DIR"):
        async with open_services(settings, Metrics()):
            pass
    assert (settings.data_dir / "faq.sqlite").read_bytes() == b"no database at all"


async def test_callers_learn_that_the_store_failed_and_not_where_it_lies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A code of its own, and no folder of this machine in any answer; the log names them."""
    folder = write_bundles(tmp_path)
    settings = tiny_settings(folder, on_bundle_error="serve", ner_bundle=str(tmp_path / "elsewhere" / "ner"))
    (settings.data_dir / "faq.sqlite").write_bytes(b"no database at all")
    async with running(settings) as client:
        for method, path in (("POST", "/search"), ("GET", "/faq"), ("PUT", "/faq/shop")):
            answer = await client.request(method, path, json={"query": "hello"})
            assert (answer.status_code, answer.json()["code"]) == (503, "faq_unavailable")
            assert "faq.sqlite is not a FAQ store" in answer.json()["error"]
            assert str(tmp_path) not in answer.text
        answer = await client.post("/ner", json={"inputs": "Tim"})
        assert (answer.status_code, answer.json()["code"]) == (503, "no_model")
        assert str(tmp_path) not in answer.text
        for path in ("/readyz", "/info"):
            assert str(tmp_path) not in (await client.get(path)).text
    assert str(settings.data_dir / "faq.sqlite") in caplog.text
    assert str(tmp_path / "elsewhere" / "ner") in caplog.text


async def test_a_read_only_folder_is_searched_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica over a mounted copy: whoever writes to it is told so."""
    settings = tiny_settings(write_bundles(tmp_path))
    async with running(settings):
        pass
    monkeypatch.setattr("service.faq.sqlite_file.os.access", lambda *_: False)
    async with running(settings) as client:
        assert (await client.get("/readyz")).status_code == 200
        answer = await client.post("/search", json={"query": "refund"})
        assert answer.json()["results"][0]["hits"]
        answer = await client.delete("/faq/default/entries/refund")
        assert (answer.status_code, answer.json()["code"]) == (403, "storage_read_only")


async def test_a_collection_of_another_model_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its searches are refused, with the command that mends it; the collection of the file is mended."""
    folder = write_bundles(tmp_path)
    settings = tiny_settings(folder)
    async with open_services(settings, Metrics()) as services:
        assert services.catalogue is not None
        await services.catalogue.upsert("shop", [FaqEntry(id="a", question="my order", answer="")])
    refresh_manifest(folder / "tiny-embedding", prompts={"query": "q: "}, default_prompt_name="query")
    async with running(settings) as client:
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.post("/search", json={"query": "hello"})).status_code == 200
        answer = await client.post("/search", json={"query": "hello", "collection": "shop"})
        assert (answer.status_code, answer.json()["code"]) == (409, "model_mismatch")
        assert "conche faq reindex shop" in answer.json()["error"]
    assert "collection shop cannot be searched" in caplog.text


async def test_without_a_file_there_is_no_collection_to_begin_with(tmp_path: Path) -> None:
    """Whoever fills collections over HTTP wants nothing else in them."""
    async with running(tiny_settings(write_bundles(tmp_path), faq_file="none")) as client:
        answer = await client.post("/search", json={"query": "hello"})
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_collection")
        assert (await client.get("/readyz")).status_code == 200


async def test_a_milvus_that_is_not_there_stops_the_start_or_one_route(tmp_path: Path) -> None:
    """As a damaged file would; the service does not hang, and /embed need not suffer."""
    folder = write_bundles(tmp_path)
    gone = {"faq_store": "milvus", "milvus_uri": "http://127.0.0.1:1", "milvus_timeout_seconds": 1}
    async with asyncio.timeout(HANG_LIMIT_S):
        with pytest.raises(StartupError, match=r"127\.0\.0\.1:1 does not answer.*CONCHE_MILVUS_URI"):
            async with open_services(tiny_settings(folder, **gone), Metrics()):
                pass
    async with running(tiny_settings(folder, on_bundle_error="serve", **gone)) as client:
        assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 200
        answer = await client.post("/search", json={"query": "hello"})
        assert (answer.status_code, "CONCHE_MILVUS_URI" in answer.text) == (503, True)


async def test_more_streams_than_threads_stop_the_start(models_folder: Path) -> None:
    """On a smaller machine than the one it was set for; the settings are named."""
    settings = tiny_settings(models_folder, threads=1, streams=2)
    with pytest.raises(StartupError, match=r"^CONCHE_STREAMS=2: .* is 1 \(CONCHE_THREADS=1\)"):
        async with open_services(settings, Metrics()):
            pass


async def test_an_engine_that_is_not_there_stops_the_start(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with CONCHE_ON_BUNDLE_ERROR=serve: no bundle is at fault, and nothing could be served."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    settings = tiny_settings(models_folder, engine="openvino", on_bundle_error="serve")
    with pytest.raises(StartupError, match=r"CONCHE_ENGINE=openvino.*pip install -e '\.\[openvino\]'"):
        async with open_services(settings, Metrics()):
            pass


async def test_a_start_whose_faq_file_is_damaged_deletes_no_entry(tmp_path: Path) -> None:
    """A bad line's entry was served before; and the file is in order again at the next start."""
    file = tmp_path / "faq.csv"
    settings = tiny_settings(write_bundles(tmp_path), faq_file=str(file))
    good = "id,question,answer\n1,How?,So.\n2,Why?,Thus.\n3,When?,Then.\n"
    for content, ids, left_out in (
        (good, ["1", "2", "3"], 0),
        (good.replace("Why?", '"Why?'), ["1", "2", "3"], 1),
        (good.replace("2,Why?,Thus.\n", ""), ["1", "3"], 0),
    ):
        file.write_text(content)
        async with running(settings) as client:
            listed = (await client.get("/faq/default/entries")).json()
            info = (await client.get("/info")).json()
        assert [entry["id"] for entry in listed["entries"]] == ids
        assert info["faq"]["left_out"] == left_out
