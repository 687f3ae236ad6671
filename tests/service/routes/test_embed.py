"""``POST /embed`` over a tiny real bundle."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.service.fakes_http import running, tiny_settings

LONG = "hello " * 200  # the tiny model reads 64 tokens


async def _embed(client: httpx.AsyncClient, **body: object) -> np.ndarray:
    answer = await client.post("/embed", json=body)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json(), dtype=np.float32)


async def test_one_text_and_several_give_a_list_of_unit_vectors(client: httpx.AsyncClient) -> None:
    """Always a list of lists, so that clients need one way to read it."""
    one = await _embed(client, inputs="hello world")
    two = await _embed(client, inputs=["hello world", "怎么退货"])
    assert (one.shape, two.shape) == ((1, 32), (2, 32))
    np.testing.assert_allclose(two[0], one[0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(two, axis=1), 1, atol=1e-5)


async def test_the_models_default_prompt_is_used_unless_another_is_named(client: httpx.AsyncClient) -> None:
    """E5 models are worth less without it, and callers do not know; `none` is there for those who do."""
    unsaid = await _embed(client, inputs="hello")
    np.testing.assert_array_equal(unsaid, await _embed(client, inputs="hello", prompt_name="query"))
    np.testing.assert_array_equal(unsaid, await _embed(client, inputs="hello", input_type="query"))
    np.testing.assert_array_equal(
        unsaid, await _embed(client, inputs="query: hello", prompt_name="none", pooling="mean")
    )
    assert not np.array_equal(unsaid, await _embed(client, inputs="hello", input_type="passage"))
    assert not np.array_equal(unsaid, await _embed(client, inputs="hello", prompt_name="none"))


async def test_pooling_normalisation_and_dimensions_are_the_callers(client: httpx.AsyncClient) -> None:
    """Cut vectors are brought to unit length again; raw ones are left alone."""
    raw = await _embed(client, inputs="hello", normalize=False)
    assert abs(np.linalg.norm(raw) - 1) > 0.1
    cut = await _embed(client, inputs="hello", dimensions=8)
    np.testing.assert_allclose(cut[0], raw[0, :8] / np.linalg.norm(raw[0, :8]), atol=1e-5)
    assert not np.array_equal(
        await _embed(client, inputs="hello", pooling="cls"),
        await _embed(client, inputs="hello", pooling="mean"),
    )


async def test_null_means_not_said_and_unknown_fields_are_ignored(client: httpx.AsyncClient) -> None:
    """Clients of other servers send both."""
    nulls = dict.fromkeys(
        [
            "pooling",
            "normalize",
            "prompt_name",
            "input_type",
            "truncate",
            "dimensions",
            "truncation_direction",
        ]
    )
    np.testing.assert_array_equal(
        await _embed(client, inputs="hello"),
        await _embed(client, inputs="hello", model=None, flavour="x", user=None, **nulls),
    )


@pytest.mark.parametrize("body", [{}, {"inputs": None}])
async def test_what_is_required_may_be_neither_missing_nor_null(
    client: httpx.AsyncClient, body: dict[str, object]
) -> None:
    """And the message says so: null is there, to whoever wrote it."""
    refusal = await client.post("/embed", json=body)
    assert refusal.status_code == 422
    assert refusal.json()["error"] == "inputs: the field is required; it is missing or null"


async def test_a_text_too_long_is_refused_by_default(client: httpx.AsyncClient) -> None:
    """Index, counts, limit and the way out are named; nothing is cut in silence."""
    answer = await client.post("/embed", json={"inputs": ["hello", LONG]})
    assert answer.status_code == 422
    error = answer.json()
    assert (error["code"], error["index"], error["param"]) == ("input_too_long", 1, "inputs")
    for said in ("204 tokens", "64", "truncate", "CONCHE_TRUNCATE"):
        assert said in error["error"]


async def test_a_cut_is_reported_per_text(client: httpx.AsyncClient) -> None:
    """In a header, so that the body stays what clients know."""
    answer = await client.post("/embed", json={"inputs": ["hello", LONG], "truncate": True})
    assert answer.status_code == 200
    assert answer.headers["x-conche-truncated"] == "1:140"  # 2 special tokens, 2 of the prompt, 200 words
    assert answer.headers["x-conche-tokens"] == str(5 + 64)
    assert answer.headers["x-conche-model"] == "tiny-embedding"
    uncut = await client.post("/embed", json={"inputs": "hello", "truncate": True})
    assert "x-conche-truncated" not in uncut.headers


async def test_the_operator_sets_what_happens_when_the_request_does_not_say(models_folder: Path) -> None:
    """And the request can still refuse."""
    async with running(tiny_settings(models_folder, truncate=True)) as client:
        assert (await client.post("/embed", json={"inputs": LONG})).headers["x-conche-truncated"] == "0:140"
        assert (await client.post("/embed", json={"inputs": LONG, "truncate": False})).status_code == 422


@pytest.mark.parametrize(
    ("body", "code", "param", "index"),
    [
        ({}, "invalid_input", "inputs", None),
        ({"inputs": None}, "invalid_input", "inputs", None),
        ({"inputs": 5}, "invalid_input", "inputs", None),
        ({"inputs": ["a", 5]}, "invalid_input", "inputs", 1),
        ({"inputs": ["a", None]}, "invalid_input", "inputs", 1),
        ({"inputs": ["a", ["b"]]}, "invalid_input", "inputs", 1),
        ({"inputs": []}, "empty_input", "inputs", None),
        ({"inputs": ""}, "empty_input", "inputs", None),
        ({"inputs": ["a", " \u3000\n"]}, "empty_input", "inputs", 1),
        ({"inputs": ["a"] * 2049}, "too_many_inputs", "inputs", None),
        ({"inputs": "a", "pooling": "max"}, "invalid_input", "pooling", None),
        ({"inputs": "a", "normalize": "yes"}, "invalid_input", "normalize", None),
        ({"inputs": "a", "prompt_name": "poem"}, "invalid_input", "prompt_name", None),
        ({"inputs": "a", "input_type": "poem"}, "invalid_input", "input_type", None),
        ({"inputs": "a", "input_type": "query", "prompt_name": "passage"}, "invalid_input", None, None),
        ({"inputs": "a", "dimensions": 0}, "invalid_input", "dimensions", None),
        ({"inputs": "a", "dimensions": -1}, "invalid_input", "dimensions", None),
        ({"inputs": "a", "dimensions": 10**9}, "invalid_input", "dimensions", None),
        ({"inputs": "a", "dimensions": 1.5}, "invalid_input", "dimensions", None),
        ({"inputs": "a", "dimensions": True}, "invalid_input", "dimensions", None),
        ([], "invalid_input", None, None),
        ("text", "invalid_input", None, None),
    ],
)
async def test_what_cannot_be_embedded_is_refused_with_its_place(
    client: httpx.AsyncClient, body: object, code: str, param: str | None, index: int | None
) -> None:
    """One stable code each, and the item's index where there is one."""
    answer = await client.post("/embed", json=body)
    assert answer.status_code == 422
    error = answer.json()
    assert (error["code"], error["param"], error["index"]) == (code, param, index)
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert "poem" not in answer.text


