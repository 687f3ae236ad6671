"""Log lines for machines or for people, each with the ids of its request; never with a caller's text."""

import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

import orjson

from service.request_trace import trace_of_request

request_id_var: ContextVar[str | None] = ContextVar("conche_request_id", default=None)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def configure_logging(
    level: str, line_format: Literal["auto", "json", "text"], stream: TextIO | None = None
) -> None:
    """Send everything at ``level`` and above to ``stream`` (stderr by default), ours and uvicorn's alike."""
    # No line tells thread, process or place of the call, so that none has to find them out.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - see Optimization in its HOWTO
    target = sys.stderr if stream is None else stream
    as_json = line_format == "json" or (line_format == "auto" and not target.isatty())
    handler = logging.StreamHandler(target)
    quotes = level == "debug"
    handler.setFormatter(JsonFormatter(quotes=quotes) if as_json else TextFormatter(quotes=quotes))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # uvicorn writes its own access lines and greetings; ours say the same with a request id.
    logging.getLogger("uvicorn.access").disabled = True
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel("DEBUG" if quotes else "WARNING")
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def label_lines(**fields: object) -> None:
    """Give every line from now on these fields as well."""

    def label(record: logging.LogRecord) -> bool:
        vars(record).update(fields)
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(label)


# What uvicorn says and we say better.
_NO_NEWS = "Application startup failed. Exiting."


def _is_news(record: logging.LogRecord) -> bool:
    return record.getMessage() != _NO_NEWS


def extra_fields(record: logging.LogRecord) -> Mapping[str, object]:
    """What the call passed as ``extra``, and the ids of the request it was made in and of its trace."""
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    request_id = request_id_var.get()
    if request_id is not None:
        fields.setdefault("request_id", request_id)
    trace = trace_of_request()
    if trace is not None:
        fields.setdefault("trace_id", trace.trace_id)
    return fields


def describe_exception(error: BaseException, *, quotes: bool) -> str:
    """Kinds and places of an exception and its causes, the root cause first.

    An exception's message may quote the text of a request (pydantic's and the tokeniser's do), so it is left
    out unless ``quotes`` is set, as it is at debug level.
    """
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(_describe_one(one, quotes=quotes) for one in reversed(chain))


def _describe_one(error: BaseException, *, quotes: bool) -> str:
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"  {code.co_filename}:{traceback.tb_lineno} in {code.co_qualname}")
        traceback = traceback.tb_next
    title = f"{type(error).__module__}.{type(error).__qualname__}"
    return "\n".join([f"{title}: {error}" if quotes else title, *frames])


class _Formatter(logging.Formatter):
    def __init__(self, *, quotes: bool = False) -> None:
        super().__init__()
        self._quotes = quotes

    def _exception(self, record: logging.LogRecord) -> str | None:
        error = record.exc_info[1] if record.exc_info else None
        return None if error is None else describe_exception(error, quotes=self._quotes)


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time (UTC, ISO 8601), level, logger, message, then the extra fields."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra_fields(record),
        }
        exception = self._exception(record)
        if exception is not None:
            line["exception"] = exception
        return orjson.dumps(line, default=str).decode()


class TextFormatter(_Formatter):
    """One line for people; local time, then ``name=value`` pairs."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message, fields; an exception on lines of its own."""
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = "".join(f" {name}={value}" for name, value in extra_fields(record).items())
        exception = self._exception(record)
        tail = "" if exception is None else f"\n{exception}"
        return f"{time} {record.levelname.lower():<7} {record.getMessage()}{fields}{tail}"
