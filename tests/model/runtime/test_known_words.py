"""Words that are remembered give the ids that the tokenizer itself gives, or none."""

from __future__ import annotations

import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from model.runtime import known_words
from model.runtime.known_words import MOST_CHARACTERS, KnownWords
from model.runtime.tokenization import Tokenizer as Reader

READABLE = known_words._ASCII + known_words._CHINESE
CHARACTERS = [chr(code) for code in range(sys.maxunicode) if re.match(f"[{READABLE}]", chr(code))]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def bert(*, special: bool = True, **normalizer: Any) -> Tokenizer:
    """BERT's, with a few words, the letters, and the punctuation and characters of a few texts."""
    pieces = [
        *SPECIAL,
        *"abcdefgxyzTS0189.,!-'[]好北京，。",
        "##a",
        "##b",
        "##b0",
        "the",
        "cat",
        "##s",
        "SEP",
        "sep",
    ]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens([AddedToken(token) for token in SPECIAL])
    if not special:
        tokenizer.add_tokens([AddedToken("cats and dogs")])
    return tokenizer


KINDS: list[dict[str, Any]] = [
    {},
    {"lowercase": False},
    {"handle_chinese_chars": False},
    {"strip_accents": True},
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_character_is_what_the_tokenizer_makes_of_it(kind: dict[str, Any]) -> None:
    """By itself, between letters, and beside itself."""
    reader = Reader(bert(**kind))
    assert reader._known_words is not None
    assert len(CHARACTERS) > 20_000
    texts = [text for one in CHARACTERS for text in (one, f"a{one}b", f"{one}{one} {one}a")]
    known = reader._known_words.ids(texts)
    for text, ids, tokenized in zip(texts, known, reader.tokenize(texts), strict=True):
        assert ids is None or ids.tolist() == tokenized.input_ids.tolist(), text
    # All are read so but Chinese where it is not taken apart, and the blank.
    chinese = kind.get("handle_chinese_chars", True)
    assert sum(ids is None for ids in known) == (
        1 if chinese else 1 + sum(not text.isascii() for text in texts)
    )


@settings(deadline=None, max_examples=300)
@given(
    texts=st.lists(
        st.text(alphabet="thecatsTHE SEP[]'-.019ab好北京，。é\u0301\t\u3000\x00\ufeff\ud800İß", max_size=16),
        max_size=5,
    ),
    which=st.integers(0, len(KINDS) - 1),
    prefix=st.sampled_from(("", "query: ", "ca", " ", "é")),
)
@example(texts=["[SEP] the cats", " "], which=0, prefix="")
@example(texts=["", "ts"], which=0, prefix="ca")
def test_texts_are_read_as_without(texts: list[str], which: int, prefix: str) -> None:
    """At first, and when every word is known; with the errors of the same texts."""
    reader, without = Reader(bert(**KINDS[which])), Reader(bert(**KINDS[which]))
    without._known_words = None
    try:
        wanted = without.tokenize_ids(texts, prefix=prefix, max_tokens=9)
    except ValueError as error:
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
            reader.tokenize_ids(texts, prefix=prefix, max_tokens=9)
        return
    for _ in range(2):
        for ids, other in zip(reader.tokenize_ids(texts, prefix=prefix, max_tokens=9), wanted, strict=True):
            assert ids.input_ids.tolist() == other.input_ids.tolist()
            assert ids.input_ids.dtype == other.input_ids.dtype
            assert (ids.is_empty, ids.truncated_tokens) == (other.is_empty, other.truncated_tokens)


def test_a_word_that_spells_a_special_token_is_one_word() -> None:
    """It is text, split so that it cannot be taken for the token; its neighbours keep their own ids."""
    raw = bert(lowercase=False)
    raw.add_special_tokens([AddedToken("catsb")])
    reader = Reader(raw)
    assert reader._known_words is not None
    texts = ["the cat xcatsb abb catsb", "catsb", "cat"]
    for text, ids, tokenized in zip(
        texts, reader._known_words.ids(texts), reader.tokenize(texts), strict=True
    ):
        assert ids is not None
        assert ids.tolist() == tokenized.input_ids.tolist(), text
        assert raw.token_to_id("catsb") not in ids


def other_pre_tokenizer() -> Tokenizer:
    """Words are the white space's."""
    tokenizer = bert()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def other_normalizer() -> Tokenizer:
    """Texts are not BERT's."""
    tokenizer = bert()
    tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


def without_unknown() -> Tokenizer:
    """A word that has no pieces is an error."""
    tokenizer = bert()
    tokenizer.model.unk_token = "nothing"
    return tokenizer


def twice() -> Tokenizer:
    """Each text is in a row twice."""
    tokenizer = bert()
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP] $A [SEP]", special_tokens=ends
    )
    return tokenizer


