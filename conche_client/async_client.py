"""`AsyncClient`: the calls of `Client`, to be awaited."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

import httpx

from conche_client import operations as ops
from conche_client.exchange import DEFAULT_URL, Answer, Attempts, Plan, Request, connection
from conche_client.results import (
    CollectionInfo,
    Embeddings,
    Entities,
    Entry,
    EntryPage,
    Evaluation,
    Health,
    Model,
    Predictions,
    Ranking,
    Reindexing,
    SearchResults,
    ServerInfo,
    Similarities,
    WriteReport,
)
from conche_client.retries import Retries

Result = TypeVar("Result")
_DEFAULT_RETRIES: Final = Retries()


class AsyncClient:
    """A server, called from one event loop; close it, or use it in ``async with``.

    Every call raises `ConcheError`. A misspelt option is a TypeError, before anything is sent.

    Args:
        url: of the server; a path in it goes before every route.
        api_key: sent as ``Authorization: Bearer``.
        timeout_s: for connecting, and for each part of an answer to come.
        retries: what is sent again, and when; ``Retries(most=0)`` for nothing.
        batch_size: texts or entries of one request, at most; the server's limit is 2,048 if it is not set
            otherwise.
        headers: sent with every request.
        transport: of httpx; for tests, or for a proxy of one's own.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retries: Retries = _DEFAULT_RETRIES,
        batch_size: int = ops.MOST_ITEMS,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        arguments = connection(
            url, api_key=api_key, timeout_s=timeout_s, headers=headers, batch_size=batch_size
        )
        self._http = httpx.AsyncClient(transport=transport, **arguments)
        self._retries = retries
        self._batch_size = batch_size

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def embed(self, texts: str | Sequence[str], **options: Unpack[ops.EmbedOptions]) -> Embeddings:
        """Embed each text as one vector."""
        return await self.run(ops.embed(texts, self._batch_size, options))

    async def search(
        self, queries: str | Sequence[str], **options: Unpack[ops.SearchOptions]
    ) -> SearchResults:
        """Find the FAQ entries that answer each query."""
        return await self.run(ops.search(queries, self._batch_size, options))

    async def ner(self, texts: str | Sequence[str], **options: Unpack[ops.NerOptions]) -> Entities:
        """Find the named entities of each text."""
        return await self.run(ops.ner(texts, self._batch_size, options))

    async def predict(
        self, items: str | Sequence[ops.TextOrPair], **options: Unpack[ops.PredictOptions]
    ) -> Predictions:
        """Label each text, or each pair of texts, a tuple of two that are read together.

        Two texts in a list are two texts here, not a pair as the route has it.
        """
        return await self.run(ops.predict(items, self._batch_size, options))

    async def classify(
        self, texts: str | Sequence[str], **options: Unpack[ops.ClassifyOptions]
    ) -> Predictions:
        """Label each text."""
        return await self.run(ops.classify(texts, self._batch_size, options))

    async def rerank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        raw_scores: bool = False,
        **options: Unpack[ops.CompareOptions],
    ) -> Ranking:
        """Put texts in order for a query; scores lie within 0 and 1 unless ``raw_scores``."""
        return await self.run(ops.rerank(query, texts, self._batch_size, options, raw_scores=raw_scores))

    async def similarity(
        self, source: str, sentences: Sequence[str], **options: Unpack[ops.SimilarityOptions]
    ) -> Similarities:
        """Compare a sentence with others: cosines."""
        return await self.run(ops.similarity(source, sentences, self._batch_size, options))

    async def info(self) -> ServerInfo:
        """Describe the server and its limits."""
        return await self.run(ops.info())

    async def health(self) -> Health:
        """Say whether requests would be served; one that is not ready is an answer, not an error."""
        return await self.run(ops.health())

    async def models(self) -> list[Model]:
        """List the models that ``model`` can name."""
        return await self.run(ops.models())

    async def collections(self) -> list[CollectionInfo]:
        """List the FAQ collections."""
        return await self.run(ops.collections())

    def faq(self, collection: str = "default") -> "AsyncCollection":
        """Give access to a collection; nothing is sent, it may be yet to be made."""
        return AsyncCollection(self, collection, batch_size=self._batch_size)

    async def run(self, plan: Plan[Result]) -> Result:
        """Send a plan's requests one after the other, and put their answers together."""
        return plan.result([await self._send(request) for request in plan.requests])

    async def _send(self, request: Request) -> Answer:
        attempts = Attempts(request, self._retries)
        arguments: dict[str, Any] = request.arguments()
        while True:
            try:
                response = await self._http.request(**arguments)
            except httpx.RequestError as error:
                wait_s: float | None = attempts.judge_failure(error)
            else:
                answer = Answer(response.status_code, response.headers, response.content)
                wait_s = attempts.judge(answer)
                if wait_s is None:
                    return answer
            await asyncio.sleep(wait_s or 0.0)


