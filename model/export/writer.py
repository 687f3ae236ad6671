"""Writes bundles: everything is made and checked in a hidden folder, which then takes the bundle's name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from pydantic import ValidationError

from model.encoder.config import EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.heads import SequenceClassifier, TokenClassifier
from model.encoder.weights import sequence_head_act
from model.export import golden
from model.export.graph import (
    WORD_TABLE,
    GraphModule,
    attach_weights,
    trace,
)
from model.export.parity import ParityReport, grid, measure_parity
from model.export.storage import (
    EncodedTensor,
    StoredArray,
    encode,
    read_header,
    read_tensors,
    write_safetensors,
)
from model.runtime.bundle import (
    BUNDLE_NAME,
    FILE_NAME,
    MANIFEST_NAME,
    Architecture,
    Bundle,
    Family,
    FileEntry,
    LabelActivation,
    Manifest,
    Precision,
    ScoreCalibration,
    Source,
    Storage,
    StoredPrecision,
    Task,
    faults_in,
)
from model.runtime.engine import GRAPH_NAME, TokenBatch
from model.runtime.golden import GOLDEN_NAME, check_golden
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.threads import thread_count
from model.runtime.tokenization import TOKENIZER_NAME
from model.runtime.tokenization import Tokenizer as RuntimeTokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

EMBEDDINGS_FILE: Final = "embeddings.safetensors"
ENCODER_FILE: Final = "encoder.safetensors"
PARITY_FILE: Final = "parity.json"
_TABLES: Final = (WORD_TABLE, "embeddings.position.weight", "embeddings.token_type.weight")


class ExportError(RuntimeError):
    """A bundle that cannot be written; nothing was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleContents:
    """All that a bundle is made from.

    Attributes:
        name: Of the bundle.
        model: In float32; an encoder makes an embedding bundle, a classifier one of its task.
        family: Of checkpoints that the weights come from.
        tokenizer: As the model was trained with; its truncation and padding are dropped.
        source: Where the weights are from.
        licence: SPDX identifier of the weights' licence.
        languages: Codes such as ``zh``.
        description: One sentence.
        max_tokens: Longest input, special tokens included.
        pooling: What an embedding bundle answers with unless asked otherwise.
        normalize: Whether its vectors are scaled to length one unless asked otherwise.
        prompts: Text put before an input, by name.
        default_prompt_name: The prompt used unless another is asked for.
        label_activation: What makes scores of a sequence classifier's logits; None for any other model.
        pair_token_types: Whether a sequence classifier is told which of a pair's texts a token is of.
        notices: Further text files by name, such as ``LICENSE``.
        quality: Measured figures.
    """

    name: str
    model: Encoder | TokenClassifier | SequenceClassifier
    family: Family
    tokenizer: Tokenizer
    source: Source
    licence: str
    languages: Sequence[str]
    description: str
    max_tokens: int
    pooling: Literal["cls", "mean"] | None = None
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    label_activation: LabelActivation | None = None
    pair_token_types: bool = False
    notices: Mapping[str, str] = field(default_factory=dict)
    quality: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> EncoderConfig:
        """Of the encoder, whichever model it is in."""
        model = self.model
        return model.config if isinstance(model, Encoder) else model.encoder.config

    @property
    def task(self) -> Task:
        """What the bundle is for."""
        match self.model:
            case TokenClassifier():
                return "token-classification"
            case SequenceClassifier():
                return "sequence-classification"
            case _:
                return "embedding"

    @property
    def labels(self) -> tuple[str, ...]:
        """In logit order; none for an embedding model."""
        return () if isinstance(self.model, Encoder) else self.model.labels


