"""``/faq``: collections of entries, written, read, imported, exported and judged."""

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Body, Depends, Path, Query, Request, Response

from service.admission import AnswerTooLargeError
from service.dependencies import CatalogueDep, LimitsDep, SettingsDep, TeamDep, get_catalogue
from service.errors import (
    ConflictError,
    DuplicateEntryError,
    EntryChangedError,
    InputTooLongError,
    InvalidFilterError,
    ModelMismatchError,
    ServiceError,
    UnknownCollectionError,
    UnknownEntryError,
)
from service.faq.catalogue import WriteReport
from service.faq.entries import MAX_ID_CHARS, FaqEntry, FilledText
from service.faq.entry_files import FaqFileError
from service.faq.imports import READERS, WRITERS, XLSX_TYPE, BadLinesError, check_file, faults_by_line
from service.faq.queries import unknown_ids
from service.faq.report import html_report
from service.faq.snapshots import (
    Snapshot,
    SnapshotExistsError,
    TooManySnapshotsError,
    UnknownSnapshotError,
    delete_snapshot,
    list_snapshots,
    write_snapshot,
)
from service.faq.store import CollectionInfo
from service.faq_schemas import (
    COLLECTION_EXAMPLES,
    CSV_EXAMPLE,
    DELETE_EXAMPLES,
    ENTRIES_EXAMPLES,
    ENTRY_EXAMPLES,
    EVALUATE_EXAMPLES,
    JSONL_EXAMPLE,
    MAX_PAGE,
    ON_DUPLICATE_MEANING,
    PATCH_EXAMPLES,
    SNAPSHOT_EXAMPLES,
    CollectionBody,
    CollectionRequest,
    CollectionsResponse,
    CountResponse,
    DeletedResponse,
    DeleteRequest,
    EntriesRequest,
    EntriesResponse,
    EntryBody,
    EntryIn,
    EntryPatch,
    EvaluateRequest,
    ImportResponse,
    OnDuplicate,
    ReindexResponse,
    SnapshotRequest,
    SnapshotResponse,
    SnapshotsResponse,
    WriteResponse,
    entry_in_its_place,
    filter_of_query,
)
from service.http_errors import FAQ_ERRORS, FAQ_WRITE_ERRORS, UnsupportedMediaTypeError, documented
from service.json_body import StrictJsonRoute
from service.team import REINDEX, Team

router = APIRouter(route_class=StrictJsonRoute, tags=["faq"])

Collection = Annotated[
    str,
    Path(description="1 to 64 of a-z, 0-9, _ and -, beginning with a letter or digit.", examples=["shop"]),
]
EntryId = Annotated[
    FilledText, Path(max_length=MAX_ID_CHARS, description="As in the entry.", examples=["invoice"])
]
FilterText = Annotated[
    str | None,
    Query(
        alias="filter",
        description='A filter in JSON, such as `{"field": "tags", "equals": "billing"}`.',
    ),
]
OnDuplicateQuery = Annotated[OnDuplicate, Query(description=ON_DUPLICATE_MEANING)]

# A whole collection at once: one reading of the store is the state of one moment, several are not.
_ALL = 2**31 - 1

READ = documented(UnknownCollectionError, *FAQ_ERRORS)
READ_ENTRY = documented(UnknownCollectionError, UnknownEntryError, *FAQ_ERRORS)
LISTED = documented(UnknownCollectionError, InvalidFilterError, *FAQ_ERRORS)
PAGED = documented(UnknownCollectionError, InvalidFilterError, AnswerTooLargeError, *FAQ_ERRORS)
REMOVED = documented(UnknownCollectionError, *FAQ_WRITE_ERRORS)
REMOVED_ENTRY = documented(UnknownCollectionError, UnknownEntryError, *FAQ_WRITE_ERRORS)
REMOVED_LISTED = documented(UnknownCollectionError, InvalidFilterError, EntryChangedError, *FAQ_WRITE_ERRORS)
_WRITE_ERRORS: tuple[type[ServiceError], ...] = (
    DuplicateEntryError,
    EntryChangedError,
    ModelMismatchError,
    *FAQ_WRITE_ERRORS,
)
WRITTEN = documented(*_WRITE_ERRORS)
CHANGED = documented(UnknownCollectionError, UnknownEntryError, *_WRITE_ERRORS)
IMPORTED = documented(FaqFileError, BadLinesError, *_WRITE_ERRORS)


@router.get("/faq", response_model=CollectionsResponse, responses=documented(*FAQ_ERRORS))
async def list_collections(catalogue: CatalogueDep) -> CollectionsResponse:
    """List the collections."""
    return CollectionsResponse(collections=[_collection(info) for info in await catalogue.collections()])


