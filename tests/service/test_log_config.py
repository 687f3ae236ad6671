"""Log lines: one JSON object each for machines, the request's id on all, never a caller's text."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from service.log_config import JsonFormatter, TextFormatter, configure_logging, request_id_var


@pytest.fixture
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = False


def _record(message: str = "hello", error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("service.test", logging.INFO, __file__, 1, message, (), info)
    for name, value in extra.items():
        setattr(record, name, value)
    return record


def _fail(message: str) -> None:
    try:
        float(message)
    except ValueError as cause:
        raise RuntimeError(message) from cause


def _raised(message: str) -> Exception:
    with pytest.raises(RuntimeError) as caught:
        _fail(message)
    return caught.value


def test_json_lines_hold_extra_fields_and_the_request_id() -> None:
    """Searchable by field, and tied to the answer's header."""
    token = request_id_var.set("r-1")
    try:
        line = json.loads(JsonFormatter().format(_record(status=200, route="/embed")))
    finally:
        request_id_var.reset(token)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "service.test",
        "message": "hello",
        "status": 200,
        "route": "/embed",
        "request_id": "r-1",
    }


def test_a_message_with_line_breaks_stays_one_line() -> None:
    """Nobody can forge a second line."""
    assert JsonFormatter().format(_record("a\nb")).count("\n") == 0


def test_exceptions_are_logged_by_kind_and_place_only() -> None:
    """Their messages may quote a request's text; the cause is logged as well."""
    exception = json.loads(JsonFormatter().format(_record(error=_raised("my secret"))))["exception"]
    assert "my secret" not in exception
    assert exception.index("builtins.ValueError") < exception.index("builtins.RuntimeError")
    assert "test_log_config.py" in exception


def test_at_debug_level_messages_are_shown() -> None:
    """For one's own machine."""
    assert "my secret" in TextFormatter(quotes=True).format(_record(error=_raised("my secret")))
    assert "my secret" not in TextFormatter().format(_record(error=_raised("my secret")))


@pytest.mark.usefixtures("_restored_logging")
def test_without_a_terminal_the_automatic_format_is_json() -> None:
    """Containers are read by machines."""
    stream = io.StringIO()
    configure_logging("info", "auto", stream)
    logging.getLogger("anything").info("hello")
    assert json.loads(stream.getvalue())["message"] == "hello"


@pytest.mark.usefixtures("_restored_logging")
def test_lines_below_the_level_are_left_out() -> None:
    """And uvicorn's greetings with them."""
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    logging.getLogger("service").debug("detail")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").error("port is taken")
    assert len(stream.getvalue().splitlines()) == 1
    assert "port is taken" in stream.getvalue()
