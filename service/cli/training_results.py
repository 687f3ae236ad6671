"""What ``conche train ner`` leaves beside the weights: figures, a card, a picture, a page of mistakes."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.export.writer import Measured
from model.training.card import CardFacts, card_files
from model.training.evaluation import Tagged, read_tagger
from model.training.reliability import Judged, TooFewSpansError, calibrate, judge, without_calibration
from model.training.report import NerReport, make_report
from model.training.scoring import score_summary
from model.training.spans import LabelledText
from model.training.tagger import TrainedTagger
from service.cli.evaluate import tagged_by
from service.cli.progress import ProgressLine


@dataclass
class Results:
    """Measures a trained tagger on its sets, and writes down what came of it.

    Attributes:
        output: Folder of the bundle or of the yardstick.
        trained: The tagger.
        sets: Development and test texts by name.
        facts: For the card, as far as known before measuring.
        examples: Most texts with mistakes that the card quotes, of each set.
        progress: Shows how far the measuring is.
        reports: The measurements, once made.
        scores: What the entities' scores mean, once measured.
    """

    output: Path
    trained: TrainedTagger
    sets: Mapping[str, Sequence[LabelledText]]
    facts: Mapping[str, Any]
    examples: int
    progress: ProgressLine
    reports: dict[str, NerReport] = field(default_factory=dict)
    scores: str = "Scores are means of the probabilities of an entity's words; they are not calibrated."

    def of_bundle(self, folder: Path) -> Measured:
        """Measure a finished bundle as it is served; calibrate its scores on the development sets."""
        tagger = without_calibration(read_tagger(folder))
        judged: dict[str, Judged] = {}
        for name, texts in self.sets.items():
            tagged = tagged_by(tagger, [text.text for text in texts], f"measuring on {name}", self.progress)
            self.reports[name] = make_report(texts, tagged, examples=self.examples)
            if self.facts["roles"][name] == "dev":
                judged[name] = judge(tagged.found, texts)
        quality: dict[str, Any] = {
            name: score_summary(report.overall, report.per_label) for name, report in self.reports.items()
        }
        calibration = None
        try:
            calibration, quality["calibration"] = calibrate(judged)
        except TooFewSpansError as error:
            self.scores += (
                f" In the development sets {error}. With more texts, in the folder of this card: "
                "`conche eval ner-scores . FILE --fit`."
            )
        else:
            told = ", ".join(
                f"{name} ({figure['spans']} spans found; expected calibration error {figure['ece_before']} "
                f"before and {figure['ece_after']} after)"
                for name, figure in quality["calibration"].items()
            )
            self.scores = (
                "A score is the probability that an entity is right, borders and label. It is calibrated on "
                f"{told}, which chose the epoch too, so that on other texts it is off by more."
            )
        return Measured(quality, self._card(), calibration)

    def without_bundle(self, *, overwrite: bool) -> None:
        """Measure the network itself, by the same reading and decoding; write the card into ``output``."""
        for name, texts in self.sets.items():
            began = time.perf_counter()
            found = []
            for done, labelled in enumerate(texts, start=1):
                found.append(self.trained.find(labelled.text))
                self.progress.show(f"measuring on {name}", done, len(texts))
            characters = sum(len(text.text) for text in texts)
            tagged = Tagged(found, characters, time.perf_counter() - began)
            self.reports[name] = make_report(texts, tagged, examples=self.examples)
        if overwrite:
            shutil.rmtree(self.output, ignore_errors=True)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{self.output.name}.", dir=self.output.parent))
        for name, text in self._card().items():
            (folder / name).write_text(text, encoding="utf-8")
        folder.chmod(0o755)  # mkdtemp makes it private
        folder.rename(self.output)

    def table(self) -> Iterator[str]:
        """Precision, recall and F1 of each set and label, for the terminal."""
        for name, report in self.reports.items():
            for label, score in [*report.per_label.items(), ("all", report.overall)]:
                yield (
                    f"{name:24} {label:12} precision {100 * score.precision:5.1f}  "
                    f"recall {100 * score.recall:5.1f}  F1 {100 * score.f1:5.1f}  ({score.gold} spans)"
                )

    def _card(self) -> dict[str, str]:
        return card_files(
            CardFacts(
                **self.facts,
                history=self.trained.history,
                misfits=self.trained.data.misfits,
                split=self.trained.data.split,
                reports=self.reports,
                scores=self.scores,
            )
        )
