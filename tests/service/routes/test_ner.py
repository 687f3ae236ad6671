"""``POST /ner`` over a tiny real bundle."""

import httpx
import pytest

JSON = {"content-type": "application/json"}


async def test_entities_are_exact_slices_of_each_text(client: httpx.AsyncClient) -> None:
    """Offsets count code points, also behind emoji and in Chinese."""
    texts = ["😀 Tim Cook works in Paris.", "今年去了北京、上海、广州和深圳。", "hello world"]
    answer = await client.post("/ner", json={"inputs": texts})
    assert answer.status_code == 200
    found = answer.json()
    assert [len(entities) for entities in found] == [2, 4, 0]
    for text, entities in zip(texts, found, strict=True):
        for entity in entities:
            assert set(entity) == {"start", "end", "text", "label", "score"}
            assert text[entity["start"] : entity["end"]] == entity["text"]
            assert 0 <= entity["score"] <= 1
    assert [(entity["text"], entity["label"]) for entity in found[0]] == [
        ("Tim Cook", "PER"),
        ("Paris", "LOC"),
    ]
    assert answer.headers["x-conche-model"] == "tiny-ner"


async def test_one_text_gives_a_list_of_one_list(client: httpx.AsyncClient) -> None:
    """One way to read the answer."""
    answer = await client.post("/ner", json={"inputs": "Tim Cook works in Paris."})
    assert [len(entities) for entities in answer.json()] == [2]


async def test_a_long_text_is_read_to_its_end(client: httpx.AsyncClient) -> None:
    """In windows, whose number is reported."""
    text = "hello world. " * 100 + "Tim Cook lives in London."
    answer = await client.post("/ner", json={"inputs": ["hello", text]})
    assert [entity["text"] for entity in answer.json()[1]] == ["Tim Cook", "London"]
    index, windows = answer.headers["x-conche-windows"].split(":")
    assert index == "1"
    assert int(windows) >= 5


async def test_a_threshold_only_leaves_entities_out(client: httpx.AsyncClient) -> None:
    """The spans of the others stay."""
    text = "Tim Cook, John Smith and Alice visited Paris, London, New York and Apple."
    everything = (await client.post("/ner", json={"inputs": text})).json()[0]
    scores = sorted(entity["score"] for entity in everything)
    threshold = scores[len(scores) // 2]
    some = (await client.post("/ner", json={"inputs": text, "threshold": threshold})).json()[0]
    assert some == [entity for entity in everything if entity["score"] >= threshold]
    assert 0 < len(some) < len(everything)


@pytest.mark.parametrize(
    ("value", "status"), [("-0.1", 422), ("1.1", 422), ('"x"', 422), ("NaN", 400), ("1e999", 400)]
)
async def test_bad_thresholds_are_refused(client: httpx.AsyncClient, value: str, status: int) -> None:
    """A NaN would make every comparison false."""
    answer = await client.post("/ner", content=f'{{"inputs":"a","threshold":{value}}}', headers=JSON)
    assert answer.status_code == status


async def test_half_an_emoji_is_refused_with_its_index(client: httpx.AsyncClient) -> None:
    """As for /embed."""
    answer = await client.post("/ner", content=b'{"inputs":["ok","\\ud83d"]}', headers=JSON)
    assert (answer.status_code, answer.json()["index"]) == (422, 1)
