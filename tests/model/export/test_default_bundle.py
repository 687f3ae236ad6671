"""The embedding model in the repository is whole, small enough, proven and sensible."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from model.export.quality import BundleEmbedder
from model.export.writer import read_bundle_weights
from model.runtime.bundle import Bundle
from model.runtime.engine import pad_batch
from model.runtime.engine_choice import Candidate, EngineWishes, candidates, open_engine
from model.runtime.golden import LEAST_COSINE, check_golden, prove
from model.runtime.tokenization import Tokenizer

PATH = Path(__file__).parents[3] / "models" / "multilingual-e5-small-zh-en"
MEGABYTES_ALLOWED = 32


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """Loading compares every digest."""
    return Bundle.load(PATH)


@pytest.fixture(scope="module")
def embedder(bundle: Bundle) -> Iterator[BundleEmbedder]:
    """One session for all tests here."""
    with BundleEmbedder(bundle) as loaded:
        yield loaded


@pytest.mark.parametrize("candidate", candidates(EngineWishes(precision="float32")), ids=str)
def test_it_passes_the_checks_of_the_service(bundle: Bundle, candidate: Candidate) -> None:
    """Digests, token ids and vectors, on this machine, in each engine."""
    with closing(open_engine(bundle, candidate, threads=1)) as engine:
        report = check_golden(bundle, Tokenizer.from_bundle(bundle), engine)
    assert report.texts == 16
    assert report.max_difference < 1e-5


@pytest.mark.parametrize("candidate", candidates(EngineWishes()), ids=str)
def test_no_vector_depends_on_its_batch_in_any_engine(bundle: Bundle, candidate: Candidate) -> None:
    """Alone, and padded among others of any length: equal to float32's rounding, or alike in bfloat16."""
    rng = np.random.default_rng(4)
    lengths = (3, 5, 17, 64, 130, 16, 1, 33)
    rows = [rng.integers(5, bundle.manifest.architecture.vocab_size, length) for length in lengths]
    output = "embeddings_mean_normalized"
    tokenizer = Tokenizer.from_bundle(bundle)
    with closing(open_engine(bundle, candidate, threads=2)) as engine:
        prove(bundle, tokenizer, engine)
        together = engine.run(pad_batch(rows, tokenizer.pad_token_id), [output])[output]
        alone = [engine.run(pad_batch([row], tokenizer.pad_token_id), [output])[output][0] for row in rows]
    if candidate.precision == "float32":
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    else:
        assert min(np.vdot(one, other) for one, other in zip(together, alone, strict=True)) >= LEAST_COSINE


def test_it_is_what_its_manifest_promises(bundle: Bundle) -> None:
    """Licence and notices travel with the weights, and the repository stays light to clone."""
    manifest = bundle.manifest
    assert sum(entry.size for entry in manifest.files.values()) <= MEGABYTES_ALLOWED * 1_000_000
    assert (manifest.licence, manifest.languages, manifest.dimensions) == ("MIT", ("zh", "en"), 384)
    assert (manifest.pooling, manifest.max_tokens, manifest.default_prompt_name) == ("mean", 512, "query")
    assert "Permission is hereby granted" in bundle.file("LICENSE").read_text()
    assert "multilingual-e5-small" in bundle.file("NOTICE").read_text()
    assert manifest.quality["stsb_zh_test"]


def test_its_weights_are_four_bit_numbers(bundle: Bundle) -> None:
    """48.2 million of them, each row of 32 a multiple of one scale: nothing was rounded a second time."""
    weights = read_bundle_weights(bundle.path)
    assert sum(array.size for array in weights.values()) == 48_227_712
    blocks = weights["layers.3.attention.query.weight"].reshape(-1, 32)
    assert max(len(np.unique(block)) for block in blocks) <= 16


def test_like_means_near_in_both_languages_and_across(embedder: BundleEmbedder) -> None:
    """A shuffled table or a lost prompt would still give unit vectors, but not these neighbours."""
    asked = ["如何申请退货", "how do I return an item", "怎么重置密码"]
    known = ["我想把商品退回去", "忘记密码了怎么办", "I want to send this product back", "今天天气真好"]
    cosines = embedder.embed(asked) @ embedder.embed(known).T
    assert cosines.argmax(axis=1).tolist() == [0, 2, 1]
    # Across languages: the Chinese question is nearer to the English request than to small talk.
    assert cosines[0, 2] > cosines[0, 3]
