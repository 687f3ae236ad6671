"""Strict JSON: what is refused, and that the reason never quotes the body."""

import orjson
import pytest

from service.errors import UnavailableError
from service.http_errors import MalformedBodyError
from service.json_body import parse_json


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud83d", "b": NaN}',  # also on the way taken for lone surrogates
        b'{"a": "\\ud83d", "b": 1e999}',
        b'{"a": "\\ud83d", "b": [-1.5e400]}',
        b"\xff\xfe{\x00}\x00",  # UTF-16
        '{"a": "退货"}'.encode("gb18030"),
        b'{"a": "\xed\xa0\xbd"}',  # a surrogate in UTF-8's clothes
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a": "\\ud83d", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": 1} trailing',
    ],
)
def test_what_is_not_strict_json_in_utf8_is_refused(body: bytes) -> None:
    """A parser that lets it pass fails later, where it costs a 500."""
    with pytest.raises(MalformedBodyError):
        parse_json(body)


def test_a_body_for_which_there_is_no_memory_is_not_called_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sent it would look for a fault of theirs, and not send it again."""

    def loads(body: bytes) -> object:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)

    monkeypatch.setattr(orjson, "loads", loads)
    with pytest.raises(UnavailableError):
        parse_json(b"{}")


def test_a_byte_order_mark_is_passed_over() -> None:
    """Some editors write one."""
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_half_a_surrogate_pair_is_kept_for_validation_to_name() -> None:
    """Refused here, nobody could say which of 2,000 texts it is in."""
    assert parse_json(b'{"inputs": ["ok", "\\ud83d parcel"]}') == {"inputs": ["ok", "\ud83d parcel"]}
    assert parse_json(b'"\\ud83d\\ude00"') == "😀"


def test_the_reason_does_not_quote_the_body() -> None:
    """Bodies hold what people wrote."""
    with pytest.raises(MalformedBodyError) as caught:
        parse_json(b'{"inputs": "my secret diagnosis')
    assert "secret" not in str(caught.value)
