"""The tagger in the repository is whole, small enough, licensed, measured and sensible."""

from contextlib import closing
from pathlib import Path

import pytest

from model.runtime.bundle import Bundle
from model.runtime.engine_choice import Candidate, EngineWishes, candidates, open_engine
from model.runtime.golden import check_alike, check_golden
from model.runtime.tokenization import Tokenizer
from model.training.evaluation import tag_texts

PATH = Path(__file__).parents[3] / "models" / "ner-zh-en"
MEGABYTES_ALLOWED = 25  # without the tables, which are the embedding bundle's


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """Loading compares every digest."""
    return Bundle.load(PATH)


@pytest.mark.parametrize("candidate", candidates(EngineWishes()), ids=str)
def test_it_passes_the_checks_of_the_service(bundle: Bundle, candidate: Candidate) -> None:
    """Digests, token ids, logits and entities, on this machine, in each engine and precision."""
    tokenizer = Tokenizer.from_bundle(bundle)
    with closing(open_engine(bundle, candidate, threads=1)) as engine:
        assert check_alike(bundle, tokenizer, engine).texts == 16
        if candidate.precision == "float32":
            report = check_golden(bundle, tokenizer, engine)
            assert report.max_difference <= report.tolerance


def test_it_is_what_its_manifest_promises(bundle: Bundle) -> None:
    """The licence of its training data travels with it, and the repository stays light to clone."""
    manifest = bundle.manifest
    own = [entry.size for name, entry in manifest.files.items() if not (PATH / name).is_symlink()]
    assert sum(own) <= MEGABYTES_ALLOWED * 1_000_000
    assert (PATH / "embeddings.safetensors").is_symlink()
    assert (manifest.licence, manifest.languages) == ("CC-BY-SA-4.0", ("zh", "en"))
    assert manifest.labels == ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
    for work in ("Universal NER", "CC BY-SA 4.0", "multilingual-e5-small"):
        assert work in bundle.file("NOTICE").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["uner_en_ewt/test", "uner_zh_gsdsimp/test"])
def test_its_accuracy_is_on_record(bundle: Bundle, name: str) -> None:
    """F1 in percent over all labels and of each: without them nobody could tell a better model."""
    figures = bundle.manifest.quality[name]
    assert isinstance(figures, dict)
    assert all(0 < figures[key] <= 100 for key in ("f1", "f1_PER", "f1_LOC", "f1_ORG"))
    assert figures["f1"] > 70


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        (
            "王小明上周从北京飞到上海，莫言当时在山东。",
            [("王小明", "PER"), ("北京", "LOC"), ("上海", "LOC"), ("莫言", "PER"), ("山东", "LOC")],
        ),
        (
            "🙂 Angela Merkel met Tim Cook of Apple in Berlin.",
            [("Angela Merkel", "PER"), ("Tim Cook", "PER"), ("Apple", "ORG"), ("Berlin", "LOC")],
        ),
    ],
)
def test_it_finds_real_names_at_their_exact_places(
    bundle: Bundle, text: str, entities: list[tuple[str, str]]
) -> None:
    """Offsets are code points of the text as it was sent, an emoji in front counts one."""
    (found,) = tag_texts(bundle, [text], threads=1).found
    assert [(entity.start, entity.end, entity.label) for entity in found] == [
        (text.index(name), text.index(name) + len(name), label) for name, label in entities
    ]
