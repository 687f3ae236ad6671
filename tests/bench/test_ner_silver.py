"""Silver labels: what is kept of what two taggers say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from model.runtime.tagging import Entity
from model.training.spans import Span

SCRIPT = Path(__file__).parents[2] / "bench" / "ner_silver.py"


@pytest.fixture(scope="module")
def silver() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("ner_silver", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entity(start: int, end: int, label: str, score: float = 0.9) -> Entity:
    """Of any text."""
    return Entity(label=label, start=start, end=end, score=score)


def test_neighbouring_words_of_one_label_are_one_name(silver: ModuleType) -> None:
    """The teacher cuts addresses into words; other words part names."""
    words = [
        ("浙江省", "LOC"),
        ("杭州市", "LOC"),
        ("的", "u"),
        ("张三", "PER"),
        ("李四", "PER"),
        ("北大", "ORG"),
    ]
    assert silver.joined(words) == [Span(0, 6, "LOC"), Span(7, 11, "PER"), Span(11, 13, "ORG")]


@pytest.mark.parametrize(
    ("found", "taught", "kept"),
    [
        ([entity(0, 2, "PER", 0.4)], [Span(0, 2, "PER")], (Span(0, 2, "PER"),)),
        ([entity(0, 2, "PER")], [Span(0, 2, "LOC")], None),
        ([entity(0, 4, "ORG", 0.95)], [Span(0, 2, "ORG")], (Span(0, 4, "ORG"),)),
        ([entity(0, 4, "ORG", 0.7)], [Span(0, 2, "ORG")], None),
        ([entity(0, 2, "PER", 0.85)], [], (Span(0, 2, "PER"),)),
        ([entity(0, 2, "PER", 0.5)], [], None),
        ([entity(0, 2, "PER", 0.2)], [], ()),
        ([], [Span(0, 2, "ORG")], None),
        ([], [], ()),
    ],
    ids=[
        "both say so",
        "another label",
        "sure of other borders",
        "unsure of the borders",
        "sure alone",
        "unsure alone",
        "hardly meant",
        "the teacher alone",
        "nothing",
    ],
)
def test_a_sentence_is_kept_where_both_agree(
    silver: ModuleType, found: list[Entity], taught: list[Span], kept: tuple[Span, ...] | None
) -> None:
    """A sentence in which one of them errs teaches the error."""
    assert silver.agreed(found, taught) == kept


def test_sentences_are_whole_chinese_and_not_held_out(silver: ModuleType) -> None:
    """Each once; no halves, no formulas, no texts that measure."""
    whole, held_out = "他昨天下午在北京大学讲了一堂课。", "她去年夏天从上海搬到了杭州。"
    paragraph = f"{whole}{held_out}短句。y=x+1,z=2x+3 (abc) def ghi jkl 式。没有写完的半句话放在这里不要了"
    assert silver.sentences([paragraph, whole], {held_out}) == [whole]
