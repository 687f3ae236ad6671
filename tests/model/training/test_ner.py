"""Training on a toy language that can be learned in seconds."""

import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from model.encoder.config import EncoderConfig
from model.encoder.heads import TokenClassifier
from model.runtime.label_schemes import LabelScheme
from model.runtime.tokenization import TokenizedText
from model.training.bilstm import BiLstm
from model.training.checkpoints import WorkFolder
from model.training.examples import MeasuredText, measured_texts, prepare
from model.training.history import EpochReport, History, Progress, best_of
from model.training.ner import NerTrainer, gains_by_bfloat16
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
SCHEME = LabelScheme.from_labels(bio_labels(["PER", "LOC"]))


class ToyTokenizer:
    """Words split at blanks, one id each, between <s> and </s>."""

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """As the runtime's."""
        return [tokenize(text) for text in texts]


def tokenize(text: str) -> TokenizedText:
    """One text."""
    ids, offsets, start = [2], [(0, 0)], 0
    for word in text.split(" "):
        ids.append(WORDS.index(word))
        offsets.append((start, start + len(word)))
        start += len(word) + 1
    return TokenizedText(
        input_ids=np.array([*ids, 3]),
        offsets=np.array([*offsets, (0, 0)]),
        word_ids=[None, *range(len(ids) - 1), None],
        special=np.array([True, *[False] * (len(ids) - 1), True]),
    )


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
        hidden_dropout_prob=0.1,
    )
    return TokenClassifier(config, SCHEME.labels)


def options(**changes: object) -> TrainingOptions:
    """For the toy language."""
    chosen = {"epochs": 4, "batch_size": 16, "learning_rate": 1e-2, "head_learning_rate": 1e-2}
    return TrainingOptions(**(chosen | changes))  # type: ignore[arg-type]


DEV = measured_texts(toy_texts(50, 2), ToyTokenizer(), max_tokens=16)


def run(
    folder: Path,
    *,
    network: torch.nn.Module | None = None,
    checkpoint_seconds: float = 60.0,
    **changes: object,
) -> tuple[NerTrainer, History, list[Progress]]:
    """Train on toy sentences; the options can be changed."""
    chosen = options(**changes)
    train = prepare(toy_texts(200, 1), ToyTokenizer(), SCHEME, max_tokens=16).examples
    trainer = NerTrainer(
        toy_classifier() if network is None else network, SCHEME, chosen, pad_token_id=0, unknown_token_id=1
    )
    work = WorkFolder(folder / "work")
    work.open({})
    seen: list[Progress] = []
    history = trainer.train(
        train, {"dev": DEV}, work, checkpoint_seconds=checkpoint_seconds, on_step=seen.append
    )
    return trainer, history, seen


def same_weights(one: NerTrainer, other: NerTrainer) -> bool:
    """To the bit, the CRF's included."""
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    if one.crf is not None and other.crf is not None:
        pairs = [*pairs, *zip(one.crf.parameters(), other.crf.parameters(), strict=True)]  # type: ignore[assignment]
    return all(torch.equal(a, b) for a, b in pairs)


def test_it_learns_and_reports(tmp_path: Path) -> None:
    """The loss falls, dev F1 rises to near perfect, every step is reported."""
    trainer, history, seen = run(tmp_path)
    assert history.epochs[-1].loss < history.epochs[0].loss / 2
    assert history.best.dev_f1 > 0.95
    assert [progress.step for progress in seen] == list(range(1, seen[0].steps + 1))
    assert [progress.loss for progress in seen] == history.losses
    found = trainer.predict(measured_texts([LabelledText("ann in oslo", ())], ToyTokenizer(), max_tokens=16))
    assert found == [[Span(0, 3, "PER"), Span(7, 11, "LOC")]]


@pytest.mark.parametrize(
    "changes",
    [
        {"crf": True},
        {"crf": True, "token_loss_weight": 0.0},
        {"class_weights": "balanced", "focal_gamma": 1.0, "label_smoothing": 0.05},
        {"consistency": 1.0},
        {"averaging": "ema", "ema_decay": 0.9},
        {"averaging": "last", "average_last": 2},
    ],
    ids="-".join,
)
def test_every_option_learns(tmp_path: Path, changes: dict[str, object]) -> None:
    """An option that breaks learning would be found out by users only."""
    _, history, _ = run(tmp_path, **changes)
    assert history.best.dev_f1 > 0.9


