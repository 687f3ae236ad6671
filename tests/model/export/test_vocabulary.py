"""Cutting a vocabulary leaves the texts of the kept languages as they were."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from model.export.vocabulary import (
    cut_unigram_tokenizer,
    is_chinese_or_neutral,
    is_single_latin,
    pieces_for_chinese_and_english,
    read_kept_pieces,
    write_kept_pieces,
)
from model.export.xlmr_tokenizer import build_xlmr_tokenizer
from tests.model.export.e5s1_files import PIECES

SPECIAL = {"bos": 0, "eos": 2, "pad": 1, "unk": 3}
SCORED = [(piece, -float(index) / 4) for index, piece in enumerate(PIECES)]


@pytest.mark.parametrize("piece", ["退货", "▁好", "龜", "，", "▁(", "3,299", "①", "🎉", "𠮷", "▁"])
def test_chinese_and_neutral_pieces_are_kept(piece: str) -> None:
    """Han characters of every block, digits, punctuation and emoji belong to no other language."""
    assert is_chinese_or_neutral(piece)


@pytest.mark.parametrize("piece", ["hello", "の", "ми", "退a", "é"])
def test_other_scripts_are_not_neutral(piece: str) -> None:
    """Kana and Cyrillic go; Latin words stay only if the corpus has them."""
    assert not is_chinese_or_neutral(piece)


def test_single_latin_letters_spell_any_name() -> None:
    """A name that no corpus had must not become unknown."""
    assert all(map(is_single_latin, ["a", "▁Z", "é", "ø"]))
    assert not any(map(is_single_latin, ["ab", "и", "▁"]))


def test_the_choice_is_special_neutral_seen_and_letters() -> None:
    """The four grounds to keep a piece, and nothing else."""
    kept = pieces_for_chinese_and_english(PIECES, [*PIECES[:4], "<mask>"], {PIECES.index("▁return")})
    dropped = {PIECES[index] for index in set(range(len(PIECES))) - set(kept)}
    assert dropped == {"▁hello", "été", "ми"}


def test_a_choice_is_stored_as_bits(tmp_path: Path) -> None:
    """It must come back the same, and not be applied to another vocabulary."""
    path = tmp_path / "kept.xz"
    write_kept_pieces(path, [0, 3, 8, 19], 20)
    assert read_kept_pieces(path.read_bytes(), 20) == [0, 3, 8, 19]
    with pytest.raises(ValueError, match="17 to 24 pieces"):
        read_kept_pieces(path.read_bytes(), 40)


def test_kept_pieces_cut_a_text_as_before() -> None:
    """Same pieces, new ids, the closing token among them."""
    whole = build_xlmr_tokenizer(SCORED, SPECIAL)
    kept = [index for index, piece in enumerate(PIECES) if piece != "ми"]
    cut = Tokenizer.from_str(cut_unigram_tokenizer(whole.to_str(), kept))
    for text in ("好的 退货", "hello return", "abc 123", "退货<mask>"):
        assert cut.encode(text).tokens == whole.encode(text).tokens
    assert cut.get_vocab_size() == len(kept)
    assert cut.encode("ми").ids[2:] == [SPECIAL["unk"], SPECIAL["eos"]]


def test_special_pieces_cannot_go() -> None:
    """Without its closing token, the tokenizer would name an id of another piece."""
    whole = build_xlmr_tokenizer(SCORED, SPECIAL).to_str()
    with pytest.raises(ValueError, match="<pad>"):
        cut_unigram_tokenizer(whole, [0, 2, 3, len(PIECES) - 1])


def test_other_kinds_of_vocabulary_are_refused() -> None:
    """Merges and WordPiece continuations depend on pieces that are never output."""
    with pytest.raises(ValueError, match="WordPiece"):
        cut_unigram_tokenizer(json.dumps({"model": {"type": "WordPiece"}}), [0])


@pytest.mark.parametrize(
    ("text", "normalised"),
    [("Ａ１", "A1"), ("3～5", "3～5"), ("a\u200db", "a b"), ("a\u3000 b", "a b"), ("ﬁ", "fi")],
)
def test_text_is_normalised_as_sentencepiece_does(text: str, normalised: str) -> None:
    """Full-width forms are common in Chinese text; plain NFKC would halve the tilde too."""
    normalizer = build_xlmr_tokenizer(SCORED, SPECIAL).normalizer
    assert normalizer is not None
    assert normalizer.normalize_str(text) == normalised
