"""The documentation: works cut off from the internet, and its examples work."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from service.faq_schemas import ENTRIES_EXAMPLES
from service.schemas import NER_EXAMPLES
from tests.service.fakes_http import running, tiny_settings

MODELS = Path(__file__).parents[3] / "models"


def _operations(spec: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


async def test_the_page_fetches_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    """Swagger's page is blank where no CDN can be reached."""
    answer = await client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", answer.text)


def _url(path: str, operation: dict[str, Any]) -> str:
    """The path with its parameters' examples in their places."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "model_id" and not path.startswith("/admin"):
            path = path.replace("{model_id}", "tiny-embedding")  # what these tests serve
        elif parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", parameter["schema"]["examples"][0])
    return path


async def _fill_the_faq(client: httpx.AsyncClient) -> None:
    """What the examples about entries are about: the first example of adding some."""
    example = next(iter(ENTRIES_EXAMPLES.values()))["value"]
    assert (await client.post("/faq/shop/entries", json=example)).status_code == 200


async def test_every_example_of_the_documentation_succeeds(client: httpx.AsyncClient) -> None:
    """A reader pastes them first."""
    spec = (await client.get("/openapi.json")).json()
    tried = 0
    for path, method, operation in _operations(spec):
        bodies = operation.get("requestBody", {}).get("content", {})
        examples = [
            (kind, example["value"])
            for kind, content in bodies.items()
            for example in content.get("examples", {}).values()
        ]
        assert bool(bodies) == bool(examples), f"{path} takes a body and shows no example"
        for kind, example in examples:
            await _fill_the_faq(client)
            body = example if isinstance(example, str) else json.dumps(example)
            headers = {"content-type": kind}
            answer = await client.request(
                method.upper(), _url(path, operation), content=body, headers=headers
            )
            assert answer.status_code == 200, f"{path}: {answer.text}"
            tried += 1
    assert tried >= 20


async def test_every_operation_without_a_body_succeeds(client: httpx.AsyncClient) -> None:
    """The page has a button for these, too."""
    spec = (await client.get("/openapi.json")).json()
    for path, method, operation in _operations(spec):
        if "requestBody" not in operation:
            await _fill_the_faq(client)
            await client.post("/admin/models", json={"bundle": "tiny-spare"})  # for it to be unloaded
            await client.post("/snapshots", json={"name": "before-import"})  # for it to be deleted
            answer = await client.request(method.upper(), _url(path, operation))
            assert answer.status_code == (202 if "202" in operation["responses"] else 200), path


async def test_errors_are_documented_with_their_codes_and_body(client: httpx.AsyncClient) -> None:
    """The statuses that a client has to handle are all there, none of FastAPI's own shapes among them."""
    spec = (await client.get("/openapi.json")).json()
    for path in ("/embed", "/search", "/ner"):
        responses = spec["paths"][path]["post"]["responses"]
        assert {"200", "400", "404", "413", "415", "422", "429", "500", "503"} <= set(responses)
        for status, response in responses.items():
            if status != "200":
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorBody"}
        assert "`empty_input`" in responses["422"]["description"]
    assert "HTTPValidationError" not in spec["components"]["schemas"]


async def test_each_code_is_documented_once_and_where_it_can_occur(client: httpx.AsyncClient) -> None:
    """/ner reads texts of any length, so it never finds one too long."""
    spec = (await client.get("/openapi.json")).json()
    for path in ("/embed", "/search", "/ner"):
        for status, response in spec["paths"][path]["post"]["responses"].items():
            codes = re.findall(r"^`(\w+)`: ", response["description"], re.MULTILINE)
            assert len(codes) == len(set(codes)), (path, status)
            assert ("input_too_long" in codes) == (status == "422" and path != "/ner")


async def test_descriptions_are_for_readers_of_the_page(client: httpx.AsyncClient) -> None:
    """Docstrings are written for those who read the code: in another markup, and with its inner workings."""
    text = (await client.get("/openapi.json")).text
    assert "``" not in text
    assert "chained" not in text


async def test_markdown_of_the_descriptions_is_what_the_page_can_show(client: httpx.AsyncClient) -> None:
    """It knows paragraphs and pairs of backticks; an odd one would turn the rest into code."""
    spec = (await client.get("/openapi.json")).json()
    texts = list(_descriptions(spec))
    assert len(texts) > 50
    for text in texts:
        assert text.count("`") % 2 == 0, text
        assert not re.search(r"\*\*|^#|^ *[-*] |\]\(", text, re.MULTILINE), text


def _descriptions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "description" and isinstance(value, str):
                yield value
            yield from _descriptions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _descriptions(value)


async def test_one_text_or_several_is_documented(client: httpx.AsyncClient) -> None:
    """Generated clients must be able to send either."""
    spec = (await client.get("/openapi.json")).json()
    inputs = spec["components"]["schemas"]["EmbedRequest"]["properties"]["inputs"]
    assert {kind["type"] for kind in inputs["anyOf"]} == {"string", "array"}


async def test_the_default_tagger_gets_its_examples_right(tmp_path: Path) -> None:
    """They are the first thing that anybody tries."""
    settings = tiny_settings(
        tmp_path,
        models_dir=MODELS,
        embedding_bundle="none",
        ner_bundle="ner-zh-en",
        classifier_bundle="none",
        faq_store="none",
    )
    async with running(settings) as client:
        found = {}
        for example in NER_EXAMPLES.values():
            if "parameters" in example["value"]:  # answered in another shape
                continue
            answer = (await client.post("/ner", json=example["value"])).json()
            inputs = example["value"]["inputs"]
            for text, entities in zip([inputs] if isinstance(inputs, str) else inputs, answer, strict=True):
                found[text] = {entity["text"]: entity["label"] for entity in entities}
    assert found == {
        "Tim Cook met Angela Merkel in Berlin.": {"Tim Cook": "PER", "Angela Merkel": "PER", "Berlin": "LOC"},
        "张三昨天从上海飞往巴黎。": {"张三": "PER", "上海": "LOC", "巴黎": "LOC"},
        "小米公司的总部在北京。": {"小米公司": "ORG", "北京": "LOC"},
        "🙂 Angela Merkel flew from Berlin to Paris.": {"Berlin": "LOC", "Paris": "LOC"},
    }
