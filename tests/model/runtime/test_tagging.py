"""Spans are exact slices, whole words and whole characters, whatever the labels say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from model.runtime.decoding import SequenceDecoder
from model.runtime.label_schemes import LabelScheme
from model.runtime.tagging import Entity, find_entities, words_of
from model.runtime.text_borders import grapheme_borders
from model.runtime.tokenization import TokenizedText, Tokenizer
from tests.bundles import LABELS, NER_LABELS, tiny_tokenizer
from tests.model.runtime.work import RUNS, calls_of

SCHEME = LabelScheme.from_labels(LABELS)
TINY = Tokenizer(tiny_tokenizer())


def certain(labels: Sequence[str], certainty: float = 0.9) -> NDArray[np.float64]:
    """[S, L]: each token's label with ``certainty``, the rest spread evenly."""
    rest = (1 - certainty) / (len(LABELS) - 1)
    probabilities = np.full((len(labels), len(LABELS)), rest)
    for index, label in enumerate(labels):
        probabilities[index, LABELS.index(label)] = certainty
    return probabilities


def pieces(text: str, *cuts: tuple[int, int, int | None]) -> TokenizedText:
    """Tokens given as (start, end, word)."""
    return TokenizedText(
        input_ids=np.zeros(len(cuts), dtype=np.int64),
        offsets=np.array([cut[:2] for cut in cuts], dtype=np.int64).reshape(-1, 2),
        word_ids=[cut[2] for cut in cuts],
        special=np.zeros(len(cuts), dtype=np.bool_),
    )


def read(
    text: str, tokenized: TokenizedText, probabilities: NDArray[np.float64], scheme: LabelScheme = SCHEME
) -> list[Entity]:
    """With label probabilities in place of a model."""
    logits = np.log(np.maximum(probabilities, 1e-30))
    return find_entities(text, tokenized.offsets, tokenized.word_ids, logits, SequenceDecoder(scheme))


def tag(text: str, tokenized: TokenizedText, labels: Sequence[str]) -> list[tuple[str, str]]:
    """(slice, label) of what is found."""
    entities = read(text, tokenized, certain(labels))
    return [(text[entity.start : entity.end], entity.label) for entity in entities]


def tag_by_table(text: str) -> list[Entity]:
    """With the tiny NER model's table in place of a model."""
    (tokenized,) = TINY.tokenize([text])
    parts = [text[start:end] for start, end in tokenized.offsets.tolist()]
    return read(text, tokenized, certain([NER_LABELS.get(part, "O") for part in parts]))


# Words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A50953）", "A50953"),
        ("20261295502252.", "20261295502252"),
        ("８８！）", "８８"),
        ("(((7", "7"),
        ("7)))", "7"),
        ("x (7", "x (7"),
        ("Bank (UK)", "Bank (UK)"),
        ("(UK)", "(UK)"),
        ("(UK) Bank", "(UK) Bank"),
        ("Yahoo!", "Yahoo!"),
        ("Acme Inc.", "Acme Inc."),
        (")", None),
    ],
)
def test_a_mark_that_a_token_holds_with_a_number_stays_outside(text: str, found: str | None) -> None:
    """Vocabularies have pieces such as "53)" and "2."; a bracket whose other half is inside belongs there."""
    expected = [] if found is None else [(found, "LOC")]
    assert tag(text, pieces(text, (0, len(text), 0)), ["B-LOC"]) == expected


def test_the_first_token_decides_for_a_word() -> None:
    """Training labels it first; a span never ends inside a word of a script with spaces."""
    text = "in Parisian"
    tokenized = pieces(text, (0, 2, 0), (3, 6, 1), (6, 11, 1))
    assert tag(text, tokenized, ["O", "B-LOC", "O"]) == [("Parisian", "LOC")]
    assert tag(text, tokenized, ["O", "O", "B-LOC"]) == []


def test_punctuation_parts_what_the_tokenizer_calls_a_word() -> None:
    """Tokenizers that split at spaces only keep "Paris," whole; the comma is no part of the name."""
    text = "Paris,London-based"
    tokenized = pieces(text, (0, 5, 0), (5, 6, 0), (6, 12, 0), (12, 13, 0), (13, 18, 0))
    labels = ["B-LOC", "O", "B-LOC", "O", "O"]
    assert tag(text, tokenized, labels) == [("Paris", "LOC"), ("London", "LOC")]


