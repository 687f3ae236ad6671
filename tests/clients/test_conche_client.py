"""Our own client against a real server: over a socket, with the numbers of plain HTTP."""

import re
import socket
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from conche_client import Client, ConnectionFailedError, Entry, InvalidRequestError, Retries

TEXTS = ["怎么申请退款？", "How do I get a refund?", "The weather is fine today."]


def test_the_vectors_of_plain_http(url: str) -> None:
    """To the last bit of float32, in parts of a request each as well."""
    expected = np.array(httpx.post(f"{url}/embed", json={"inputs": TEXTS}).json(), dtype=np.float32)
    with Client(url) as conche:
        np.testing.assert_allclose(conche.embed(TEXTS).numpy(), expected, atol=1e-5)
    with Client(url + "/", batch_size=1) as conche:
        np.testing.assert_allclose(conche.embed(TEXTS).numpy(), expected, atol=1e-5)


def test_more_texts_than_one_request_takes(url_of_one_with_a_faq: str) -> None:
    """4,097 texts are three requests and one answer."""
    texts = [f"order {number}" for number in range(4097)]
    with Client(url_of_one_with_a_faq) as conche:
        found = conche.embed(texts, dimensions=4)
        last = conche.embed(texts[-1], dimensions=4)
    assert len(found) == 4097
    assert len(found.usage.request_ids) == 3
    np.testing.assert_allclose(found[-1], last[0], atol=1e-5)


def test_entities_order_and_comparison(url: str) -> None:
    """The other calls that ask a model."""
    with Client(url) as conche:
        (entities,) = conche.ner("😀 Tim Cook met Angela Merkel in Berlin.", offset_unit="utf-16")
        assert [(one.text, one.start) for one in entities] == [
            ("Tim Cook", 3),
            ("Angela Merkel", 16),
            ("Berlin", 33),
        ]
        ranking = conche.rerank("How long does a refund take?", ["We deliver on Sundays.", TEXTS[1]])
        assert ranking[0].index == 1
        near, far = conche.similarity(TEXTS[0], TEXTS[1:])
        assert near > far


def test_labels_of_texts_and_pairs(url_of_one_that_classifies: str) -> None:
    """The numbers of plain HTTP, one route and the other."""
    items = ["refund", ("hello", "refund")]
    body = {"inputs": [["refund"], ["hello", "refund"]], "raw_scores": True}
    plain = httpx.post(f"{url_of_one_that_classifies}/predict", json=body).json()
    with Client(url_of_one_that_classifies) as conche:
        found = conche.predict(items, raw_scores=True)
        (classified,) = conche.classify("refund", raw_scores=True)
    for labels, expected in zip((*found, classified), (*plain, plain[0]), strict=True):
        assert [one.label for one in labels] == [one["label"] for one in expected]
        np.testing.assert_allclose(
            [one.score for one in labels], [one["score"] for one in expected], atol=1e-5
        )


def test_a_faq_from_beginning_to_end(url_of_one_with_a_faq: str) -> None:
    """Written, found, read, deleted."""
    with Client(url_of_one_with_a_faq) as conche:
        assert conche.health().ready
        shop = conche.faq("shop")
        assert (
            shop.upsert([Entry("hello world", "Yes.", id="one"), Entry("reset", "No.", id="two")]).added == 2
        )
        assert conche.search("hello world", collection="shop", top_k=1)[0].hits[0].id == "one"
        assert [entry.id for entry in shop.entries(page_size=1)] == ["one", "two"]
        assert shop.patch("two", enabled=False).enabled is False
        assert shop.import_file(shop.export_file(), format="jsonl").unchanged == 2
        assert shop.drop() == 2
        assert [one.name for one in conche.collections()] == ["default"]


def test_errors_and_servers_that_are_not_there(url: str) -> None:
    """Each with what is known of it."""
    with Client(url) as conche, pytest.raises(InvalidRequestError) as raised:
        conche.embed(["a", "", "b"])
    assert (raised.value.code, raised.value.index) == ("empty_input", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        once_more = Retries(most=1, first_wait_s=0)
        with (
            Client(address, retries=once_more) as conche,
            pytest.raises(ConnectionFailedError, match="tried 2 times"),
        ):
            conche.info()


def test_the_readmes_example_runs(url_of_one_with_a_faq: str) -> None:
    """As it stands there, but for the address."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```\n(from conche_client.*?)\n```$", readme, re.DOTALL | re.MULTILINE)
    assert "http://127.0.0.1:8080" in example
    names: dict[str, Any] = {}
    exec(example.replace("http://127.0.0.1:8080", url_of_one_with_a_faq), names)
    assert len(names["vectors"]) == 2
    assert names["hit"].id == "delivery"
    assert names["gifts"].added == 1
    with Client(url_of_one_with_a_faq) as conche:
        conche.faq("shop").drop()
