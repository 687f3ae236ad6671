"""``conche faq ...``: the FAQ's collections, in the store that is set; a running service sees each change."""

import asyncio
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import orjson

from service.cli import process
from service.cli.options import EMBED_SETTINGS, NO_CLASSIFIERS, read_settings, settings_flags
from service.errors import EmptyInputError, ServiceError, UnknownEntryError
from service.faq.catalogue import FaqCatalogue, OnDuplicate
from service.faq.embedding import Progress
from service.faq.entry_files import FaqFileError, read_entries
from service.faq.evaluation import DEFAULT_PRECISION, Evaluation
from service.faq.filters import Filter
from service.faq.imports import WRITERS, BadLinesError, check_file, faults_by_line
from service.faq.live_indexes import LiveIndexes
from service.faq.migration import Migrated, Migration, Present
from service.faq.migration_check import check_records, check_searches
from service.faq.open_store import STORE_FILE, open_faq_store, open_place, searcher_of
from service.faq.queries import read_queries, unknown_ids
from service.faq.report import html_report
from service.faq.snapshots import delete_snapshot, list_snapshots, snapshot_path, write_snapshot
from service.faq.source_file import DEFAULT_COLLECTION
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import CollectionInfo, FaqStore, Write
from service.faq_schemas import filter_of_query
from service.lifespan import StartupError, open_services
from service.log_config import configure_logging
from service.metrics import Metrics
from service.settings import OFF, Settings

DATA_SETTINGS: Final = frozenset(
    (name,) for name in ("data_dir", "faq_store", "milvus_uri", "milvus_database", "milvus_prefix")
)
MODEL_SETTINGS: Final = EMBED_SETTINGS | DATA_SETTINGS

MIGRATION_SETTINGS: Final = frozenset(
    (name,) for name in ("milvus_database", "milvus_prefix", "milvus_timeout_seconds")
)

_ALL: Final = 2**31 - 1
_SEARCHES_CHECKED: Final = 50
_DIFFERENCES_SHOWN: Final = 20

_collection = click.option(
    "--collection",
    "-c",
    default=DEFAULT_COLLECTION,
    show_default=True,
    metavar="NAME",
    help="Which collection.",
)
_filter = click.option(
    "--filter", "filter_text", metavar="JSON", help='Only entries that match, such as {"field": "tags", ...}.'
)


@click.group()
def faq() -> None:
    """Manage the FAQ's collections."""


@faq.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a collection.")
@settings_flags(DATA_SETTINGS)
def list_(*, as_json: bool, **flags: str | None) -> None:
    """List the collections."""
    with _store(read_settings(flags)) as store:
        infos = store.collections()
    for info in infos:
        if as_json:
            _print_json(_facts(info))
            continue
        model = info.model_id or "no vectors yet"
        pending = ", reindexing" if info.pending_generation is not None else ""
        click.echo(f"{info.name}  {info.entries} entries, {model}{pending}, changed {info.updated_at}")
    if not infos:
        click.echo("no collections yet; `conche faq import` makes one", err=True)


@faq.command()
@_collection
@_filter
@settings_flags(DATA_SETTINGS)
def count(collection: str, filter_text: str | None, **flags: str | None) -> None:
    """Count entries, disabled ones included."""
    with _store(read_settings(flags)) as store:
        click.echo(store.count(collection, filter_of_query(filter_text)))


@faq.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_collection
@settings_flags(DATA_SETTINGS)
def get(ids: tuple[str, ...], collection: str, **flags: str | None) -> None:
    """Print the entry of each ID as a JSON line."""
    with _store(read_settings(flags)) as store:
        found = store.get(collection, ids)
        for entry in found.values():
            click.echo(entry.model_dump_json())
        _complain_about_missing(collection, [id_ for id_ in ids if id_ not in found])


