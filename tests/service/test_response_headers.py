"""What the headers say about each text, within what proxies let through."""

from service.relevance import QueryRead
from service.request_work import RequestWork
from service.response_headers import reading_headers, tagging_headers, work_headers


def test_only_texts_that_were_cut_are_listed() -> None:
    """Nothing is cut in most answers; then the header is absent."""
    assert reading_headers("m", [3, 4], [0, 0]) == {
        "x-conche-model": "m",
        "x-conche-tokens": "7",
        "x-conche-tokens-by-input": "3,4",
    }
    assert reading_headers("m", [3, 4, 5], [0, 120, 7])["x-conche-truncated"] == "1:120,2:7"


def test_what_a_list_is_compared_with_is_in_no_list() -> None:
    """Places are those of the texts that were sent, whether or not something was read beside them."""
    headers = reading_headers("m", [3, 4], [0, 7], [0], query=QueryRead(5, 0))
    assert headers == {
        "x-conche-model": "m",
        "x-conche-tokens": "12",
        "x-conche-tokens-by-input": "3,4",
        "x-conche-tokens-query": "5",
        "x-conche-empty": "0",
        "x-conche-truncated": "1:7",
    }
    both = reading_headers("m", [3, 4], [0, 7], query=QueryRead(5, 9))
    assert both["x-conche-truncated"] == "query:9,1:7"


def test_tokens_by_input_are_told_while_all_of_them_fit() -> None:
    """Half a list could not be told from a whole one by its readers, who go by place."""
    assert len(reading_headers("m", [1] * 1000, [0] * 1000)["x-conche-tokens-by-input"].split(",")) == 1000
    assert "x-conche-tokens-by-input" not in reading_headers("m", [10] * 1000, [0] * 1000)
    assert reading_headers("m", [10] * 1000, [0] * 1000)["x-conche-tokens"] == "10000"
    assert reading_headers("m", [], []) == {"x-conche-model": "m", "x-conche-tokens": "0"}
    assert tagging_headers("m", [5, 6], [1, 1])["x-conche-tokens-by-input"] == "5,6"


def test_empty_texts_are_listed_as_far_as_they_fit() -> None:
    """Their vectors are to be left out; a list cut short says so."""
    assert reading_headers("m", [3, 2, 2], [0, 0, 0], [1, 2])["x-conche-empty"] == "1,2"
    assert "x-conche-empty" not in reading_headers("m", [3], [0])
    assert tagging_headers("m", [5, 0], [1, 0])["x-conche-empty"] == "1"
    many = reading_headers("m", [2] * 2048, [0] * 2048, range(2048))["x-conche-empty"]
    assert len(many) <= 2004
    assert many.startswith("0,1,2,")
    assert many.endswith(",...")


def test_times_are_told_in_milliseconds() -> None:
    """Two decimals for people and browsers, whole ones under the names of text-embeddings-inference."""
    work = RequestWork()
    work.add_tokenizing(0.001234, characters=20)
    work.add_rows(1, tokens=6, queue_seconds=0.004, run_seconds=0.0101)
    work.add_rows(3, tokens=4, queue_seconds=0.002, run_seconds=0.02)
    assert work_headers(work, total_seconds=0.5) == {
        "server-timing": "tokenize;dur=1.23, queue;dur=2.50, run;dur=30.10, total;dur=500.00",
        "x-compute-characters": "20",
        "x-compute-tokens": "10",
        "x-total-time": "500",
        "x-tokenization-time": "1",
        "x-queue-time": "2",
        "x-inference-time": "30",
    }


def test_what_follows_a_model_is_told_where_there_was_such_a_thing() -> None:
    """Several add up; the parts stand before the whole."""
    work = RequestWork()
    work.add_decoding(0.001)
    work.add_decoding(0.002)
    work.add_lookup(0.004)
    timing = work_headers(work, total_seconds=0.5)["server-timing"]
    assert timing == (
        "tokenize;dur=0.00, queue;dur=0.00, run;dur=0.00, decode;dur=3.00, lookup;dur=4.00, total;dur=500.00"
    )


def test_a_long_list_ends_in_an_ellipsis() -> None:
    """2,048 cut texts must not make a header that a proxy refuses."""
    value = reading_headers("m", [1] * 2048, [9] * 2048)["x-conche-truncated"]
    assert len(value) <= 2010
    assert value.endswith(",...")


def test_only_texts_of_several_windows_are_listed() -> None:
    """One window is the ordinary case."""
    assert "x-conche-windows" not in tagging_headers("m", [3], [1])
    assert tagging_headers("m", [3, 900], [1, 4])["x-conche-windows"] == "1:4"
