"""A checkpoint's own words end up in the bundle, and what the user says wins over them."""

import json
from pathlib import Path

import pytest

from model.encoder.checkpoint import read_checkpoint
from model.encoder.errors import CheckpointError
from model.encoder.heads import TokenClassifier
from model.export.from_checkpoint import UNKNOWN_LICENCE, Choices, contents_of
from tests.model.encoder.checkpoints import LABELS, reference_model, save_checkpoint


def sentence_checkpoint(folder: Path) -> Path:
    """A BERT with the files of sentence-transformers and a card."""
    save_checkpoint(reference_model("bert"), folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    prompts = {"prompts": {"query": "find: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage: [zh, en]\n---\n")
    (folder / "LICENSE").write_text("the licence")
    return folder


def test_what_the_checkpoint_says_is_taken(tmp_path: Path) -> None:
    """CLS pooling of a mean-pooled model, or a lost prompt, is wrong without any error."""
    folder = sentence_checkpoint(tmp_path / "checkpoint")
    contents, report = contents_of(read_checkpoint(folder), Choices(name="mine"))
    assert (contents.name, contents.family) == ("mine", "bert")
    assert (contents.pooling, contents.normalize, contents.max_tokens) == ("cls", True, 20)
    assert (contents.prompts, contents.default_prompt_name) == ({"query": "find: "}, "query")
    assert (contents.licence, tuple(contents.languages)) == ("MIT", ("zh", "en"))
    assert contents.notices["LICENSE"] == "the licence"
    assert "checkpoint" in contents.notices["NOTICE"]
    assert report.unused == ("pooler.dense.bias", "pooler.dense.weight")


def test_what_the_user_says_wins(tmp_path: Path) -> None:
    """Cards are wrong at times."""
    choices = Choices(
        name="mine",
        pooling="mean",
        normalize=False,
        licence="Apache-2.0",
        languages=("en",),
        description="as I say",
    )
    contents, _ = contents_of(read_checkpoint(sentence_checkpoint(tmp_path / "checkpoint")), choices)
    assert (contents.pooling, contents.normalize, contents.licence) == ("mean", False, "Apache-2.0")
    assert (tuple(contents.languages), contents.description) == (("en",), "as I say")


def test_what_nobody_says_is_said_to_be_unknown(tmp_path: Path) -> None:
    """A bare encoder is pooled by its mean; its licence must not be guessed."""
    folder = save_checkpoint(reference_model("distilbert"), tmp_path / "checkpoint")
    contents, _ = contents_of(read_checkpoint(folder), Choices(name="mine"))
    assert (contents.pooling, contents.normalize) == ("mean", False)
    assert (contents.licence, tuple(contents.languages)) == (UNKNOWN_LICENCE, ())


def test_licence_texts_get_names_that_a_bundle_takes(tmp_path: Path) -> None:
    """Authors name them as they like; none is lost, not even if two come to the same name."""
    folder = sentence_checkpoint(tmp_path / "checkpoint")
    for name, text in (
        ("LICENSE (MIT).txt", "one"),
        ("LICENSE（中文）.txt", "two"),
        ("LICENSE.txt", "three"),
    ):
        (folder / name).write_text(text)
    (folder / "NOTICE of sources").mkdir()
    contents, _ = contents_of(read_checkpoint(folder), Choices(name="mine"))
    texts = {name: text for name, text in contents.notices.items() if name != "NOTICE"}
    assert texts == {
        "LICENSE": "the licence",
        "LICENSE-MIT.txt": "one",
        "LICENSE.txt": "three",
        "LICENSE-2.txt": "two",
    }


def test_labels_make_a_tagger(tmp_path: Path) -> None:
    """The task follows from the checkpoint, unless its encoder alone is wanted."""
    model = reference_model("roberta", "token-classification")
    checkpoint = read_checkpoint(save_checkpoint(model, tmp_path / "checkpoint"))
    contents, _ = contents_of(checkpoint, Choices(name="mine"))
    assert isinstance(contents.model, TokenClassifier)
    assert (contents.labels, contents.pooling) == (LABELS, None)
    embedding, _ = contents_of(checkpoint, Choices(name="mine", task="embedding"))
    assert (embedding.labels, embedding.pooling) == ((), "mean")


def test_no_labels_make_no_tagger(tmp_path: Path) -> None:
    """A head of random weights would answer with random labels."""
    checkpoint = read_checkpoint(save_checkpoint(reference_model("bert"), tmp_path / "checkpoint"))
    with pytest.raises(CheckpointError, match="has no labels"):
        contents_of(checkpoint, Choices(name="mine", task="token-classification"))