@faq.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@_collection
@_filter
@click.option("--all", "everything", is_flag=True, help="The collection itself, with all of its entries.")
@settings_flags(DATA_SETTINGS)
def delete(
    ids: tuple[str, ...],
    collection: str,
    filter_text: str | None,
    *,
    everything: bool,
    **flags: str | None,
) -> None:
    """Delete the entry of each ID, or those that match a filter, or all."""
    if bool(ids) + (filter_text is not None) + everything != 1:
        raise click.UsageError("say either IDs, --filter or --all")
    with _store(read_settings(flags)) as store:
        if everything:
            deleted = store.info(collection).entries
            store.drop(collection)
        else:
            deleted = _delete(store, collection, ids, filter_of_query(filter_text))
    click.echo(f"{deleted} entries deleted")


@faq.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_collection
@click.option(
    "--on-duplicate",
    type=click.Choice(["replace", "skip", "error"]),
    default="replace",
    show_default=True,
    help="What becomes of an entry whose id is there.",
)
@click.option("--strict", is_flag=True, help="Take nothing of a file with a bad line.")
@settings_flags(MODEL_SETTINGS)
def import_(
    file: Path, collection: str, on_duplicate: OnDuplicate, *, strict: bool, **flags: str | None
) -> None:
    """Import a CSV, JSONL or XLSX FILE in one write; makes the collection if it is not there."""
    settings = read_settings({**flags, **NO_CLASSIFIERS, "ner_bundle": OFF})
    with _refusals():
        try:
            found = read_entries(file)
        except FaqFileError as error:
            named = error.message if error.message.startswith(file.name) else f"{file.name}: {error.message}"
            raise click.ClickException(named) from error
        if found.metadata_columns:
            click.echo(f"{file}: columns kept as metadata: {', '.join(found.metadata_columns)}", err=True)
        for bad in found.bad_lines:
            click.echo(f"{file}, {found.unit} {bad.number} is left out: {bad.reason}", err=True)
        try:
            check_file(found, strict=strict)
        except (BadLinesError, EmptyInputError) as error:
            count_ = len(found.bad_lines)
            reason = f"{count_} bad lines, see above" if count_ else error.message
            raise click.ClickException(f"nothing of {file} is taken: {reason}") from error

    async def work(catalogue: FaqCatalogue) -> None:
        with _progress(f"embedding {file.name}") as progress, faults_by_line(found):
            report = await catalogue.upsert(
                collection, found.entries, on_duplicate=on_duplicate, progress=progress
            )
        click.echo(
            f"{collection}: {report.added} added, {report.replaced} replaced, {report.unchanged} unchanged, "
            f"{len(report.skipped)} skipped, {len(found.bad_lines)} bad lines"
        )

    _with_catalogue(settings, work)


@faq.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_collection
@_filter
@settings_flags(DATA_SETTINGS)
def export(file: Path, collection: str, filter_text: str | None, **flags: str | None) -> None:
    """Export entries to FILE; its ending (.csv, .jsonl or .xlsx) says how."""
    writer = WRITERS.get(file.suffix.lower().removeprefix("."))
    if writer is None:
        raise click.UsageError(f"{file.name}: the ending is none of {', '.join(WRITERS)}")
    with _store(read_settings(flags)) as store:
        entries, _ = store.page(collection, limit=_ALL, filter=filter_of_query(filter_text))
        _write(file, writer[0](entries))
    click.echo(f"{len(entries)} entries in {file}")


