"""One bundle's answers to entities: options, scores, CRF; and the torture list on the tagger that ships."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from model.runtime.bundle import Bundle, Manifest, ScoreCalibration
from model.runtime.crf import CRF_NAME, LinearChainCrf
from model.runtime.documents import Document, read_documents
from model.runtime.engine import pad_batch
from model.runtime.entities import EntityFinder, EntityOptions, Strategy
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.tagging import Entity
from model.runtime.text_borders import grapheme_borders
from model.runtime.tokenization import Tokenizer
from tests.bundles import LABELS, refresh_manifest, tiny_tokenizer, write_tiny_ner_bundle

MODELS = Path(__file__).parents[3] / "models"
TINY = Tokenizer(tiny_tokenizer())
TEXT = "Tim Cook visited Paris, London and 北京、上海 with 张三.\n\nApple paid."
STRATEGIES: tuple[Strategy, ...] = ("viterbi", "none", "simple", "first", "average", "max")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Of the tiny tagger."""
    return Bundle.load(write_tiny_ner_bundle(tmp_path_factory.mktemp("models") / "ner")).manifest


def read(text: str) -> Document:
    """By the tiny tokenizer, whole."""
    (document,) = read_documents([text], TINY, max_tokens=64)
    return document


def drawn(data: st.DataObject, document: Document) -> list[NDArray[np.float32]]:
    """Any logits for the document's windows."""
    return [
        data.draw(arrays(np.float32, (len(w.input_ids), len(LABELS)), elements=st.floats(-3, 3, width=32)))
        for w in document.windows
    ]


@settings(deadline=None)
@given(data=st.data(), threshold=st.floats(0, 1), strategy=st.sampled_from(STRATEGIES))
def test_options_only_leave_whole_entities_out(
    manifest: Manifest, data: st.DataObject, threshold: float, strategy: Strategy
) -> None:
    """answer(t) is exactly answer(0) with score >= t; the same for labels."""
    document = read(TEXT)
    logits = drawn(data, document)
    finder = EntityFinder.from_manifest(manifest)
    everything = finder.find(document, logits, EntityOptions(strategy=strategy))
    kept = finder.find(document, logits, EntityOptions(threshold=threshold, strategy=strategy))
    assert kept == [entity for entity in everything if entity.score >= threshold]
    places = finder.find(document, logits, EntityOptions(labels=frozenset({"LOC"}), strategy=strategy))
    assert places == [entity for entity in everything if entity.label.endswith("LOC")]


@settings(deadline=None)
@given(data=st.data(), slope=st.floats(0.2, 3), intercept=st.floats(-3, 3))
def test_a_calibration_changes_scores_and_no_span(
    manifest: Manifest, data: st.DataObject, slope: float, intercept: float
) -> None:
    """And leaves the pipeline's strategies alone."""
    line = ScoreCalibration(slope=slope, intercept=intercept)
    calibrated = EntityFinder.from_manifest(manifest.model_copy(update={"calibration": line}))
    document = read(TEXT)
    logits = drawn(data, document)

    def spans(found: list[Entity]) -> list[tuple[int, int, str]]:
        return [(entity.start, entity.end, entity.label) for entity in found]

    plain = EntityFinder.from_manifest(manifest).find(document, logits)
    assert spans(calibrated.find(document, logits)) == spans(plain)
    options = EntityOptions(strategy="first")
    assert calibrated.find(document, logits, options) == EntityFinder.from_manifest(manifest).find(
        document, logits, options
    )


def test_entities_stand_at_their_place_in_the_document(manifest: Manifest) -> None:
    """Behind the first paragraph too."""
    document = read("hello\n\n  Tim\r\n\r\nTim")
    logits = [np.zeros((len(w.input_ids), len(LABELS)), np.float32) for w in document.windows]
    for window in logits[1:]:
        window[1, LABELS.index("B-PER")] = 5
    found = EntityFinder.from_manifest(manifest).find(document, logits)
    assert [(entity.start, entity.end) for entity in found] == [(9, 12), (16, 19)]


