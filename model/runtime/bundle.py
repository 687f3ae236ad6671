"""The bundle: one folder that holds a model and everything known about it.

``model.export`` writes it, the service reads it, and both describe it with the ``Manifest`` below. A bundle
is whole or it is refused: every file is named in the manifest with its size and digest, and nothing else may
lie in the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    model_validator,
)

FORMAT_VERSION = 1
_PIECE = 4 * 1024 * 1024
MANIFEST_NAME = "manifest.json"

# One path segment: no separators, no leading dot, so that a manifest cannot name a file outside its folder.
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
BUNDLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Task = Literal["embedding", "token-classification", "sequence-classification"]
LabelActivation = Literal["softmax", "sigmoid", "none"]
Family = Literal["bert", "roberta", "xlm-roberta", "distilbert", "conche"]
SchemeName = Literal["bio", "iob1", "bioes", "bilou", "plain"]
Storage = Literal["float32", "float16", "int8_row", "int8_block", "q4_block32"]
STORAGES: tuple[Storage, ...] = get_args(Storage)


class BundleError(Exception):
    """A bundle that cannot be used.

    Attributes:
        check: the check that failed, one of a small set of words ("manifest", "files", "size", "sha256",
            "tokenizer", "graph", "crf", "golden", "golden-tokens", "golden-outputs").
    """

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Architecture(_Part):
    """The network's hyper-parameters, all that training needs to build it again.

    Spelt as in ``config.json`` where that has them; ``parameters`` counts them all.
    """

    family: Family
    hidden_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=0)
    num_attention_heads: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    max_position_embeddings: int = Field(ge=1)
    hidden_act: Literal["relu", "gelu"]
    position_embedding: Literal["learned", "sinusoidal"]
    position_offset: int = Field(ge=0)
    type_vocab_size: int = Field(ge=0)
    norm_placement: Literal["post", "pre"]
    embedding_layer_norm: bool
    scale_embeddings: bool
    layer_norm_eps: float = Field(gt=0)
    pad_token_id: int = Field(ge=0)
    parameters: int = Field(ge=1)


class Source(_Part):
    """Where the weights came from."""

    name: str
    revision: str | None = None
    url: str | None = None


class StoredPrecision(_Part):
    """How the weights lie on disk, by group of tensors."""

    embeddings: Storage
    linear: Storage
    other: Storage


class Precision(_Part):
    """What the graph computes in, and what it is stored in."""

    compute: Literal["float32"] = "float32"
    storage: StoredPrecision


class FileEntry(_Part):
    """Digest (lower-case hex) and size in bytes of one file."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    size: int = Field(ge=0)


class ScoreCalibration(_Part):
    """From the log-odds of a span's least sure word to those of the span; see ``runtime.calibration``."""

    slope: float = Field(gt=0)
    intercept: float


