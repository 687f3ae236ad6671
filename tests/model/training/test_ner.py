"""Fine-tuning on a toy language that can be learned in seconds."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from model.encoder.config import EncoderConfig
from model.encoder.heads import TokenClassifier
from model.training.ner import EpochReport, NerTrainer, Progress, best_of, prepare
from model.training.options import TrainingOptions
from model.training.scoring import Score, score_spans
from model.training.spans import LabelledText, Span, bio_labels

WORDS = [
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "in",
    "met",
    "the",
    "sees",
    "ann",
    "bo",
    "cy",
    "oslo",
    "rio",
    "rome",
]
LABELS = bio_labels(["PER", "LOC"])


def tokenise(texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Words split at blanks, one id each, between <s> and </s>."""
    rows = []
    for text in texts:
        ids, offsets, start = [2], [(0, 0)], 0
        for word in text.split(" "):
            ids.append(WORDS.index(word))
            offsets.append((start, start + len(word)))
            start += len(word) + 1
        rows.append((np.array([*ids, 3]), np.array([*offsets, (0, 0)])))
    return rows


def toy_texts(count: int, seed: int) -> list[LabelledText]:
    """Sentences in which persons and places are always the same words."""
    chooser = random.Random(seed)
    texts = []
    for _ in range(count):
        words = [chooser.choice(WORDS[4:]) for _ in range(chooser.randint(2, 9))]
        spans, start = [], 0
        for word in words:
            if word in WORDS[8:]:
                spans.append(Span(start, start + len(word), "PER" if word in WORDS[8:11] else "LOC"))
            start += len(word) + 1
        texts.append(LabelledText(" ".join(words), tuple(spans)))
    return texts


def toy_classifier() -> TokenClassifier:
    """Small enough to train in a second."""
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
    )
    return TokenClassifier(config, LABELS)


def run(tmp_path: Path, **changes: object) -> tuple[NerTrainer, list[EpochReport], list[Progress]]:
    """Train on toy sentences; the options can be changed."""
    options = TrainingOptions(
        **({"epochs": 4, "batch_size": 16, "learning_rate": 1e-2, "head_learning_rate": 1e-2} | changes)
    )
    train = prepare(toy_texts(200, 1), tokenise, LABELS, max_tokens=16).examples
    dev = prepare(toy_texts(50, 2), tokenise, LABELS, max_tokens=16).examples
    trainer = NerTrainer(toy_classifier(), options, pad_token_id=0, unknown_token_id=1)
    seen: list[Progress] = []
    reports = trainer.train(train, {"dev": dev}, best_weights=tmp_path / "best.pt", on_step=seen.append)
    return trainer, reports, seen


def test_it_learns_and_reports(tmp_path: Path) -> None:
    """The loss falls, dev F1 rises to near perfect, every step is reported."""
    trainer, reports, seen = run(tmp_path)
    assert reports[-1].loss < reports[0].loss / 2
    assert max(report.dev_f1 for report in reports) > 0.95
    assert [progress.step for progress in seen] == list(range(1, seen[0].steps + 1))
    found = trainer.predict(
        prepare([LabelledText("ann in oslo", ())], tokenise, LABELS, max_tokens=16).examples
    )
    assert found == [[Span(0, 3, "PER"), Span(7, 11, "LOC")]]


def test_the_best_epoch_is_kept(tmp_path: Path) -> None:
    """What is left in the classifier scores what the best report says."""
    trainer, reports, _ = run(tmp_path, learning_rate=0.2, head_learning_rate=0.2, epochs=3)
    dev = prepare(toy_texts(50, 2), tokenise, LABELS, max_tokens=16).examples
    best = best_of(reports)
    assert score_spans([example.spans for example in dev], trainer.predict(dev))[0] == best.dev["dev"]
    assert best is not reports[-1]


def test_of_equal_epochs_the_first_is_kept_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported as the best epoch is the one whose weights are in the bundle."""
    saved: list[int] = []
    monkeypatch.setattr(NerTrainer, "predict", lambda self, examples: [[] for _ in examples])
    monkeypatch.setattr(torch, "save", lambda state, path: saved.append(len(saved) + 1))
    monkeypatch.setattr(torch, "load", lambda path, weights_only: toy_classifier().state_dict())
    _, reports, _ = run(tmp_path, epochs=3)
    assert [report.dev_f1 for report in reports] == [0.0, 0.0, 0.0]
    assert saved == [1]
    assert best_of(reports).epoch == 1
    higher = EpochReport(4, 0.1, {"dev": Score(1, 1, 1)}, 1.0)
    assert best_of([*reports, higher, higher]) is higher


def test_same_seed_same_weights(tmp_path: Path) -> None:
    """A run can be repeated."""
    first, _, _ = run(tmp_path, epochs=1)
    second, _, _ = run(tmp_path, epochs=1)
    for a, b in zip(first.classifier.parameters(), second.classifier.parameters(), strict=True):
        assert torch.equal(a, b)


def test_embedding_tables_stay_frozen(tmp_path: Path) -> None:
    """A tagger shares them with the embedding model it came from."""
    before = toy_classifier().encoder.embeddings.word.weight.clone()
    trainer, _, _ = run(tmp_path, epochs=1)
    assert torch.equal(trainer.classifier.encoder.embeddings.word.weight, before)


def test_long_texts_are_cut_and_counted() -> None:
    """The closing special token stays; how many texts were cut is told."""
    prepared = prepare([LabelledText("in the in the in the", ())], tokenise, LABELS, max_tokens=5)
    assert prepared.shortened == 1
    assert prepared.examples[0].input_ids.tolist() == [2, 4, 6, 4, 3]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    """Weights full of NaN must not be saved as a model."""
    train = prepare(toy_texts(20, 1), tokenise, LABELS, max_tokens=16).examples
    classifier = toy_classifier()
    torch.nn.init.constant_(classifier.classifier.weight, float("nan"))
    trainer = NerTrainer(classifier, TrainingOptions(epochs=1), pad_token_id=0, unknown_token_id=1)
    with pytest.raises(FloatingPointError, match="learning_rate"):
        trainer.train(train, {"dev": train}, best_weights=tmp_path / "best.pt")
    assert not (tmp_path / "best.pt").exists()


@pytest.mark.parametrize(
    "change", [{"epochs": 0}, {"batch_size": 0}, {"warmup_share": 1.0}, {"token_dropout": 1.0}]
)
def test_impossible_options_are_refused(change: dict[str, float]) -> None:
    """Numbers are checked once, where they are held."""
    with pytest.raises(ValueError, match=next(iter(change))):
        TrainingOptions(**change)