def test_han_characters_are_words_of_their_own() -> None:
    """A whole clause is one word to some tokenizers."""
    text = "在北京Tim"
    tokenized = pieces(text, (0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 6, 0))
    labels = ["O", "B-LOC", "I-LOC", "B-PER"]
    assert tag(text, tokenized, labels) == [("北京", "LOC"), ("Tim", "PER")]


def test_a_bare_word_start_mark_belongs_to_the_character_behind_it() -> None:
    """SentencePiece before a Han character: two tokens, one place, one label."""
    text = "在 北京"
    tokenized = pieces(text, (0, 1, 0), (0, 1, 1), (2, 3, 2), (2, 3, 3), (3, 4, 4))
    assert [
        (w.start, w.end, w.first_token) for w in words_of(text, tokenized.offsets, tokenized.word_ids)
    ] == [
        (0, 1, 0),
        (2, 3, 2),
        (3, 4, 4),
    ]
    assert tag(text, tokenized, ["O", "O", "B-LOC", "I-LOC", "I-LOC"]) == [("北京", "LOC")]


@pytest.mark.parametrize("hidden", ["\u00ad", "\u200b", "\u0301", "\u200d"])
def test_invisible_characters_inside_a_word_do_not_part_it(hidden: str) -> None:
    """Normalisers drop them, so token and text differ in length, which misleads heuristics by length."""
    text = f"john Re{hidden}ne in"
    tokenized = pieces(text, (0, 4, 0), (5, 7, 1), (8, 10, 1), (11, 13, 2))
    assert tag(text, tokenized, ["B-PER", "I-PER", "O", "O"]) == [(f"john Re{hidden}ne", "PER")]
    assert tag(text, tokenized, ["B-PER", "B-PER", "O", "O"]) == [
        ("john", "PER"),
        (f"Re{hidden}ne", "PER"),
    ]


def lower_case_word_piece() -> Tokenizer:
    """BERT uncased: accents are stripped and control characters dropped before tokens are cut."""
    words = ["[PAD]", "[UNK]", "john", "re", "##ne", "in", "pa", "##ris"]
    raw = RawTokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer(raw)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("john Re\u0301ne in Paris", ["john", "Re\u0301ne", "Paris"]),
        ("john Rene\u0301 in Paris", ["john", "Rene\u0301", "Paris"]),
        ("john R\u00e9ne in Paris", ["john", "R\u00e9ne", "Paris"]),
        ("john r\u00ade\u00adne in pa\u200bris", ["john", "r\u00ade\u00adne", "pa\u200bris"]),
        ("JOHN Rene\u0301", ["JOHN", "Rene\u0301"]),
    ],
)
def test_accents_and_hidden_characters_stay_with_their_word(text: str, wanted: list[str]) -> None:
    """Reported against other servers: neighbours fused, last accents lost."""
    tokenizer = lower_case_word_piece()
    (tokenized,) = tokenizer.tokenize([text])
    labels = {"john": "B-PER", "re": "B-PER", "pa": "B-LOC"}
    names = ["[PAD]", "[UNK]", "john", "re", "##ne", "in", "pa", "##ris"]
    found = tag(text, tokenized, [labels.get(names[token], "O") for token in tokenized.input_ids.tolist()])
    assert [part for part, _ in found] == wanted


# Spans


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("We visited Paris, London, Berlin and Tokyo.", ["Paris", "London", "Berlin", "Tokyo"]),
        ("今年去了北京、上海、广州和深圳。", ["北京", "上海", "广州", "深圳"]),
        ("北京上海", ["北京", "上海"]),
        ("Paris London", ["Paris", "London"]),
    ],
)
def test_neighbours_in_a_list_stay_apart(text: str, wanted: list[str]) -> None:
    """A second B- begins a second entity, with or without something between."""
    assert [text[entity.start : entity.end] for entity in tag_by_table(text)] == wanted


def test_an_enumeration_comma_parts_even_what_the_model_joins() -> None:
    """It separates the items of a list by its very nature."""
    text = "北京、上海"
    (tokenized,) = TINY.tokenize([text])
    labels = ["O", "B-LOC", "I-LOC", "I-LOC", "B-LOC", "I-LOC", "O"]
    assert tag(text, tokenized, labels) == [("北京", "LOC"), ("上海", "LOC")]