class Manifest(_Part):
    """What ``manifest.json`` says. Lengths are in tokens, special tokens included."""

    format_version: Literal[1] = 1
    name: Annotated[str, StringConstraints(pattern=f"^{BUNDLE_NAME.pattern}$")]
    task: Task
    architecture: Architecture
    source: Source
    licence: str
    languages: tuple[str, ...]
    description: str
    max_tokens: int = Field(ge=3)
    pooling: Literal["cls", "mean"] | None = None
    normalize: bool = False
    dimensions: int | None = Field(default=None, ge=1)
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    labels: tuple[str, ...] = ()
    label_activation: LabelActivation | None = None  # from a text's logits to scores
    pair_token_types: bool = False  # whether tokens of a pair's second text have type 1
    label_scheme: SchemeName | None = None  # None = as the labels' letters say
    calibration: ScoreCalibration | None = None  # of entity scores; None = means over words
    precision: Precision
    quality: dict[str, JsonValue] = {}  # measured figures, nested by set, language or label
    files: dict[str, FileEntry]
    created: str
    conche_version: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        rows, offset = self.architecture.max_position_embeddings, self.architecture.position_offset
        if self.max_tokens > rows - offset:
            problems.append(
                f"max_tokens {self.max_tokens} exceeds max_position_embeddings {rows} "
                f"less position_offset {offset}"
            )
        problems += self._task_problems()
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            problems.append(f"default_prompt_name {self.default_prompt_name!r} is not among the prompts")
        bad_names = sorted(
            name for name in self.files if not FILE_NAME.fullmatch(name) or name == MANIFEST_NAME
        )
        if bad_names:
            problems.append(f"not plain file names: {bad_names}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _task_problems(self) -> list[str]:
        problems = []
        if self.task == "embedding" and (self.pooling is None or self.dimensions is None or self.labels):
            problems.append("an embedding bundle needs pooling and dimensions and has no labels")
        if self.task != "embedding" and not self.labels:
            problems.append(f"a {self.task} bundle needs labels")
        if (self.task == "sequence-classification") != (self.label_activation is not None):
            problems.append("a sequence-classification bundle, and no other, needs label_activation")
        if self.label_activation == "softmax" and len(self.labels) < 2:
            problems.append("softmax over a single label gives 1 whatever the text")
        if self.pair_token_types and self.architecture.type_vocab_size < 2:
            problems.append("pair_token_types needs a type_vocab_size of 2 or more")
        if len(set(self.labels)) != len(self.labels):
            problems.append("labels repeat")
        return problems


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose manifest and files have been checked.

    Attributes:
        path: the folder, resolved.
        manifest: its description.
        digest: SHA-256 (hex) of ``manifest.json``; as that names every file's digest, it identifies the whole
            bundle. An index built with one bundle belongs to that digest only.
    """

    path: Path
    manifest: Manifest
    digest: str

    @classmethod
    def load(cls, path: Path, *, verify_hashes: bool = True) -> Self:
        """Read and check the bundle in folder ``path``.

        Args:
            path: the folder that holds ``manifest.json``.
            verify_hashes: compare every file's SHA-256 with the manifest; without it only names and sizes.

        Raises:
            BundleError: names the check ("manifest", "files", "size" or "sha256") and the offending file.
        """
        # Not Path.resolve, which raises RuntimeError for a link to itself in Python before 3.13.
        folder = Path(os.path.realpath(path))
        raw = _read_manifest_bytes(folder)
        manifest = _parse_manifest(raw, folder)
        _check_names(folder, manifest)
        for name in sorted(manifest.files):
            _check_file(folder, name, manifest.files[name], verify_hash=verify_hashes)
        return cls(path=folder, manifest=manifest, digest=hashlib.sha256(raw).hexdigest())

    def file(self, name: str) -> Path:
        """Path of a file the manifest names.

        Raises:
            BundleError: the manifest does not name it (check "files").
        """
        if name not in self.manifest.files:
            raise BundleError("files", f"{self.path.name} has no file {name}")
        return self.path / name


def discover(root: Path) -> list[Path]:
    """Folders that hold a ``manifest.json``: ``root`` itself, or else its children, by name.

    A root that does not exist holds none. Nothing is read: a broken bundle is found too, and refused on load,
    and so is a folder that may not be looked into. Hidden folders are passed over: an export in progress is
    one.
    """
    if _may_hold_manifest(root):
        return [root]
    if not root.is_dir():
        return []
    try:
        children = sorted(child for child in root.iterdir() if not child.name.startswith("."))
    except OSError:
        return [root]
    return [child for child in children if _may_hold_manifest(child)]


@contextlib.contextmanager
def reading(check: str, where: str) -> Iterator[None]:
    """Turn what the operating system refuses inside (rights, a failing disk) into a ``BundleError``.

    Args:
        check: the one that fails then.
        where: the file, for the message.
    """
    try:
        yield
    except OSError as error:
        raise BundleError(check, f"cannot read {where}: {error.strerror or error}") from error


def _may_hold_manifest(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_NAME).is_file()
    except OSError:  # not allowed to know
        return True


def _read_manifest_bytes(folder: Path) -> bytes:
    with reading("manifest", str(folder / MANIFEST_NAME)):
        if not folder.is_dir():
            raise BundleError("manifest", f"{folder} is not a folder")
        return (folder / MANIFEST_NAME).read_bytes()


def _parse_manifest(raw: bytes, folder: Path) -> Manifest:
    where = f"{folder.name}/{MANIFEST_NAME}"
    try:
        content = json.loads(raw)
    except ValueError as error:  # a UnicodeDecodeError is one too
        raise BundleError("manifest", f"{where} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BundleError("manifest", f"{where} is not a JSON object")
    version = content.get("format_version")
    # Looked at before the fields: a newer format fails on those too, with a message that would mislead.
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise BundleError(
            "manifest",
            f"{where} has format_version {version}, newer than the {FORMAT_VERSION} that this Conche reads; "
            "update Conche or export the bundle again",
        )
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise BundleError("manifest", f"{where}: {faults_in(error)}") from error


def faults_in(error: ValidationError) -> str:
    """What a manifest's checks found, each fault after the field's name, in one line."""
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'manifest'}: {fault['msg']}" for fault in error.errors()
    )


def _check_names(folder: Path, manifest: Manifest) -> None:
    """Folder and manifest must name the same files.

    Hidden entries are passed over: file managers and volume mounts leave them, and nothing reads them.
    """
    with reading("files", folder.name):
        entries = {entry.name for entry in folder.iterdir()}
    present = {name for name in entries if not name.startswith(".")} - {MANIFEST_NAME}
    missing = sorted(set(manifest.files) - present)
    unknown = sorted(present - set(manifest.files))
    faults = [f"missing {name}" for name in missing] + [f"not in the manifest: {name}" for name in unknown]
    if faults:
        raise BundleError("files", f"{folder.name}: " + ", ".join(faults))


def _check_file(folder: Path, name: str, entry: FileEntry, *, verify_hash: bool) -> None:
    path = folder / name
    where = f"{folder.name}/{name}"
    with reading("files", where):
        if path.is_symlink():
            _check_link(folder, path)
        if not path.is_file():
            raise BundleError("files", f"{where} is not a readable file")
        # Opened even where its digest is not asked for: what may not be read is found here, by name.
        with path.open("rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != entry.size:
                raise BundleError("size", f"{where} has {size} bytes, the manifest says {entry.size}")
            if not verify_hash:
                return
            digest = _sha256(stream)
    if digest != entry.sha256:
        raise BundleError("sha256", f"{where} has SHA-256 {digest}, the manifest says {entry.sha256}")


def _sha256(stream: RawIOBase) -> str:
    """Digest of what is left of a file.

    In large pieces: after each the thread may wait for the interpreter, and `hashlib.file_digest` takes a
    quarter of a megabyte at a time. Beside other work at a start that was half a second for 28 MB.
    """
    digest = hashlib.sha256()
    piece = bytearray(_PIECE)
    while length := stream.readinto(piece):
        digest.update(memoryview(piece)[:length])
    return digest.hexdigest()


def _check_link(folder: Path, link: Path) -> None:
    """Bundles beside each other may share a file; no link may lead elsewhere, nor break when both move."""
    target = link.readlink()
    if target.is_absolute():
        raise BundleError("files", f"{folder.name}/{link.name} is an absolute link ({target})")
    if not Path(os.path.realpath(link)).is_relative_to(folder.parent):
        raise BundleError("files", f"{folder.name}/{link.name} links outside {folder.parent} ({target})")
    if not link.exists():
        raise BundleError(
            "files",
            f"{folder.name}/{link.name} is a link to {target}, where there is no file: the bundle shares it "
            "with another one, which has to lie beside it; or copy it with `cp -rL`, which follows links",
        )
