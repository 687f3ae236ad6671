"""``POST /ner`` over a tiny real bundle."""

from pathlib import Path

import httpx
import pytest

from tests.service.fakes_http import running, tiny_settings

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


@pytest.mark.parametrize(
    ("unit", "place"),
    [
        ({}, (2, 4)),
        ({"offset_unit": None}, (2, 4)),
        ({"offset_unit": "code-points"}, (2, 4)),
        ({"offset_unit": "utf-16"}, (3, 5)),
        ({"offset_unit": "UTF16"}, (3, 5)),
        ({"offset_unit": "bytes"}, (5, 11)),
    ],
)
async def test_offsets_count_the_unit_asked_for(
    client: httpx.AsyncClient, unit: dict[str, str], place: tuple[int, int]
) -> None:
    """An emoji is one, two or four, as the caller's language counts."""
    answer = await client.post("/ner", json={"inputs": "🙂 北京", **unit})
    (entity,) = answer.json()[0]
    assert (entity["start"], entity["end"]) == place
    assert entity["text"] == "北京"


async def test_labels_choose_which_entities_are_given(client: httpx.AsyncClient) -> None:
    """The others are left out, and the spans that stay do not change."""
    text = "Tim Cook of Apple visited Paris, London and 北京."
    everything = (await client.post("/ner", json={"inputs": text})).json()[0]
    for labels in (["LOC"], ["ORG", "PER"], []):
        some = (await client.post("/ner", json={"inputs": text, "labels": labels})).json()[0]
        assert some == [entity for entity in everything if entity["label"] in labels]


async def test_a_label_that_the_model_lacks_is_refused(client: httpx.AsyncClient) -> None:
    """A misspelt one would look like a text without entities; the message says which there are."""
    answer = await client.post("/ner", json={"inputs": "Paris", "labels": ["LOC", "loc"]})
    error = answer.json()
    assert (answer.status_code, error["param"]) == (422, "labels")
    assert "PER, LOC, ORG" in error["error"]


async def test_strategies_of_the_pipeline_are_taken(client: httpx.AsyncClient) -> None:
    """Sub-tokens by themselves, or joined; ours if not said."""
    text = "Tim Cook works in Paris."
    found = {}
    for strategy in ("viterbi", "none", "simple", "first", "average", "max"):
        answer = await client.post("/ner", json={"inputs": text, "aggregation_strategy": strategy})
        found[strategy] = [(entity["text"], entity["label"]) for entity in answer.json()[0]]
    assert found["none"] == [("Tim", "B-PER"), ("Cook", "I-PER"), ("Paris", "B-LOC")]
    for strategy in ("viterbi", "simple", "first", "average", "max"):
        assert found[strategy] == [("Tim Cook", "PER"), ("Paris", "LOC")]
    only = await client.post("/ner", json={"inputs": text, "aggregation_strategy": "none", "labels": ["PER"]})
    assert [entity["label"] for entity in only.json()[0]] == ["B-PER", "I-PER"]


@pytest.mark.parametrize(
    "field",
    [
        {"offset_unit": "words"},
        {"offset_unit": 16},
        {"aggregation_strategy": "best"},
        {"labels": "PER"},
        {"labels": [1]},
    ],
)
async def test_fields_out_of_range_are_refused(client: httpx.AsyncClient, field: dict[str, object]) -> None:
    """Not ignored: the answer would be in another unit than the caller thinks."""
    answer = await client.post("/ner", json={"inputs": "Paris", **field})
    assert answer.status_code == 422


async def test_a_strategy_that_is_not_known_is_told_all_that_are(client: httpx.AsyncClient) -> None:
    """Ours and the pipeline's."""
    answer = await client.post("/ner", json={"inputs": "Paris", "aggregation_strategy": "best"})
    for strategy in ("viterbi", "none", "simple", "first", "average", "max"):
        assert f"'{strategy}'" in answer.json()["error"]


async def test_a_document_gives_the_entities_of_its_paragraphs(client: httpx.AsyncClient) -> None:
    """100,000 characters: the same as its paragraphs sent by themselves, and how many windows it took."""
    long = "hello world. Tim Cook works in Paris, and 张三在北京工作。" * 12
    paragraphs = [
        "Tim Cook\nlives in New\r\nYork.",
        "今年去了北京、上海、广州和深圳。",
        long,
        "Apple and Google, 华为",
        "hello world",
    ]
    repeated = paragraphs * (100_000 // sum(len(paragraph) + 2 for paragraph in paragraphs) + 1)
    document = "\n\n".join(repeated)
    assert len(document) >= 100_000
    alone = await client.post("/ner", json={"inputs": paragraphs})
    whole = await client.post("/ner", json={"inputs": document})
    wanted = []
    place = 0
    for number, paragraph in enumerate(repeated):
        wanted += [
            {**entity, "start": entity["start"] + place, "end": entity["end"] + place}
            for entity in alone.json()[number % len(paragraphs)]
        ]
        place += len(paragraph) + 2
    assert whole.json()[0] == wanted
    windows = int(whole.headers["x-conche-windows-total"])
    rounds = len(repeated) // len(paragraphs)
    assert windows == rounds * int(alone.headers["x-conche-windows-total"])
    assert windows > len(repeated)


async def test_a_document_over_the_limit_is_refused_with_number_and_setting(models_folder: Path) -> None:
    """413, before any work; nothing is cut in silence."""
    async with running(tiny_settings(models_folder, limits={"max_text_characters": 1000})) as client:
        fits = await client.post("/ner", json={"inputs": "Tim " * 250})
        answer = await client.post("/ner", json={"inputs": ["Paris", "x" * 1001]})
    assert fits.status_code == 200
    error = answer.json()
    assert (answer.status_code, error["code"], error["index"]) == (413, "too_many_characters", 1)
    assert "1001 characters, at most 1000" in error["error"]
    assert "CONCHE_LIMITS__MAX_TEXT_CHARACTERS" in error["error"]


async def test_parameters_ask_for_the_shape_of_the_inference_api(client: httpx.AsyncClient) -> None:
    """A single text's entities in no list of lists; `word` is the exact slice."""
    text = "Tim Cook works in Paris."
    (native,) = (await client.post("/ner", json={"inputs": text, "aggregation_strategy": "simple"})).json()
    flat = (await client.post("/ner", json={"inputs": text, "parameters": {}})).json()
    assert flat == [
        {
            "entity_group": one["label"],
            "score": one["score"],
            "word": one["text"],
            "start": one["start"],
            "end": one["end"],
        }
        for one in native
    ]
    listed = await client.post("/ner", json={"inputs": [text], "parameters": {"stride": 3}})
    assert listed.json() == [flat]
    parameters = {"aggregation_strategy": "none", "ignore_labels": ["B-LOC"]}
    tokens = await client.post("/ner", json={"inputs": text, "parameters": parameters})
    assert [(one["entity"], one["word"]) for one in tokens.json()] == [("B-PER", "Tim"), ("I-PER", "Cook")]
    nothing = await client.post("/ner", json={"inputs": "hello", "parameters": {}})
    assert nothing.json() == []


async def test_a_tagger_is_named_or_not_found(client: httpx.AsyncClient) -> None:
    """As embedders are."""
    assert (await client.post("/ner", json={"inputs": "Paris", "model": "tiny-ner"})).status_code == 200
    answer = await client.post("/ner", json={"inputs": "Paris", "model": "other"})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_model")
