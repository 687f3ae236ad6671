"""FAQ entries, and reading them from JSONL and CSV files.

A reader takes what is good and reports every record that is not, with its line and the reason; nothing is
dropped or renamed without a word. Reading the same file twice gives the same ids.
"""

import csv
import hashlib
import io
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Self

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

MAX_ID_CHARS: Final = 200
MAX_QUESTION_CHARS: Final = 2_000
MAX_ANSWER_CHARS: Final = 32_768
MAX_ALTERNATES: Final = 200
MAX_TAGS: Final = 100
MAX_TAG_CHARS: Final = 200
MAX_METADATA_KEYS: Final = 100
MAX_METADATA_CHARS: Final = 2_000


def _number_as_text(value: object) -> object:
    """Take a whole number for an id: spreadsheets and JSON writers turn ``7`` into one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _text(value: str) -> str:
    """Strip, and refuse what no client could send back: a lone surrogate or a control character."""
    for char in value:
        if "\ud800" <= char <= "\udfff":
            raise ValueError("not text: bytes that are not UTF-8, or half of a surrogate pair")
        if char < " " and char not in "\t\n\r":
            raise ValueError(f"control character U+{ord(char):04X}")
    return value.strip()


def _filled(value: str) -> str:
    if not value:
        raise ValueError("empty")
    return value


Text = Annotated[str, AfterValidator(_text)]
FilledText = Annotated[Text, AfterValidator(_filled)]
MetadataValue = bool | int | float | Annotated[Text, Field(max_length=MAX_METADATA_CHARS)]


class FaqEntry(BaseModel):
    """One question with its answer.

    Attributes:
        id: unique within a collection; a whole number is taken as its decimal text.
        question: the standard wording.
        answer: may be "" where a client only wants to know which entry a query means.
        alternates: other wordings of the question; repeats, and the question itself, are left out.
        language: a BCP 47 tag such as "zh" or "en"; None if not said. Informative: search crosses languages.
        tags: labels, each once, in the order given.
        metadata: further fields, by name.
        enabled: a disabled entry is kept and never found.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    id: Annotated[FilledText, BeforeValidator(_number_as_text), Field(max_length=MAX_ID_CHARS)]
    question: Annotated[FilledText, Field(max_length=MAX_QUESTION_CHARS)]
    answer: Annotated[Text, Field(max_length=MAX_ANSWER_CHARS)]
    alternates: Annotated[
        tuple[Annotated[FilledText, Field(max_length=MAX_QUESTION_CHARS)], ...],
        Field(max_length=MAX_ALTERNATES),
    ] = ()
    language: Annotated[Text, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] | None = None
    tags: Annotated[
        tuple[Annotated[FilledText, Field(max_length=MAX_TAG_CHARS)], ...], Field(max_length=MAX_TAGS)
    ] = ()
    metadata: Annotated[
        dict[Annotated[FilledText, Field(max_length=MAX_TAG_CHARS)], MetadataValue],
        Field(max_length=MAX_METADATA_KEYS),
    ] = Field(default_factory=dict)
    enabled: bool = True

    @model_validator(mode="after")
    def _each_wording_once(self) -> Self:
        alternates = tuple(text for text in dict.fromkeys(self.alternates) if text != self.question)
        # The class is frozen for its users; a validator is still building the instance.
        object.__setattr__(self, "alternates", alternates)
        object.__setattr__(self, "tags", tuple(dict.fromkeys(self.tags)))
        return self

    @property
    def phrasings(self) -> tuple[str, ...]:
        """The question, then its alternates: all that a query may match."""
        return (self.question, *self.alternates)


class FaqFileError(ValueError):
    """Nothing of a file can be read: its encoding, header or type. The message says what to change."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """One record that was left out.

    Attributes:
        number: the line it starts on, counted from 1, the header included.
        reason: what is wrong with it.
    """

    number: int
    reason: str


@dataclass(slots=True)
class EntryFile:
    """What a file held.

    Attributes:
        entries: in the order of the file, ids unique.
        bad_lines: everything else, in the order of the file.
        metadata_columns: CSV columns that are no field of an entry, kept as metadata under their own names.
    """

    entries: list[FaqEntry] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    metadata_columns: tuple[str, ...] = ()


def read_entries(path: Path) -> EntryFile:
    """Read a ``.jsonl`` (or ``.ndjson``) or ``.csv`` file.

    Raises:
        FaqFileError: the file's type, encoding or header is not one we read.
        OSError: the file cannot be opened.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise FaqFileError(f"{path.name}: not one of {', '.join(_READERS)}")
    return reader(path.read_bytes())


