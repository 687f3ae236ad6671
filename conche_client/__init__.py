"""A client of Conche, for programs: `Client` and `AsyncClient`. Needs httpx; numpy only if asked for arrays.

    from conche_client import Client

    with Client("http://127.0.0.1:8080", api_key="...") as conche:
        vectors = conche.embed(["怎么申请退款？", "How do I get a refund?"]).vectors
        best = conche.search("怎么退货？", top_k=1)[0].hits[0]
        entities = conche.ner("Ada Lovelace lived in London.")[0]
        conche.faq("shop").upsert([Entry(question="Do you wrap gifts?", answer="Yes.")])

Calls return dataclasses and raise `ConcheError`. Lists of any length are taken: they are sent in requests of
at most 2,048 texts, one after the other, and put together again. What a moment's overload or a broken
connection spoils is sent again (`Retries`).
"""

from conche_client.async_client import AsyncClient, AsyncCollection
from conche_client.client import Client, Collection
from conche_client.errors import (
    ApiError,
    AuthenticationError,
    ConcheError,
    ConflictError,
    ConnectionFailedError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
    ServerFailedError,
    TimedOutError,
    TooLargeError,
    UnavailableError,
    UnexpectedAnswerError,
)
from conche_client.results import (
    BadLine,
    CollectionInfo,
    Embeddings,
    Entities,
    Entity,
    Entry,
    EntryPage,
    Evaluation,
    Explanation,
    Found,
    Health,
    Highlights,
    Hit,
    Model,
    Prediction,
    Predictions,
    Ranked,
    Ranking,
    Reindexing,
    SearchResults,
    ServerInfo,
    Similarities,
    Usage,
    WriteReport,
)
from conche_client.retries import Retries

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncCollection",
    "AuthenticationError",
    "BadLine",
    "Client",
    "Collection",
    "CollectionInfo",
    "ConcheError",
    "ConflictError",
    "ConnectionFailedError",
    "Embeddings",
    "Entities",
    "Entity",
    "Entry",
    "EntryPage",
    "Evaluation",
    "Explanation",
    "Found",
    "Health",
    "Highlights",
    "Hit",
    "InvalidRequestError",
    "Model",
    "NotFoundError",
    "PermissionDeniedError",
    "Prediction",
    "Predictions",
    "Ranked",
    "Ranking",
    "RateLimitedError",
    "Reindexing",
    "Retries",
    "SearchResults",
    "ServerFailedError",
    "ServerInfo",
    "Similarities",
    "TimedOutError",
    "TooLargeError",
    "UnavailableError",
    "UnexpectedAnswerError",
    "Usage",
    "WriteReport",
]