@faq.command("eval")
@click.argument("queries", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_collection
@click.option(
    "--precision",
    type=click.FloatRange(0, 1, min_open=True),
    default=DEFAULT_PRECISION,
    show_default=True,
    help="Of the answers shown, the share to be right; a threshold is proposed for it.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("faq-eval.html"),
    show_default=True,
    help="Where to write the report.",
)
@click.option(
    "--json",
    "json_",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("faq-eval.json"),
    show_default=True,
    help="Where to write the figures.",
)
@settings_flags(MODEL_SETTINGS)
def evaluate(
    queries: Path, collection: str, precision: float, html: Path, json_: Path, **flags: str | None
) -> None:
    """Judge the search by labelled QUERIES: JSON lines {"query": text, "faq_id": id, ids or null}."""
    settings = read_settings({**flags, **NO_CLASSIFIERS, "ner_bundle": OFF})
    with _refusals():
        file = read_queries(queries.read_bytes())
    for bad in file.bad_lines:
        click.echo(f"{queries}, line {bad.number} is left out: {bad.reason}", err=True)

    async def work(catalogue: FaqCatalogue) -> None:
        try:
            evaluation = await catalogue.evaluate(collection, file.queries, wanted_precision=precision)
        except ServiceError as error:
            if error.param == "queries" and error.index is not None:
                error.call_item(f"{queries}, line {file.lines[error.index]}", index=None)
            raise
        labels = sorted({id_ for query in file.queries for id_ in query.faq_ids})
        missing = unknown_ids(file.queries, catalogue.store.get(collection, labels))
        title = f"{collection}, {catalogue.model_id}, {queries.name}"
        _write(html, html_report(evaluation, title=title, unknown_ids=missing).encode())
        record = evaluation.as_dict() | {"unknown_ids": missing}
        _write(json_, orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n")
        _print_evaluation(evaluation)
        if missing:
            named = ", ".join(missing[:10])
            click.echo(f"{len(missing)} labels name no entry of {collection}: {named}", err=True)
        click.echo(f"report: {html}, figures: {json_}")

    _with_catalogue(settings, work)


@faq.command()
@click.argument("collection", default=DEFAULT_COLLECTION, metavar="[NAME]")
@settings_flags(MODEL_SETTINGS)
def reindex(collection: str, **flags: str | None) -> None:
    """Embed collection NAME anew with the model that is set; searches go on meanwhile."""
    settings = read_settings({**flags, **NO_CLASSIFIERS, "ner_bundle": OFF})

    async def work(catalogue: FaqCatalogue) -> None:
        with _progress("embedding") as progress:
            await catalogue.reindex(collection, progress)
        click.echo(f"{collection}: embedded by {catalogue.model_id}")

    _with_catalogue(settings, work)


@faq.command()
@click.argument("name", required=False)
@settings_flags(DATA_SETTINGS | {("limits", "max_snapshots")})
def snapshot(name: str | None, **flags: str | None) -> None:
    """Write all collections to the file NAME in the data folder's `snapshots`, in use or not."""
    settings = read_settings(flags)
    with _store(settings) as store:
        written = write_snapshot(store, settings.data_path(), name, most=settings.limits.max_snapshots)
    click.echo(written.path)


@faq.command()
@click.option("--delete", "doomed", multiple=True, metavar="NAME", help="Delete it; may be repeated.")
@settings_flags(DATA_SETTINGS)
def snapshots(doomed: tuple[str, ...], **flags: str | None) -> None:
    """List the snapshots, oldest first, or delete some."""
    data_dir = read_settings(flags).data_path()
    with _refusals():
        for name in doomed:
            delete_snapshot(data_dir, name)
            click.echo(f"{name}: deleted")
        if not doomed:
            for found in list_snapshots(data_dir):
                click.echo(f"{found.name}  {found.created_at}  {found.size / 1e6:.1f} MB")


@faq.command()
@click.argument("snapshot")
@click.option("--yes", is_flag=True, help="Do not ask.")
@settings_flags(DATA_SETTINGS)
def restore(snapshot: str, *, yes: bool, **flags: str | None) -> None:
    """Replace all collections by those of a snapshot, in one step, in use or not.

    SNAPSHOT is a name as `conche faq snapshots` lists it, or a path.
    """
    settings = read_settings(flags)
    if settings.faq_store == "milvus":
        raise click.ClickException(
            "a snapshot replaces the embedded store's file, and CONCHE_FAQ_STORE is milvus; restore it with "
            "--faq-store embedded, and copy it with `conche faq migrate`"
        )
    path = settings.data_path() / STORE_FILE
    with _refusals():
        file = Path(snapshot) if Path(snapshot).is_file() else snapshot_path(settings.data_path(), snapshot)
    if not file.is_file():
        raise click.ClickException(f"there is no snapshot {snapshot}; `conche faq snapshots` lists them")
    if not yes:
        question = f"All collections in {path} are replaced (--yes does not ask). Go on?"
        click.confirm(question, abort=True, err=True)
    with _refusals():
        path.parent.mkdir(parents=True, exist_ok=True)
        SqliteFaqStore.restore(file, path)
    click.echo(f"{path} holds what {file} held")


@faq.command()
@click.option("--from", "source", required=True, metavar="PLACE", help="Where the collections are.")
@click.option("--to", "target", required=True, metavar="PLACE", help="Where they are to be.")
@click.option("--collection", "-c", "names", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@click.option("--resume", is_flag=True, help="Go on with what an interrupted migration left in the target.")
@click.option("--replace", is_flag=True, help="Delete what the target has of these collections first.")
@click.option(
    "--check",
    "sample",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Entries to be compared afterwards, with their vectors.",
)
@click.option("--seed", type=int, default=None, help="Chooses the same entries each time.")
@settings_flags(MIGRATION_SETTINGS)
def migrate(
    source: str,
    target: str,
    names: tuple[str, ...],
    *,
    resume: bool,
    replace: bool,
    sample: int,
    seed: int | None,
    **flags: str | None,
) -> None:
    """Copy collections with their vectors to another store, and check the copy.

    A PLACE is a data folder, or milvus://host:port. Nothing is embedded, and the source may be written to
    meanwhile: what changed is copied afterwards. Switch writers over when it is done.
    """
    if resume and replace:
        raise click.UsageError("say either --resume or --replace")
    settings = read_settings(flags)
    present: Present = "resume" if resume else "replace" if replace else "refuse"
    with ExitStack() as stack:
        stack.enter_context(_refusals())
        old = stack.enter_context(closing(open_place(source, settings, make=False)))
        new = stack.enter_context(closing(open_place(target, settings, make=True)))
        chance = random.Random(seed)  # noqa: S311 - a sample, not a secret
        migration = Migration(old, new, chance=chance, sample=sample)
        failed = False
        names = names or tuple(info.name for info in old.collections())
        for name in names:
            with _progress(name) as progress:
                done = migration.copy(name, present=present, progress=progress)
            click.echo(
                f"{name}: {done.copied} entries copied, {done.kept} were there, {done.deleted} deleted"
            )
            failed |= not _same_as_before(old, new, done)
        if not names:
            click.echo("no collections to copy", err=True)
    if failed:
        raise click.ClickException("the copy is not what it was made from, see above")


def _same_as_before(source: FaqStore, target: FaqStore, done: Migrated) -> bool:
    """Compare the copy of a collection with it; say what was compared and what differs."""
    checks = [check_records(source, target, done.name, done.sample)]
    fingerprint = source.info(done.name).fingerprint
    if fingerprint is not None:
        searchers = [
            (searcher_of(store) or partial(LiveIndexes, store))(fingerprint=fingerprint, model_id="")
            for store in (source, target)
        ]
        some = source.get(done.name, done.sample[:_SEARCHES_CHECKED]).values()
        asked = [entry for entry in some if entry.enabled]
        checks.append(asyncio.run(check_searches(searchers[0], searchers[1], source, done.name, asked)))
    for check in checks:
        for line in check.lines:
            click.echo(f"  checked {line}")
    differences = [difference for check in checks for difference in check.differences]
    for difference in differences[:_DIFFERENCES_SHOWN]:
        click.echo(f"  DIFFERS {difference}", err=True)
    if len(differences) > _DIFFERENCES_SHOWN:
        click.echo(f"  and {len(differences) - _DIFFERENCES_SHOWN} more", err=True)
    if differences and source.revision(done.name) != done.revision:
        click.echo("  the source is being written to; run it again with --resume", err=True)
    return not differences


@contextmanager
def _refusals() -> Iterator[None]:
    """Errors of the service and of the disk, in words of the command line."""
    try:
        yield
    except ServiceError as error:
        raise click.ClickException(error.message) from error
    except StartupError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or ''}: {error.strerror}".removeprefix(": ")) from error


@contextmanager
def _store(settings: Settings) -> Iterator[FaqStore]:
    """The store that is set, without any model."""
    folder = settings.data_path()
    if settings.faq_store != "milvus" and not (folder / STORE_FILE).exists():
        raise click.ClickException(f"there is no FAQ in {folder}; CONCHE_DATA_DIR says where to look")
    with _refusals(), closing(open_faq_store(settings, folder)) as store:
        yield store


def _with_catalogue(settings: Settings, work: Callable[[FaqCatalogue], Awaitable[None]]) -> None:
    """Do ``work`` with the model and the store that are set; as large a write as it takes."""
    configure_logging("warning", "text")

    async def run() -> None:
        # Without the FAQ's file: what is asked for is done, and nothing else.
        async with open_services(settings.model_copy(update={"faq_store": OFF}), Metrics()) as services:
            if services.embedder is None:
                raise services.absence("/embed")
            settings.data_path().mkdir(parents=True, exist_ok=True)
            store = await asyncio.to_thread(open_faq_store, settings, settings.data_path())
            catalogue = FaqCatalogue(
                store,
                services.embedder,
                calibrations=settings.data_path() / "calibrations",
                searcher=searcher_of(store),
            )
            try:
                await work(catalogue)
            finally:
                await catalogue.close()

    try:
        with _refusals():
            asyncio.run(run())
    except KeyboardInterrupt:
        process.leave(128 + signal.SIGINT)


@contextmanager
def _progress(label: str) -> Iterator[Progress]:
    """A bar on standard error, from the first call on; elsewhere than on a terminal its label alone."""
    bar: Any = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = click.progressbar(length=total, label=label, file=sys.stderr)
            bar.render_progress()
        bar.length = total
        bar.update(done - bar.pos)

    try:
        yield show
    finally:
        if bar is not None:
            bar.render_finish()


def _delete(store: FaqStore, collection: str, ids: tuple[str, ...], filter_: Filter | None) -> int:
    if filter_ is None:
        found = store.get(collection, ids)
        _complain_about_missing(collection, [id_ for id_ in ids if id_ not in found])
        store.apply(collection, Write(deletes=tuple(found)))
        return len(found)
    entries, _ = store.page(collection, limit=_ALL, filter=filter_)
    # What matched must still match when it goes.
    store.apply(collection, Write(deletes=tuple(entry.id for entry in entries), unchanged=tuple(entries)))
    return len(entries)


def _complain_about_missing(collection: str, missing: list[str]) -> None:
    if missing:
        raise UnknownEntryError(f"collection {collection} has no entry {', '.join(map(repr, missing))}")


def _facts(info: CollectionInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "entries": info.entries,
        "model": info.model_id,
        "default_answer": info.default_answer,
        "min_score": info.min_score,
        "revision": info.revision,
        "updated_at": info.updated_at,
    }


def _print_json(record: dict[str, Any]) -> None:
    click.echo(orjson.dumps(record).decode())


def _print_evaluation(evaluation: Evaluation) -> None:
    click.echo(f"{evaluation.queries} queries, {evaluation.answerable} of them answerable")
    click.echo("mode      accuracy@1   hit@5  MRR@10  nDCG@10")
    for mode, found in evaluation.modes.items():
        figures = (found.accuracy_at_1, found.hit_at_5, found.mrr_at_10, found.ndcg_at_10)
        columns = zip(figures, (12, 8, 8, 9), strict=True)
        click.echo(f"{mode:<8}" + "".join(f"{figure:>{width}.3f}" for figure, width in columns))
    if evaluation.proposed is None:
        click.echo(f"no threshold reaches a precision of {evaluation.wanted_precision:g}")
    else:
        point = evaluation.proposed
        click.echo(
            f"min_score {point.threshold:.3f} gives precision {point.precision:.3f} "
            f"and recall {point.recall:.3f}"
        )
    click.echo(f"{len(evaluation.failures)} queries fail at {evaluation.threshold:.3f}")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