@dataclass(frozen=True, slots=True)
class WrittenBundle:
    """What came of an export.

    Attributes:
        path: The bundle's folder.
        manifest: As written.
        parity: The graph against PyTorch.
        fidelity: Least cosine of the stored weights' answers to the original ones', by output.
    """

    path: Path
    manifest: Manifest
    parity: ParityReport
    fidelity: dict[str, float]

    @property
    def nbytes(self) -> int:
        """Size of all files, shared ones included."""
        return sum(entry.size for entry in self.manifest.files.values())


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a bundle only once it can be read.

    Attributes:
        quality: Figures, for the manifest.
        documents: Text files that hold them, by name.
        calibration: Of a tagger's scores; None = they are as they are.
    """

    quality: Mapping[str, Any]
    documents: Mapping[str, str]
    calibration: ScoreCalibration | None = None


Measure = Callable[[Path], Measured]
Progress = Callable[[str, int, int], None]


def _no_progress(_stage: str, _done: int, _total: int) -> None:
    pass


def write_bundle(
    contents: BundleContents,
    target: Path,
    *,
    storage: Storage = "float32",
    share_embeddings_of: Path | None = None,
    rounded: Mapping[str, NDArray[np.float32]] | None = None,
    link_embeddings: bool = False,
    overwrite: bool = False,
    measure: Measure | None = None,
    progress: Progress = _no_progress,
) -> WrittenBundle:
    """Write a bundle, or nothing.

    Args:
        contents: The model and what is known about it. The model's weights are replaced by what the bundle
            stores.
        target: The bundle's folder.
        storage: How the word table and the linear layers are stored; the rest is float32.
        share_embeddings_of: A bundle with the very same embedding tables: their file is taken as it is,
            whatever ``storage`` says. It becomes a hard link where the file system can make one, else a copy.
        rounded: Values to store in the place of some parameters, rounded for ``storage`` already, such as
            those of ``round_for_inputs``; the checks compare with the model's own.
        link_embeddings: Link to that file by a relative path instead, which keeps it once in a repository or
            an image, but breaks when only one of the two folders is copied elsewhere.
        overwrite: Replace ``target`` if it exists.
        measure: Given the finished bundle before it takes its place; its figures and files go in as well.
        progress: Told the stage, and how many of its steps are done.

    Returns:
        What was written, with the checks' figures.

    Raises:
        ExportError: ``target`` exists, the name or another fact is not one that a manifest takes, or the
            tables to share differ.
        ParityError: The graph misses its tolerance.
        FidelityError: The storage is too coarse for this model.
        StorageError: A weight cannot be stored so.
        BundleError: The finished bundle does not pass the checks that the service runs.
    """
    check_target(contents.name, target, overwrite=overwrite)
    _check_file_names(contents.notices)
    with _folder_beside(target) as folder:
        tokenizer = type(contents.tokenizer).from_str(contents.tokenizer.to_str())
        _declare_padding(tokenizer, contents.config.pad_token_id)
        (folder / TOKENIZER_NAME).write_text(tokenizer.to_str(), encoding="utf-8")
        tokenizer.no_padding()
        tensors = _encode(contents, storage, rounded or {})
        if share_embeddings_of is not None:
            if link_embeddings:
                check_link(share_embeddings_of, target)
            tensors = {**tensors, **_shared_tables(contents, share_embeddings_of)}
        stored = _store(folder, tensors, share_embeddings_of, link=link_embeddings)
        for file, text in contents.notices.items():
            (folder / file).write_text(text, encoding="utf-8")
        _manifest(contents, tensors, folder)  # what it refuses is refused before the slow part

        traced = GraphModule.of(contents.model)
        progress("tracing the graph", 0, 1)
        graph = attach_weights(trace(traced), list(tensors.values()), stored)
        (folder / GRAPH_NAME).write_bytes(graph.SerializeToString(deterministic=True))
        progress("tracing the graph", 1, 1)

        golden_texts = golden.tokenise(
            tokenizer,
            contents.max_tokens,
            pairs=golden.PAIRS if contents.task == "sequence-classification" else (),
            token_types=contents.pair_token_types,
        )
        progress("running the golden texts", 0, 2)
        before = golden.run_each(traced, golden_texts)
        progress("running the golden texts", 1, 2)
        traced.load({name: tensor.decode() for name, tensor in tensors.items()})
        after = golden.run_each(traced, golden_texts)
        progress("running the golden texts", 2, 2)
        cosines = golden.fidelity(golden_texts, before, after)
        golden.raise_if_unfaithful(cosines)
        _write_json(folder / GOLDEN_NAME, golden.as_json(golden_texts, after))

        _write_manifest(folder, _manifest(contents, tensors, folder))
        cases = grid(contents.max_tokens, contents.config.num_attention_heads)
        parity = _measure(traced, folder, cases, progress)
        parity.raise_if_missed()
        _write_json(folder / PARITY_FILE, {**parity.as_json(), "cosine_to_original_weights": cosines})
        manifest = _manifest(contents, tensors, folder)
        _write_manifest(folder, manifest)
        progress("checking the bundle as the service does", 0, 1)
        _accept(folder)
        progress("checking the bundle as the service does", 1, 1)
        if measure is not None:
            measured = measure(folder)
            _check_file_names(measured.documents)
            for file, text in measured.documents.items():
                (folder / file).write_text(text, encoding="utf-8")
            contents = dataclasses.replace(contents, quality={**contents.quality, **measured.quality})
            manifest = _manifest(contents, tensors, folder).model_copy(
                update={"calibration": measured.calibration}
            )
            _write_manifest(folder, manifest)
        _take_name(folder, target)
    return WrittenBundle(target, manifest, parity, cosines)


def renew_graph(path: Path, *, progress: Progress = _no_progress) -> ParityReport:
    """Trace the graph of a bundle anew, from its own weights, and put it in the old one's place.

    ``graph.onnx``, ``parity.json`` and their digests in the manifest change; every other file stays as it is,
    to the byte. The bundle itself stays until the new graph has passed every check.

    Args:
        path: The bundle's folder.
        progress: See ``write_bundle``.

    Returns:
        The new graph against PyTorch.

    Raises:
        BundleError: The bundle is damaged, or with its new graph does not give the answers recorded in it.
        StorageError: A weight file is not one of ours.
        ParityError: The graph misses its tolerance.
        ExportError: Its architecture is none of ours.
        GraphError: Its weights are not those of its architecture.
    """
    bundle = Bundle.load(path)
    manifest = bundle.manifest
    tensors = {
        tensor.name: tensor
        for file in (EMBEDDINGS_FILE, ENCODER_FILE)
        for tensor in read_tensors(bundle.file(file))
    }
    traced = GraphModule.of(_model_of(manifest))
    traced.load({name: tensor.decode() for name, tensor in tensors.items()})
    with _folder_beside(bundle.path) as folder:
        for file in manifest.files:
            shutil.copy2(bundle.path / file, folder / file, follow_symlinks=False)
        progress("tracing the graph", 0, 1)
        graph = attach_weights(trace(traced), list(tensors.values()), _places(folder))
        (folder / GRAPH_NAME).write_bytes(graph.SerializeToString(deterministic=True))
        progress("tracing the graph", 1, 1)
        _write_manifest(folder, _with_new_digests(manifest, folder, GRAPH_NAME))
        cases = grid(manifest.max_tokens, manifest.architecture.num_attention_heads)
        parity = _measure(traced, folder, cases, progress)
        parity.raise_if_missed()
        before = json.loads((folder / PARITY_FILE).read_text(encoding="utf-8"))
        _write_json(folder / PARITY_FILE, {**before, **parity.as_json()})
        _write_manifest(folder, _with_new_digests(manifest, folder, GRAPH_NAME, PARITY_FILE))
        _accept(folder)
        _take_name(folder, bundle.path)
    return parity


def _model_of(manifest: Manifest) -> Encoder | TokenClassifier | SequenceClassifier:
    """The network that a manifest describes; its weights are drawn."""
    try:
        config = EncoderConfig(**manifest.architecture.model_dump(exclude={"family", "parameters"}))
    except ValueError as error:
        raise ExportError(f"{manifest.name} is no network that can be traced: {error}") from error
    match manifest.task:
        case "token-classification":
            return TokenClassifier(config, manifest.labels)
        case "sequence-classification":
            head_act = sequence_head_act(manifest.architecture.family)
            return SequenceClassifier(config, manifest.labels, head_act=head_act)
        case "embedding":
            return Encoder(config)


def _with_new_digests(manifest: Manifest, folder: Path, *files: str) -> Manifest:
    entries = {**manifest.files, **{file: _entry(folder / file) for file in files}}
    return manifest.model_copy(update={"files": entries})


def check_target(name: str, target: Path, *, overwrite: bool) -> None:
    """Refuse what cannot be written under this name in this place, before anything slow.

    Raises:
        ExportError: ``target`` exists and is not to be replaced, or a bundle cannot be called ``name``.
    """
    if not BUNDLE_NAME.fullmatch(name):
        raise ExportError(
            f"a bundle cannot be called {name!r}: its name is made of ASCII letters, digits and . _ -, and "
            "begins with a letter or digit"
        )
    if target.exists() and not overwrite:
        raise ExportError(f"{target} exists; choose another folder or add --overwrite")


def check_link(other: Path, target: Path) -> None:
    """Refuse to link from one bundle to another where the link would not be a short relative one.

    Raises:
        ExportError: They do not lie in one folder.
    """
    if other.resolve().parent != target.resolve().parent:
        raise ExportError(f"{other} must lie beside {target}, since the link between them is relative")


def _check_file_names(files: Iterable[str]) -> None:
    if bad := sorted(file for file in files if not FILE_NAME.fullmatch(file)):
        raise ExportError(f"a bundle's files are named with letters, digits and . _ - only, not {bad}")


def read_bundle_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read a bundle's weights back, for example to train from them.

    Args:
        path: The bundle's folder.

    Returns:
        float32 arrays by the name of our encoder's parameter (a tagger's head is ``classifier.``...).

    Raises:
        BundleError: The bundle is damaged.
        StorageError: A weight file is not one of ours.
    """
    bundle = Bundle.load(path)
    return {
        tensor.name: tensor.decode()
        for file in (EMBEDDINGS_FILE, ENCODER_FILE)
        for tensor in read_tensors(bundle.file(file))
    }


