"""Offsets are code points of the caller's text, whatever the tokenizer does to it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer

from model.runtime import tokenization
from model.runtime.bundle import Bundle, BundleError
from model.runtime.tokenization import TokenizedText, Tokenizer, UnknownIdError, Vocabularies
from tests.bundles import refresh_manifest, tiny_tokenizer, write_tiny_ner_bundle


@pytest.fixture
def tokenizer() -> Tokenizer:
    """The tiny bundles' one."""
    return Tokenizer(tiny_tokenizer())


@pytest.mark.parametrize(("ids", "size"), [((0, 1, 2), 3), ((0, 1, 7), 8), ((3, 4, 5), 6)])
def test_the_vocabulary_ends_after_the_highest_id(ids: tuple[int, ...], size: int) -> None:
    """Some have gaps."""
    raw = RawTokenizer(models.WordLevel(dict(zip(["<pad>", "a", "b"], ids, strict=True)), unk_token="a"))
    assert Tokenizer(raw).vocab_size == size


def test_files_that_differ_elsewhere_share_a_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is to the letter what it is when it is read by itself."""
    shares: list[bool] = []
    with_model = tokenization._with_model

    def note(head: str, model: models.Model) -> RawTokenizer | None:
        raw = with_model(head, model)
        shares.append(raw is not None)
        return raw

    monkeypatch.setattr(tokenization, "_with_model", note)
    first = tmp_path / "first.json"
    tiny_tokenizer().save(str(first))
    other = json.loads(first.read_text(encoding="utf-8"))
    other["pre_tokenizer"] = {"type": "Whitespace"}
    second = tmp_path / "second.json"
    second.write_text(json.dumps(other, ensure_ascii=False, indent=2), encoding="utf-8")
    vocabularies = Vocabularies()
    kept = [Tokenizer.from_file(path, vocabularies=vocabularies) for path in (first, second)]
    for path, shared in zip((first, second), kept, strict=True):
        alone = Tokenizer.from_file(path)
        assert shared._tokenizer.to_str() == alone._tokenizer.to_str()
        assert (shared.vocab_size, shared.pad_token_id) == (alone.vocab_size, alone.pad_token_id)
        for text in ("Tim Cook in London", "[SEP] [PAD]", "\u7a0e\u7387"):
            [one], [two] = shared.tokenize([text]), alone.tokenize([text])
            assert one.input_ids.tolist() == two.input_ids.tolist()
            assert one.offsets.tolist() == two.offsets.tolist()
    assert shares == [True]


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file["model"]["vocab"].popitem(),
        lambda file: file["added_tokens"][0].update(id=10_000),
        lambda file: file["added_tokens"][0].update(content='"model":'),
    ],
    ids=["another vocabulary", "a token of another number", "a token that looks like the part"],
)
def test_what_is_not_the_same_vocabulary_is_read_by_itself(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    """Sharing never changes what a file says."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    tiny_tokenizer().save(str(first))
    content = json.loads(first.read_text(encoding="utf-8"))
    change(content)
    second.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
    vocabularies = Vocabularies()
    kept = Tokenizer.from_file(first, vocabularies=vocabularies)
    shared = Tokenizer.from_file(second, vocabularies=vocabularies)
    assert shared._tokenizer.to_str() == Tokenizer.from_file(second)._tokenizer.to_str()
    assert kept._tokenizer.to_str() == Tokenizer.from_file(first)._tokenizer.to_str()


def test_a_vocabulary_goes_with_those_that_use_it(tmp_path: Path) -> None:
    """An unloaded model leaves nothing behind."""
    path = tmp_path / "tokenizer.json"
    tiny_tokenizer().save(str(path))
    vocabularies = Vocabularies()
    kept = Tokenizer.from_file(path, vocabularies=vocabularies)
    assert len(vocabularies._tokenizers) == 1
    del kept
    gc.collect()
    assert len(vocabularies._tokenizers) == 0


