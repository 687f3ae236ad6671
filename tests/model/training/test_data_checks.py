"""Findings about data whose every text can be used."""

from pathlib import Path

from model.runtime.tokenization import Tokenizer
from model.training.data_checks import DEFAULT_MIN_EXAMPLES, DataCheck, check_data
from model.training.label_files.readings import BadLine, Reading
from model.training.spans import LabelledText, Span
from tests.bundles import tiny_tokenizer


def reading(*texts: LabelledText, bad: int = 0) -> Reading:
    """A file with these texts."""
    path = Path("set.jsonl")
    return Reading(
        path, "jsonl", list(texts), [BadLine(path, 9, "broken")] * bad, list(range(1, len(texts) + 1))
    )


OSLO = LabelledText("Ada is in Oslo", (Span(0, 3, "PER"), Span(10, 14, "LOC")))
PLAIN = LabelledText("nothing here", ())
READER = Tokenizer(tiny_tokenizer())


def check(
    teaching: dict[str, Reading], judging: dict[str, Reading], *, min_examples: int = DEFAULT_MIN_EXAMPLES
) -> DataCheck:
    """The findings, with a tokenizer that cuts at spaces, marks and Han characters."""
    return check_data(teaching, judging, reader=READER, min_examples=min_examples)


def test_counts_shares_and_scarce_labels() -> None:
    """What a person looks at first."""
    result = check(
        {"my/train": reading(OSLO, OSLO, PLAIN, bad=2)}, {"my/dev": reading(PLAIN)}, min_examples=3
    )
    ((name, counts), _) = result.sets
    assert (name, counts.texts, counts.without_spans, counts.repeated) == ("my/train", 3, 1, 1)
    assert counts.spans == {"PER": 2, "LOC": 2}
    assert result.scarce == {"LOC": 2, "PER": 2}
    report = "\n".join(result.lines())
    assert "3 texts (1 without spans), 40 characters, 4 spans" in report
    assert "50.0 %" in report
    assert "2 texts left out, the first: set.jsonl:9: broken" in report
    assert "warning: LOC has 2 examples to learn from, fewer than 3" in report
    assert not check({"my/train": reading(OSLO)}, {}, min_examples=1).scarce


def test_a_label_that_only_judges_has_no_examples() -> None:
    """It can never be found; a measurement alone teaches nothing, so nothing is scarce there."""
    assert check({"a/train": reading(PLAIN)}, {"a/dev": reading(OSLO)}).scarce == {"LOC": 0, "PER": 0}
    assert check({}, {"a/dev": reading(OSLO)}).scarce == {}


def test_one_text_with_two_labellings_is_a_contradiction() -> None:
    """White space and composition of accents make no other text; a judging set is looked at by itself."""
    accented = LabelledText("Ren\u00e9 left", (Span(0, 4, "PER"),))
    other = LabelledText("Rene\u0301  left", ())
    result = check({"a/train": reading(accented), "b/train": reading(other)}, {})
    assert result.contradictions == ["Ren\u00e9 left"]
    assert "1 texts occur with different spans: 'René left'" in "\n".join(result.warnings())
    assert check({}, {"a/dev": reading(accented), "b/dev": reading(other)}).contradictions == []
    assert check({}, {"a/dev": reading(accented, other)}).contradictions == ["Ren\u00e9 left"]


def test_texts_that_judge_what_they_taught_are_leaks() -> None:
    """The longest come first: a shared greeting is chance."""
    judged = reading(PLAIN, LabelledText("Ada  is in Oslo ", ()), LabelledText("new", ()))
    (leak,) = check({"a/train": reading(OSLO, PLAIN)}, {"a/dev": judged}).leaks
    assert (leak.judging, leak.teaching, leak.of, leak.with_spans) == ("a/dev", "a/train", 3, 0)
    assert leak.texts == ["Ada  is in Oslo ", "nothing here"]
    assert not check({"a/train": reading(OSLO)}, {"a/dev": reading(PLAIN)}).leaks


def test_spans_that_cannot_be_found_are_named_with_their_places() -> None:
    """File, line, offsets, what they cover, and why; Chinese has no words that could be cut."""
    texts = [
        LabelledText("Londoners left", (Span(0, 6, "LOC"),)),
        LabelledText("the Pro-Oslo side", (Span(8, 12, "LOC"),)),
        LabelledText("住在北京的人", (Span(2, 4, "LOC"),)),
        LabelledText("unAda", (Span(2, 5, "PER"),)),
        LabelledText("in Oslo, now", (Span(3, 8, "LOC"),)),
    ]
    *_, head, first, second, third = check({}, {"a/dev": reading(*texts)}).warnings()
    assert "warning: 3 spans cannot be learned or found exactly" in head
    assert [first, second, third] == [
        "  set.jsonl:1: 0..6 LOC 'London' cuts 'Londoners'",
        "  set.jsonl:4: 2..5 PER 'Ada' cuts 'unAda'",
        "  set.jsonl:5: 3..8 LOC 'Oslo,' has marks at a border that no entity keeps; 'Oslo' is left",
    ]


def test_of_many_such_spans_the_first_are_named() -> None:
    """A flood of lines helps nobody."""
    texts = [LabelledText("Londoners left", (Span(0, 6, "LOC"),))] * 30
    *_, last_named, rest = check({}, {"a/dev": reading(*texts)}).warnings()
    assert "set.jsonl:20: " in last_named
    assert rest == "  and 10 more"
