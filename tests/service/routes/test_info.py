"""``GET /info``: what a client can find out before it sends anything."""

from pathlib import Path

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
    assert info["ner"] is None
    assert "CONCHE_NER_BUNDLE" in info["unavailable"]["/ner"]
    source = str(tmp_path / "faq.jsonl")
    assert info["faq"] == {"entries": 3, "collections": 1, "source": source, "left_out": 0}
    assert info["limits"]["max_inputs"] == 2048
    assert (info["threads"], info["truncate"]) == (1, False)