def test_a_bilstm_learns_and_does_not_read_padding(tmp_path: Path) -> None:
    """The yardstick; a text alone and beside a longer one has the same logits."""
    torch.manual_seed(0)
    network = BiLstm(range(4, len(WORDS)), len(WORDS), SCHEME.labels, dropout=0.1)
    trainer, history, _ = run(tmp_path, network=network, crf=True, token_loss_weight=0.0, precision="float32")
    assert history.best.dev_f1 > 0.95
    ids = torch.tensor([[2, 8, 4, 3]])
    longer = torch.tensor([[2, 8, 4, 3, 0, 0], [2, 4, 5, 6, 7, 3]])
    with torch.inference_mode():
        alone = trainer.network(ids, torch.ones_like(ids))
        beside = trainer.network(longer, (longer != 0).long())
    torch.testing.assert_close(beside[:1, :4], alone)


def test_lower_layers_learn_more_slowly_if_told_so() -> None:
    """Head and CRF at their own rate; the embeddings' LayerNorm is a layer below the lowest."""
    trainer = NerTrainer(
        toy_classifier(),
        SCHEME,
        options(layer_decay=0.5, learning_rate=0.08, head_learning_rate=0.3),
        pad_token_id=0,
        unknown_token_id=1,
    )
    optimizer, _ = trainer._optimizer(10)
    rates = {id(p): group["initial_lr"] for group in optimizer.param_groups for p in group["params"]}
    encoder = trainer.network.encoder
    layers = len(encoder.layers)
    found = [
        rates[id(next(module.parameters()))]
        for module in (encoder.embeddings.norm, *encoder.layers, trainer.network.classifier)
    ]
    assert found == pytest.approx([*(0.08 * 0.5**below for below in range(layers, -1, -1)), 0.3])


def test_the_best_epoch_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left in the network are the weights of the epoch with the best score, not the last ones."""
    scores, kept = [0.2, 0.6, 0.4], []
    save_best = WorkFolder.save_best

    def predict(trainer: NerTrainer, texts: Sequence[MeasuredText], **_: object) -> list[list[Span]]:
        share = scores.pop(0)
        return [[*text.spans] if index < share * len(texts) else [] for index, text in enumerate(texts)]

    def keep(work: WorkFolder, weights: Mapping[str, torch.Tensor]) -> None:
        save_best(work, weights)
        kept.append({name: tensor.clone() for name, tensor in weights.items()})

    monkeypatch.setattr(NerTrainer, "predict", predict)
    monkeypatch.setattr(WorkFolder, "save_best", keep)
    trainer, history, _ = run(tmp_path, epochs=3)
    assert history.best is history.epochs[1]
    assert len(kept) == 2
    for name, parameter in trainer.network.named_parameters():
        assert torch.equal(parameter, kept[1][f"network.{name}"])


@pytest.mark.parametrize("averaging", ["ema", "last"])
def test_what_is_measured_is_what_is_kept(tmp_path: Path, averaging: str) -> None:
    """The average, not the last step's weights."""
    trainer, history, _ = run(tmp_path, averaging=averaging, epochs=2)
    found = trainer.predict(DEV)
    assert score_spans([text.spans for text in DEV], found)[0] == history.best.dev["dev"]


def test_of_equal_epochs_the_first_is_kept_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported as the best epoch is the one whose weights are in the bundle."""
    saved: list[int] = []
    save_best = WorkFolder.save_best
    monkeypatch.setattr(NerTrainer, "predict", lambda self, texts, **_: [[] for _ in texts])
    monkeypatch.setattr(
        WorkFolder, "save_best", lambda self, weights: (saved.append(1), save_best(self, weights))
    )
    _, history, _ = run(tmp_path, epochs=3)
    assert [report.dev_f1 for report in history.epochs] == [0.0, 0.0, 0.0]
    assert saved == [1]
    assert history.best.epoch == 1
    higher = EpochReport(4, 0.1, {"dev": Score(1, 1, 1)}, 1.0)
    assert best_of([*history.epochs, higher, higher]) is higher


def test_patience_ends_a_run_that_no_longer_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs without a better F1 end it; a run that was ended stays so when it is looked at again."""
    monkeypatch.setattr(NerTrainer, "predict", lambda self, texts, **_: [[] for _ in texts])
    _, history, seen = run(tmp_path, epochs=9, patience=2)
    assert len(history.epochs) == 3
    _, again, later = run(tmp_path, epochs=9, patience=2)
    assert (again, later) == (history, [])
    assert len(seen) == 3 * 13


