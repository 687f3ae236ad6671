"""From a small embedding bundle to a tagging bundle that the runtime reads."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner
from tokenizers import models, normalizers, pre_tokenizers, processors

from model.encoder.config import EncoderConfig
from model.encoder.encoder import Encoder
from model.export.writer import BundleContents, read_bundle_weights, write_bundle
from model.runtime.bundle import Bundle, Source, discover
from model.runtime.crf import LinearChainCrf
from model.training.spans import bio_labels
from model.training.tagger import UnfitBaseError, classifier_on, freeze_layers
from model.training.tokens import write_tagging_tokenizer
from service.cli import main

PEOPLE, PLACES = ["ann", "bo", "王明"], ["oslo", "rio", "北京"]
FILLERS = ["met", "in", "the", "saw", "去了"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *PEOPLE, *PLACES, *FILLERS, *"王明北京去了"]


def toy_tokenizer() -> tokenizers.Tokenizer:
    """Whole words, Han words joined as a subword model would join them."""
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({piece: index for index, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedding bundle to start from."""
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=len(PIECES),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    path = tmp_path_factory.mktemp("models") / "base"
    write_bundle(
        BundleContents(
            name="base",
            model=Encoder(config).eval(),
            family="conche",
            tokenizer=toy_tokenizer(),
            source=Source(name="made for tests"),
            licence="Apache-2.0",
            languages=("en", "zh"),
            description="A small encoder.",
            max_tokens=32,
            pooling="mean",
            normalize=True,
        ),
        path,
    )
    return path


