"""Texts and pairs as rows: the tokenizer's template, and its own library's way of cutting pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.runtime.sequences import read_sequences, truncate_sequence
from model.runtime.tokenization import NotTextError, Tokenizer
from tests.bundles import WORDS, tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer())
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)


def test_a_pair_is_one_row_with_segments_if_the_model_knows_them() -> None:
    """[CLS] and the first separator belong to the first text, the second separator to the second."""
    single, pair = read_sequences(TOKENIZER, ["hello", ("hello world", "cat")], token_types=True)
    assert single.token_type_ids.tolist() == [0, 0, 0]
    assert pair.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1]
    assert pair.sequence_ids.tolist() == [-1, 0, 0, -1, 1, -1]
    assert (single.empty, pair.empty) == ((), ())
    (plain,) = read_sequences(TOKENIZER, [("hello world", "cat")], token_types=False)
    assert not plain.token_type_ids.any()
    assert plain.input_ids.tolist() == pair.input_ids.tolist()


def test_texts_of_nothing_are_told_by_their_place() -> None:
    """A classifier would answer to special tokens alone."""
    found = read_sequences(TOKENIZER, ["\u200b", ("\u200b", "cat"), ("cat", "\u200b")], token_types=True)
    assert [one.empty for one in found] == [(0,), (0,), (1,)]


def test_separators_spelt_out_are_text() -> None:
    """A text cannot end itself early and pass the rest off as another's."""
    (pair,) = read_sequences(TOKENIZER, [("hello [SEP] world", "cat")], token_types=True)
    assert (pair.input_ids == 3).sum() == 2


def test_half_a_surrogate_pair_is_refused_by_its_item() -> None:
    """In either text."""
    for item in (("ok", "\ud83d"), ("\ud83d", "ok"), "\ud83d"):
        with pytest.raises(NotTextError) as caught:
            read_sequences(TOKENIZER, ["ok", item], token_types=True)
        assert caught.value.index == 1


@settings(deadline=None)
@given(first=texts, second=st.none() | texts, room=st.integers(5, 16), from_start=st.booleans())
def test_cutting_is_that_of_the_tokenizers_library(
    first: str, second: str | None, room: int, from_start: bool
) -> None:
    """Its "longest_first", which transformers and cross-encoders are trained with."""
    item = first if second is None else (first, second)
    (whole,) = read_sequences(TOKENIZER, [item], token_types=True)
    cut = truncate_sequence(whole, room, from_start=from_start)
    reference = tiny_tokenizer()
    reference.enable_truncation(room, strategy="longest_first", direction="left" if from_start else "right")
    expected = reference.encode(first) if second is None else reference.encode(first, second)
    assert cut.input_ids.tolist() == expected.ids
    assert cut.token_type_ids.tolist() == expected.type_ids
    assert cut.truncated_tokens == max(0, len(whole) - room)
    assert len(cut) == len(whole) - cut.truncated_tokens == len(cut.sequence_ids)


def test_what_fits_stays_as_it_is_and_no_text_is_cut_to_nothing() -> None:
    """Four tokens hold three special ones and half a pair."""
    (pair,) = read_sequences(TOKENIZER, [("hello world", "cat")], token_types=True)
    assert truncate_sequence(pair, 6) is pair
    with pytest.raises(ValueError, match="leaves no room"):
        truncate_sequence(pair, 4)
    assert np.count_nonzero(truncate_sequence(pair, 5).sequence_ids >= 0) == 2
