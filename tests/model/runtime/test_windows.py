"""Long texts are read whole, and read as if the model had no limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from model.runtime.bundle import Bundle
from model.runtime.decoding import SequenceDecoder
from model.runtime.engine import pad_batch
from model.runtime.label_schemes import LabelScheme
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.tagging import Entity, find_entities
from model.runtime.tokenization import TokenizedText, Tokenizer
from model.runtime.windows import Window, plan_windows, stitch
from tests.bundles import LABELS, tiny_tokenizer, write_tiny_ner_bundle
from tests.model.runtime.work import RUNS, calls_of

TINY = Tokenizer(tiny_tokenizer())
DECODER = SequenceDecoder(LabelScheme.from_labels(LABELS))

TEXTS = st.lists(
    st.sampled_from(
        ["Tim Cook", "works", "hello", "张三", "北京", "。", "、", ". ", " ", "\n", "xyz", "New York"]
    ),
    max_size=60,
).map("".join)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> OnnxRuntimeEngine:
    """The tiny NER bundle, which labels token by token."""
    folder: Path = tmp_path_factory.mktemp("models") / "ner"
    return OnnxRuntimeEngine(Bundle.load(write_tiny_ner_bundle(folder)), threads=1)


def windows_of(text: str, max_tokens: int, overlap: int | None = None) -> list[Window]:
    """Plan with the tiny tokenizer."""
    (tokenized,) = TINY.tokenize([text])
    return plan_windows(text, tokenized, max_tokens=max_tokens, overlap=overlap)


def entities_by_windows(engine: OnnxRuntimeEngine, text: str, max_tokens: int) -> list[Entity]:
    """The whole way from text to entities."""
    (tokenized,) = TINY.tokenize([text])
    windows = plan_windows(text, tokenized, max_tokens=max_tokens)
    logits = engine.run(pad_batch([window.input_ids for window in windows], 0), ["logits"])["logits"]
    rows = [logits[index, : len(window.input_ids)] for index, window in enumerate(windows)]
    return find_entities(text, tokenized.offsets, tokenized.word_ids, stitch(windows, rows), DECODER)


def test_a_text_that_fits_is_one_window() -> None:
    """And exactly the tokens that the model would get without windows."""
    (tokenized,) = TINY.tokenize(["Tim Cook works. 张三在北京。"])
    (window,) = windows_of("Tim Cook works. 张三在北京。", len(tokenized))
    assert window.input_ids.tolist() == tokenized.input_ids.tolist()
    assert window.positions.tolist() == list(range(len(tokenized)))


@settings(deadline=None)
@given(text=TEXTS, max_tokens=st.integers(3, 40))
def test_every_token_is_read_and_no_window_is_too_long(text: str, max_tokens: int) -> None:
    """Also with windows that hold a single token of text."""
    (tokenized,) = TINY.tokenize([text])
    windows = plan_windows(text, tokenized, max_tokens=max_tokens)
    read = np.concatenate([window.positions for window in windows])
    assert set(read.tolist()) == set(range(len(tokenized)))
    for window in windows:
        assert len(window.input_ids) <= max_tokens
        assert window.input_ids.tolist() == tokenized.input_ids[window.positions].tolist()
        assert window.positions[0] == 0
        assert window.positions[-1] == len(tokenized) - 1


@settings(deadline=None)
@given(text=TEXTS, max_tokens=st.integers(3, 40))
def test_entities_are_those_of_the_whole_text(engine: OnnxRuntimeEngine, text: str, max_tokens: int) -> None:
    """For a model whose labels do not depend on context, windows must not show at all."""
    (tokenized,) = TINY.tokenize([text])
    labels = dict(enumerate(engine.run(pad_batch([tokenized.input_ids[:1]], 0), ["logits"])["logits"][0]))
    assert labels  # the model is there
    whole = [
        engine.run(pad_batch([tokenized.input_ids[index : index + 1]], 0), ["logits"])["logits"][0]
        for index in range(len(tokenized))
    ]
    expected = find_entities(text, tokenized.offsets, tokenized.word_ids, np.concatenate(whole), DECODER)
    assert entities_by_windows(engine, text, max_tokens) == expected


def test_an_entity_across_a_border_is_found_once(engine: OnnxRuntimeEngine) -> None:
    """At every place of the border."""
    for before in range(40):
        text = "hello " * before + "Tim Cook" + " hello" * 40
        found = entities_by_windows(engine, text, 16)
        assert [(e.start, e.end, e.label) for e in found] == [(6 * before, 6 * before + 8, "PER")]


@settings(deadline=None)
@given(text=TEXTS, max_tokens=st.integers(6, 40), part=st.floats(0, 1))
def test_each_token_is_taken_where_it_is_farther_from_a_border(
    text: str, max_tokens: int, part: float
) -> None:
    """Against a slow reading of the same sentence."""
    (tokenized,) = TINY.tokenize([text])
    overlap = round(part * ((max_tokens - 2) // 4))
    windows = plan_windows(text, tokenized, max_tokens=max_tokens, overlap=overlap)
    outputs = [np.full((len(window.positions), 1), index, np.float32) for index, window in enumerate(windows)]
    taken_from = stitch(windows, outputs)[:, 0].astype(int)
    count = len(tokenized)
    for position in range(1, count - 1):
        reaches = []
        for window in windows:
            inside = [int(p) for p in window.positions if 0 < p < count - 1]
            if position not in inside:
                reaches.append(-1)
                continue
            left = position - inside[0] if inside[0] > 1 else count
            right = inside[-1] - position if inside[-1] < count - 2 else count
            reaches.append(min(left, right))
        assert taken_from[position] == reaches.index(max(reaches))


def test_windows_end_behind_sentences_and_begin_with_them() -> None:
    """A model trained on sentences reads them whole."""
    text = "Tim Cook works in Paris. " * 6  # six tokens each
    starts_and_ends = []
    (tokenized,) = TINY.tokenize([text])
    for window in windows_of(text, 2 + 27, 6):
        inner = window.positions[1:-1]
        starts_and_ends.append(
            (int(tokenized.offsets[inner[0], 0]) % 25, int(tokenized.offsets[inner[-1], 1]) % 25)
        )
    assert len(starts_and_ends) > 1
    assert set(starts_and_ends) == {(0, 24)}


def test_without_sentences_windows_are_cut_between_words() -> None:
    """Long identifiers are spelt in many tokens; half of one is nothing."""
    text = "abcd " * 40  # four tokens each
    (tokenized,) = TINY.tokenize([text])
    for window in windows_of(text, 2 + 30):
        inner = window.positions[1:-1]
        assert int(tokenized.offsets[inner[0], 0]) % 5 == 0
        assert int(tokenized.offsets[inner[-1], 1]) % 5 == 4


def test_a_word_longer_than_a_window_is_cut_anywhere() -> None:
    """It is read all the same."""
    windows = windows_of("a" * 100, 12)
    assert len(windows) > 8
    assert {int(p) for window in windows for p in window.positions} == set(range(102))


def test_a_prefix_goes_into_every_window() -> None:
    """A model that expects a prompt expects it each time."""
    text = "hello " * 30
    (tokenized,) = TINY.tokenize([text], prefix="query: ")
    windows = plan_windows(text, tokenized, max_tokens=14)
    assert len(windows) > 2
    for window in windows:
        assert window.positions[:3].tolist() == [0, 1, 2]
        assert len(window.input_ids) <= 14


def test_limits_out_of_range_are_refused() -> None:
    """Windows that cannot advance would never end."""
    with pytest.raises(ValueError, match="no room"):
        windows_of("hello hello", 2)
    with pytest.raises(ValueError, match="overlap must be from 0 to 5, not 6"):
        windows_of("hello " * 50, 22, 6)
    with pytest.raises(ValueError, match="overlap"):
        windows_of("hello", 22, -1)


def test_outputs_of_another_length_are_refused() -> None:
    """Padding left on would shift every label."""
    windows = windows_of("hello", 10)
    with pytest.raises(ValueError, match="5 rows"):
        stitch(windows, [np.zeros((5, 2), np.float32)])


@pytest.mark.parametrize("unit", RUNS.values(), ids=RUNS.keys())
def test_a_longer_text_takes_no_more_work_per_character(unit: str) -> None:
    """A text may be a million characters of one kind, and planning holds the interpreter lock."""

    def work(length: int) -> int:
        text = ("a" + unit * length)[:length]
        tokenized = TokenizedText(
            input_ids=np.zeros(length, dtype=np.int64),
            offsets=np.array([(index, index + 1) for index in range(length)], dtype=np.int64),
            word_ids=[0] * length,
            special=np.zeros(length, dtype=np.bool_),
        )
        return calls_of(lambda: plan_windows(text, tokenized, max_tokens=32))

    work(200)  # whatever is done once, is done
    assert work(1600) <= 9 * work(200)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300,
        "Tim" + "x1" * 200 + " Cook met John in Paris",
        "hello " + "é" * 200 + "\u0301" * 100 + " Paris, London" + "z" * 100,
        "北京" * 40 + "b" * 200 + "张三",
    ],
)
def test_a_word_longer_than_a_window_is_read_whole(engine: OnnxRuntimeEngine, text: str) -> None:
    """Every token of it, in several windows; and the answer is that of a model without a limit."""
    tokenizer = tiny_tokenizer()
    tokenizer.model = models.WordPiece(
        tokenizer.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=10_000
    )
    (tokenized,) = Tokenizer(tokenizer).tokenize([text])
    alone = [tokenized.input_ids[place : place + 1] for place in range(len(tokenized))]
    logits = engine.run(pad_batch(alone, 0), ["logits"])["logits"][:, 0]
    found = []
    counts = []
    for max_tokens in (32, len(tokenized)):
        windows = plan_windows(text, tokenized, max_tokens=max_tokens)
        assert set(np.concatenate([window.positions for window in windows])) == set(range(len(tokenized)))
        stitched = stitch(windows, [logits[window.positions] for window in windows])
        found.append(find_entities(text, tokenized.offsets, tokenized.word_ids, stitched, DECODER))
        counts.append(len(windows))
    assert found[0] == found[1]
    assert counts[0] > 4
    assert counts[1] == 1
