"""Other names in known sentences."""

import random
from pathlib import Path

import pytest

from model.training.augmentation import (
    Mixture,
    NameFileError,
    NameList,
    Names,
    fill,
    names_in,
    one_pass,
    read_names,
    read_templates,
    recase,
    substitute,
)
from model.training.spans import LabelledText, Span

SHIPPED = Path(__file__).parents[3] / "model" / "training" / "names"
NAMES_IN_TEXT = [(0, "Ann", "PER"), (8, "王芳", "PER"), (15, "BERTHA", "PER"), (25, "oslo", "LOC")]
TEXT = LabelledText(
    "Ann met 王芳 and BERTHA in oslo.",
    tuple(Span(start, start + len(name), label) for start, name, label in NAMES_IN_TEXT),
)


def names(**seen: list[str]) -> Names:
    """Names by ``PER``, or ``zh_PER`` for those in Han characters."""
    return Names({}, {(key.startswith("zh_"), key.removeprefix("zh_")): found for key, found in seen.items()})


def covered(text: LabelledText) -> list[tuple[str, str]]:
    """What the spans cover."""
    return [(text.text[span.start : span.end], span.label) for span in text.spans]


def test_names_give_way_to_others_of_their_kind_and_case() -> None:
    """A Chinese name in an English list, or a capital in a small-letter sentence, would teach nonsense."""
    pool = names(PER=["Zoe Ray"], zh_PER=["欧阳静"], LOC=["Rome"])
    changed = substitute(TEXT, pool, random.Random(1), rate=1.0, listed_share=0.0)
    assert changed.text == "Zoe Ray met 欧阳静 and ZOE RAY in rome."
    assert covered(changed) == [("Zoe Ray", "PER"), ("欧阳静", "PER"), ("ZOE RAY", "PER"), ("rome", "LOC")]


def test_what_has_no_successor_or_no_luck_stays() -> None:
    """An unknown label must not lose its spans."""
    assert substitute(TEXT, names(), random.Random(1), rate=1.0, listed_share=1.0) == TEXT
    assert substitute(TEXT, names(PER=["Zoe"]), random.Random(1), rate=0.0, listed_share=1.0) == TEXT


def test_a_file_of_names_holds_lists_and_products(tmp_path: Path) -> None:
    """A hundred surnames and a hundred given names are ten thousand persons in two lines."""
    path = tmp_path / "names.txt"
    path.write_text("# ours\n[ORG]\nAcme; Bolt\nCarta\n[PER]\nAnn; Bo\n+ _\nRay;\nLi\n", encoding="utf-8")
    read = read_names([path])
    assert read[False, "ORG"] == [NameList(("Acme", "Bolt", "Carta"))]
    assert read[False, "PER"] == [NameList(("Ann", "Bo"), " ", ("Ray", "Li"))]
    drawn = {read[False, "PER"][0].draw(random.Random(seed)) for seed in range(50)}
    assert drawn == {"Ann Ray", "Ann Li", "Bo Ray", "Bo Li"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("Acme\n[ORG]\n", ":1: a name before"),
        ("[ORG]\n", "ORG is empty"),
        ("[PER]\nAnn\n+ _\n", "PER is empty"),
    ],
)
def test_a_broken_file_of_names_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    """A list that is silently empty would leave names as they are, and nobody would know."""
    path = tmp_path / "names.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(NameFileError, match=complaint):
        read_names([path])


def test_templates_are_filled_in_their_own_script() -> None:
    """Each slot becomes a span; a sentence with a label that has no name is left out, not left open."""
    pool = names(PER=["Zoe"], zh_PER=["欧阳静"], ORG=["Acme"])
    chooser = random.Random(1)
    english = fill("{PER} of {ORG} spoke.", pool, chooser, listed_share=0.5)
    assert english is not None
    assert (english.text, covered(english)) == ("Zoe of Acme spoke.", [("Zoe", "PER"), ("Acme", "ORG")])
    chinese = fill("{PER}说话。", pool, chooser, listed_share=0.5)
    assert chinese is not None
    assert chinese.text == "欧阳静说话。"
    assert fill("{ORG}说话。", pool, chooser, listed_share=0.5) is None


def test_a_pass_takes_the_shares_it_is_told_and_can_be_repeated() -> None:
    """The same seed gives the same file, or a model could not be made again."""
    sets = [([TEXT] * 200, 0.25), ([LabelledText("Nothing here.", ())] * 200, 1.0)]
    pool = Names({}, names_in([TEXT]))
    mixture = Mixture(empty_share=0.5, template_copies=3)
    first, again = (
        one_pass(sets, pool, ["{LOC} is cold.", "No slot."], mixture, random.Random(7)) for _ in range(2)
    )
    assert first == again
    assert 30 < sum(len(text.spans) > 1 for text in first) < 70
    assert 75 < sum(text.text == "Nothing here." for text in first) < 125
    assert [text.text for text in first[-4:]] == ["oslo is cold."] * 3 + ["No slot."]


def test_texts_are_written_in_other_case_with_their_names_in_place() -> None:
    """In capitals, in small letters, or with small names; a text that would change its length stays."""
    text = LabelledText("Once Ann Li met Bo", (Span(5, 11, "PER"), Span(16, 18, "PER")))
    chooser = random.Random(1)
    made = {recase(text, chooser).text for _ in range(30)}
    assert made == {"ONCE ANN LI MET BO", "once ann li met bo", "Once ann li met bo"}
    assert all(recase(text, chooser).spans == text.spans for _ in range(5))
    longer = LabelledText("Straße", ())
    assert {recase(longer, chooser).text for _ in range(30)} == {"Straße", "straße"}
    passed = one_pass([([text] * 100, 1.0)], Names({}, {}), [], Mixture(rate=0.0, recased_share=0.5), chooser)
    assert 30 < sum(each.text != text.text for each in passed) < 70


def test_shares_out_of_range_are_refused() -> None:
    """40 for 40 % would replace every name."""
    with pytest.raises(ValueError, match=r"rate must be in 0\.\.1, not 40"):
        Mixture(rate=40)


def test_the_names_that_come_along_are_plenty_and_clean() -> None:
    """The shipped model was trained with them."""
    lists = read_names([SHIPPED / "zh.txt", SHIPPED / "en.txt"])
    assert {label for _, label in lists} == {"PER", "LOC", "ORG"}
    for found in lists.values():
        assert sum(len(names.first) for names in found) > 200
        for names in found:
            for name in (*names.first, *names.second):
                assert name == name.strip()
                assert not set(name) & set("；;，[]{}")
    templates = read_templates([SHIPPED / "templates.zh.txt", SHIPPED / "templates.en.txt"])
    assert len(templates) > 250
    assert len(set(templates)) == len(templates)