@router.put("/faq/{collection}", responses=documented(*FAQ_WRITE_ERRORS))
async def put_collection(
    collection: Collection,
    body: Annotated[CollectionRequest, Body(openapi_examples=COLLECTION_EXAMPLES)],
    catalogue: CatalogueDep,
) -> CollectionBody:
    """Make a collection, or change the settings of one that is there; its entries stay."""
    return _collection(
        await catalogue.configure(
            collection, default_answer=body.default_answer, min_score=body.min_score, create=True
        )
    )


@router.get("/faq/{collection}", responses=READ)
async def get_collection(collection: Collection, catalogue: CatalogueDep) -> CollectionBody:
    """Describe a collection."""
    return _collection(await catalogue.info(collection))


@router.delete("/faq/{collection}", responses=REMOVED)
async def delete_collection(collection: Collection, catalogue: CatalogueDep) -> DeletedResponse:
    """Remove a collection with all of its entries."""
    entries = (await catalogue.info(collection)).entries
    await catalogue.drop(collection)
    return DeletedResponse(deleted=entries)


@router.post("/faq/{collection}/entries", responses=WRITTEN)
async def post_entries(
    collection: Collection,
    body: Annotated[EntriesRequest, Body(openapi_examples=ENTRIES_EXAMPLES)],
    catalogue: CatalogueDep,
) -> WriteResponse:
    """Add or replace entries, all of them or none; the collection is made if it is not there.

    When the answer comes, they are on the disk and every search finds them.
    """
    report = await catalogue.upsert(collection, body.entries, on_duplicate=body.on_duplicate)
    return WriteResponse(**_report(report))


@router.get("/faq/{collection}/entries", response_model=EntriesResponse, responses=PAGED)
async def list_entries(
    collection: Collection,
    catalogue: CatalogueDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Entries of one page, at most.")] = 100,
    after: Annotated[str | None, Query(description="`next` of the page before.")] = None,
    filter_text: FilterText = None,
    *,
    settings: SettingsDep,
) -> Response:
    """List entries, in the order in which they were first added, a page at a time."""
    entries, following = await catalogue.page(
        collection, after=after, limit=limit, filter_=filter_of_query(filter_text)
    )
    return await _json_with_entries(entries, following, settings.limits.max_answer_bytes)


@router.get("/faq/{collection}/entries/{entry_id:path}", response_model=EntryBody, responses=READ_ENTRY)
async def get_entry(collection: Collection, entry_id: EntryId, catalogue: CatalogueDep) -> Response:
    """Read an entry."""
    return _json(_entry(await catalogue.get(collection, entry_id)))


@router.put("/faq/{collection}/entries/{entry_id:path}", responses=WRITTEN)
async def put_entry(
    collection: Collection,
    entry_id: EntryId,
    body: Annotated[EntryIn, Body(openapi_examples=ENTRY_EXAMPLES)],
    catalogue: CatalogueDep,
) -> WriteResponse:
    """Add an entry, or replace all of it; the collection is made if it is not there."""
    return WriteResponse(**_report(await catalogue.upsert(collection, [entry_in_its_place(body, entry_id)])))


@router.patch("/faq/{collection}/entries/{entry_id:path}", response_model=EntryBody, responses=CHANGED)
async def patch_entry(
    collection: Collection,
    entry_id: EntryId,
    body: Annotated[EntryPatch, Body(openapi_examples=PATCH_EXAMPLES)],
    catalogue: CatalogueDep,
) -> Response:
    """Change some fields of an entry; the answer is the entry as it is then."""
    return _json(_entry(await catalogue.patch(collection, entry_id, body.changes())))


@router.delete("/faq/{collection}/entries/{entry_id:path}", responses=REMOVED_ENTRY)
async def delete_entry(collection: Collection, entry_id: EntryId, catalogue: CatalogueDep) -> DeletedResponse:
    """Delete an entry; no search finds it from now on."""
    await catalogue.get(collection, entry_id)  # says so if it is not there
    return DeletedResponse(deleted=await catalogue.delete(collection, ids=[entry_id]))


@router.post("/faq/{collection}/delete", responses=REMOVED_LISTED)
async def delete_entries(
    collection: Collection,
    body: Annotated[DeleteRequest, Body(openapi_examples=DELETE_EXAMPLES)],
    catalogue: CatalogueDep,
) -> DeletedResponse:
    """Delete entries by id or by filter, all of them at once."""
    deleted = await catalogue.delete(collection, ids=body.ids or (), filter_=body.parsed_filter())
    return DeletedResponse(deleted=deleted)


@router.get("/faq/{collection}/count", responses=LISTED)
async def count_entries(
    collection: Collection, catalogue: CatalogueDep, filter_text: FilterText = None
) -> CountResponse:
    """Count entries; disabled ones count."""
    return CountResponse(count=await catalogue.count(collection, filter_of_query(filter_text)))