def record_quality(path: Path, quality: Mapping[str, Any]) -> Manifest:
    """Write measured figures into a bundle's manifest, in place of those of the same names.

    Raises:
        BundleError: The bundle is damaged.
    """
    manifest = Bundle.load(path).manifest
    updated = Manifest.model_validate(
        {**manifest.model_dump(mode="json"), "quality": {**manifest.quality, **quality}}
    )
    _write_manifest(path, updated)
    return updated


def record_calibration(path: Path, calibration: ScoreCalibration | None) -> Manifest:
    """Write how a tagger's scores are calibrated into its manifest; None = not at all.

    Raises:
        BundleError: The bundle is damaged.
    """
    manifest = Bundle.load(path).manifest.model_copy(update={"calibration": calibration})
    _write_manifest(path, manifest)
    return manifest


@contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """A new folder beside the target, so that a rename suffices at the end; gone if the export fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    folder.chmod(0o755)  # mkdtemp makes it private; the service may run as another user
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take_name(folder: Path, target: Path) -> None:
    """Give the finished folder the target's name; an old bundle stays until the new one is in place."""
    if not target.exists():
        folder.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old / target.name)
    try:
        folder.rename(target)
    except OSError:
        (old / target.name).rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _encode(
    contents: BundleContents, storage: Storage, rounded: Mapping[str, NDArray[np.float32]]
) -> dict[str, EncodedTensor]:
    """Encode each parameter; only the word table and the encoder's matrices are worth rounding."""
    encoded: dict[str, EncodedTensor] = {}
    for name, parameter in GraphModule.of(contents.model).parameters().items():
        weights = rounded.get(name, parameter.detach().numpy().astype(np.float32))
        is_matrix = name.startswith("layers.") and weights.ndim == 2
        encoding: Storage = storage if is_matrix or name == WORD_TABLE else "float32"
        encoded[name] = encode(name, weights, encoding, gathered=name == WORD_TABLE)
    return encoded


