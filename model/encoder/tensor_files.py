"""Weight files of a checkpoint as one read-only mapping from tensor name to tensor.

Formats: safetensors and PyTorch's ``pytorch_model.bin``, each in one file or in shards with an index.
Nothing is unpickled that could run code, and tensors are read when asked for, not before.
"""

import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.encoder.errors import CheckpointError, UnsupportedCheckpointError
from model.encoder.json_files import read_json_object

SAFETENSORS: Final = "model.safetensors"
PICKLED: Final = "pytorch_model.bin"
INDEX_SUFFIX: Final = ".index.json"

# Weights in a form that is not read here, by file name, and what to say of each.
FOREIGN_WEIGHTS: Final = {
    "adapter_model.safetensors": "a LoRA adapter without its base model; merge it into the base first",
    "adapter_model.bin": "a LoRA adapter without its base model; merge it into the base first",
    "tf_model.h5": "TensorFlow weights",
    "model.ckpt.index": "TensorFlow weights",
    "bert_model.ckpt.index": "TensorFlow weights",
    "flax_model.msgpack": "Flax weights",
    "model.onnx": "an ONNX graph",
}

_PICKLED_NAME: Final = re.compile(r"GLOBAL (?P<name>[\w.]+)")
_LFS_POINTER: Final = b"version https://git-lfs"


class _TensorFile(Protocol):
    """One weight file, opened."""

    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def read(self, name: str) -> Tensor: ...


class _SafetensorsFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with safe_open(path, framework="pt") as tensors:
                self._shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118 - not a mapping
        except (SafetensorError, OSError) as error:
            raise CheckpointError(_unreadable(path, error)) from error

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        with safe_open(self._path, framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
        return tensor


class _PickledFile:
    def __init__(self, path: Path) -> None:
        try:
            # weights_only: an unpickler that knows tensors and plain containers and refuses all else,
            # before anything named by the file is called. Mapping works on the zip layout only.
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except pickle.UnpicklingError as error:
            raise CheckpointError(_not_plain_tensors(path, error)) from error
        except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
            raise CheckpointError(_unreadable(path, error)) from error
        if not isinstance(loaded, Mapping):
            raise CheckpointError(f"{path} holds a {type(loaded).__name__}, not tensors by name")
        strays = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]
        if strays:
            raise CheckpointError(
                f"{path} holds entries that are not tensors: {', '.join(strays)}; "
                "a training checkpoint has to be saved again as a bare state_dict"
            )
        self._tensors: dict[str, Tensor] = {str(name): value for name, value in loaded.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name].detach()


@dataclass(frozen=True)
class _Layout:
    """How one format names its files and opens them."""

    single: str
    opener: type[_SafetensorsFile] | type[_PickledFile]

    @property
    def index(self) -> str:
        return self.single + INDEX_SUFFIX


_LAYOUTS: Final = (_Layout(SAFETENSORS, _SafetensorsFile), _Layout(PICKLED, _PickledFile))


class TensorFiles(Mapping[str, Tensor]):
    """All tensors of a checkpoint folder by the names they have there, read one at a time.

    A tensor comes back in the type it is stored in. ``files`` lists the weight files, for hashes and reports.
    """

    def __init__(self, files: tuple[Path, ...], opener: type[_SafetensorsFile] | type[_PickledFile]) -> None:
        self.files = files
        self._holders: dict[str, _TensorFile] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in files:
            opened = opener(path)
            for name, shape in opened.shapes().items():
                if name in self._holders:
                    raise CheckpointError(f"{path} holds {name} a second time; an earlier shard has it too")
                self._holders[name] = opened
                self._shapes[name] = shape

    @classmethod
    def find(cls, folder: Path) -> "TensorFiles":
        """Open the weights in ``folder``: safetensors if there, else PyTorch's own format.

        Raises:
            CheckpointError: No weights, a shard missing or cut short, a pickle that could run code.
            UnsupportedCheckpointError: Weights of another framework only.
        """
        for layout in _LAYOUTS:
            if (folder / layout.single).is_file():
                return cls((folder / layout.single,), layout.opener)
            if (folder / layout.index).is_file():
                return cls._from_index(folder, layout)
        raise _no_weights(folder)

    @classmethod
    def _from_index(cls, folder: Path, layout: _Layout) -> "TensorFiles":
        index = folder / layout.index
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index} has no weight_map from tensors to files")
        names = sorted({str(name) for name in weight_map.values()})
        # An index comes from a stranger: it may name files of its own folder only.
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise CheckpointError(f"{index} names files outside its folder: {', '.join(outside)}")
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise CheckpointError(
                f"{folder} lacks {', '.join(absent)}: {index.name} lists {len(names)} weight files and "
                f"{len(names) - len(absent)} of them are there. Was the download interrupted?"
            )
        tensors = cls(tuple(folder / name for name in names), layout.opener)
        lost = sorted(name for name in weight_map if name not in tensors)
        if lost:
            raise CheckpointError(
                f"{index} lists tensors that its files do not hold: {', '.join(lost)}. "
                "Are they of one download?"
            )
        return tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading its data."""
        return self._shapes[name]

    def __getitem__(self, name: str) -> Tensor:
        return self._holders[name].read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._holders)

    def __len__(self) -> int:
        return len(self._holders)


def _no_weights(folder: Path) -> CheckpointError:
    shards = sorted(
        path.name
        for layout in _LAYOUTS
        for path in folder.glob(f"{Path(layout.single).stem}-*-of-*{Path(layout.single).suffix}")
    )
    if shards:
        return CheckpointError(
            f"{folder} holds shards ({', '.join(shards)}) but not the index that lists them "
            f"({SAFETENSORS}{INDEX_SUFFIX} or {PICKLED}{INDEX_SUFFIX})"
        )
    wanted = f"{SAFETENSORS} or {PICKLED}"
    found = [f"{name} ({what})" for name, what in FOREIGN_WEIGHTS.items() if (folder / name).is_file()]
    if found:
        return UnsupportedCheckpointError(f"{folder} has no {wanted}, only {'; '.join(found)}")
    return CheckpointError(f"{folder} has no weights: neither {wanted}")


def _unreadable(path: Path, error: Exception) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return _lfs_pointer(path) or f"{path} cannot be read; was it cut short? ({first_line})"


def _not_plain_tensors(path: Path, error: Exception) -> str:
    if pointer := _lfs_pointer(path):
        return pointer
    # Of torch's message only the name: the rest advises to load the file unsafely.
    asked = _PICKLED_NAME.search(str(error))
    reason = f"asks for {asked['name']}" if asked else "holds no plain tensors"
    return (
        f"{path} {reason}. It is broken, or made to run code of its author's when loaded; it was not loaded. "
        "Ask for the model in safetensors"
    )


def _lfs_pointer(path: Path) -> str | None:
    with path.open("rb") as file:
        is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
    return (
        f"{path} is a Git LFS pointer, not the weights; fetch them with `git lfs pull`"
        if is_pointer
        else None
    )