_FILE = {
    "requestBody": {
        "required": True,
        "description": "The file's bytes; text in UTF-8, with or without a byte-order mark.",
        "content": {
            "text/csv": {"schema": {"type": "string"}, "examples": {"table": {"value": CSV_EXAMPLE}}},
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "examples": {"an entry a line": {"value": JSONL_EXAMPLE}},
            },
            XLSX_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post(
    "/faq/{collection}/import", response_model=ImportResponse, responses=IMPORTED, openapi_extra=_FILE
)
async def import_file(
    collection: Collection,
    request: Request,
    catalogue: CatalogueDep,
    on_duplicate: OnDuplicateQuery = "replace",
    *,
    strict: Annotated[
        bool, Query(description="Take nothing of a file with a bad line, instead of leaving that line out.")
    ] = False,
) -> Response:
    """Import a CSV, JSONL or XLSX file in one write: all of its good lines, or on any failure none.

    A table has a header with `question` and `answer`, and optionally `id`, `alternates`, `tags` (several in
    one cell parted by a bar), `language`, `enabled` and `metadata`; any other column becomes metadata: text
    in a CSV, of the cell's type in a workbook, and in both numbers or flags if its name says so
    (`price:number`, `in_stock:boolean`). Every line that was left out is reported with its number and the
    reason.
    """
    read = READERS[_file_type(request)]
    file = await asyncio.to_thread(read, await request.body())
    check_file(file, strict=strict)
    with faults_by_line(file):
        report = await catalogue.upsert(collection, file.entries, on_duplicate=on_duplicate)
    answer = _report(report) | {
        "bad_lines": [{"line": bad.number, "reason": bad.reason} for bad in file.bad_lines],
        "metadata_columns": list(file.metadata_columns),
    }
    return _json(await asyncio.to_thread(orjson.dumps, answer))


@router.get("/faq/{collection}/export", response_class=Response, responses=LISTED)
async def export_file(
    collection: Collection,
    catalogue: CatalogueDep,
    format: Annotated[Literal["csv", "jsonl", "xlsx"], Query()] = "csv",
    filter_text: FilterText = None,
) -> Response:
    """Export entries as a file that an import reads back the same."""
    entries, _ = await catalogue.page(
        collection, after=None, limit=_ALL, filter_=filter_of_query(filter_text)
    )
    write, media_type = WRITERS[format]
    return Response(
        await asyncio.to_thread(write, entries),
        media_type=media_type,
        headers={"content-disposition": f'attachment; filename="{collection}.{format}"'},
    )


@router.post(
    "/faq/{collection}/evaluate",
    response_model=dict[str, Any],
    responses={
        **documented(UnknownCollectionError, ModelMismatchError, InputTooLongError, *FAQ_ERRORS),
        200: {"content": {"text/html": {"schema": {"type": "string"}}}},
    },
)
async def evaluate(
    collection: Collection,
    body: Annotated[EvaluateRequest, Body(openapi_examples=EVALUATE_EXAMPLES)],
    catalogue: CatalogueDep,
    limits: LimitsDep,
    format: Annotated[Literal["json", "html"], Query(description="Figures, or a page with plots.")] = "json",
) -> Response:
    """Judge the search of a collection by labelled queries.

    Accuracy at 1, hit at 5, MRR and nDCG for the search as it is, by meaning alone and by words alone; how
    well confidence tells right answers from others; the threshold to take for `min_score` to reach the
    precision wanted; and every query that fails at it.
    """
    limits.admit([query.query for query in body.queries], param="queries", needed=True)
    evaluation = await catalogue.evaluate(collection, body.queries, wanted_precision=body.wanted_precision)
    labels = {identifier for query in body.queries for identifier in query.faq_ids}
    known = await asyncio.to_thread(catalogue.store.get, collection, sorted(labels))
    missing = unknown_ids(body.queries, known)
    if format == "html":
        title = f"{collection}, {catalogue.model_id}"
        return Response(
            await asyncio.to_thread(html_report, evaluation, title=title, unknown_ids=missing),
            media_type="text/html",
            headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"},
        )
    answer = evaluation.as_dict() | {"unknown_ids": missing}
    return _json(await asyncio.to_thread(orjson.dumps, answer, option=orjson.OPT_SERIALIZE_NUMPY))


@router.post(
    "/faq/{collection}/reindex",
    status_code=202,
    responses=documented(UnknownCollectionError, ConflictError, *FAQ_WRITE_ERRORS),
)
async def start_reindex(collection: Collection, catalogue: CatalogueDep, team: TeamDep) -> ReindexResponse:
    """Begin to embed a collection anew with the server's model, in the background.

    Searches go on with the old vectors, if the server's model made them, until the new ones take their place
    in one step. GET tells how far it is.
    """
    await catalogue.info(collection)
    latest = await _latest_reindex(team, collection)
    if latest.state == "running":  # maybe in another worker
        return latest
    here = catalogue.start_reindex(collection)
    latest = await _latest_reindex(team, collection)
    if here or latest.state == "running":
        return latest
    # A command or another service is at it, which nobody here can ask how far it is.
    return ReindexResponse(state="running", done=0, total=0, error=None)


@router.get("/faq/{collection}/reindex", responses=READ)
async def get_reindex(collection: Collection, catalogue: CatalogueDep, team: TeamDep) -> ReindexResponse:
    """Tell how far the latest reindex is."""
    await catalogue.info(collection)
    return await _latest_reindex(team, collection)


@router.post(
    "/snapshots", responses=documented(SnapshotExistsError, TooManySnapshotsError, *FAQ_WRITE_ERRORS)
)
async def snapshot(
    body: Annotated[SnapshotRequest, Body(openapi_examples=SNAPSHOT_EXAMPLES)],
    catalogue: CatalogueDep,
    settings: SettingsDep,
) -> SnapshotResponse:
    """Write all collections, as of one moment, to a file below the server's data folder."""
    written = await asyncio.to_thread(
        write_snapshot,
        catalogue.store,
        settings.data_path(),
        body.name,
        most=settings.limits.max_snapshots,
    )
    return _snapshot(written)


# Not below /faq, where a collection may be called `snapshots`.
@router.get("/snapshots", dependencies=[Depends(get_catalogue)], responses=documented(*FAQ_ERRORS))
async def get_snapshots(settings: SettingsDep) -> SnapshotsResponse:
    """List the snapshots, oldest first."""
    found = await asyncio.to_thread(list_snapshots, settings.data_path())
    return SnapshotsResponse(
        snapshots=[_snapshot(snapshot) for snapshot in found], limit=settings.limits.max_snapshots
    )


@router.delete(
    "/snapshots/{name}",
    dependencies=[Depends(get_catalogue)],
    responses=documented(UnknownSnapshotError, *FAQ_WRITE_ERRORS),
)
async def remove_snapshot(
    name: Annotated[str, Path(description="As listed.", examples=["before-import"])], settings: SettingsDep
) -> DeletedResponse:
    """Delete a snapshot."""
    await asyncio.to_thread(delete_snapshot, settings.data_path(), name)
    return DeletedResponse(deleted=1)


def _file_type(request: Request) -> str:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    if media_type not in READERS:
        raise UnsupportedMediaTypeError(
            f"send the file's bytes with the header content-type: one of {', '.join(READERS)}"
        )
    charset = parameters.lower().replace('"', "").replace(" ", "").partition("charset=")[2].partition(";")[0]
    if charset not in {"", "utf-8", "utf8", "us-ascii"}:
        raise UnsupportedMediaTypeError("only UTF-8 is read; save the file as UTF-8")
    return media_type


def _collection(info: CollectionInfo) -> CollectionBody:
    return CollectionBody(
        name=info.name,
        entries=info.entries,
        default_answer=info.default_answer,
        min_score=info.min_score,
        model=info.model_id,
        dimensions=info.dimensions,
        revision=info.revision,
        created_at=info.created_at,
        updated_at=info.updated_at,
        reindexing=info.pending_generation is not None,
    )


def _snapshot(snapshot: Snapshot) -> SnapshotResponse:
    return SnapshotResponse(
        name=snapshot.name, file=snapshot.path.name, bytes=snapshot.size, created_at=snapshot.created_at
    )


def _report(report: WriteReport) -> dict[str, Any]:
    """As ``WriteResponse``."""
    return {
        "revision": report.revision,
        "added": report.added,
        "replaced": report.replaced,
        "unchanged": report.unchanged,
        "skipped": list(report.skipped),
    }


async def _latest_reindex(team: Team, collection: str) -> ReindexResponse:
    """Of those that any worker began."""
    gathered = await team.gather(REINDEX, collection)
    known = [status for status in gathered.answers.values() if status is not None]
    if not known:
        return ReindexResponse(state="none", done=0, total=0, error=None)
    latest = max(known, key=lambda status: (status["state"] == "running", status["began_at"]))
    return ReindexResponse(**{name: latest[name] for name in ("state", "done", "total", "error")})


def _entry(entry: FaqEntry) -> bytes:
    """As ``EntryBody``."""
    return entry.model_dump_json().encode()


async def _json_with_entries(entries: Iterable[FaqEntry], following: str | None, max_bytes: int) -> Response:
    def encode() -> bytes:
        listed: list[bytes] = []
        size = 0
        for entry in entries:
            listed.append(_entry(entry))
            size += len(listed[-1])
            if size > max_bytes:
                raise AnswerTooLargeError(max_bytes)
        return b'{"entries":[' + b",".join(listed) + b'],"next":' + orjson.dumps(following) + b"}"

    return _json(await asyncio.to_thread(encode))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
