"""What calls return. Fields that a newer server adds are left out; `ServerInfo` and `Evaluation` keep all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Item = TypeVar("Item")


class _Listed(Sequence[Item]):
    """A result that is, first of all, a list of results."""

    __slots__ = ()

    def _items(self) -> Sequence[Item]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._items())

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self._items()[index]


@dataclass(frozen=True, slots=True)
class Usage:
    """What the answer's headers say; of a list that took several requests, all of them together.

    Attributes:
        model: the bundle's name.
        tokens: read, over all texts, special ones and prompts included.
        tokens_by_input: per text of the list; None if there were more than fit into the headers. In
            ``rerank`` by a cross-encoder they are of the query with each text.
        tokens_query: of the source of ``similarity``, or of the query of ``rerank`` by a bi-encoder; else
            None. Each request reads it, and ``tokens`` counts it each time.
        truncated: tokens cut off, by the text's position; -1 is the query of ``rerank`` or the source of
            ``similarity``.
        truncated_complete: whether that is all of them, or there were more than fit into the headers.
        empty: positions of texts in which there was nothing to read, where the server takes such (setting
            ``CONCHE_EMPTY_INPUT``); their vectors say nothing. Not all, if ``truncated_complete`` is false.
        windows: runs of the model, by the text's position, of texts that took several; for ``ner``.
        request_ids: of each request, for finding it in the server's log.
        times_ms: of each request, by the names of ``server-timing``: ``tokenize``, ``queue``, ``run``,
            ``total``, and ``decode`` or ``lookup`` where there was such a thing to do.
    """

    model: str
    tokens: int
    tokens_by_input: list[int] | None
    tokens_query: int | None
    truncated: dict[int, int]
    truncated_complete: bool
    empty: list[int]
    windows: dict[int, int]
    request_ids: list[str]
    times_ms: list[dict[str, float]]


@dataclass(frozen=True, slots=True)
class Embeddings(_Listed[list[float]]):
    """One vector per text, in the order given; itself a sequence of them."""

    vectors: list[list[float]]
    usage: Usage

    def _items(self) -> list[list[float]]:
        return self.vectors

    def numpy(self) -> "NDArray[np.float32]":
        """Return [n, d] float32, the very numbers that the model gave; needs numpy."""
        import numpy as np  # noqa: PLC0415 - optional

        return np.array(self.vectors, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an entry was found: cosine and BM25, its rank by each, the wording that matched."""

    dense: float
    lexical: float
    dense_rank: int
    lexical_rank: int | None
    matched: str
    relevance: float


@dataclass(frozen=True, slots=True)
class Highlights:
    """Where the entry has words of the query: (start, end) in code points."""

    question: list[tuple[int, int]]
    answer: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that was found; ``score`` is the probability that it answers the query."""

    id: str
    question: str
    answer: str
    score: float
    explain: Explanation
    highlights: Highlights


@dataclass(frozen=True, slots=True)
class Found:
    """What one query found, best first; ``default_answer`` is the collection's, where nothing was."""

    hits: list[Hit]
    default_answer: str | None


@dataclass(frozen=True, slots=True)
class SearchResults(_Listed[Found]):
    """One `Found` per query, in the order given; itself a sequence of them."""

    results: list[Found]
    request_ids: list[str]

    def _items(self) -> list[Found]:
        return self.results


@dataclass(frozen=True, slots=True)
class Entity:
    """A named entity; ``text`` stands at [start, end), in the unit asked for."""

    start: int
    end: int
    text: str
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Entities(_Listed[list[Entity]]):
    """Per text, in the order given, its entities; itself a sequence of those lists."""

    texts: list[list[Entity]]
    usage: Usage

    def _items(self) -> list[list[Entity]]:
        return self.texts


@dataclass(frozen=True, slots=True)
class Prediction:
    """A label of a text or pair, and its score: 0 to 1, or the model's logit where those were asked for."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Predictions(_Listed[list[Prediction]]):
    """Per text or pair, in the order given, its labels, best first; itself a sequence of those lists."""

    labels: list[list[Prediction]]
    usage: Usage

    def _items(self) -> list[list[Prediction]]:
        return self.labels


@dataclass(frozen=True, slots=True)
class Ranked:
    """A text by its position in the call, and its score."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Ranking(_Listed[Ranked]):
    """Texts, best first; equals in the order given. Itself a sequence of `Ranked`.

    Attributes:
        order: the texts.
        ranked_by: what the scores are of: ``bi-encoder``, cosines of vectors, or ``cross-encoder``, a model
            that reads query and text together.
        usage: what it took.
    """

    order: list[Ranked]
    ranked_by: str
    usage: Usage

    def _items(self) -> list[Ranked]:
        return self.order


@dataclass(frozen=True, slots=True)
class Similarities(_Listed[float]):
    """Per sentence, its cosine with the source sentence; itself a sequence of those."""

    cosines: list[float]
    usage: Usage

    def _items(self) -> list[float]:
        return self.cosines


@dataclass(frozen=True, slots=True)
class Entry:
    """A question with its answer; an ``id`` of None is made from the question by the server."""

    question: str
    answer: str
    id: str | None = None
    alternates: list[str] = field(default_factory=list)
    language: str | None = None
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, bool | int | float | str] = field(default_factory=dict)
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries in the order in which they were first added; ``next`` leads to the next page, None ends."""

    entries: list[Entry]
    next: str | None

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of an imported file that was left out; counted from 1, the header included."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a write came to.

    Attributes:
        revision: of the collection, after it.
        added, replaced, unchanged: entries.
        skipped: ids that were there and were left as they are.
        bad_lines: of a file, what was left out.
        metadata_columns: of a table, the columns kept as metadata.
    """

    revision: int
    added: int
    replaced: int
    unchanged: int
    skipped: list[str]
    bad_lines: list[BadLine] = field(default_factory=list)
    metadata_columns: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """A collection, without its entries; times are ISO 8601."""

    name: str
    entries: int
    default_answer: str | None
    min_score: float | None
    model: str | None
    dimensions: int | None
    revision: int
    created_at: str
    updated_at: str
    reindexing: bool


@dataclass(frozen=True, slots=True)
class Reindexing:
    """How far a reindex has come, in texts; ``state`` is ``none`` if there was none."""

    state: str
    done: int
    total: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a collection's search does on labelled queries.

    Attributes:
        queries: how many.
        answerable: how many of them an entry answers.
        modes: by mode, accuracy, MRR and the like.
        proposed_threshold: for ``min_score``, to reach the precision wanted; None if none does.
        threshold: what ``failures`` are judged by.
        failures: queries that went wrong.
        unknown_ids: labels that the collection has no entry for.
        document: the whole answer.
    """

    queries: int
    answerable: int
    modes: dict[str, dict[str, float]]
    proposed_threshold: float | None
    threshold: float
    failures: list[dict[str, Any]]
    unknown_ids: list[str]
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that calls can name."""

    id: str
    task: str
    created: int
    owned_by: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the server is and takes; ``document`` is the whole answer."""

    version: str
    models: list[str]
    limits: dict[str, float]
    truncate: bool
    unavailable: dict[str, str]
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Health:
    """Whether requests would be served, and if not, why."""

    ready: bool
    reasons: list[str]