def byte_level() -> Tokenizer:
    """As RoBERTa: bytes as characters, and the space before a word is part of its token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate(["<s>", "<pad>", "</s>", *alphabet, "ĠP", "ar"])}
    raw = RawTokenizer(models.BPE(vocabulary, [("Ġ", "P"), ("a", "r")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    raw.add_special_tokens(["<s>", "<pad>", "</s>"])
    return Tokenizer(raw)


def sentence_piece() -> Tokenizer:
    """As XLM-R with one token per Han character: a bare word-start mark stands before a Han character."""
    special, pieces = ["<s>", "<pad>", "</s>", "<unk>"], ["▁", "▁T", *"TimCook在北京。,</s>pad"]
    scores = [(piece, 0.0) for piece in special] + [(piece, -1.0) for piece in dict.fromkeys(pieces)]
    raw = RawTokenizer(models.Unigram(scores, unk_id=3))
    raw.add_special_tokens(special)
    raw.normalizer = normalizers.NFKC()
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(prepend_scheme="always"),
            pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated"),
        ]
    )
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return Tokenizer(raw)


TOKENIZERS = [lambda: Tokenizer(tiny_tokenizer()), byte_level, sentence_piece]


def slices(text: str, tokenized: TokenizedText) -> list[str]:
    """What each token covers."""
    return [text[start:end] for start, end in tokenized.offsets.tolist()]


def test_offsets_count_code_points_behind_emoji(tokenizer: Tokenizer) -> None:
    """Neither bytes nor UTF-16 units: a client slices its own string with them."""
    text = "🙂 北京"
    (tokenized,) = tokenizer.tokenize([text])
    assert tokenized.offsets.tolist() == [[0, 0], [0, 1], [2, 3], [3, 4], [0, 0]]
    assert tokenized.special.tolist() == [True, False, False, False, True]
    assert tokenized.word_ids == [None, 0, 1, 2, None]
    assert tokenized.input_ids.dtype == np.int64


def test_spaces_that_belong_to_a_token_are_not_in_its_offsets() -> None:
    """Byte-level tokenizers count the space before a word as part of it; a span would begin with it."""
    text = "in Paris"
    (tokenized,) = byte_level().tokenize([text])
    assert "Par" in "".join(slices(text, tokenized))
    assert all(part == part.strip() for part in slices(text, tokenized))


def test_prefix_tokens_have_no_place_in_the_text(tokenizer: Tokenizer) -> None:
    """A prompt must not move offsets, nor be found as an entity."""
    text = "Tim Cook"
    (plain,) = tokenizer.tokenize([text])
    (prefixed,) = tokenizer.tokenize([text], prefix="query: ")
    extra = len(prefixed) - len(plain)
    assert extra == 2
    assert prefixed.offsets[1 : 1 + extra].tolist() == [[0, 0]] * extra
    assert prefixed.word_ids[1 : 1 + extra] == [None] * extra
    assert not prefixed.special[1 : 1 + extra].any()
    assert prefixed.offsets[1 + extra :].tolist() == plain.offsets[1:].tolist()


def test_a_token_across_the_prefix_border_keeps_its_part_of_the_text(tokenizer: Tokenizer) -> None:
    """A prompt without a space at its end runs into the text."""
    (tokenized,) = tokenizer.tokenize(["ris x"], prefix="Pa")
    assert tokenized.offsets.tolist() == [[0, 0], [0, 3], [4, 5], [0, 0]]


@settings(deadline=None)
@given(
    text=st.text(alphabet="Tim Cook在北京。,é\u0301\ufeff\u200b\u00ad\t\r\n🙂👍🏽ﬁ①Ａ", max_size=30),
    which=st.integers(0, 2),
)
def test_offsets_stay_inside_the_text_and_in_order(text: str, which: int) -> None:
    """Windows and spans rely on it; normalisers that drop or split characters must not break it."""
    for prefix in ("", "query: "):
        (tokenized,) = TOKENIZERS[which]().tokenize([text], prefix=prefix)
        starts = [start for start, end in tokenized.offsets.tolist() if start < end]
        assert starts == sorted(starts)
        for start, end in tokenized.offsets.tolist():
            assert 0 <= start <= end <= len(text)


@settings(deadline=None)
@given(
    texts=st.lists(st.text(alphabet="Tim 北é\u0301\ufeff\u200b\t\u3000\n🙂ﬁ①", max_size=12), max_size=4),
    which=st.integers(0, 2),
    prefix=st.sampled_from(("", "query: ", "Ti", " ")),
)
def test_ids_without_places_are_those_with_them(texts: list[str], which: int, prefix: str) -> None:
    """And a text is empty when none of its tokens has a place."""
    tokenizer = TOKENIZERS[which]()
    for ids, tokenized in zip(
        tokenizer.tokenize_ids(texts, prefix=prefix), tokenizer.tokenize(texts, prefix=prefix), strict=True
    ):
        assert ids.input_ids.tolist() == tokenized.input_ids.tolist()
        assert ids.input_ids.dtype == np.int64
        assert ids.is_empty == (not any(start < end for start, end in tokenized.offsets.tolist()))
        assert len(ids) == len(tokenized)
        assert ids.truncated_tokens == 0


@pytest.mark.parametrize("from_start", [False, True])
def test_ids_are_cut_as_texts_are(tokenizer: Tokenizer, from_start: bool) -> None:
    """What fits is left as it is."""
    texts = ["Tim Cook works in Paris.", "Tim"]
    for ids, whole in zip(
        tokenizer.tokenize_ids(texts, prefix="Pa ", max_tokens=6, from_start=from_start),
        tokenizer.tokenize(texts, prefix="Pa "),
        strict=True,
    ):
        cut = tokenizer.truncate(whole, 6, from_start=from_start)
        assert ids.input_ids.tolist() == cut.input_ids.tolist()
        assert ids.truncated_tokens == cut.truncated_tokens
        assert not ids.is_empty


def test_a_text_of_nothing_is_empty_however_long_it_is() -> None:
    """Cutting must not make it pass for one that was read in part; nor one empty that begins with nothing."""
    nothing, late = byte_level().tokenize_ids([" " * 20, " " * 20 + "x"], max_tokens=6)
    assert (nothing.is_empty, nothing.truncated_tokens) == (True, 16)
    assert (late.is_empty, late.truncated_tokens) == (False, 17)


@settings(deadline=None)
@given(texts=st.lists(st.text(alphabet="Tim Cook在北京", max_size=10), max_size=5))
def test_a_text_is_tokenised_alike_alone_and_among_others(texts: list[str]) -> None:
    """No padding and no truncation leak from one text into another."""
    tokenizer = Tokenizer(tiny_tokenizer())
    for text, tokenized in zip(texts, tokenizer.tokenize(texts), strict=True):
        (alone,) = tokenizer.tokenize([text])
        assert alone.input_ids.tolist() == tokenized.input_ids.tolist()
        assert tokenized.truncated_tokens == 0


def test_settings_saved_in_the_file_neither_cut_nor_pad() -> None:
    """Many published files carry a truncation to 128; it would silently lose text."""
    raw = tiny_tokenizer()
    raw.enable_truncation(max_length=4)
    raw.enable_padding(pad_id=3, length=50)
    tokenizer = Tokenizer(raw)
    (tokenized,) = tokenizer.tokenize(["hello " * 10])
    assert len(tokenized) == 12
    assert tokenizer.pad_token_id == 3


def test_half_a_surrogate_pair_is_named_with_its_text(tokenizer: Tokenizer) -> None:
    """The library's own message does not say what is wrong."""
    with pytest.raises(ValueError, match=r"text 1 holds half of a surrogate pair \(U\+D83D\) at 2"):
        tokenizer.tokenize(["fine", "a \ud83d"])


