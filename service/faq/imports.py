"""What an import takes of a file, and when it takes nothing; the same over HTTP and on the command line."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from service.errors import EmptyInputError, InvalidInputError, ServiceError
from service.faq.entries import FaqEntry
from service.faq.entry_files import (
    EntryFile,
    read_csv,
    read_jsonl,
    read_xlsx,
    write_csv,
    write_jsonl,
    write_xlsx,
)

XLSX_TYPE: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"

Read = Callable[[bytes], EntryFile]
Write = Callable[[Sequence[FaqEntry]], bytes]

READERS: Final[dict[str, Read]] = {
    "text/csv": read_csv,
    "application/x-ndjson": read_jsonl,
    "application/jsonl": read_jsonl,
    XLSX_TYPE: read_xlsx,
}
"""By media type."""

WRITERS: Final[dict[str, tuple[Write, str]]] = {
    "csv": (write_csv, "text/csv; charset=utf-8"),
    "jsonl": (write_jsonl, "application/x-ndjson"),
    "xlsx": (write_xlsx, XLSX_TYPE),
}
"""Writer and media type, by the ending of a file's name."""

# Lines that the message of a refusal lists; an import that is not strict reports all of them.
_LINES_LISTED: Final = 20


class BadLinesError(InvalidInputError):
    """Nothing of a file was taken for the lines that are wrong; the message lists them."""

    code = "bad_lines"


def check_file(file: EntryFile, *, strict: bool) -> None:
    """Refuse a file of which nothing should be taken.

    Args:
        file: as read.
        strict: one bad line is enough.

    Raises:
        EmptyInputError: it holds no entry and nothing that was meant to be one.
        BadLinesError: it has bad lines, and is read strictly or holds nothing else.
    """
    if file.bad_lines and (strict or not file.entries):
        raise BadLinesError(f"nothing of the file is taken; {described(file)}")
    if not file.entries:
        raise EmptyInputError("the file holds no entry")


def described(file: EntryFile) -> str:
    """Bad lines in words, the first ones by number and reason."""
    listed = "; ".join(f"{file.unit} {bad.number}: {bad.reason}" for bad in file.bad_lines[:_LINES_LISTED])
    more = len(file.bad_lines) - _LINES_LISTED
    return listed + (f"; and {more} more bad {file.unit}s" if more > 0 else "")


@contextmanager
def faults_by_line(file: EntryFile) -> Iterator[None]:
    """Name an entry at which writing stops by its line in the file, not by its place among the good ones."""
    try:
        yield
    except ServiceError as error:
        if error.param == "entries" and error.index is not None:
            error.call_item(f"{file.unit} {file.lines[error.index]}", index=None)
            error.param = None
        raise
