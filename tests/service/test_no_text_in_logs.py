"""No log line holds what a caller sent, whatever it sent and whatever goes wrong."""

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from service.log_config import JsonFormatter, TextFormatter
from tests.service.odd_requests import SECRET, WORD, send_odd_requests


class _Lines(logging.Handler):
    """Keeps every line, as both formats write it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._formatters = (JsonFormatter(), TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        # Of the client, which is no part of the service.
        if not record.name.startswith(("httpx", "httpcore", "asyncio")):
            self.lines += [formatter.format(record) for formatter in self._formatters]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged at the level that the service has unless told otherwise."""
    handler, root = _Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(level)


async def test_odd_requests_leave_no_text_in_the_log(client: httpx.AsyncClient, lines: list[str]) -> None:
    """A log is read by more people than may read the texts."""
    await send_odd_requests(client)
    requests = [orjson.loads(line) for line in lines if line.startswith("{")]
    assert len([line for line in requests if line["message"] == "request"]) >= 20
    assert len({line.get("code") for line in requests}) >= 8  # they fail in many ways
    assert [line for line in lines if WORD in line.lower()] == []


async def test_failures_leave_no_text_in_the_log(
    client: httpx.AsyncClient, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of exceptions quote what they failed on; the log has their kinds and places."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(SECRET)

    services = client.app.state.services  # type: ignore[attr-defined]  # put there by the fixture
    monkeypatch.setattr(services.catalogue, "search", fail)
    assert (await client.post("/search", json={"query": SECRET})).status_code == 500
    with monkeypatch.context() as patch:
        patch.setattr(services.embedder._model.tokenizer, "tokenize_ids", fail)
        assert (await client.post("/embed", json={"inputs": [SECRET]})).status_code == 500
    monkeypatch.setattr(services.embedder._model._engine, "run", fail)  # on the known text, too
    assert (await client.post("/embed", json={"inputs": [SECRET]})).status_code == 503
    assert sum("RuntimeError" in line for line in lines) >= 3
    assert [line for line in lines if WORD in line] == []
