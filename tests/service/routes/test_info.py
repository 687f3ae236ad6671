"""``GET /info``: what a client can find out before it sends anything."""

from pathlib import Path

import pytest

from service.errors import ServiceError, StorageError, UnavailableError
from service.lifespan import Services
from tests.service.fakes_http import running, tiny_settings, write_bundles


async def test_models_limits_and_absences_are_told(tmp_path: Path) -> None:
    """Enough to size requests and to know why a route is off."""
    async with running(tiny_settings(write_bundles(tmp_path), ner_bundle="none")) as client:
        info = (await client.get("/info")).json()
    assert info["name"] == "conche"
    assert info["embedding"]["id"] == "tiny-embedding"
    assert info["embedding"]["prompts"] == {"query": "query: ", "passage": "passage: "}
    assert info["embedding"]["default_prompt_name"] == "query"
    assert (info["embedding"]["max_tokens"], info["embedding"]["dimensions"]) == (64, 32)
    assert info["embedding"]["engine"].pop("name").startswith("onnxruntime ")
    assert info["embedding"]["engine"] == {
        "precision": "float32",
        "choice": "only",
        "milliseconds": {},
        "refused": {},
    }
    assert info["ner"] is None
    assert "CONCHE_NER_BUNDLE" in info["unavailable"]["/ner"]
    source = str(tmp_path / "faq.jsonl")
    assert info["faq"] == {"entries": 3, "collections": 1, "source": source, "left_out": 0}
    assert info["limits"]["max_inputs"] == 2048
    assert (info["threads"], info["streams"], info["truncate"]) == (1, 1, False)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnavailableError("Milvus at http://faq:19530 does not answer (listing)"), "does not answer"),
        (StorageError("/data/faq.sqlite3: disk I/O error"), "cannot be read"),
    ],
)
async def test_what_is_known_is_told_while_the_faq_store_does_not_answer(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, error: ServiceError, said: str
) -> None:
    """Models and limits do not depend on it; what does is null, and the reason is there, without paths."""

    def fail() -> None:
        raise error

    async with running(tiny_settings(models_folder)) as client:
        before = (await client.get("/info")).json()
        services: Services = client.app.state.services  # type: ignore[attr-defined]
        assert services.catalogue is not None
        monkeypatch.setattr(services.catalogue.store, "collections", fail)
        answer = await client.get("/info")
        assert answer.status_code == 200
        info = answer.json()
        assert info["faq"] == before["faq"] | {"entries": None, "collections": None}
        assert said in info["unavailable"]["/search"]
        assert "sqlite" not in answer.text.replace(str(info["faq"]["source"]), "")
        assert {**info, "faq": None, "unavailable": {}} == {**before, "faq": None, "unavailable": {}}
        monkeypatch.undo()
        assert (await client.get("/info")).json() == before


async def test_a_measured_engine_is_told_and_remembered(tmp_path: Path) -> None:
    """Who wonders about the speed sees what was measured, and that a restart does not measure again."""
    settings = tiny_settings(write_bundles(tmp_path), ner_bundle="none", engine="auto", precision="float32")
    async with running(settings) as client:
        first = (await client.get("/info")).json()["embedding"]["engine"]
    async with running(settings) as client:
        second = (await client.get("/info")).json()["embedding"]["engine"]
    assert first["choice"] in {"measured", "unsettled"}  # others may have the cores
    assert first["milliseconds"].keys() == {"onnxruntime float32", "openvino float32"}
    assert second == first | {"choice": "remembered"}


async def test_a_measured_batch_is_told_and_remembered(tmp_path: Path) -> None:
    """With the curve that it was taken from; one that was set is not measured."""
    settings = tiny_settings(write_bundles(tmp_path), batching={"max_batch_tokens": "auto"})
    async with running(settings) as client:
        first = (await client.get("/info")).json()
    async with running(settings) as client:
        second = (await client.get("/info")).json()
    batches = first["embedding"]["batches"]
    assert batches["choice"] in {"measured", "unsettled"}  # others may have the cores
    assert str(batches["max_tokens"]) in batches["microseconds"]
    assert first["limits"]["max_batch_tokens"] == max(
        first[model]["batches"]["max_tokens"] for model in ("embedding", "ner", "classifier")
    )
    assert second["embedding"]["batches"] == batches | {"choice": "remembered"}
    async with running(tiny_settings(tmp_path, batching={"max_batch_tokens": 99})) as client:
        third = (await client.get("/info")).json()
    assert third["embedding"]["batches"] == {"max_tokens": 99, "choice": "set", "microseconds": {}}
    assert third["limits"]["max_batch_tokens"] == 99
