"""From what a user names (a folder, or a model of the Hugging Face hub) to a folder on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from model.encoder.errors import CheckpointError

# Everything that is read beside the weights. A snapshot often holds the same model in five formats.
_SMALL_FILES: Final = (
    "config.json",
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "README.md",
    "LICENSE*",
    "NOTICE*",
    "[0-9]_*/*.json",  # the modules of a sentence-transformers model
    "[0-9]_*/vocab.txt",
)
_SAFETENSORS: Final = ("model*.safetensors", "model.safetensors.index.json", "[0-9]_*/model*.safetensors")
# Asked for only if there are no safetensors, so that no model comes twice.
_PICKLED: Final = ("pytorch_model*.bin", "pytorch_model.bin.index.json", "[0-9]_*/pytorch_model*.bin")

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_CACHE_FOLDER: Final = re.compile(r"models--(?P<id>.+)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint's folder and where it is from.

    Attributes:
        path: The folder, with ``config.json`` or ``modules.json`` in it.
        name: The hub id if it is known, else the folder's name.
        hub_id: The hub id, None for a folder that does not say.
        revision: The commit, where the hub or its cache says which.
    """

    path: Path
    name: str
    hub_id: str | None
    revision: str | None


def locate(path_or_hub_id: str | Path, *, revision: str | None = None) -> Snapshot:
    """Find a checkpoint on this machine, or fetch it from the hub into the hub's own cache.

    A folder that exists wins over a hub id of the same name. Besides a plain folder, one of the hub's
    cache is understood: ``models--org--name`` and ``models--org--name/snapshots/COMMIT``. Fetching
    obeys the hub's variables: ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_HOME``, ``HF_HUB_CACHE``,
    ``HF_ENDPOINT``.

    Args:
        path_or_hub_id: A folder, or an id such as ``intfloat/multilingual-e5-small``.
        revision: Branch, tag or commit on the hub; None = its main branch.

    Raises:
        CheckpointError: No such folder, or the hub does not give the model (the reason is named).
    """
    try:
        folder = Path(path_or_hub_id).expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"{path_or_hub_id}: the home folder is not known") from error
    if folder.is_dir():
        return _local(folder, revision)
    name = str(path_or_hub_id)
    if not _HUB_ID.fullmatch(name):
        raise CheckpointError(f"there is no folder {name} here, nor is that a hub id such as org/name")
    path = _fetch(name, revision)
    return Snapshot(path, name=name, hub_id=name, revision=path.name)


def _local(folder: Path, revision: str | None) -> Snapshot:
    resolved = folder.absolute()
    if cache := _CACHE_FOLDER.fullmatch(resolved.name):
        hub_id = cache["id"].replace("--", "/")
        path = _cached_commit(folder, revision)
        return Snapshot(path, name=hub_id, hub_id=hub_id, revision=path.name)
    if revision is not None:
        raise CheckpointError(f"a revision ({revision}) is for models of the hub; {folder} is a folder")
    owner = resolved.parent.parent.name
    if resolved.parent.name == "snapshots" and (cache := _CACHE_FOLDER.fullmatch(owner)):
        hub_id = cache["id"].replace("--", "/")
        return Snapshot(folder, name=hub_id, hub_id=hub_id, revision=resolved.name)
    return Snapshot(folder, name=resolved.name, hub_id=None, revision=None)


def _cached_commit(cache: Path, revision: str | None) -> Path:
    """Pick a snapshot of one model's cache folder: the one named, else the one ``main`` points to."""
    reference = cache / "refs" / (revision or "main")
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    snapshots = sorted(path for path in (cache / "snapshots").glob("*") if path.is_dir())
    if commit is None and len(snapshots) == 1:
        return snapshots[0]
    for path in snapshots:
        if path.name == commit:
            return path
    raise CheckpointError(
        f"{cache} has no snapshot of {commit or 'its main branch'}; "
        f"it has: {', '.join(path.name for path in snapshots) or 'none'}"
    )


def _fetch(hub_id: str, revision: str | None) -> Path:
    path = _download(hub_id, revision, (*_SMALL_FILES, *_SAFETENSORS))
    if not any(path.rglob("model*.safetensors")):
        path = _download(hub_id, revision, (*_SMALL_FILES, *_PICKLED))
    return path


def _download(hub_id: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    wanted = hub_id if revision is None else f"{hub_id} at {revision}"
    try:
        return Path(
            huggingface_hub.snapshot_download(hub_id, revision=revision, allow_patterns=list(patterns))
        )
    except GatedRepoError as error:
        raise CheckpointError(
            f"{wanted} is gated: accept its terms on the hub, then set HF_TOKEN to a token of that account"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{hub_id} has no revision {revision} on the hub") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no folder {hub_id} here and no such model on the hub (a private one needs HF_TOKEN)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"there is no folder {hub_id} here; {wanted} is not in the hub's cache on this machine either, "
            "and the hub cannot be reached (is HF_HUB_OFFLINE set?). A folder with the model's files can be "
            f"given instead. ({error})"
        ) from error
    except Exception as error:  # connections fail with the HTTP library's own types, which change
        raise CheckpointError(
            f"there is no folder {hub_id} here, and {wanted} cannot be fetched from the hub: {error}"
        ) from error