async def test_half_an_emoji_is_refused_with_its_index(client: httpx.AsyncClient) -> None:
    """The escape parses; only encoding it fails, which must not be a 500."""
    answer = await client.post(
        "/embed",
        content=b'{"inputs":["ok","\\ud83d parcel"]}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 422
    assert (answer.json()["code"], answer.json()["index"]) == ("invalid_text", 1)
    assert "parcel" not in answer.text


async def test_many_texts_come_back_in_order(client: httpx.AsyncClient) -> None:
    """Grouping by length is undone; equal texts have equal vectors, as when sent alone."""
    words = ["hello", "world", "order", "退货", "refund", "cat"]
    texts = [" ".join(words[(n + k) % 6] for k in range(1 + n * 7 % 40)) for n in range(200)]
    vectors = await _embed(client, inputs=texts)
    assert vectors.shape == (200, 32)
    for n in (0, 3, 77, 150, 199):
        np.testing.assert_allclose(vectors[n], (await _embed(client, inputs=texts[n]))[0], atol=1e-5)


async def test_the_answer_is_the_exact_float32(client: httpx.AsyncClient) -> None:
    """Parsed as doubles and rounded, the numbers have at most nine digits to read."""
    answer = await client.post("/embed", json={"inputs": "hello"})
    for number in json.loads(answer.text, parse_float=str)[0]:
        assert np.float32(number) == np.float32(np.format_float_positional(np.float32(number), unique=True))
        assert len(number.lstrip("-0.").replace(".", "").partition("e")[0]) <= 9