def test_truncation_keeps_the_closing_special_token_and_counts(tokenizer: Tokenizer) -> None:
    """A model has never seen a text without its end mark; the caller is told what is missing."""
    (whole,) = tokenizer.tokenize(["hello world hello world"])
    cut = tokenizer.truncate(whole, 4)
    assert cut.input_ids.tolist() == [*whole.input_ids[:3].tolist(), int(whole.input_ids[-1])]
    assert (len(cut), cut.truncated_tokens) == (4, 2)
    assert cut.word_ids == [None, 0, 1, None]
    assert cut.special.tolist() == [True, False, False, True]
    assert tokenizer.truncate(cut, 3).truncated_tokens == 3
    assert tokenizer.truncate(whole, 6) is whole


def test_truncation_from_the_start_keeps_the_prompt_and_the_opening_token(tokenizer: Tokenizer) -> None:
    """What a prompt says holds for what is left of the text as well."""
    (whole,) = tokenizer.tokenize(["hello world cat dog"], prefix="query: ")
    ids = whole.input_ids.tolist()
    cut = tokenizer.truncate(whole, len(whole) - 2, from_start=True)
    prompt = 3  # [CLS] query :
    assert cut.input_ids.tolist() == ids[:prompt] + ids[prompt + 2 :]
    assert (cut.truncated_tokens, cut.offsets[prompt].tolist()) == (2, [12, 15])
    with pytest.raises(ValueError, match="no room"):
        tokenizer.truncate(whole, prompt + 1, from_start=True)


def test_ids_become_text_again(tokenizer: Tokenizer) -> None:
    """Special tokens are left out, or not, as asked."""
    ids = [text.input_ids.tolist() for text in tokenizer.tokenize(["hello world", "Paris"])]
    assert tokenizer.decode_batch(ids) == ["hello world", "Paris"]
    assert tokenizer.decode_batch(ids[1:], skip_special_tokens=False) == ["[CLS] Paris [SEP]"]


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**40])
def test_an_id_that_no_token_has_is_refused_by_its_place(tokenizer: Tokenizer, wrong: int) -> None:
    """Ids of another vocabulary, or nonsense: they stand for no text."""
    with pytest.raises(UnknownIdError, match=f"ids end at {tokenizer.vocab_size - 1}") as refused:
        tokenizer.decode_batch([[4, 5], [4, wrong]])
    assert (refused.value.index, refused.value.position) == (1, 1)