def test_a_crf_in_the_bundle_decides_with_the_logits(tmp_path: Path) -> None:
    """Transitions that love B-PER, I-PER join what the logits leave apart."""
    path = write_tiny_ner_bundle(tmp_path / "ner")
    count = len(LABELS)
    transitions = np.zeros((count, count))
    transitions[LABELS.index("B-PER"), LABELS.index("I-PER")] = 5.0
    crf = LinearChainCrf(np.zeros(count), np.zeros(count), transitions)
    document = read("Tim hello")
    logits = [np.zeros((4, count), np.float32)]
    logits[0][1, LABELS.index("B-PER")] = 3
    logits[0][2, LABELS.index("O")] = 2
    without = EntityFinder.from_bundle(Bundle.load(path)).find(document, logits)
    (path / CRF_NAME).write_text(crf.to_json(LABELS), encoding="utf-8")
    refresh_manifest(path)
    with_crf = EntityFinder.from_bundle(Bundle.load(path)).find(document, logits)
    assert [(e.start, e.end) for e in without] == [(0, 3)]
    assert [(e.start, e.end) for e in with_crf] == [(0, 9)]


def test_the_manifest_may_name_the_scheme(manifest: Manifest) -> None:
    """IOB1 and BIO have the same labels; only the name tells that I- may begin."""
    document = read("Tim")
    logits = [np.zeros((3, len(LABELS)), np.float32)]
    logits[0][1, LABELS.index("I-PER")] = 5
    iob1 = EntityFinder.from_manifest(manifest.model_copy(update={"label_scheme": "iob1"}))
    assert [e.label for e in iob1.find(document, logits)] == ["PER"]
    assert EntityFinder.from_manifest(manifest).find(document, logits) == []


# The tagger that ships


class _Tagger:
    """The default bundle; remembers what it has read."""

    def __init__(self, bundle: Bundle, engine: OnnxRuntimeEngine) -> None:
        self.tokenizer = Tokenizer.from_bundle(bundle)
        self.finder = EntityFinder.from_bundle(bundle)
        self._max_tokens = bundle.manifest.max_tokens
        self._engine = engine
        self._seen: dict[bytes, NDArray[np.float32]] = {}

    def __call__(self, text: str, **options: Any) -> list[Entity]:
        document = self.document(text)
        return self.finder.find(document, self.outputs(document), EntityOptions(**options))

    def document(self, text: str) -> Document:
        """As the service reads it."""
        (document,) = read_documents([text], self.tokenizer, max_tokens=self._max_tokens)
        return document

    def outputs(self, document: Document) -> list[NDArray[np.float32]]:
        """Of each window, run by itself."""
        for window in document.windows:
            key = window.input_ids.tobytes()
            if key not in self._seen:
                batch = pad_batch([window.input_ids], self.tokenizer.pad_token_id)
                self._seen[key] = self._engine.run(batch, ["logits"])["logits"][0]
        return [self._seen[window.input_ids.tobytes()] for window in document.windows]

    def names(self, text: str) -> list[tuple[str, str]]:
        """(slice, label) of each entity."""
        return [(text[entity.start : entity.end], entity.label) for entity in self(text)]


@pytest.fixture(scope="module")
def tagger() -> Iterator[_Tagger]:
    """The default bundle, loaded once."""
    bundle = Bundle.load(MODELS / "ner-zh-en", verify_hashes=False)
    with closing(OnnxRuntimeEngine(bundle, threads=2)) as engine:
        yield _Tagger(bundle, engine)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Angela Merkel lives in Paris.", ["Angela Merkel", "Paris"]),
        ("Angela Merkel lives in Pa\u200bris.", ["Angela Merkel", "Pa\u200bris"]),
        ("angela merkel lives in pa\u200bris", ["angela merkel", "pa\u200bris"]),
        ("An\u00adge\u00adla Mer\u00adkel lives in Paris.", ["An\u00adge\u00adla Mer\u00adkel", "Paris"]),
        ("\ufeffAngela Merkel\u200b lives in \u2060Paris\u2060.", ["Angela Merkel", "Paris"]),
        ("\u202aAngela Merkel\u202c lives in \u2068Paris\u2069.", ["Angela Merkel", "Paris"]),
        ("Rene\u0301 Dupont lives in Paris.", ["Rene\u0301 Dupont", "Paris"]),
        ("Ren\u00e9 Dupont lives in Paris.", ["Ren\u00e9 Dupont", "Paris"]),
        ("Andre\u0301 lives in Zu\u0308rich.", ["Andre\u0301", "Zu\u0308rich"]),
        ("👩\u200d👩\u200d👧 Angela Merkel 👍🏽 lives in Paris 🇫🇷", ["Angela Merkel", "Paris"]),
        ("Ａｎｇｅｌａ Ｍｅｒｋｅｌ lives in Ｐａｒｉｓ.", ["Ａｎｇｅｌａ Ｍｅｒｋｅｌ", "Ｐａｒｉｓ"]),
        ("Angela\u00a0Merkel lives in\r\nParis.", ["Angela\u00a0Merkel", "Paris"]),
        ("Hello.\r\n\r\n\tAngela Merkel lives in Paris.\r\n", ["Angela Merkel", "Paris"]),
        ("a\u0007\u0010b \u2028Angela Merkel lives in Paris.", ["Angela Merkel", "Paris"]),
        ("Jean-Claude Juncker lives in Paris.", ["Jean-Claude Juncker", "Paris"]),
        (
            "Jean\u2011Claude Juncker likes Baden-Württemberg.",
            ["Jean\u2011Claude Juncker", "Baden-Württemberg"],
        ),
        ("The London-based firm left Paris.", ["London", "Paris"]),
        ("张三在北京大学工作。Tim Cook也在北京。", ["张三", "北京大学", "Tim Cook", "北京"]),
        ("张\u200b三在北\u00ad京工作。", ["张\u200b三", "北\u00ad京"]),
        ("列夫·托尔斯泰访问了北京。", ["列夫·托尔斯泰", "北京"]),
        ("We visited Paris, London, Berlin and Tokyo.", ["Paris", "London", "Berlin", "Tokyo"]),
        ("今年去了北京、上海、广州和深圳。", ["北京", "上海", "广州", "深圳"]),
    ],
)
def test_the_torture_list(tagger: _Tagger, text: str, wanted: list[str]) -> None:
    """Reported against other servers, each of them: fused, torn, shifted or missed."""
    assert [name for name, _ in tagger.names(text)] == wanted
    borders = grapheme_borders(text)
    for entity in tagger(text):
        assert borders[entity.start]
        assert borders[entity.end]


