"""/predict and /classify: text-embeddings-inference's, Infinity's and Hugging Face's bodies and answers."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import Settings
from tests.bundles import TEXT_LABELS, refresh_manifest, write_tiny_classifier_bundle
from tests.service.fakes_http import running, tiny_settings


async def predict(client: httpx.AsyncClient, **body: object) -> Any:
    """The answer's JSON."""
    answer = await client.post("/predict", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_text_gets_its_labels_best_first(client: httpx.AsyncClient) -> None:
    """One text, or one in a list by itself, is answered in no list of lists, as TEI does."""
    found = await predict(client, inputs="refund")
    assert [set(one) for one in found] == [{"score", "label"}] * len(TEXT_LABELS)
    assert found[0]["label"] == "refund"
    assert {one["label"] for one in found} == set(TEXT_LABELS)
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert abs(sum(scores) - 1) < 1e-9
    assert await predict(client, inputs=["refund"]) == found


async def test_two_strings_are_a_pair_and_lists_of_lists_are_several(client: httpx.AsyncClient) -> None:
    """A pair is read together: its second text has segments of its own, which this model hears."""
    pair = await predict(client, inputs=["hello", "refund"], raw_scores=True)
    logits = {one["label"]: one["score"] for one in pair}
    (swapped,) = await predict(client, inputs=[["refund", "hello"]], raw_scores=True)
    assert abs(logits["refund"] - next(one["score"] for one in swapped if one["label"] == "refund")) < 1e-6
    single = await predict(client, inputs="hello refund", raw_scores=True)
    other = next(one["score"] for one in single if one["label"] == "other")
    assert abs(logits["other"] - other - 2 * 0.125) < 1e-6  # "refund" and the separator behind it
    several = await predict(client, inputs=[["hello", "refund"], ["shipping"]], raw_scores=True)
    assert several[0] == pair
    assert several[1][0]["label"] == "delivery"


@pytest.mark.parametrize(
    ("inputs", "index", "said"),
    [
        (["a", "b", "c"], None, "two strings are a pair"),
        (["a", 1], None, "two strings are a pair"),
        ([["a"], "b"], 1, "one or two texts"),
        ([["a"], []], 1, "one or two texts"),
        ([["a", "b", "c"]], 0, "one or two texts"),
        ([["a"], ["b", 1]], 1, "one or two texts"),
        ([], None, "empty list"),
        (7, None, "a text, a pair"),
        ({"text": "a"}, None, "a text, a pair"),
        ("", None, "inputs is empty"),
        (["a", " "], None, "the second text of inputs is empty"),
        ([["a"], ["", "b"]], 1, "the first text of inputs[1] is empty"),
        ([["a"], ["b", "\u200b"]], 1, "the second text of inputs[1] holds nothing"),
    ],
)
async def test_inputs_that_are_neither_texts_nor_pairs_are_refused(
    client: httpx.AsyncClient, inputs: object, index: int | None, said: str
) -> None:
    """By their place; three strings might be meant as a batch, and are not guessed at."""
    answer = await client.post("/predict", json={"inputs": inputs})
    error = answer.json()
    assert (answer.status_code, error["param"], error["index"]) == (422, "inputs", index), answer.text
    assert said in error["error"]


@pytest.mark.parametrize(
    "inputs", ["hello " * 100, ["hello " * 100, "refund"], [["hello"], ["hello " * 100]]]
)
async def test_what_is_too_long_is_refused_or_cut_and_told(
    client: httpx.AsyncClient, inputs: str | list[Any]
) -> None:
    """A pair loses tokens of its longer text: the shorter one still counts."""
    answer = await client.post("/predict", json={"inputs": inputs})
    error = answer.json()
    several = isinstance(inputs[0], list)
    assert (answer.status_code, error["code"]) == (422, "input_too_long")
    assert error["index"] == (1 if several else None)
    for direction in ("right", "left"):
        cut = await client.post(
            "/predict",
            json={
                "inputs": inputs,
                "truncate": True,
                "truncation_direction": direction,
                "raw_scores": True,
            },
        )
        assert cut.status_code == 200, cut.text
        assert cut.headers["x-conche-tokens-by-input"].split(",")[-1] == "64"
        assert cut.headers["x-conche-truncated"].startswith("1:" if several else "0:")
        if inputs[-1] == "refund":
            assert next(one["score"] for one in cut.json() if one["label"] == "refund") > 0


async def test_the_function_of_scores_is_the_models_or_that_asked_for(client: httpx.AsyncClient) -> None:
    """Hugging Face's clients get a list for each text, of a single one as well; as many labels as asked."""
    logits = {one["label"]: one["score"] for one in await predict(client, inputs="refund", raw_scores=True)}
    (plain,) = await predict(client, inputs="refund", parameters={})
    assert plain == await predict(client, inputs="refund")
    (raw,) = await predict(client, inputs="refund", parameters={"function_to_apply": "none", "top_k": 2})
    assert raw[0] == {"label": "refund", "score": logits["refund"]}
    assert len(raw) == 2
    sigmoid = await predict(
        client, inputs=[["refund"]], parameters={"function_to_apply": "sigmoid", "top_k": 99}
    )
    assert [one["score"] for one in sigmoid[0] if one["label"] == "delivery"] == [0.5]  # of logit 0


async def test_classify_answers_as_infinity_does(client: httpx.AsyncClient) -> None:
    """Labels best first, usage in tokens; the model may be named, and raw scores asked for."""
    body = {"model": "tiny-classifier", "input": ["refund", "shipping delivery"]}
    answer = await client.post("/classify", json=body)
    found = answer.json()
    assert answer.status_code == 200, answer.text
    assert (found["object"], found["model"]) == ("classify", "tiny-classifier")
    assert [labels[0]["label"] for labels in found["data"]] == ["refund", "delivery"]
    assert found["data"][0] == await predict(client, inputs="refund")
    assert found["usage"]["total_tokens"] == int(answer.headers["x-conche-tokens"]) > 6
    assert found["id"].startswith("classify-")
    raw = (await client.post("/classify", json=body | {"raw_scores": True})).json()
    assert raw["data"][0] == await predict(client, inputs="refund", raw_scores=True)
    for plain in ({"input": "refund"}, {"inputs": ["refund"]}):
        assert (await client.post("/classify", json=plain)).json()["data"] == found["data"][:1]


@pytest.mark.parametrize("name", ["input", "inputs"])
async def test_errors_of_classify_name_the_field_that_was_sent(client: httpx.AsyncClient, name: str) -> None:
    """Two spellings, one reading."""
    error = (await client.post("/classify", json={name: ["a", ""]})).json()
    assert (error["param"], error["index"], error["error"]) == (name, 1, f"{name}[1] is empty")
    missing = (await client.post("/classify", json={})).json()
    assert (missing["code"], missing["param"]) == ("invalid_input", "input")


@pytest.mark.parametrize("path", ["/predict", "/classify"])
async def test_without_a_classifier_the_answer_says_which_setting_lacks(
    models_folder: Path, path: str
) -> None:
    """404, and 503 where one is set and fails; a model loaded later serves those who name it."""
    body = {"inputs": "refund"}
    async with running(tiny_settings(models_folder, classifier_bundle="none", faq_store="none")) as client:
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "no_model")
        assert f"{path} is not available: CONCHE_CLASSIFIER_BUNDLE is none" in answer.json()["error"]
        told = (await client.get("/info")).json()["unavailable"]
        assert told[path] == "CONCHE_CLASSIFIER_BUNDLE is none"
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.post("/admin/models", json={"bundle": "tiny-classifier"})).status_code == 200
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "no_model")
        assert "tiny-classifier" in answer.json()["error"]
        assert (await client.post(path, json=body | {"model": "tiny-classifier"})).status_code == 200
        answer = await client.post(path, json=body | {"model": "tiny-ner"})
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_model")


