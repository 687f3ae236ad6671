"""The model card, from figures that were made up."""

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path

from model.runtime.tagging import Entity
from model.runtime.tokenization import Tokenizer
from model.training.card import CARD_NAME, CURVES_NAME, PAGE_NAME, CardFacts, card_files, weak_spots
from model.training.curves import learning_curves
from model.training.data_checks import check_data
from model.training.evaluation import Tagged
from model.training.history import EpochReport, History
from model.training.label_files.readings import Reading
from model.training.options import TrainingOptions
from model.training.report import make_report
from model.training.scoring import Score
from model.training.spans import LabelledText, Span
from tests.bundles import tiny_tokenizer

DEV = [
    LabelledText("阿莫西林胶囊治<肺炎>", (Span(0, 6, "DRUG"), Span(8, 10, "DISEASE"))),
    LabelledText("布洛芬片|退热", (Span(0, 4, "DRUG"),)),
    LabelledText("无恙", ()),
]
FOUND = [
    [Entity(0, 4, "DRUG", 0.9), Entity(8, 10, "DRUG", 0.6)],
    [Entity(0, 4, "DRUG", 0.9), Entity(5, 7, "DISEASE", 0.5)],
    [],
]


def history() -> History:
    """Three epochs, the second the best."""
    scores = [Score(1, 4, 4), Score(3, 4, 4), Score(2, 4, 4)]
    epochs = [
        EpochReport(epoch, 1 / epoch, {"set/dev": score}, 60.0 * epoch)
        for epoch, score in enumerate(scores, start=1)
    ]
    return History([2.0, 1.0, 0.8, 0.6, 0.5, 0.4], epochs)


def facts(*, examples: int = 5) -> CardFacts:
    """Of a tagger for drugs."""
    train = Reading(Path("train.jsonl"), "jsonl", DEV[:2], [], [1, 2])
    dev = Reading(Path("dev.jsonl"), "jsonl", DEV, [], list(range(1, len(DEV) + 1)))
    report = make_report(DEV, Tagged(FOUND, 20, 0.01), examples=examples)
    return CardFacts(
        name="drugs",
        description="Drugs and diseases.",
        licence="Apache-2.0",
        languages=("zh",),
        base="some-base",
        architecture="encoder",
        options=TrainingOptions(seed=7),
        history=history(),
        data=check_data(
            {"set/train": train}, {"set/dev": dev}, reader=Tokenizer(tiny_tokenizer()), min_examples=50
        ),
        roles={"set/train": "train", "set/dev": "dev"},
        misfits=3,
        split=1,
        reports={"set/dev": report},
        scores="Scores are not calibrated.",
    )


def test_the_card_says_what_was_learned_how_well_and_where_it_errs() -> None:
    """Counts, per-label scores, confusion, settings, the kept epoch, and mistakes in their texts."""
    files = card_files(facts())
    assert files.keys() == {CARD_NAME, CURVES_NAME, PAGE_NAME}
    card = files[CARD_NAME]
    for line in (
        "# drugs",
        "| set/dev | DRUG | 33.3 | 50.0 | 40.0 | 2 | 3 |",
        "| set/dev | all | 25.0 | 33.3 | 28.6 | 3 | 4 |",
        "| set/train | train | jsonl | 2 | 0 | 0 | 2 | 1 |",
        "| 2 | 0.5000 | 75.00 | 2.0 |",
        "The weights of epoch 2 were kept.",
        "| seed | 7 |",
        "| DISEASE | 0 | 1 | 0 |",
        "3 training spans are no whole words and could not be learned exactly.",
    ):
        assert line in card.splitlines(), line
    assert "**阿莫西林** DRUG instead of **阿莫西林胶囊** DRUG" in card


def test_texts_cannot_break_the_cards_tables_or_markup() -> None:
    """A text may hold pipes, stars and angle brackets."""
    card = card_files(facts())[CARD_NAME]
    assert "阿莫西林胶囊治\\<肺炎\\>" in card
    assert "布洛芬片\\|退热" in card


def test_no_text_is_quoted_if_none_is_wanted() -> None:
    """Labelled texts may be private."""
    files = card_files(facts(examples=0))
    assert PAGE_NAME not in files
    assert "治" not in files[CARD_NAME]


def test_weak_spots_are_named_with_their_figures() -> None:
    """Scarce labels, small sets, labels far below the rest, confusions."""
    spots = list(weak_spots(facts()))
    assert "DRUG had 2 examples to learn from." in spots
    assert "2 of 3 texts of set/dev are in set/train too (2 with spans), which flatters scores." in spots
    assert "On set/dev, all figures are rough: there are 3 spans." in spots
    assert "On set/dev, DISEASE has F1 0.0, all labels together 28.6." in spots
    # One confusion, or a difference on two spans, says nothing.
    assert not any("confusions" in spot or "invents" in spot for spot in spots)


def test_labels_that_are_missed_or_confused_often_are_named() -> None:
    """Twenty spans: half found as something else."""
    text = LabelledText("药" * 20, tuple(Span(k, k + 1, "DRUG") for k in range(20)))
    found = [Entity(k, k + 1, "DRUG" if k % 2 else "DISEASE", 0.5) for k in range(20)]
    report = make_report([text], Tagged([found], 20, 0.01), examples=0)
    spots = list(weak_spots(dataclasses.replace(facts(), reports={"big": report})))
    assert "On big, DRUG misses more than it invents: precision 100.0, recall 50.0." in spots
    assert "On big, DRUG is taken for DISEASE most often of all confusions (10 times)." in spots


def test_the_curves_are_a_picture_by_themselves() -> None:
    """Well-formed SVG: the loss, a line a development set, a larger dot on the kept epoch."""
    drawn = ET.fromstring(learning_curves(history()))
    name = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{name}polyline")) == 2
    radii = [dot.get("r") for dot in drawn.findall(f"{name}circle")]
    assert radii == ["2.5", "6", "2.5"]
    loss = drawn.findall(f"{name}polyline")[0].get("points")
    assert loss is not None
    assert len(loss.split()) == 6
