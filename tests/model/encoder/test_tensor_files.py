"""Weight files: every layout reads the same, and a broken or hostile one is named and refused."""

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from model.encoder.errors import CheckpointError, UnsupportedCheckpointError
from model.encoder.tensor_files import TensorFiles
from tests.model.encoder.checkpoints import LAYOUTS, Layout, save_tensors

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.ones(4), "c": torch.zeros(2, 2)}


class Hostile:
    """Unpickled with the plain loader, this creates a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_tensors(layout: Layout, tmp_path: Path) -> None:
    """Names, shapes and values, whatever the files are called."""
    save_tensors(STATE, tmp_path, layout=layout)
    tensors = TensorFiles.find(tmp_path)
    assert set(tensors) == set(STATE)
    assert len(tensors.files) == (2 if layout.startswith("sharded") else 1)
    for name, value in STATE.items():
        assert tensors.shape(name) == tuple(value.shape)
        assert torch.equal(tensors[name], value)


def test_the_format_before_torch_1_6_is_read(tmp_path: Path) -> None:
    """Many hub files are from then: a pickle followed by storages, not a zip."""
    ordered = OrderedDict(STATE)
    torch.save(ordered, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(TensorFiles.find(tmp_path)["a.weight"], STATE["a.weight"])


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_a_pickle_with_code_is_refused_unexecuted(zipped: bool, tmp_path: Path) -> None:
    """Both by torch's own writer; the marker would be there had the pickle been run."""
    marker = tmp_path / "executed"
    file = tmp_path / "pytorch_model.bin"
    torch.save(
        {**STATE, "d": Hostile(marker)}, file, _use_new_zipfile_serialization=zipped, pickle_module=pickle
    )
    with pytest.raises(CheckpointError, match="run code of its author") as caught:
        TensorFiles.find(tmp_path)
    assert f"{file} asks for {os.name}.mkdir" in str(caught.value)
    assert "weights_only" not in str(caught.value)  # torch's message advises to load it all the same
    assert not marker.exists()


def test_a_bare_pickle_with_code_is_refused_unexecuted(tmp_path: Path) -> None:
    """Not even torch's framing is needed to reach an unpickler."""
    marker = tmp_path / "executed"
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(marker), protocol=2))
    with pytest.raises(CheckpointError):
        TensorFiles.find(tmp_path)
    assert not marker.exists()


def test_safetensors_come_before_pickles(tmp_path: Path) -> None:
    """With both there, the one that cannot hold code is read."""
    save_tensors(STATE, tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    assert [path.name for path in TensorFiles.find(tmp_path).files] == ["model.safetensors"]


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_a_missing_shard_is_named(suffix: str, tmp_path: Path) -> None:
    """An interrupted download must not become a model with half its weights random."""
    save_tensors(STATE, tmp_path, layout="sharded safetensors" if suffix == "safetensors" else "sharded bin")
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    (tmp_path / f"{stem}-00002-of-00002.{suffix}").unlink()
    with pytest.raises(CheckpointError, match=rf"lacks {stem}-00002-of-00002\.{suffix}"):
        TensorFiles.find(tmp_path)


def test_a_dangling_link_counts_as_missing(tmp_path: Path) -> None:
    """The hub's cache links to blobs; one that never arrived leaves its link behind."""
    save_tensors(STATE, tmp_path, layout="sharded safetensors")
    shard = tmp_path / "model-00001-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to("../../blobs/0123")
    with pytest.raises(CheckpointError, match="model-00001-of-00002"):
        TensorFiles.find(tmp_path)


def test_an_index_and_its_shards_must_agree(tmp_path: Path) -> None:
    """Shards of two downloads mixed up: a tensor that the index promises is in none of them."""
    save_tensors(STATE, tmp_path, layout="sharded safetensors")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["e.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"do not hold: e\.weight"):
        TensorFiles.find(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """Which of the two counts is anybody's guess."""
    save_tensors(STATE, tmp_path, layout="sharded bin")
    torch.save(STATE, tmp_path / "pytorch_model-00002-of-00002.bin")
    with pytest.raises(CheckpointError, match="a second time"):
        TensorFiles.find(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", ".."])
def test_an_index_cannot_point_outside_its_folder(name: str, tmp_path: Path) -> None:
    """A checkpoint is a stranger's; it may name its own files only."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match=r"outside its folder|lacks"):
        TensorFiles.find(tmp_path)


@pytest.mark.parametrize("layout", ["safetensors", "bin"])
def test_a_file_cut_short_is_named(layout: Layout, tmp_path: Path) -> None:
    """Half a download with the right name."""
    save_tensors(STATE, tmp_path, layout=layout)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="cut short") as caught:
        TensorFiles.find(tmp_path)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_git_lfs_pointer_is_called_one(name: str, tmp_path: Path) -> None:
    """Cloning without LFS leaves three lines of text under the weights' name."""
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90868376\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        TensorFiles.find(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [({"epoch": 3, "state_dict": STATE}, "epoch, state_dict"), ([torch.ones(1)], "holds a list")],
)
def test_a_training_checkpoint_is_not_a_state_dict(content: object, said: str, tmp_path: Path) -> None:
    """Its tensors are one level down, and guessing at levels ends in loading the optimiser."""
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=said):
        TensorFiles.find(tmp_path)


def test_shards_without_their_index_are_not_taken_for_no_weights(tmp_path: Path) -> None:
    """The index is a small file, and easily left behind when copying by hand."""
    save_tensors(STATE, tmp_path, layout="sharded safetensors")
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match="not the index"):
        TensorFiles.find(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"), [("tf_model.h5", "TensorFlow"), ("adapter_model.safetensors", "LoRA adapter")]
)
def test_weights_of_another_kind_are_named(name: str, said: str, tmp_path: Path) -> None:
    """What is there is told, not just what is not."""
    (tmp_path / name).touch()
    with pytest.raises(UnsupportedCheckpointError, match=said):
        TensorFiles.find(tmp_path)


def test_a_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    """Both names a user may be missing."""
    with pytest.raises(CheckpointError, match=r"model\.safetensors or pytorch_model\.bin"):
        TensorFiles.find(tmp_path)