@pytest.mark.parametrize(
    "prefix", ["\ufeff", "Note:\u00a0\u00a0", "a\u0007\u0010b \u2028", "\r\n\r\n\t", "🙂 ", "① "]
)
def test_what_stands_before_moves_every_span_by_its_length(prefix: str) -> None:
    """Marks, no-break spaces, control characters and line ends, which normalisers drop."""
    text = "Tim Cook works in Paris. 张三在北京工作。"
    plain = tag_by_table(text)
    moved = tag_by_table(prefix + text)
    assert len(plain) == 4
    assert [(e.start - len(prefix), e.end - len(prefix), e.label) for e in moved] == [
        (e.start, e.end, e.label) for e in plain
    ]


@pytest.mark.parametrize(
    ("text", "start", "end", "wanted"),
    [
        ("a Paris, b", 2, 8, "Paris"),
        ("a ，北京。 b", 2, 6, "北京"),
        ("a  Paris\u00a0\u200b b", 1, 10, "Paris"),
        ("in U.S. x", 3, 7, "U.S."),
        ("e\u0301mile x", 0, 1, "e\u0301"),
        ("e\u0301mile x", 1, 6, "e\u0301mile"),
        ("\u1112\u1161\u11ab x", 0, 1, "\u1112\u1161\u11ab"),
        ("e\u0301\u0302 x", 1, 2, "e\u0301\u0302"),
    ],
)
def test_borders_are_trimmed_then_widened_to_whole_characters(
    text: str, start: int, end: int, wanted: str
) -> None:
    """A token may be wider or narrower than what a reader would mark."""
    assert tag(text, pieces(text, (start, end, 0)), ["B-LOC"]) == [(wanted, "LOC")]


@pytest.mark.parametrize(
    "symbols",
    [
        "😀",
        "🎉😀",
        "👍🏽",
        "👩\u200d👩\u200d👧",
        "🇫🇷",
        "❤️",
        "‼️",
        "1️⃣",
        "#\u20e3",
        "★",
        "™",
        "®",
        "`",
        "\ufe0f",
    ],
)
def test_emoji_and_symbols_at_a_border_are_no_part_of_a_name(symbols: str) -> None:
    """A tagger that saw few of them labels them like their neighbours: "小明😀" as a person."""
    for text in (f"{symbols} 小明", f"小明 {symbols}", f"{symbols}小明{symbols}"):
        if not text.endswith("明\ufe0f"):  # a selector behind a letter is part of that visible character
            assert tag(text, pieces(text, (0, len(text), 0)), ["B-PER"]) == [("小明", "PER")]
    assert tag(symbols, pieces(symbols, (0, len(symbols), 0)), ["B-PER"]) == []
    inside = f"小{symbols} 明"
    assert tag(inside, pieces(inside, (0, len(inside), 0)), ["B-PER"]) == [(inside, "PER")]


@pytest.mark.parametrize(
    "text", ["25°", "25℃", "№ 7", "㈱トヨタ", "C++", "$62", "小明\ufe0f", "e\u0301\ufe0f", "1\ufe0f", "Ⓐ"]
)
def test_letters_and_digits_in_another_form_stay(text: str) -> None:
    """And signs of units, of money and of sums: people label quantities too."""
    assert tag(text, pieces(text, (0, len(text), 0)), ["B-LOC"]) == [(text, "LOC")]


def test_a_span_of_separators_only_is_none() -> None:
    """Nothing is left after trimming."""
    assert tag("a , b", pieces("a , b", (0, 1, 0), (2, 3, 1), (4, 5, 2)), ["O", "B-LOC", "O"]) == []


def test_two_labels_on_one_visible_character_give_one_entity() -> None:
    """The first takes the character whole; what is left for the second is nothing."""
    text = "e\u0301 x"
    assert tag(text, pieces(text, (0, 1, 0), (1, 2, 1)), ["B-PER", "B-LOC"]) == [("e\u0301", "PER")]


LETTERS = "Tim Cook Paris New York 张三李北京、，。 ,.\n\u0301\u200d🙂👍🏽é1\ufe0f\u20e3"


@settings(deadline=None)
@given(text=st.text(alphabet=LETTERS, max_size=25), data=st.data())
def test_spans_are_ordered_apart_trimmed_and_whole(text: str, data: st.DataObject) -> None:
    """Whatever the model says."""
    (tokenized,) = TINY.tokenize([text])
    names = data.draw(st.lists(st.sampled_from(LABELS), min_size=len(tokenized), max_size=len(tokenized)))
    found = read(text, tokenized, certain(names, 0.7))
    borders = grapheme_borders(text)
    free_from = 0
    for entity in found:
        assert free_from <= entity.start < entity.end <= len(text)
        free_from = entity.end
        part = text[entity.start : entity.end]
        assert part == part.strip(" \t\n、,，。")
        assert "、" not in part
        assert part[0] not in "🙂👍"
        assert not part.endswith(("🙂", "👍", "1\u20e3", "1\ufe0f\u20e3"))
        assert borders[entity.start]
        assert borders[entity.end]
        assert 0.0 <= entity.score <= 1.0


