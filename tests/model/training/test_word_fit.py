"""Which labelled spans a tagger can give back."""

from pathlib import Path

import pytest

from model.runtime.tokenization import Tokenizer
from model.training.spans import LabelledText, Span
from model.training.word_fit import misfits_of, tagger_reader
from tests.bundles import tiny_tokenizer, write_tiny_embedding_bundle, write_tiny_ner_bundle

READER = Tokenizer(tiny_tokenizer())


@pytest.mark.parametrize(
    ("text", "start", "end", "reason"),
    [
        ("Londoners left", 0, 6, "cuts 'Londoners'"),
        ("see Londoners left", 0, 10, "cuts 'Londoners'"),
        ("Oslo-based", 0, 4, None),
        ("$5 now", 1, 2, None),
        ("now 😀", 4, 5, "is marks only"),
        ("小明😀 now", 0, 3, "'小明' is left"),
        ("北京、上海", 0, 5, "enumeration comma"),
        ("In Oslo.\n\nParis too", 3, 15, "end of a paragraph"),
        ("(Oslo) now", 0, 6, None),
        ("(Oslo) now", 1, 6, "'Oslo' is left"),
    ],
)
def test_a_span_is_whole_words_and_keeps_its_marks(
    text: str, start: int, end: int, reason: str | None
) -> None:
    """Else the reason says what is in the way."""
    (found,) = misfits_of([LabelledText(text, (Span(start, end, "X"),))], READER)
    if reason is None:
        assert not found
    else:
        (misfit,) = found
        assert misfit.span == Span(start, end, "X")
        assert reason in misfit.reason


def test_the_words_are_those_of_the_tagger_to_be(tmp_path: Path) -> None:
    """Which has Han characters apart, whatever its base joins; a tagger has them already."""
    text = LabelledText("住在北京", (Span(2, 4, "LOC"),))
    for bundle in (write_tiny_embedding_bundle(tmp_path / "e"), write_tiny_ner_bundle(tmp_path / "t")):
        assert misfits_of([text], tagger_reader(bundle)) == [[]]
