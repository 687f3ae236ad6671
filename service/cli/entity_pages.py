"""``conche ner --html``: the page that is written instead of JSON lines."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from model.runtime.entity_page import PAGE_END, Looks, escaped, legend, marked_text, page_start, scored_marks


class EntityPage:
    """A page of texts that grows text by text."""

    def __init__(self, file: IO[str], *, title: str, names: Sequence[str]) -> None:
        """Begin a page.

        Args:
            file: Written to.
            title: Of the page.
            names: Headings of the first texts; the others are numbered.
        """
        self._file = file
        self._names = names
        self._looks: Looks | None = None
        self.texts = 0
        self.entities = 0
        file.write(page_start(title))

    def add(self, record: Mapping[str, Any], labels: Sequence[str]) -> None:
        """Add a text and its entities as ``conche ner`` prints them; ``labels`` are those of the model."""
        if self._looks is None:
            self._looks = Looks(labels)
            self._file.write(legend(self._looks))
        name = self._names[self.texts] if self.texts < len(self._names) else f"text {self.texts + 1}"
        marks = scored_marks(
            (found["start"], found["end"], found["label"], found["score"]) for found in record["entities"]
        )
        self._file.write(f"<h3>{escaped(name)}</h3>\n{marked_text(record['text'], marks, self._looks)}")
        self.texts += 1
        self.entities += len(marks)


@contextmanager
def entity_page(path: Path, *, title: str, names: Sequence[str]) -> Iterator[EntityPage]:
    """A page that takes its place when it is whole; a failure leaves what was there.

    Raises:
        click.ClickException: It cannot be written.
    """
    with replaced(path) as file:
        entities = EntityPage(file, title=title, names=names)
        yield entities
        file.write(PAGE_END)
    click.echo(f"{path}: {entities.texts} texts, {entities.entities} entities", err=True)


@contextmanager
def replaced(path: Path) -> Iterator[IO[str]]:
    """A text file that is put in the place of ``path`` at the end, if nothing fails on the way.

    Until then it has no name, so that nothing stays behind of a process that is killed.

    Raises:
        click.ClickException: It cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with tempfile.TemporaryFile("w+", encoding="utf-8", dir=path.parent) as file:
            yield file
            file.seek(0)
            with part.open("w", encoding="utf-8") as whole:
                shutil.copyfileobj(file, whole)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}") from error