def test_a_name_in_right_to_left_text_is_cut_out_exactly(tagger: _Tagger) -> None:
    """The words around it are of a language that the tagger does not know: it may see names there."""
    text = "زار وفد مدينة London في 2019."
    assert ("London", "LOC") in tagger.names(text)
    for entity in tagger(text):
        assert text[entity.start : entity.end] == text[entity.start : entity.end].strip()


_PARAGRAPHS = [
    "Angela Merkel flew from Berlin to Paris on Monday, where she met the mayor of the city.",
    "张三昨天从上海飞往巴黎，参加了联合国的会议。",
    "The London-based company Apple hired\nTim Cook, 他毕业于北京大学。",
    " ".join(
        f"In {year} John Smith moved from Oslo to Madrid, and his sister Mary Jones stayed in Warsaw."
        for year in range(1970, 2010)
    ),
    "会议在"
    + "，".join(f"{year}年的广州和深圳" for year in range(1980, 2020))
    + "举行。"
    + "李娜住在北京。" * 40,
    "Nothing happened here. 这里什么也没有。",
    "- Jean-Claude Juncker\n- Brussels",
]


def test_a_document_of_100_000_characters_gives_the_entities_of_its_paragraphs(tagger: _Tagger) -> None:
    """Exactly those, scores included, whatever stands between the paragraphs and however long one is."""
    gaps = ["\n\n", "\r\n\r\n", "\n \n", "\u2029"]
    pieces: list[str] = []
    wanted: list[Entity] = []
    windows = length = number = 0
    while length < 100_000:
        paragraph = _PARAGRAPHS[number % len(_PARAGRAPHS)]
        for entity in tagger(paragraph):
            moved = (entity.start + length, entity.end + length)
            wanted.append(Entity(*moved, entity.label, entity.score))
        windows += len(tagger.document(paragraph).windows)
        pieces += [paragraph, gaps[number % len(gaps)]]
        length += len(pieces[-1]) + len(pieces[-2])
        number += 1
    document = "".join(pieces)
    assert tagger(document) == wanted
    assert len(tagger.document(document).windows) == windows > number
    assert len(wanted) > 1000


@pytest.mark.parametrize("before", range(2, 14, 2))
def test_an_entity_across_a_window_border_is_found_once(tagger: _Tagger, before: int) -> None:
    """Wherever the border falls: "and so on" until the first window of 512 tokens is full, or nearly."""
    filler = "it was raining and nobody came to see it and "  # twelve tokens, no end of a sentence
    text = filler * 41 + "and so " * before + "Angela Merkel flew to New York City and " + filler * 60
    assert len(tagger.document(text).windows) > 2
    assert tagger.names(text) == [("Angela Merkel", "PER"), ("New York City", "LOC")]