def unknown_to_the_model() -> Tokenizer:
    """What stands for a word without pieces is an added token, and the model does without."""
    tokenizer = Tokenizer(models.WordPiece({"[PAD]": 0, "b": 1}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken("[UNK]")])
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        bert(special=False),
        other_pre_tokenizer(),
        other_normalizer(),
        without_unknown(),
        twice(),
        unknown_to_the_model(),
    ],
)
def test_others_are_left_alone(tokenizer: Tokenizer) -> None:
    """Those of which a text may be more than its words, and those that have others."""
    assert KnownWords.of(tokenizer) is None


@pytest.mark.parametrize("single", ["a $A [SEP]", "[UNK] $A [SEP]", "$A", "[CLS] $A", "[CLS] [CLS] $A a"])
def test_what_stands_around_a_text_may_be_what_is_in_it(single: str) -> None:
    """The frame is told by what is marked as added, not by its ids."""
    raw = bert()
    ends = [(token, raw.token_to_id(token)) for token in ("[CLS]", "[SEP]", "[UNK]", "a")]
    raw.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    reader = Reader(raw)
    assert reader._known_words is not None
    for text, ids in zip(["b", "a b", "q a"], reader._known_words.ids(["b", "a b", "q a"]), strict=True):
        assert ids is not None
        assert ids.tolist() == raw.encode(text).ids


def test_a_text_of_new_words_is_the_tokenizers() -> None:
    """Asked for each, it would take longer than the text; some are learnt, so that it is known in the end."""
    raw = bert()
    known = KnownWords.of(raw)
    assert known is not None
    text = " ".join(f"a{number}" for number in range(3 * known_words.MOST_NEW_WORDS + 1))
    for _ in range(3):
        assert known.ids(["a b", text])[1] is None
    (ids,) = known.ids([text])
    assert ids is not None
    assert ids.tolist() == raw.encode(text).ids


def test_long_texts_are_the_tokenizers() -> None:
    """It lets go of the interpreter's lock meanwhile."""
    known = KnownWords.of(bert())
    assert known is not None
    short, long = known.ids(["a" * MOST_CHARACTERS, "a" * (MOST_CHARACTERS + 1)])
    assert short is not None
    assert long is None


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes by it, whether they fit one by one or not even those of one call."""
    monkeypatch.setattr(known_words, "MOST_WORDS", 5)
    tokenizer = bert()
    known = KnownWords.of(tokenizer)
    assert known is not None
    rng = random.Random(1)
    seen: set[str] = set()
    for _ in range(200):
        texts = [" ".join(rng.choices("abcdefgxyz", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        texts.append("ab" * 20 + " a")  # too long to keep
        for text, ids in zip(texts, known.ids(texts), strict=True):
            assert ids is not None
            assert ids.tolist() == tokenizer.encode(text).ids
        assert len(known._known) <= 5
        assert all(len(word) <= known_words.MOST_LETTERS for word in known._known)
        seen |= known._known.keys()
    assert seen == set("abcdefgxyz")


def test_threads_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while they are forgotten."""
    monkeypatch.setattr(known_words, "MOST_WORDS", 6)
    tokenizer = bert()
    known = KnownWords.of(tokenizer)
    assert known is not None

    def read(seed: int) -> int:
        rng = random.Random(seed)
        for _ in range(300):
            text = " ".join(rng.choices("abcdefgxyz", k=6))
            (ids,) = known.ids([text])
            assert ids is not None
            assert ids.tolist() == tokenizer.encode(text).ids
        return 1

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(read, range(4))) == 4
    finally:
        sys.setswitchinterval(switch)
