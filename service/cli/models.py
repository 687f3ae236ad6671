"""`conche models`, `conche import` and `conche export`: what bundles are here, and how they are made.

Listing and verifying need what serving needs; importing and exporting also need the `train` extra.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from model.runtime.bundle import STORAGES, Bundle, BundleError, Manifest, Task, discover
from service.cli.languages import languages_option
from service.cli.progress import ProgressLine
from service.cli.training_packages import require_training_packages

if TYPE_CHECKING:
    from model.encoder.checkpoint import Checkpoint
    from model.encoder.weights import LoadReport
    from model.export.writer import WrittenBundle
    from model.runtime.bundle import Storage
    from model.runtime.golden import GoldenReport

models_dir_option = click.option(
    "--models-dir",
    type=click.Path(path_type=Path),
    default=Path("models"),
    envvar="CONCHE_MODELS_DIR",
    show_default=True,
    show_envvar=True,
    help="Folder that holds the bundles.",
)


@click.group(invoke_without_command=True)
@models_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print manifests as JSON.")
@click.pass_context
def models(context: click.Context, models_dir: Path, *, as_json: bool) -> None:
    """List the bundles that are here, or check one."""
    context.obj = models_dir
    if context.invoked_subcommand is not None:
        return
    found, broken = _load_all(models_dir)
    if as_json:
        click.echo(json.dumps(_as_json(found, broken), ensure_ascii=False, indent=2))
        return
    if not found and not broken:
        click.echo(f"No bundles in {models_dir}. `conche export` makes one.")
        return
    _print_table([_row(bundle) for bundle in found])
    for path, problem in broken:
        click.echo(f"{path.name}: cannot be used ({problem})", err=True)


@models.command()
@click.argument("name", required=False)
@click.pass_obj
def verify(models_dir: Path, name: str | None) -> None:
    """Check every file's digest and recompute the golden texts of the bundle NAME.

    NAME may be a path; without it every bundle is checked.
    """
    paths = discover(models_dir) if name is None else [find_bundle(models_dir, name)]
    if not paths:
        raise click.ClickException(f"no bundles in {models_dir}")
    failures = []
    for path in paths:
        try:
            bundle, report = _prove(path)
        except BundleError as error:
            failures.append(str(error) if name else f"{path.name}: {error}")
            continue
        click.echo(
            f"{bundle.manifest.name}: {len(bundle.manifest.files)} files as the manifest says; "
            f"{report.texts} golden texts within {report.max_difference:.1e} (allowed {report.tolerance:g})"
        )
    if failures:
        raise click.ClickException("\n".join(failures))


def _prove(path: Path) -> tuple[Bundle, GoldenReport]:
    from contextlib import closing

    from model.runtime.entities import EntityFinder
    from model.runtime.golden import check_golden
    from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
    from model.runtime.threads import thread_count
    from model.runtime.tokenization import Tokenizer

    bundle = Bundle.load(path)
    tokenizer = Tokenizer.from_bundle(bundle)
    with closing(OnnxRuntimeEngine(bundle, threads=thread_count())) as engine:
        if bundle.manifest.task == "token-classification":
            EntityFinder.from_bundle(bundle)
        return bundle, check_golden(bundle, tokenizer, engine)


@models.command()
@click.argument("name")
@click.option(
    "--sts", multiple=True, metavar="SET=FILE", help="Sentence pairs, JSON lines with a, b and score."
)
@click.option(
    "--faq", multiple=True, metavar="SET=FOLDER", help="FAQ set: a folder with faqs.jsonl and queries.jsonl."
)
@click.option("--record", is_flag=True, help="Write the figures into the bundle's manifest.")
@click.pass_obj
def measure(models_dir: Path, name: str, sts: Sequence[str], faq: Sequence[str], *, record: bool) -> None:
    """Measure how good the vectors of the embedding bundle NAME are."""
    from model.export.quality import measure as measure_quality

    path = find_bundle(models_dir, name)
    try:
        figures = measure_quality(path, sts=_named_paths(sts), faq=_named_paths(faq))
        if record:
            from model.export.writer import record_quality

            record_quality(path, figures)
    except (BundleError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(figures, ensure_ascii=False, indent=2))


@models.command()
@click.argument("name")
@click.pass_obj
def renew(models_dir: Path, name: str) -> None:
    """Trace the graph of the bundle NAME anew, from its own weights.

    For a bundle that an older Conche exported: its weights and answers stay, its graph becomes what an export
    would write now. NAME may be a path.
    """
    require_training_packages()
    from model.export.graph import GraphError
    from model.export.parity import ParityError
    from model.export.storage import StorageError
    from model.export.writer import ExportError, renew_graph

    path = find_bundle(models_dir, name)
    try:
        with ProgressLine() as progress:
            parity = renew_graph(path, progress=progress.show)
    except (BundleError, ExportError, GraphError, OSError, ParityError, StorageError) as error:
        raise click.ClickException(str(error)) from error
    worst = ", ".join(f"{output} {difference:.1e}" for output, difference in parity.worst().items())
    click.echo(f"{path}: new graph; largest differences from PyTorch: {worst}")


@click.command(name="import")
@click.argument("checkpoint")
@click.option("--revision", help="Branch, tag or commit, for a model of the hub.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def import_(checkpoint: str, revision: str | None, *, as_json: bool) -> None:
    """Fetch and check CHECKPOINT, a folder or a hub id, and say what is in it. Writes no bundle."""
    _prepare_to_read(checkpoint)
    from model.encoder.checkpoint import read_checkpoint
    from model.encoder.errors import CheckpointError
    from model.export.from_checkpoint import LOADERS

    try:
        read = read_checkpoint(checkpoint, revision=revision)
        _, report = LOADERS[read.task](read)
        read.tokenizer_json()
    except CheckpointError as error:
        raise click.ClickException(str(error)) from error
    facts = _facts(read, report)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    for key, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        click.echo(f"{key.replace('_', ' ') + ':':<22}{'none' if shown in (None, '', {}) else shown}")


@click.command()
@click.argument("checkpoint")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle's folder.")
@click.option(
    "--storage",
    type=click.Choice(STORAGES),
    default="float32",
    show_default=True,
    help="How the word table and the linear layers are stored; always computed in float32.",
)
@click.option("--name", help="Of the bundle; by default the name of the folder.")
@click.option("--revision", help="Branch, tag or commit, for a model of the hub.")
@click.option(
    "--task",
    type=click.Choice(["embedding", "token-classification", "sequence-classification"]),
    help="By default what the checkpoint was trained for.",
)
@click.option(
    "--pooling", type=click.Choice(["cls", "mean"]), help="By default as the checkpoint says, else mean."
)
@click.option("--licence", help="SPDX identifier; by default as the model card says.")
@languages_option(help="Codes, comma separated; by default as the model card says.")
@click.option("--description", help="One sentence for the manifest.")
@click.option("--overwrite", is_flag=True, help="Replace the folder if it exists.")
def export(
    checkpoint: str,
    output: Path,
    *,
    storage: Storage,
    name: str | None,
    revision: str | None,
    task: Task | None,
    pooling: Literal["cls", "mean"] | None,
    licence: str | None,
    languages: Sequence[str] | None,
    description: str | None,
    overwrite: bool,
) -> None:
    """Turn CHECKPOINT, a folder or a hub id, into the bundle OUTPUT.

    For example: conche export sentence-transformers/all-MiniLM-L6-v2 -o models/all-MiniLM-L6-v2
    """
    _prepare_to_read(checkpoint)
    from model.encoder.checkpoint import read_checkpoint
    from model.encoder.errors import CheckpointError
    from model.export.from_checkpoint import UNKNOWN_LICENCE, Choices, contents_of, notice_files
    from model.export.golden import FidelityError
    from model.export.graph import GraphError
    from model.export.parity import ParityError
    from model.export.storage import StorageError
    from model.export.writer import ExportError, check_target, write_bundle

    choices = Choices(
        name=name or output.resolve().name,
        task=task,
        pooling=pooling,
        licence=licence,
        languages=languages,
        description=description,
    )
    try:
        check_target(choices.name, output, overwrite=overwrite)
        click.echo(f"reading {checkpoint}", err=True)
        read = read_checkpoint(checkpoint, revision=revision)
        contents, report = contents_of(read, choices)
        click.echo(
            f"{report.loaded} tensors loaded, {len(report.unused)} known and not needed here", err=True
        )
        if contents.pooling and not read.pooling and not pooling:
            click.echo("the checkpoint states no pooling: mean is taken (--pooling changes it)", err=True)
        if contents.licence == UNKNOWN_LICENCE:
            click.echo("the checkpoint states no licence (--licence names one)", err=True)
        for file, original in notice_files(read.path).items():
            if file != original.name:
                click.echo(f"{original.name} is called {file} in the bundle", err=True)
        with ProgressLine() as progress:
            written = write_bundle(
                contents, output, storage=storage, overwrite=overwrite, progress=progress.show
            )
    except (
        BundleError,
        CheckpointError,
        ExportError,
        FidelityError,
        GraphError,
        OSError,
        ParityError,
        StorageError,
    ) as error:
        raise click.ClickException(str(error)) from error
    _print_written(written)


def _prepare_to_read(checkpoint: str) -> None:
    """Say first what is likeliest wrong: no such folder, then packages that are missing."""
    try:
        is_there = Path(checkpoint).expanduser().is_dir()
    except RuntimeError:  # ~, and the home folder is not known
        is_there = False
    if not is_there:
        absent = f"there is no folder {checkpoint} here"
        if checkpoint.startswith(("/", ".", "~")):
            raise click.ClickException(absent)
        click.echo(f"{absent}; it is taken for a model of the hub", err=True)
    require_training_packages()


def _print_written(written: WrittenBundle) -> None:
    manifest = written.manifest
    worst = ", ".join(f"{name} {difference:.1e}" for name, difference in written.parity.worst().items())
    cosines = ", ".join(f"{name} {cosine:.6f}" for name, cosine in written.fidelity.items())
    click.echo(f"{written.path}: {manifest.task}, {written.nbytes / 1e6:.1f} MB")
    click.echo(f"  storage           {manifest.precision.storage.linear}, computed in float32")
    click.echo(f"  longest input     {manifest.max_tokens} tokens")
    if manifest.task == "embedding":
        click.echo(f"  dimensions        {manifest.dimensions}, {manifest.pooling} pooling")
        click.echo(f"  prompts           {', '.join(manifest.prompts) or 'none'}")
    else:
        click.echo(f"  labels            {', '.join(manifest.labels)}")
    if manifest.label_activation:
        click.echo(f"  scores            {_scores(manifest)}")
    click.echo(f"  graph - PyTorch   {worst} ({len(written.parity.cases)} batches)")
    click.echo(f"  stored - original cosine at least {cosines}")


def _facts(checkpoint: Checkpoint, report: LoadReport) -> dict[str, Any]:
    config = checkpoint.config
    return {
        "checkpoint": checkpoint.name,
        "folder": str(checkpoint.path),
        "revision": checkpoint.revision,
        "family": checkpoint.family,
        "architecture": checkpoint.architecture,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "vocabulary": config.vocab_size,
        "parameters": report.parameters,
        "tensors_loaded": report.loaded,
        "stored_as": list(report.stored_types),
        "known_and_unused": list(report.unused),
        "longest_input": checkpoint.max_tokens,
        "pooling": checkpoint.pooling,
        "normalize": checkpoint.normalize,
        "prompts": list(checkpoint.prompts),
        "default_prompt": checkpoint.default_prompt_name,
        "task": checkpoint.task,
        "labels": list(checkpoint.labels),
        "label_activation": checkpoint.label_activation,
        "licence": checkpoint.licence,
        "languages": list(checkpoint.languages),
    }


def find_bundle(models_dir: Path, name: str) -> Path:
    """The bundle of that name, or else the folder at that path.

    Raises:
        click.ClickException: there is neither; says what is there.
    """
    for path in (models_dir / name, Path(name)):
        if path.is_dir():
            return path
    here = ", ".join(path.name for path in discover(models_dir))
    raise click.ClickException(f"no bundle {name} in {models_dir}, which has {here or 'none'}")


def _named_paths(pairs: Sequence[str]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for pair in pairs:
        name, separator, path = pair.partition("=")
        if not separator:
            raise click.UsageError(f"{pair!r} is not NAME=PATH")
        named[name] = Path(path)
    return named


def _load_all(models_dir: Path) -> tuple[list[Bundle], list[tuple[Path, str]]]:
    """Read every manifest; digests are left to `verify`, which says so."""
    found: list[Bundle] = []
    broken: list[tuple[Path, str]] = []
    for path in discover(models_dir):
        try:
            found.append(Bundle.load(path, verify_hashes=False))
        except BundleError as error:
            broken.append((path, str(error)))
    return found, broken


def _as_json(found: Sequence[Bundle], broken: Sequence[tuple[Path, str]]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = [
        {
            "path": str(bundle.path),
            "digest": bundle.digest,
            "bytes": _nbytes(bundle.manifest),
            **bundle.manifest.model_dump(mode="json", exclude={"files"}),
        }
        for bundle in found
    ]
    listed.extend({"path": str(path), "error": problem} for path, problem in broken)
    return listed


def _nbytes(manifest: Manifest) -> int:
    return sum(entry.size for entry in manifest.files.values())


def _row(bundle: Bundle) -> tuple[str, ...]:
    manifest = bundle.manifest
    return (
        manifest.name,
        manifest.task,
        _gives(manifest),
        ",".join(manifest.languages) or "-",
        manifest.licence,
        f"{_nbytes(manifest) / 1e6:.1f}",
        _quality(manifest.quality) or "not measured",
    )


def _gives(manifest: Manifest) -> str:
    match manifest.task:
        case "embedding":
            return f"{manifest.dimensions} dims"
        case "token-classification":
            return _entity_types(manifest.labels)
        case "sequence-classification":
            return ",".join(manifest.labels)


def _scores(manifest: Manifest) -> str:
    """What makes scores of a classifier's logits."""
    return {
        "softmax": "softmax over the labels",
        "sigmoid": "sigmoid of each label's logit",
        "none": "the logits as they are",
    }[manifest.label_activation or "none"]


def _entity_types(labels: Sequence[str]) -> str:
    """`PER,LOC` of `O, B-PER, I-PER, B-LOC, I-LOC`."""
    return ",".join(dict.fromkeys(label.rpartition("-")[2] for label in labels if label != "O"))


def _quality(quality: dict[str, Any]) -> str:
    """The first figure of each set; `--json` has the others, and how the model was trained."""
    figures = [(name, _first_figure(value)) for name, value in quality.items() if name != "training"]
    return "; ".join(f"{name} {figure}" for name, figure in figures if figure)


def _first_figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        for name, inner in value.items():
            if figure := _first_figure(inner):
                return f"{name} {figure}"
    return ""


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    header = ("NAME", "TASK", "GIVES", "LANGUAGES", "LICENCE", "MB", "QUALITY")
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
