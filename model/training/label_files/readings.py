"""What reading a labelled file gives: texts, what was left out and why; and its lines as text."""

from __future__ import annotations

import codecs
import dataclasses
from pathlib import Path

from model.training.spans import LabelledText


class EncodingError(ValueError):
    """A data file that is not UTF-8; the message names file and line."""


class FormatError(ValueError):
    """A data file that is in none of the formats, or not in the one that was said."""


@dataclasses.dataclass(frozen=True, slots=True)
class BadLine:
    """A text of a data file that cannot be used, the line where that shows, and why."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """A labelled file, read.

    Attributes:
        path: The file.
        format: Its format's name, and for columns the scheme of its tags.
        texts: The usable ones, in file order.
        bad: One for each text that was left out, in file order.
        lines: For each of ``texts`` the line on which it begins.
        notes: What was taken to mean something that it does not say, such as offsets in another unit.
    """

    path: Path
    format: str
    texts: list[LabelledText]
    bad: list[BadLine]
    lines: list[int]
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def bad_share(self) -> float:
        """Share of the texts that were left out, 0..1."""
        total = len(self.texts) + len(self.bad)
        return len(self.bad) / total if total else 0.0


def read_lines(path: Path) -> list[str]:
    """The lines of a file, without their ends; a byte order mark is none of its text.

    Only LF and CR LF end a line: U+2028 and the like may stand inside a text.

    Raises:
        OSError: The file cannot be read.
        EncodingError: It is not UTF-8.
    """
    raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise EncodingError(
            f"{path}:{number}: byte {raw[error.start]:#04x} is not UTF-8; save the file in UTF-8"
        ) from error
    return [line.removesuffix("\r") for line in text.split("\n")]