def test_truncation_to_nothing_is_refused(tokenizer: Tokenizer) -> None:
    """Two special tokens alone would be one vector for every text."""
    (whole,) = tokenizer.tokenize(["hello world"])
    with pytest.raises(ValueError, match="no room"):
        tokenizer.truncate(whole, 2)


def test_special_tokens_spelt_out_in_a_text_are_text(tokenizer: Tokenizer) -> None:
    """They keep their offsets, and truncation cuts there like anywhere."""
    text = "hello [SEP] world"
    (tokenized,) = tokenizer.tokenize([text])
    assert slices(text, tokenized) == ["", "hello", *"[SEP]", "world", ""]
    assert tokenized.special.tolist() == [True, *[False] * 7, True]
    assert len(tokenizer.truncate(tokenized, 4)) == 4


SPELT = [
    "<s>",
    "</s>",
    "<pad>",
    "[PAD]",
    "[CLS]",
    "[SEP]",
    "＜/s＞",
    "＜ｐad>",
    "<",
    "s>",
    "</",
    " ",
    "Tim",
    "在",
]


@pytest.mark.parametrize("which", range(3))
@settings(deadline=None)
@given(parts=st.lists(st.sampled_from(SPELT), max_size=6), prefix=st.sampled_from(["", "</s> ", "[SEP]"]))
def test_no_text_can_hold_structure(which: int, parts: list[str], prefix: str) -> None:
    """A caller who writes an end mark must not end the text there, nor pass words off as padding.

    Whatever spelling: normalisers make the same of full-width characters.
    """
    tokenizer = TOKENIZERS[which]()
    text = "".join(parts)
    (empty,), (tokenized,) = tokenizer.tokenize([""]), tokenizer.tokenize([text], prefix=prefix)
    structure = {*empty.input_ids.tolist(), tokenizer.pad_token_id}
    assert not structure & set(tokenized.input_ids[~tokenized.special].tolist())
    assert tokenized.input_ids[tokenized.special].tolist() == empty.input_ids.tolist()


def test_a_word_next_to_a_spelt_special_token_is_read_as_ever() -> None:
    """Only that place is split, and each part keeps its own."""
    text = "Tim</s>Cook"
    (tokenized,) = sentence_piece().tokenize([text])
    assert slices(text, tokenized) == ["", "T", *"im</s>Cook", ""]


def test_a_tokenizer_without_special_tokens_is_left_alone() -> None:
    """There is nothing to keep apart."""
    raw = RawTokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]"))
    assert Tokenizer(raw).tokenize(["a"])[0].input_ids.tolist() == [1]
    assert raw.pre_tokenizer is None


def test_a_tokenizer_without_padding_token_is_refused(tmp_path: Path) -> None:
    """Zero would be a guess, and a wrong one for models that count positions from the padding id."""
    RawTokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BundleError, match="no padding token"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def test_an_unreadable_tokenizer_fails_its_check(tmp_path: Path) -> None:
    """The library raises bare exceptions here."""
    folder = write_tiny_ner_bundle(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    refresh_manifest(folder)
    with pytest.raises(BundleError) as caught:
        Tokenizer.from_bundle(Bundle.load(folder))
    assert caught.value.check == "tokenizer"
    assert "tiny/tokenizer.json" in str(caught.value)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    """Its last ids would fall outside the word table, at some request later."""
    folder = write_tiny_ner_bundle(tmp_path / "tiny")
    raw = tiny_tokenizer()
    raw.add_tokens(["brandnewword"])
    raw.save(str(folder / "tokenizer.json"))
    refresh_manifest(folder)
    with pytest.raises(BundleError, match="vocabulary ends at"):
        Tokenizer.from_bundle(Bundle.load(folder))


def test_a_tokenizer_that_pads_with_another_token_is_refused(tmp_path: Path) -> None:
    """Some models count positions from the padding id, so it is part of the model."""
    folder = write_tiny_ner_bundle(tmp_path / "tiny")
    raw = tiny_tokenizer()
    raw.enable_padding(pad_id=1, pad_token="[UNK]")
    raw.save(str(folder / "tokenizer.json"))
    refresh_manifest(folder)
    with pytest.raises(BundleError, match="pads with 1, the model 0"):
        Tokenizer.from_bundle(Bundle.load(folder))
