"""What the headers say about each text, within what proxies let through."""

from service.response_headers import embedding_headers, tagging_headers


def test_only_texts_that_were_cut_are_listed() -> None:
    """Nothing is cut in most answers; then the header is absent."""
    assert embedding_headers("m", [3, 4], [0, 0]) == {"x-conche-model": "m", "x-conche-tokens": "7"}
    assert embedding_headers("m", [3, 4, 5], [0, 120, 7])["x-conche-truncated"] == "1:120,2:7"


def test_a_long_list_ends_in_an_ellipsis() -> None:
    """2,048 cut texts must not make a header that a proxy refuses."""
    value = embedding_headers("m", [1] * 2048, [9] * 2048)["x-conche-truncated"]
    assert len(value) <= 2010
    assert value.endswith(",...")


def test_only_texts_of_several_windows_are_listed() -> None:
    """One window is the ordinary case."""
    assert "x-conche-windows" not in tagging_headers("m", [3], [1])
    assert tagging_headers("m", [3, 900], [1, 4])["x-conche-windows"] == "1:4"
