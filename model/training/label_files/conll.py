"""Column files: a token and its tag on each line, an empty line after each sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from model.training.label_files.joining import Joiner, as_written
from model.training.label_files.readings import BadLine, FormatError, Reading
from model.training.label_files.span_rules import checked_span, labelled_text
from model.training.spans import LabelledText
from model.training.tag_schemes import (
    OUTSIDE,
    UnknownSchemeError,
    count_out_of_place,
    entities_of_tags,
    is_tag,
    recognise_scheme,
)

CONLL: Final = "conll"
CONLL_SPACED: Final = "conll-spaced"
_NO_SPACE: Final = "SpaceAfter=No"
_DOCUMENT_START: Final = "-DOCSTART-"
_TEXT_COMMENT: Final = re.compile(r"#\s*text\s*=\s*(.*\S)\s*")
_TOKEN_NUMBER: Final = re.compile(r"\d+(?:[-.]\d+)?")
# A column is the tags' if all but a few faults read as tags.
_LEAST_TAG_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    columns: list[str]


@dataclass(slots=True)
class _Sentence:
    rows: list[_Row] = field(default_factory=list)
    original: str | None = None  # as a comment gives it


@dataclass(frozen=True, slots=True)
class _Layout:
    width: int
    token: int
    tag: int


def read_conll(path: Path, lines: Sequence[str], *, spaced: bool = False) -> Reading:
    """Read tokens and tags in columns parted by tabs or spaces.

    The tags are those of the last column that holds such (CoNLL-2003 has two), tokens those of the first that
    is not their number. A comment ``# text = ...`` before a sentence is its text if the tokens are found in
    it; else the text is made again: by ``SpaceAfter=No`` in a further column where the file has that
    (CoNLL-U), else as ``joining`` says, by nothing where one side is written without spaces (Chinese,
    Japanese, Thai, full-width punctuation) or all tokens of the file are single characters. A sentence with a
    fault is left out whole.

    Args:
        path: Named in what is reported.
        lines: Of the file.
        spaced: Make all texts again, with spaces between all tokens of scripts with spaces.

    Raises:
        FormatError: No column holds tags, or they are of no known scheme.
    """
    sentences = list(_sentences(lines))
    layout = _layout_of(path, sentences)
    usable: list[tuple[_Sentence, list[str], list[str]]] = []
    bad: list[BadLine] = []
    has_letters = any(
        is_tag(row.columns[layout.tag]) and row.columns[layout.tag] != OUTSIDE
        for row in _rows_of_width(sentences, layout.width)
    )
    for sentence in sentences:
        try:
            usable.append((sentence, *_columns_of(sentence, layout, letters=has_letters)))
        except _FaultyRowError as error:
            bad.append(BadLine(path, error.line, str(error)))
    try:
        scheme = recognise_scheme(tags for _, _, tags in usable)
    except UnknownSchemeError as error:
        raise FormatError(f"{path}: {error}") from error
    sentences_of_tokens = [tokens for _, tokens, _ in usable]
    joiner, spacer = Joiner(sentences_of_tokens, spaced=spaced), Joiner(sentences_of_tokens, spaced=True)
    says_spaces = not spaced and not all(all(_spaces_of(sentence, layout)) for sentence, _, _ in usable)
    texts: list[LabelledText] = []
    starts: list[int] = []
    out_of_place = joined = 0
    for sentence, tokens, tags in usable:
        written = tokens if spaced else [as_written(token) for token in tokens]
        placed = _found_in(sentence.original, tokens) or _found_in(sentence.original, written)
        if placed is None or spaced:
            placed = joiner.join(written, _spaces_of(sentence, layout) if says_spaces else None)
            joined += not says_spaces and placed != spacer.join(tokens)
        try:
            texts.append(_labelled(*placed, tags))
        except ValueError as error:
            bad.append(BadLine(path, sentence.rows[0].line, str(error)))
        else:
            starts.append(sentence.rows[0].line)
            out_of_place += count_out_of_place(tags, scheme)
    notes = []
    if joined:
        notes.append(
            f"{joined} texts were made again with spaces as people write them; --format {CONLL_SPACED} puts "
            "one between any two tokens"
        )
    if out_of_place:
        notes.append(
            f"{out_of_place} tags are out of place in {scheme}; each was read as the start of an entity"
        )
    bad.sort(key=lambda line: line.line)
    return Reading(path, f"{CONLL}, {scheme}", texts, bad, starts, notes)


class _FaultyRowError(ValueError):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"{reason}; its sentence is left out")
        self.line = line


def has_tag_column(lines: Sequence[str]) -> bool:
    """Whether these first lines of a file look like tokens and tags."""
    try:
        _layout_of(Path(), list(_sentences(lines)))
    except FormatError:
        return False
    return True


def _sentences(lines: Sequence[str]) -> Iterator[_Sentence]:
    filled = [line for line in lines if line.strip()]
    tabs = sum("\t" in line for line in filled) * 2 > len(filled)
    rows = [_Row(number, _split(line, tabs=tabs)) for number, line in enumerate(lines, start=1)]
    widths = Counter(
        len(row.columns) for row, line in zip(rows, lines, strict=True) if line.strip() and line[0] != "#"
    )
    width = widths.most_common(1)[0][0] if widths else 0
    sentence = _Sentence()
    for row, line in zip(rows, lines, strict=True):
        # The number sign is a token too, where its line has a tag.
        if line.startswith("#") and (len(row.columns) != width or not (tabs or is_tag(row.columns[-1]))):
            match = _TEXT_COMMENT.fullmatch(line)
            if match and not sentence.rows:
                sentence.original = match[1]
        elif not line.strip() or line.startswith(_DOCUMENT_START):
            if sentence.rows:
                yield sentence
            sentence = _Sentence()
        else:
            sentence.rows.append(row)
    if sentence.rows:
        yield sentence


def _split(line: str, *, tabs: bool) -> list[str]:
    """Columns; one of white space alone is that, the token of a space in files by character."""
    if tabs:
        return [column.strip(" ") or column for column in line.rstrip("\t ").split("\t")]
    first, *others = re.split(r"[ \t]+", line.rstrip(" \t"))
    return [first or " ", *others]


def _rows_of_width(sentences: Sequence[_Sentence], width: int) -> list[_Row]:
    return [row for sentence in sentences for row in sentence.rows if len(row.columns) == width]


def _layout_of(path: Path, sentences: Sequence[_Sentence]) -> _Layout:
    widths = Counter(len(row.columns) for sentence in sentences for row in sentence.rows)
    width = widths.most_common(1)[0][0] if widths else 0
    rows = _rows_of_width(sentences, width)
    by_number = width > 2 and all(_TOKEN_NUMBER.fullmatch(row.columns[0]) for row in rows)
    token = 1 if by_number else 0
    columns = range(width - 1, token, -1)
    for column in columns:
        if sum(is_tag(row.columns[column]) for row in rows) >= _LEAST_TAG_SHARE * len(rows):
            return _Layout(width, token, column)
    for column in columns:  # plain labels: nothing but O tells them from other columns
        if any(row.columns[column] == OUTSIDE for row in rows):
            return _Layout(width, token, column)
    raise FormatError(f"{path}: no column of tags such as O and B-PER beside the tokens")


def _columns_of(sentence: _Sentence, layout: _Layout, *, letters: bool) -> tuple[list[str], list[str]]:
    tokens, tags = [], []
    for row in sentence.rows:
        if len(row.columns) != layout.width:
            raise _FaultyRowError(row.line, f"{len(row.columns)} columns where the file has {layout.width}")
        token, tag = row.columns[layout.token], row.columns[layout.tag]
        if not token:
            raise _FaultyRowError(row.line, "no token")
        if not tag or (letters and not is_tag(tag)):
            raise _FaultyRowError(row.line, f"{tag!r} is no tag such as O and B-PER")
        tokens.append(token)
        tags.append(tag)
    return tokens, tags


def _labelled(text: str, borders: Sequence[tuple[int, int]], tags: Sequence[str]) -> LabelledText:
    return labelled_text(
        text,
        [
            checked_span(borders[run.first][0], borders[run.last][1], run.label)
            for run in entities_of_tags(tags)
        ],
    )


def _spaces_of(sentence: _Sentence, layout: _Layout) -> list[bool]:
    """Whether a space follows each token, as far as ``SpaceAfter=No`` says."""
    return [
        not any(
            _NO_SPACE in column.split("|")
            for place, column in enumerate(row.columns)
            if place not in (layout.token, layout.tag)
        )
        for row in sentence.rows
    ]


def _found_in(original: str | None, tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]] | None:
    """Each token's place in a text that holds them and white space only."""
    if original is None:
        return None
    borders: list[tuple[int, int]] = []
    position = 0
    for token in tokens:
        while not original.startswith(token, position):
            if position >= len(original) or not original[position].isspace():
                return None
            position += 1
        borders.append((position, position + len(token)))
        position += len(token)
    return None if original[position:].strip() else (original, borders)
