"""A tokeniser read from a checkpoint gives the ids that transformers gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer

from model.encoder.errors import CheckpointError, UnsupportedCheckpointError
from model.encoder.tokenizer_files import find_tokenizer_file, model_max_length, read_tokenizer
from tests.model.encoder.checkpoints import tiny_tokenizer

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(
        "hello",
        "Hello",
        "HELLO",
        "##s",
        "##S",
        "caf",
        "##e",
        "##é",
        "cafe",
        "café",
        "Café",
        "naive",
        "straße",
    ),
    *"张三去北京",
    *("张三", "北京", "##三", "##京", ",", ".", "。", "，", "\u2028", "a", "##a", "[", "]", "MASK"),
)
TEXTS = (
    "Hello, HELLOS cafés Café naïve STRASSE straße",
    "张三去北京。Hello北京，cafe.",
    "",
    "   ",
    "hello\u00a0hello\u200bhello\tHello\r\nhello",
    "[MASK] hello[SEP]",
    "a" * 99 + " " + "a" * 101,
    "ＨＥＬＬＯ hello😀 \u0000 e\u0301",
)


def vocabulary_folder(folder: Path, **config: Any) -> Path:
    """A checkpoint with vocab.txt and tokenizer_config.json only."""
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer"} | config), encoding="utf-8"
    )
    return folder


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False},
    ],
    ids=str,
)
def test_a_bare_vocabulary_splits_as_in_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    """Case, accents and Han characters, with the options where they are stored."""
    folder = vocabulary_folder(tmp_path, **config)
    ours = read_tokenizer(find_tokenizer_file(folder, "bert"))
    theirs = BertTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text).input_ids, text


@pytest.mark.parametrize("stated", [True, False, None])
@pytest.mark.parametrize("stored", [True, False])
def test_case_is_decided_where_transformers_decides_it(
    stored: bool, stated: bool | None, tmp_path: Path
) -> None:
    """``do_lower_case`` in tokenizer_config.json overrules the tokenizer.json beside it.

    Where it is absent, tokenizer.json stands: it is the only file that says anything.
    """
    folder = vocabulary_folder(tmp_path, **({} if stated is None else {"do_lower_case": stated}))
    serialised = json.loads(read_tokenizer(folder / "vocab.txt").to_str())
    serialised["normalizer"]["lowercase"] = stored
    (folder / "tokenizer.json").write_text(json.dumps(serialised), encoding="utf-8")
    ours = read_tokenizer(find_tokenizer_file(folder, "bert"))
    if stated is not None:
        theirs = BertTokenizer.from_pretrained(folder)
        assert [ours.encode(text).ids for text in TEXTS] == [theirs(text).input_ids for text in TEXTS]
    lowered = stored if stated is None else stated
    assert ours.encode("Hello").tokens[1] == ("hello" if lowered else "Hello")


def test_special_and_added_tokens_are_taken_from_their_files(tmp_path: Path) -> None:
    """Other names for the special tokens, and one token behind the vocabulary."""
    folder = vocabulary_folder(tmp_path, unk_token={"content": "a"}, sep_token=".")
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": len(WORDS)}), encoding="utf-8")
    ours = read_tokenizer(folder / "vocab.txt")
    assert ours.encode("zzz<new>").tokens == ["[CLS]", "a", "<new>", "."]
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": 1000}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="the id 1000"):
        read_tokenizer(folder / "vocab.txt")


def test_truncation_and_padding_stored_in_the_file_are_off(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2's file cuts at 128 tokens, in silence, whoever uses it."""
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = read_tokenizer(tmp_path / "tokenizer.json").encode("hello world 张 三 去").ids
    assert len(ids) == 7


def test_lower_case_before_the_tokeniser_keeps_offsets(tmp_path: Path) -> None:
    """What sentence-transformers does to the text; offsets stay those of the text as given."""
    folder = vocabulary_folder(tmp_path, do_lower_case=False)
    tokenizer = read_tokenizer(folder / "vocab.txt", lowercase_first=True)
    encoded = tokenizer.encode("İ Hello")
    assert encoded.tokens[-2] == "hello"
    assert encoded.offsets[-2] == (2, 7)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("roberta", {}),
        ("bert", {"tokenizer_class": "BertJapaneseTokenizer"}),
        ("bert", {"do_basic_tokenize": False}),
    ],
)
def test_a_vocabulary_of_another_algorithm_is_refused(
    family: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """vocab.txt is also the file of tokenisers that split words otherwise."""
    with pytest.raises(UnsupportedCheckpointError):
        find_tokenizer_file(vocabulary_folder(tmp_path, **config), family)


def test_sentencepiece_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """The converted file is what we read; transformers writes it."""
    (tmp_path / "sentencepiece.bpe.model").touch()
    with pytest.raises(UnsupportedCheckpointError, match=r"sentencepiece\.bpe\.model.*save_pretrained"):
        find_tokenizer_file(tmp_path, "xlm-roberta")


@pytest.mark.parametrize("content", ["{}", "not json"])
def test_a_broken_tokenizer_json_is_named(content: str, tmp_path: Path) -> None:
    """The library's own message does not say which file."""
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokeniser"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_a_vocabulary_without_special_tokens_is_refused(tmp_path: Path) -> None:
    """Word vectors also come with a vocab.txt."""
    (tmp_path / "vocab.txt").write_text("hello\nworld\n")
    with pytest.raises(CheckpointError, match=r"\[UNK\], \[SEP\], \[CLS\]"):
        read_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize(("stated", "expected"), [(512, 512), (10**30, None), (1e30, None), (None, None)])
def test_the_tokenisers_limit_is_read_unless_it_means_none(
    stated: float | None, expected: int | None, tmp_path: Path
) -> None:
    """A stored 1e30 stands for "no limit"."""
    vocabulary_folder(tmp_path, model_max_length=stated)
    assert model_max_length(tmp_path) == expected