def _shared_tables(contents: BundleContents, other: Path) -> dict[str, EncodedTensor]:
    """Read another bundle's tables, if they are this model's to the bit."""
    tables = {tensor.name: tensor for tensor in read_tensors(Bundle.load(other).file(EMBEDDINGS_FILE))}
    own = {
        name: parameter.detach().numpy()
        for name, parameter in GraphModule.of(contents.model).parameters().items()
        if name in _TABLES
    }
    if tables.keys() != own.keys():
        raise ExportError(f"{other.name} has other tables: {sorted(tables)} instead of {sorted(own)}")
    different = [name for name in own if not np.array_equal(tables[name].decode(), own[name])]
    if different:
        raise ExportError(f"{', '.join(different)} differ from those of {other.name}: they cannot be shared")
    return tables


def _store(
    folder: Path, tensors: Mapping[str, EncodedTensor], shared: Path | None, *, link: bool
) -> dict[str, tuple[str, StoredArray]]:
    tables = [tensor for name, tensor in tensors.items() if name in _TABLES]
    rest = [tensor for name, tensor in tensors.items() if name not in _TABLES]
    if shared is None:
        write_safetensors(folder / EMBEDDINGS_FILE, tables)
    elif not link:
        _put(shared / EMBEDDINGS_FILE, folder / EMBEDDINGS_FILE)
    else:
        (folder / EMBEDDINGS_FILE).symlink_to(Path("..") / shared.resolve().name / EMBEDDINGS_FILE)
    write_safetensors(folder / ENCODER_FILE, rest)
    return _places(folder)