async def test_a_classifier_that_fails_its_checks_is_503(tmp_path: Path) -> None:
    """And turns readiness red; the rest is served."""
    folder = write_tiny_classifier_bundle(tmp_path / "tiny-classifier")
    refresh_manifest(folder, labels=["a", "b"])  # of three logits
    settings = Settings.model_validate(
        {
            "models_dir": tmp_path,
            "embedding_bundle": "none",
            "ner_bundle": "none",
            "faq_store": "none",
            "classifier_bundle": "tiny-classifier",
            "on_bundle_error": "serve",
            "threads": 1,
        }
    )
    async with running(settings) as client:
        answer = await client.post("/predict", json={"inputs": "refund"})
        assert (answer.status_code, answer.json()["code"]) == (503, "no_model")
        assert "golden-outputs" in answer.json()["error"]
        assert (await client.get("/readyz")).status_code == 503


async def test_the_classifier_is_shown_and_counted(client: httpx.AsyncClient) -> None:
    """Like the other models: /info, /v1/models, /admin/models and the metrics."""
    await predict(client, inputs=[["refund"], ["hello " * 100, "refund"]], truncate=True)
    info = (await client.get("/info")).json()
    assert info["classifier"]["labels"] == list(TEXT_LABELS)
    assert info["classifier"]["label_activation"] == "softmax"
    assert "tiny-classifier" in info["models"]
    listed = {one["id"]: one for one in (await client.get("/admin/models")).json()["models"]}
    assert (listed["tiny-classifier"]["task"], listed["tiny-classifier"]["default"]) == (
        "sequence-classification",
        True,
    )
    answer = await client.delete("/admin/models/tiny-classifier")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    metrics = (await client.get("/metrics")).text
    assert 'conche_texts_total{model="tiny-classifier"} 2.0' in metrics
    assert 'conche_truncated_texts_total{model="tiny-classifier"} 1.0' in metrics