class AsyncCollection:
    """A FAQ collection of a server; made by `AsyncClient.faq`."""

    def __init__(self, client: AsyncClient, name: str, *, batch_size: int) -> None:
        self.name = name
        self._client = client
        self._batch_size = batch_size

    async def info(self) -> CollectionInfo:
        """Describe it."""
        return await self._client.run(ops.collection_info(self.name))

    async def configure(
        self, *, default_answer: str | None = None, min_score: float | None = None
    ) -> CollectionInfo:
        """Make it if it is not there, and set these; what is None is taken away."""
        return await self._client.run(
            ops.configure(self.name, default_answer=default_answer, min_score=min_score)
        )

    async def drop(self) -> int:
        """Remove it with its entries; return how many there were."""
        return await self._client.run(ops.drop(self.name))

    async def upsert(
        self,
        entries: Sequence[Entry | Mapping[str, object]],
        *,
        on_duplicate: ops.OnDuplicate = "replace",
    ) -> WriteReport:
        """Add or replace entries; when it returns, searches find them.

        Up to ``batch_size`` of them are written together or not at all; more are several such writes.
        """
        return await self._client.run(ops.upsert(self.name, entries, self._batch_size, on_duplicate))

    async def get(self, id: str) -> Entry:
        """Read an entry; NotFoundError if it is not there."""
        return await self._client.run(ops.get_entry(self.name, id))

    async def patch(self, id: str, **changes: Unpack[ops.EntryChanges]) -> Entry:
        """Change fields of an entry, and return it as it is then."""
        return await self._client.run(ops.patch_entry(self.name, id, changes))

    async def delete(self, id: str) -> None:
        """Delete an entry; NotFoundError if it is not there."""
        await self._client.run(ops.delete_entry(self.name, id))

    async def delete_many(self, *, ids: Sequence[str] | None = None, filter: ops.Filter | None = None) -> int:
        """Delete entries by id or by filter; return how many were there."""
        return await self._client.run(ops.delete_entries(self.name, ids, filter, self._batch_size))

    async def page(
        self, *, limit: int = 100, after: str | None = None, filter: ops.Filter | None = None
    ) -> EntryPage:
        """Read a page of entries; ``after`` is `EntryPage.next` of the one before."""
        return await self._client.run(ops.page(self.name, limit=limit, after=after, filter_=filter))

    async def entries(
        self, *, filter: ops.Filter | None = None, page_size: int = 500
    ) -> AsyncIterator[Entry]:
        """Go through all entries, reading page by page."""
        after: str | None = None
        while True:
            page = await self.page(limit=page_size, after=after, filter=filter)
            for entry in page:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def count(self, *, filter: ops.Filter | None = None) -> int:
        """Count entries; disabled ones count."""
        return await self._client.run(ops.count(self.name, filter))

    async def import_file(
        self,
        content: bytes,
        *,
        format: ops.FileFormat,
        on_duplicate: ops.OnDuplicate = "replace",
        strict: bool = False,
    ) -> WriteReport:
        """Take the entries of a file's bytes; ``strict`` takes nothing of one with a bad line."""
        return await self._client.run(
            ops.import_file(self.name, content, format=format, on_duplicate=on_duplicate, strict=strict)
        )

    async def export_file(
        self, *, format: ops.FileFormat = "jsonl", filter: ops.Filter | None = None
    ) -> bytes:
        """Return entries as a file that an import reads back the same."""
        return await self._client.run(ops.export_file(self.name, format=format, filter_=filter))

    async def evaluate(
        self, queries: Sequence[Mapping[str, object]], *, wanted_precision: float | None = None
    ) -> Evaluation:
        """Judge the search by queries such as ``{"query": "...", "faq_id": "gift"}``; None = no answer."""
        return await self._client.run(ops.evaluate(self.name, queries, wanted_precision))

    async def start_reindex(self) -> Reindexing:
        """Begin to embed it anew with the server's model."""
        return await self._client.run(ops.start_reindex(self.name))

    async def reindexing(self) -> Reindexing:
        """Tell how far that is."""
        return await self._client.run(ops.reindexing(self.name))
