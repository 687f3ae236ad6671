"""One tagger out of several."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner

from model.encoder.config import EncoderConfig
from model.encoder.heads import TokenClassifier
from model.export.storage import encode
from model.export.writer import BundleContents, read_bundle_weights, write_bundle
from model.runtime.bundle import Bundle, Source
from model.training.mean import mean_of_taggers, rounded_for
from model.training.spans import bio_labels
from model.training.tagger import UnfitBaseError
from service.cli import main

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "ann", "oslo", "met"]
LABELS = bio_labels(["PER"])


def tokenizer(words: list[str]) -> tokenizers.Tokenizer:
    """One word, one token."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a tagger with one common word table and a head and layers of its own."""
    folder = tmp_path_factory.mktemp("taggers")

    def make(
        name: str,
        seed: int,
        *,
        labels: tuple[str, ...] = tuple(LABELS),
        words: tuple[str, ...] = tuple(WORDS),
    ) -> Path:
        config = EncoderConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
        torch.manual_seed(0)
        common = TokenClassifier(config, labels)
        torch.manual_seed(seed)
        model = TokenClassifier(config, labels).eval()
        model.encoder.embeddings.load_state_dict(common.encoder.embeddings.state_dict())
        contents = BundleContents(
            name=name,
            model=model,
            family="conche",
            tokenizer=tokenizer(list(words)),
            source=Source(name="made for tests"),
            licence="MIT",
            languages=("en",),
            description=f"Tagger {name}.",
            max_tokens=16,
            quality={"training": {"texts": seed, "sets": ["toy/train"]}},
        )
        return write_bundle(contents, folder / name).path

    return make


@pytest.fixture(scope="module")
def pair(make: Callable[..., Path]) -> list[Path]:
    """Two that can be averaged."""
    return [make("one", 1), make("two", 2)]


def test_every_weight_is_the_mean_of_the_taggers(pair: list[Path]) -> None:
    """The second counts twice; the tables that all share stay the same to the bit."""
    one, two = map(read_bundle_weights, pair)
    network = mean_of_taggers([*pair, pair[1]]).network
    found = {name.removeprefix("encoder."): value for name, value in network.state_dict().items()}
    assert found.keys() == one.keys()
    for name, value in found.items():
        wanted = (one[name].astype(np.float64) + 2 * two[name].astype(np.float64)) / 3
        np.testing.assert_array_equal(value.numpy(), wanted.astype(np.float32))
    np.testing.assert_array_equal(found["embeddings.word.weight"].numpy(), one["embeddings.word.weight"])


def test_no_name_can_be_made_likelier(pair: list[Path]) -> None:
    """The bias of O, and nothing else."""
    plain, biased = (mean_of_taggers(pair, outside_bias=bias).network.state_dict() for bias in (0.0, 0.5))
    changed = {name for name in plain if not torch.equal(plain[name], biased[name])}
    assert changed == {"classifier.bias"}
    difference = biased["classifier.bias"] - plain["classifier.bias"]
    assert difference.tolist() == pytest.approx([0.5, 0.0, 0.0])


def test_a_mean_is_written_measured_and_described(pair: list[Path], tmp_path: Path) -> None:
    """`conche average`; the card says what it is made from."""
    texts = tmp_path / "toy" / "dev.jsonl"
    texts.parent.mkdir()
    texts.write_text('{"text": "ann met oslo", "spans": [{"start": 0, "end": 3, "label": "PER"}]}\n')
    target = tmp_path / "mean"
    # One by its name, one by its path.
    named = ["--models-dir", str(pair[0].parent), pair[0].name, str(pair[1])]
    done = CliRunner().invoke(main, ["average", *named, "-o", str(target), "--measure", str(texts)])
    assert done.exit_code == 0, done.output
    manifest = Bundle.load(target).manifest
    assert (manifest.licence, manifest.languages) == ("MIT", ("en",))
    assert manifest.quality["mean_of"] == ["one", "two"]
    assert "toy/dev" in manifest.quality
    card = (target / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "the mean of the weights of 2 taggers" in card
    assert "- two: Tagger two.\n  - texts: 2\n  - sets: toy/train\n" in card
    assert "| toy/dev | all |" in card


def test_weights_can_be_rounded_for_texts(pair: list[Path], tmp_path: Path) -> None:
    """`--round-for`: what is stored is what `rounded_for` gives, and is not the nearest codes."""
    texts = tmp_path / "train.jsonl"
    lines = ["ann met oslo", "oslo met ann ann", "met oslo"]
    texts.write_text("".join(f'{{"text": "{line}", "spans": []}}\n' for line in lines))
    command = ["average", *map(str, pair), "--round-for", str(texts), "-o", str(tmp_path / "mean")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    stored, mean = read_bundle_weights(tmp_path / "mean"), mean_of_taggers(pair)
    own = dict(mean.network.encoder.named_parameters())
    rounded = rounded_for(mean, lines)
    assert len(rounded) == 6
    for name, values in rounded.items():
        np.testing.assert_array_equal(stored[name], values)
    nearest = (encode(name, own[name].detach().numpy(), "int8_block").decode() for name in rounded)
    assert not all(map(np.array_equal, rounded.values(), nearest))
    refused = CliRunner().invoke(main, [*command, "--overwrite", "--storage", "float16"])
    assert refused.exit_code == 2
    assert "int8_block" in refused.output


def test_taggers_that_do_not_belong_together_are_refused(
    pair: list[Path], make: Callable[..., Path], tmp_path: Path
) -> None:
    """Their weights mean different things."""
    with pytest.raises(UnfitBaseError, match="two taggers or more, not 1"):
        mean_of_taggers(pair[:1])
    other_labels = make("places", 3, labels=tuple(bio_labels(["LOC"])))
    with pytest.raises(UnfitBaseError, match="places has another labels than one"):
        mean_of_taggers([pair[0], other_labels])
    other_words = make("words", 4, words=(*WORDS[:-1], "saw"))
    with pytest.raises(UnfitBaseError, match="words has another tokenizer than one"):
        mean_of_taggers([pair[0], other_words])
    done = CliRunner().invoke(main, ["average", str(pair[0]), "-o", str(tmp_path / "x")])
    assert done.exit_code == 1
    assert "two taggers or more" in done.output