async def test_info_of_a_classifier_alone_is_that_of_tei(models_folder: Path) -> None:
    """Its clients look at `model_type`."""
    settings = tiny_settings(models_folder, embedding_bundle="none", ner_bundle="none", faq_store="none")
    async with running(settings) as client:
        info = (await client.get("/info")).json()
    assert info["model_id"] == "tiny-classifier"
    assert info["model_type"] == {
        "classifier": {
            "id2label": {"0": "refund", "1": "delivery", "2": "other"},
            "label2id": {"refund": 0, "delivery": 1, "other": 2},
        }
    }


async def test_an_answer_that_is_too_large_is_refused(models_folder: Path) -> None:
    """Texts times labels; the limit and its setting are named."""
    settings = tiny_settings(models_folder, faq_store="none", limits={"max_answer_bytes": 1024})
    async with running(settings) as client:
        answer = await client.post("/predict", json={"inputs": [["a"]] * 20})
    assert (answer.status_code, answer.json()["code"]) == (422, "answer_too_large")


async def test_texts_of_nothing_are_read_where_the_server_is_set_so(models_folder: Path) -> None:
    """By their special tokens, and told in a header; a query that all texts are compared with is not."""
    settings = tiny_settings(
        models_folder, faq_store="none", reranker_bundle="tiny-reranker", empty_input="read"
    )
    async with running(settings) as client:
        answer = await client.post("/predict", json={"inputs": [["refund"], [""], ["a", "\u200b"]]})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-conche-empty"] == "1,2"
        assert answer.headers["x-conche-tokens-by-input"] == "3,2,4"
        assert (await client.post("/classify", json={"input": ["", "a"]})).headers["x-conche-empty"] == "0"
        answer = await client.post("/rerank", json={"query": "order", "texts": ["order", " "]})
        assert (answer.headers["x-conche-empty"], len(answer.json())) == ("1", 2)
        for query in ("", "\u200b"):
            answer = await client.post("/rerank", json={"query": query, "texts": ["order"]})
            assert (answer.json()["code"], answer.json()["param"]) == ("empty_input", "query")