def _places(folder: Path) -> dict[str, tuple[str, StoredArray]]:
    """Where the arrays of both weight files lie, by name."""
    return {
        name: (file, place)
        for file in (EMBEDDINGS_FILE, ENCODER_FILE)
        for name, place in read_header(folder / file)[0].items()
    }


def _put(file: Path, place: Path) -> None:
    """Put a file in a further place: at no cost where the file system can, as a copy elsewhere."""
    file = file.resolve()  # a hard link to a link would be a link
    try:
        place.hardlink_to(file)
    except OSError:  # another file system, one without hard links, or somebody else's file
        shutil.copyfile(file, place)


def _declare_padding(tokenizer: Tokenizer, pad_token_id: int) -> None:
    """Say which token pads, and drop what else the file may say: the service cuts and pads by itself."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    token = tokenizer.id_to_token(pad_token_id)
    if token is None:
        raise ExportError(f"the tokenizer has no token {pad_token_id}, which the model pads with")
    tokenizer.enable_padding(pad_id=pad_token_id, pad_token=token)


def _measure(
    traced: GraphModule, folder: Path, cases: Sequence[tuple[int, int, bool]], progress: Progress
) -> ParityReport:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        progress("comparing the graph with PyTorch", done, len(cases))

    bundle = Bundle.load(folder)
    with closing(OnnxRuntimeEngine(bundle, threads=thread_count())) as engine:

        def run(feeds: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
            return engine.run(TokenBatch(**feeds), traced.outputs)

        return measure_parity(traced, run, cases=cases, progress=count)


def _accept(folder: Path) -> None:
    """Run the checks that the service runs at start."""
    bundle = Bundle.load(folder)
    with closing(OnnxRuntimeEngine(bundle, threads=thread_count())) as engine:
        check_golden(bundle, RuntimeTokenizer.from_bundle(bundle), engine)


def _manifest(contents: BundleContents, tensors: Mapping[str, EncodedTensor], folder: Path) -> Manifest:
    config = contents.config
    embeds = contents.task == "embedding"
    encodings = {
        "embeddings": tensors[WORD_TABLE].encoding,
        "linear": next(
            (t.encoding for name, t in tensors.items() if name.endswith("query.weight")), "float32"
        ),
        "other": "float32",
    }
    try:
        return Manifest(
            name=contents.name,
            task=contents.task,
            architecture=_architecture(contents, tensors),
            source=contents.source,
            licence=contents.licence,
            languages=tuple(contents.languages),
            description=contents.description,
            max_tokens=contents.max_tokens,
            pooling=contents.pooling if embeds else None,
            normalize=contents.normalize and embeds,
            dimensions=config.hidden_size if embeds else None,
            prompts=dict(contents.prompts),
            default_prompt_name=contents.default_prompt_name,
            labels=contents.labels,
            label_activation=contents.label_activation,
            pair_token_types=contents.pair_token_types,
            precision=Precision(storage=StoredPrecision.model_validate(encodings)),
            quality=dict(contents.quality),
            files={
                path.name: _entry(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST_NAME
            },
            created=datetime.now(UTC).date().isoformat(),
            conche_version=version("conche"),
        )
    except ValidationError as error:
        raise ExportError(f"no manifest can say this: {faults_in(error)}") from error


def _architecture(contents: BundleContents, tensors: Mapping[str, EncodedTensor]) -> Architecture:
    config = dataclasses.asdict(contents.config)
    own = {"family", "parameters"}
    return Architecture(
        family=contents.family,
        parameters=sum(int(np.prod(tensor.shape)) for tensor in tensors.values()),
        **{name: config[name] for name in Architecture.model_fields.keys() - own},
    )


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        return FileEntry(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    partial = folder / f".{MANIFEST_NAME}"
    partial.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / MANIFEST_NAME)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