def test_same_seed_same_weights(tmp_path: Path) -> None:
    """A run can be repeated; another seed is another run."""
    first, _, _ = run(tmp_path / "1", epochs=1, crf=True)
    second, _, _ = run(tmp_path / "2", epochs=1, crf=True)
    third, _, _ = run(tmp_path / "3", epochs=1, crf=True, seed=5)
    assert same_weights(first, second)
    assert not same_weights(first, third)


@pytest.mark.parametrize(
    ("kill_at", "changes"),
    [(5, {}), (14, {"crf": True, "averaging": "ema"}), (20, {"averaging": "last"})],
    ids=["in the first epoch", "between epochs", "in the second epoch"],
)
def test_a_run_that_is_killed_goes_on_to_the_same_weights(
    tmp_path: Path, kill_at: int, changes: dict[str, object]
) -> None:
    """The checkpoint has all that decides: weights, optimiser, rates, averages, random numbers, the place."""
    program = (
        "import os, signal, sys, pathlib\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_ner\n"
        "from model.training.checkpoints import WorkFolder\n"
        "save, count = WorkFolder.save_state, [0]\n"
        "def counted(self, state):\n"
        "    save(self, state)\n"
        "    count[0] += 1\n"
        f"    if count[0] == {kill_at}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "WorkFolder.save_state = counted\n"
        f"folder = pathlib.Path({str(tmp_path / 'killed')!r})\n"
        f"test_ner.run(folder, checkpoint_seconds=0, epochs=2, **{changes!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    resumed, history, seen = run(tmp_path / "killed", epochs=2, **changes)
    assert 0 < len(seen) < 2 * 13
    whole, expected, _ = run(tmp_path / "whole", epochs=2, **changes)
    assert same_weights(resumed, whole)
    assert history.losses == expected.losses
    assert [report.dev for report in history.epochs] == [report.dev for report in expected.epochs]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    """Weights full of NaN must not be saved as a model."""
    network = toy_classifier()
    torch.nn.init.constant_(network.classifier.weight, float("nan"))
    with pytest.raises(FloatingPointError, match="learning rate"):
        run(tmp_path, network=network)
    assert not list((tmp_path / "work").glob("*.pt"))


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"warmup_share": 1.0},
        {"token_dropout": 1.0},
        {"dropout": -0.1},
        {"label_smoothing": 1.0},
        {"patience": -1},
        {"consistency": -0.5},
        {"focal_gamma": -1.0},
        {"lora_rank": -1},
        {"average_last": 0},
        {"ema_decay": 1.0},
    ],
)
def test_impossible_options_are_refused(change: dict[str, float]) -> None:
    """Numbers are checked once, where they are held."""
    with pytest.raises(ValueError, match=next(iter(change))):
        TrainingOptions(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("features", "gains"),
    [
        ({"avx2", "avx512f", "avx512_bf16"}, True),
        ({"avx512f", "avx512_vnni", "amx_bf16"}, True),
        ({"avx2", "avx512f", "avx512_vnni"}, False),
        ({"avx2"}, False),
        (set(), False),
    ],
)
def test_bfloat16_is_used_where_it_is_faster(features: set[str], gains: bool) -> None:
    """On a processor with AVX-512 alone a step takes four times as long, with AVX2 alone forty times."""
    assert gains_by_bfloat16(frozenset(features)) == gains


@pytest.mark.parametrize(("precision", "chosen"), [("bfloat16", True), ("float32", False)])
def test_a_precision_that_was_asked_for_is_taken(precision: str, chosen: bool) -> None:
    """Whatever the processor."""
    trainer = NerTrainer(
        toy_classifier(), SCHEME, options(precision=precision), pad_token_id=0, unknown_token_id=1
    )
    assert trainer.bfloat16 == chosen