def read_jsonl(data: bytes) -> EntryFile:
    """Read one JSON object a line, in UTF-8 with or without a byte-order mark; blank lines are skipped.

    The keys are the attributes of `FaqEntry`; without "id" the entry gets one made from its question.

    Raises:
        FaqFileError: the data is UTF-16 or UTF-32.
    """
    result = EntryFile()
    collector = _Collector(result)
    for number, line in enumerate(_without_mark(data).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            collector.refuse(number, f"not JSON: {error}")
            continue
        if not isinstance(record, dict):
            collector.refuse(number, "not a JSON object")
            continue
        collector.take(number, record)
    return result


def read_csv(data: bytes) -> EntryFile:
    """Read a table with a header, in UTF-8 with or without a byte-order mark.

    Columns, in any order and case: ``question`` and ``answer``; optionally ``id`` (else made from the
    question), ``alternates`` and ``tags`` (several in one cell parted by ``|`` or line ends), ``language``,
    ``enabled`` (true/false, yes/no, 1/0). Every other column becomes metadata. Comma, semicolon or tab
    parts the cells.

    Raises:
        FaqFileError: the encoding is not UTF-8, or a needed column is missing or there twice.
    """
    # Bytes that are not UTF-8 become lone surrogates, which an entry refuses: each bad line gets its number.
    text = _without_mark(data).decode("utf-8", errors="surrogateescape")
    rows = _csv_rows(text, _delimiter(text))
    header = next(rows, None)
    if header is None:
        raise FaqFileError("no header: the file is empty")
    if isinstance(header[1], str):
        raise FaqFileError(f"no header: {header[1]}")
    columns = _columns(header[1])
    result = EntryFile(metadata_columns=tuple(name for name in columns if name and name not in _FIELDS))
    collector = _Collector(result)
    needed_cells = 1 + max(columns.index(name) for name in _NEEDED)
    for number, row in rows:
        if isinstance(row, str):
            collector.refuse(number, row)
        elif any(cell.strip() for cell in row[len(columns) :]) or 0 < len(row) < needed_cells:
            collector.refuse(number, f"{len(row)} cells where the header has {len(columns)}")
        elif any(cell.strip() for cell in row):
            try:
                collector.take(number, _record(columns, row))
            except ValueError as error:
                collector.refuse(number, str(error))
    return result


def demo_entries() -> list[FaqEntry]:
    """Return the demo FAQ: an invented online shop, in Chinese and English."""
    return read_jsonl(resources.files("service.faq").joinpath("demo.jsonl").read_bytes()).entries


def id_from_question(question: str) -> str:
    """Make an id that is the same for the same question, whatever its width, case and spacing."""
    folded = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return "q-" + hashlib.sha256(folded.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


class _Collector:
    """Checks records one by one and files each under good or bad."""

    def __init__(self, result: EntryFile) -> None:
        self._result = result
        self._line_of_id: dict[str, int] = {}

    def refuse(self, number: int, reason: str) -> None:
        self._result.bad_lines.append(BadLine(number, reason))

    def take(self, number: int, record: Mapping[str, Any]) -> None:
        if record.get("id") is None and isinstance(record.get("question"), str):
            record = {**record, "id": id_from_question(record["question"])}
        try:
            entry = FaqEntry.model_validate(record)
        except ValidationError as error:
            self.refuse(number, _reasons(error))
            return
        first = self._line_of_id.setdefault(entry.id, number)
        if first != number:
            self.refuse(number, f"id {entry.id!r} is taken by line {first}")
            return
        self._result.entries.append(entry)


def _reasons(error: ValidationError) -> str:
    """Put pydantic's findings on one line, without the input they quote."""
    reasons = []
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in found["loc"]) or "entry"
        reasons.append(f"{where}: {found['msg'].removeprefix('Value error, ')}")
    return "; ".join(reasons)


_BYTE_ORDER_MARKS: Final = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def _without_mark(data: bytes) -> bytes:
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            raise FaqFileError(f"the file is {encoding}; save it as UTF-8")
    return data.removeprefix(b"\xef\xbb\xbf")


_FIELDS: Final = ("id", "question", "answer", "alternates", "language", "tags", "enabled")
_NEEDED: Final = ("question", "answer")
_TRUE: Final = frozenset({"true", "yes", "y", "1"})
_FALSE: Final = frozenset({"false", "no", "n", "0"})


def _delimiter(text: str) -> str:
    """Choose the mark that parts the first line into the needed columns; a comma if none does."""
    first_line = text.partition("\n")[0]
    for delimiter in ",;\t":
        names = {cell.strip().strip('"').strip().casefold() for cell in first_line.split(delimiter)}
        if names.issuperset(_NEEDED):
            return delimiter
    return ","


def _csv_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yield each record's first line and its cells, or the reason why it cannot be read."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, f"not CSV: {error}"
            continue
        yield number, row


def _columns(header: Sequence[str]) -> list[str]:
    """Name the columns: known ones by field, others as written; blank for columns without a name."""
    columns = []
    for cell in header:
        name = cell.strip()
        columns.append(name.casefold() if name.casefold() in _FIELDS else name)
    if any("\ud800" <= char <= "\udfff" for char in "".join(columns)):
        raise FaqFileError("the header is not UTF-8; save the file as UTF-8")
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise FaqFileError(
            f"the header has no column {' and no column '.join(missing)}; it has: {', '.join(columns)}"
        )
    repeated = sorted({name for name in columns if name and columns.count(name) > 1})
    if repeated:
        raise FaqFileError(f"the header names a column twice: {', '.join(repeated)}")
    return columns


def _record(columns: Sequence[str], row: Sequence[str]) -> dict[str, Any]:
    """Turn cells into an entry's fields; an empty cell of an optional column is as good as none.

    Raises:
        ValueError: a cell that cannot be read, or that stands under no name.
    """
    record: dict[str, Any] = {"answer": ""}
    metadata: dict[str, str] = {}
    for position, (name, cell) in enumerate(zip(columns, row, strict=False), start=1):
        value = cell.strip()
        if not value:
            continue
        if not name:
            raise ValueError(f"cell {position} stands in a column without a name")
        if name in {"alternates", "tags"}:
            parts = (part.strip() for line in value.splitlines() for part in line.split("|"))
            record[name] = [part for part in parts if part]
        elif name == "enabled":
            record[name] = _flag(value)
        elif name in _FIELDS:
            record[name] = value
        else:
            metadata[name] = value
    if metadata:
        record["metadata"] = metadata
    return record


def _flag(value: str) -> bool:
    folded = value.casefold()
    if folded in _TRUE:
        return True
    if folded in _FALSE:
        return False
    raise ValueError("enabled: none of true, false, yes, no, 1, 0")


_READERS: Final[dict[str, Callable[[bytes], EntryFile]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
}
