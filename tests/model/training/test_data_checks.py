"""Findings about data whose every text can be used."""

from pathlib import Path

from model.training.data_checks import check_data
from model.training.label_files.readings import BadLine, Reading
from model.training.spans import LabelledText, Span


def reading(*texts: LabelledText, bad: int = 0) -> Reading:
    """A file with these texts."""
    path = Path("set.jsonl")
    return Reading(path, "jsonl", list(texts), [BadLine(path, 9, "broken")] * bad)


OSLO = LabelledText("Ada is in Oslo", (Span(0, 3, "PER"), Span(10, 14, "LOC")))
PLAIN = LabelledText("nothing here", ())


def test_counts_shares_and_scarce_labels() -> None:
    """What a person looks at first."""
    check = check_data(
        {"my/train": reading(OSLO, OSLO, PLAIN, bad=2)}, {"my/dev": reading(PLAIN)}, min_examples=3
    )
    ((name, counts), _) = check.sets
    assert (name, counts.texts, counts.without_spans, counts.repeated) == ("my/train", 3, 1, 1)
    assert counts.spans == {"PER": 2, "LOC": 2}
    assert check.scarce == {"LOC": 2, "PER": 2}
    report = "\n".join(check.lines())
    assert "3 texts (1 without spans), 40 characters, 4 spans" in report
    assert "50.0 %" in report
    assert "2 texts left out, the first: set.jsonl:9: broken" in report
    assert "warning: LOC has 2 examples to learn from, fewer than 3" in report
    assert not check_data({"my/train": reading(OSLO)}, {}, min_examples=1).scarce


def test_a_label_that_only_judges_has_no_examples() -> None:
    """It can never be found; a measurement alone teaches nothing, so nothing is scarce there."""
    assert check_data({"a/train": reading(PLAIN)}, {"a/dev": reading(OSLO)}).scarce == {"LOC": 0, "PER": 0}
    assert check_data({}, {"a/dev": reading(OSLO)}).scarce == {}


def test_one_text_with_two_labellings_is_a_contradiction() -> None:
    """White space and composition of accents make no other text; a judging set is looked at by itself."""
    accented = LabelledText("Ren\u00e9 left", (Span(0, 4, "PER"),))
    other = LabelledText("Rene\u0301  left", ())
    check = check_data({"a/train": reading(accented), "b/train": reading(other)}, {})
    assert check.contradictions == ["Ren\u00e9 left"]
    assert "1 texts occur with different spans: 'René left'" in "\n".join(check.warnings())
    assert check_data({}, {"a/dev": reading(accented), "b/dev": reading(other)}).contradictions == []
    assert check_data({}, {"a/dev": reading(accented, other)}).contradictions == ["Ren\u00e9 left"]


def test_texts_that_judge_what_they_taught_are_leaks() -> None:
    """The longest come first: a shared greeting is chance."""
    judged = reading(PLAIN, LabelledText("Ada  is in Oslo ", ()), LabelledText("new", ()))
    (leak,) = check_data({"a/train": reading(OSLO, PLAIN)}, {"a/dev": judged}).leaks
    assert (leak.judging, leak.teaching, leak.of, leak.with_spans) == ("a/dev", "a/train", 3, 0)
    assert leak.texts == ["Ada  is in Oslo ", "nothing here"]
    assert not check_data({"a/train": reading(OSLO)}, {"a/dev": reading(PLAIN)}).leaks


def test_spans_inside_words_are_named() -> None:
    """Where words have spaces between them; an accent belongs to its word, Chinese has no such words."""
    texts = [
        LabelledText("Londoners left", (Span(0, 6, "LOC"),)),
        LabelledText("the Pro-Oslo side", (Span(8, 12, "LOC"),)),
        LabelledText("住在北京的人", (Span(2, 4, "LOC"),)),
        LabelledText("用iPhone打", (Span(1, 7, "PRODUCT"),)),
        LabelledText("unAda", (Span(2, 5, "PER"),)),
    ]
    check = check_data({}, {"a/dev": reading(*texts)})
    assert [text for text, _ in check.cut_words] == ["Londoners left", "unAda"]
    assert "2 spans begin or end inside a word" in "\n".join(check.warnings())