def write_texts(path: Path, count: int, seed: int) -> Path:
    """Sentences in which persons and places are always the same words."""
    chooser = random.Random(seed)
    lines = []
    for _ in range(count):
        words = [chooser.choice(PEOPLE + PLACES + FILLERS) for _ in range(chooser.randint(2, 8))]
        spans, start = [], 0
        for word in words:
            label = "PER" if word in PEOPLE else "LOC" if word in PLACES else None
            if label is not None:
                spans.append({"start": start, "end": start + len(word), "label": label})
            start += len(word) + 1
        lines.append(json.dumps({"text": " ".join(words), "spans": spans}, ensure_ascii=False))
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_one_command_trains_writes_and_measures(base: Path, tmp_path: Path) -> None:
    """`conche train ner` leaves a bundle beside its base that finds what it was taught."""
    target, notice = base.parent / "tagger", tmp_path / "NOTICE.txt"
    notice.write_text("made for tests\n", encoding="utf-8")
    arguments = [
        *("train", "ner", "--base", str(base), "-o", str(target), "--epochs", "6", "--batch-size", "16"),
        *("--train", str(write_texts(tmp_path / "toy" / "train.jsonl", 240, 1)), "--learning-rate", "5e-3"),
        *("--labels", "PER,LOC", "--notice", str(notice), "--licence", "MIT"),
        *("--dev", str(write_texts(tmp_path / "toy" / "dev.jsonl", 40, 2))),
        *("--test", str(write_texts(tmp_path / "toy" / "test.jsonl", 40, 3))),
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    stages = [line for line in result.stderr.splitlines() if " of " not in line]
    assert stages == [
        "training",
        "measuring the epoch on toy/dev",
        "tracing the graph",
        "running the golden texts",
        "comparing the graph with PyTorch",
        "checking the bundle as the service does",
        "measuring on toy/dev",
        "measuring on toy/test",
    ]
    manifest = Bundle.load(target).manifest
    assert list(manifest.labels) == bio_labels(["PER", "LOC"])
    assert manifest.languages == ("zh", "en")
    assert manifest.precision.storage.linear == "int8_block"
    measured = manifest.quality["toy/test"]
    assert isinstance(measured, dict)
    assert measured["f1"] > 90
    # Chosen by the development set, and measured on it as the service would read it.
    assert set(manifest.quality) == {"training", "toy/dev", "toy/test"}
    card = (target / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"| toy/test | all | {measured['precision']:.1f} | {measured['recall']:.1f} |" in card
    assert "| toy/train | train | jsonl | 240 |" in card
    assert f"| 6 | {result.output.split('epoch 6: loss ')[1][:6]} |" in card
    assert {"MODEL_CARD.md", "learning_curves.svg"} <= manifest.files.keys()
    assert "toy/test                 all" in result.output
    assert not list(base.parent.glob(".tagger*"))  # nothing is left of the work
    training = manifest.quality["training"]
    assert isinstance(training, dict)
    assert (training["sets"], training["texts"], training["token_dropout"]) == (["toy/train"], 240, 0.1)
    assert list(training) == [
        *("texts", "spans", "sets", "epochs", "best_epoch", "learning_rate", "token_dropout", "seed")
    ]
    assert (target / "NOTICE").read_text(encoding="utf-8") == "made for tests\n"
    # The tables are the base's own file, kept once, and go along when the folder is copied.
    tables = target / "embeddings.safetensors"
    assert tables.samefile(base / "embeddings.safetensors")
    assert not tables.is_symlink()

    scored = CliRunner().invoke(
        main, ["eval", "ner", str(target), str(tmp_path / "toy" / "test.jsonl"), "--json"]
    )
    assert measured.items() <= json.loads(scored.stdout).items()

    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 1
    assert "--overwrite" in again.output

    # A tagger that is trained on names the first base, and links to its file, not to a link.
    tables.unlink()
    tables.symlink_to("../base/embeddings.safetensors")
    second = base.parent / "second"
    more = [*arguments[:2], "--base", str(target), "-o", str(second), "--epochs", "1", *arguments[8:]]
    result = CliRunner().invoke(main, [*more, "--link-embeddings"])
    assert result.exit_code == 0, result.output
    assert (second / "embeddings.safetensors").readlink() == Path("../base/embeddings.safetensors")
    assert Bundle.load(second).manifest.source == manifest.source


def arguments(base: Path, folder: Path, output: Path, *more: str) -> list[str]:
    """A short training on the toy language."""
    files = {"train": (120, 1), "dev": (30, 2), "test": (30, 3)}
    written = {name: write_texts(folder / "toy" / f"{name}.jsonl", *how) for name, how in files.items()}
    given = [word for name, path in written.items() for word in (f"--{name}", str(path))]
    return ["train", "ner", "--base", str(base), "-o", str(output), *given, "--batch-size", "16", *more]


def test_a_crf_and_low_rank_changes_end_in_an_ordinary_bundle(base: Path, tmp_path: Path) -> None:
    """The changes are in the weights, the CRF is a file that decoding reads; the tables are still shared."""
    target = base.parent / "with-crf"
    more = [
        "--epochs",
        "8",
        "--lora-rank",
        "8",
        "--learning-rate",
        "2e-2",
        "--crf",
        "--head-learning-rate",
        "1e-2",
    ]
    result = CliRunner().invoke(main, arguments(base, tmp_path, target, *more))
    assert result.exit_code == 0, result.output
    bundle = Bundle.load(target)
    assert bundle.manifest.architecture.parameters == sum(
        array.size for array in read_bundle_weights(target).values()
    )
    crf = LinearChainCrf.from_bundle(bundle)
    assert crf is not None
    assert np.abs(crf.transitions).max() > 0.01
    assert (target / "embeddings.safetensors").samefile(base / "embeddings.safetensors")
    measured = bundle.manifest.quality["toy/test"]
    assert isinstance(measured, dict)
    assert measured["f1"] > 60


def test_a_yardstick_is_measured_and_is_no_bundle(base: Path, tmp_path: Path) -> None:
    """Its card and table compare it with the tagger beside it; nothing tries to serve it."""
    target = base.parent / "yardstick"
    more = [
        "--architecture",
        "bilstm-crf",
        "--epochs",
        "6",
        "--learning-rate",
        "2e-2",
        "--head-learning-rate",
    ]
    result = CliRunner().invoke(main, arguments(base, tmp_path, target, *more, "2e-2"))
    assert result.exit_code == 0, result.output
    assert "no bundle" in result.output
    f1 = float(re.search(r"toy/test +all .* F1 +([\d.]+)", result.output)[1])  # type: ignore[index]
    assert f1 > 80
    assert {path.name for path in target.iterdir()} >= {"MODEL_CARD.md", "learning_curves.svg"}
    assert target not in discover(base.parent)
    assert "| toy/test | all |" in (target / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_the_command_goes_on_after_a_kill_and_gives_the_same_bundle(base: Path, tmp_path: Path) -> None:
    """`kill -9` in the second epoch; the same command then ends in the weights of a run left alone."""
    whole = arguments(base, tmp_path, base.parent / "whole", "--epochs", "2")
    killed = arguments(base, tmp_path, base.parent / "killed", "--epochs", "2")
    program = (
        "import os, signal\n"
        "from model.training import history\n"
        "from model.training.checkpoints import WorkFolder\n"
        "save = WorkFolder.save_state\n"
        "def kill(self, state):\n"
        "    save(self, state)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "WorkFolder.save_state = kill\n"
        "from service.cli import main\n"
        f"main({killed!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert (base.parent / ".killed.training" / "state.pt").is_file()

    changed = CliRunner().invoke(main, [*killed, "--seed", "5"])
    assert changed.exit_code == 1
    assert "seed (13 then, 5 now)" in changed.output
    assert "--restart" in changed.output

    for command in (whole, killed):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    assert "going on behind step 8" in result.output
    one, other = (read_bundle_weights(base.parent / name) for name in ("whole", "killed"))
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


def test_ctrl_c_says_how_to_go_on(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of training are not lost, and whoever stops one should know."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("model.training.tagger.fine_tune", interrupted)
    result = CliRunner().invoke(main, arguments(base, tmp_path, base.parent / "stopped"))
    assert result.exit_code == 1
    assert "the same command goes on" in result.output


def test_options_that_do_not_go_together_are_refused(base: Path, tmp_path: Path) -> None:
    """Before anything slow."""
    more = ["--architecture", "bilstm-crf", "--lora-rank", "4"]
    result = CliRunner().invoke(main, arguments(base, tmp_path, base.parent / "odd", *more))
    assert result.exit_code == 2
    assert "--lora-rank" in result.output


def test_training_starts_from_the_bundles_weights(base: Path) -> None:
    """The encoder under a fresh head is the bundle's, to the bit."""
    classifier = classifier_on(base, bio_labels(["X"]))
    weights = read_bundle_weights(base)
    state = classifier.encoder.state_dict()
    assert state.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(state[name].numpy(), array)


def test_a_tagger_is_trained_on_with_its_head(base: Path) -> None:
    """Going on from a tagger costs less than beginning again; a head of other labels would be nonsense."""
    labels = bio_labels(["PER", "LOC"])
    first = classifier_on(base, labels)
    path = base.parent / "first"
    write_bundle(
        BundleContents(
            name="first",
            model=first,
            family="conche",
            tokenizer=toy_tokenizer(),
            source=Source(name="made for tests"),
            licence="Apache-2.0",
            languages=("en", "zh"),
            description="A small tagger.",
            max_tokens=32,
        ),
        path,
    )
    again = classifier_on(path, labels)
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor)
    with pytest.raises(UnfitBaseError, match=r"first has the labels O, B-PER, .* not O, B-X, I-X"):
        classifier_on(path, bio_labels(["X"]))


def test_frozen_layers_are_the_lowest(base: Path) -> None:
    """What is near the embeddings changes least anyway."""
    encoder = classifier_on(base, bio_labels(["X"])).encoder
    freeze_layers(encoder, 1)
    learning = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith(("layers.0.", "embeddings.norm.")) for name in learning)
    assert any(name.startswith("layers.1.") for name in learning)


def test_every_han_character_is_a_token(tmp_path: Path) -> None:
    """A name may begin anywhere; joined pieces would hide its border. Other tokens and ids stay."""
    source, target = tmp_path / "source.json", tmp_path / "target.json"
    toy_tokenizer().save(str(source))
    write_tagging_tokenizer(source, target)
    before, after = (tokenizers.Tokenizer.from_file(str(path)) for path in (source, target))
    assert before.encode("ann 北京").tokens == ["[CLS]", "ann", "北京", "[SEP]"]
    assert after.encode("ann 北京").tokens == ["[CLS]", "ann", "北", "京", "[SEP]"]
    assert after.get_vocab() == before.get_vocab()


def test_labels_unknown_to_training_are_refused_before_it(base: Path, tmp_path: Path) -> None:
    """A dev set with other labels would make every epoch look bad; say so at once."""
    train = write_texts(tmp_path / "toy" / "train.jsonl", 10, 1)
    odd = tmp_path / "odd.jsonl"
    odd.write_text(
        '{"text":"ann","spans":[{"start":0,"end":3,"label":"DRUG"}]}\n{"text":1}', encoding="utf-8"
    )
    result = CliRunner().invoke(
        main,
        [
            "train",
            "ner",
            "--base",
            str(base),
            "--train",
            str(train),
            "--dev",
            str(odd),
            "--max-bad-share",
            "0.5",
            "-o",
            str(tmp_path / "x"),
        ],
    )
    assert result.exit_code == 1
    assert "DRUG" in result.output
    assert "odd.jsonl:2" in result.output
    assert not (tmp_path / "x").exists()