def test_the_score_is_the_mean_over_words() -> None:
    """As the Hugging Face pipeline counts, so that thresholds carry over; sub-tokens count once."""
    text = "Tim Cooking"
    tokenized = pieces(text, (0, 3, 0), (4, 8, 1), (8, 11, 1))
    probabilities = certain(["B-PER", "I-PER", "O"])
    probabilities[1] = certain(["I-PER"], 0.7)
    (entity,) = read(text, tokenized, probabilities)
    assert entity == Entity(0, 11, "PER", pytest.approx(0.8))


def test_special_and_prefix_tokens_are_never_entities() -> None:
    """They stand for no text, whatever the model makes of them."""
    (tokenized,) = TINY.tokenize(["hello"], prefix="Paris ")
    assert tag("hello", tokenized, ["B-PER"] * (len(tokenized) - 2) + ["O", "B-LOC"]) == []


def test_logits_of_another_shape_are_refused() -> None:
    """Labels and logits would be matched wrongly."""
    with pytest.raises(ValueError, match="logits"):
        find_entities("a", np.array([[0, 1]]), [0], np.ones((1, 3)), SequenceDecoder(SCHEME))


# Growth


@pytest.mark.parametrize("label", ["O", "B-PER", "I-PER"])
@pytest.mark.parametrize("start", ["", "a"])
@pytest.mark.parametrize("unit", RUNS.values(), ids=RUNS.keys())
def test_a_longer_text_takes_no_more_work_per_character(unit: str, start: str, label: str) -> None:
    """A walk from each token to the next visible character took 45 s for 16,000 variation selectors."""

    def work(length: int) -> int:
        text = (start + unit * length)[:length]
        tokenized = pieces(text, *((index, index + 1, 0) for index in range(length)))
        probabilities = certain(["B-PER", *[label] * (length - 1)])
        return calls_of(lambda: read(text, tokenized, probabilities))

    work(200)  # whatever is done once, is done
    assert work(1600) <= 9 * work(200)


@pytest.mark.parametrize("connector", ["-", "\u2011", "\u2013", "·"])
@pytest.mark.parametrize(("margin", "names"), [(6.0, 1), (10.0, 2)])
def test_names_on_both_sides_of_a_connector_are_one_unless_it_is_surely_outside(
    connector: str, margin: float, names: int
) -> None:
    """So "Marie-Anne Smith", not "Marie" and "Anne Smith"; but "the Paris-London train" has two places."""
    text = f"Marie{connector}Anne Smith"
    tokenized = pieces(text, (0, 5, 0), (5, 6, 1), (6, 10, 2), (11, 16, 3))
    logits = np.zeros((4, len(LABELS)))
    for token, label in enumerate(["B-PER", "O", "B-PER", "I-PER"]):
        logits[token, LABELS.index(label)] = margin
    found = find_entities(text, tokenized.offsets, tokenized.word_ids, logits, SequenceDecoder(SCHEME))
    wanted = [text] if names == 1 else ["Marie", "Anne Smith"]
    assert [text[entity.start : entity.end] for entity in found] == wanted
    # The connector, of which the model was not sure, makes nobody less sure of the name.
    sure = np.exp(margin) / (np.exp(margin) + len(LABELS) - 1)
    assert [entity.score for entity in found] == pytest.approx([sure] * names)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (("B-PER", "O", "B-LOC"), "Tim-Paris"),  # two types
        (("B-PER", "O", "B-PER"), "Tim -John"),  # not tight
        (("B-PER", "O", "O"), "Tim-moon"),
    ],
)
def test_a_connector_joins_nothing_else(labels: Sequence[str], text: str) -> None:
    """However unsure the model is."""
    place = text.index("-")
    tokenized = pieces(text, (0, 3, 0), (place, place + 1, 1), (place + 1, len(text), 2))
    logits = np.zeros((3, len(LABELS)))
    for token, label in enumerate(labels):
        logits[token, LABELS.index(label)] = 1.0
    found = find_entities(text, tokenized.offsets, tokenized.word_ids, logits, SequenceDecoder(SCHEME))
    assert [entity.label for entity in found] == [label[2:] for label in labels if label != "O"]
