"""What is asked of the contestants: which texts, from how many clients, how many in a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from comparison.contestants import Job
from comparison.faq import search_queries
from comparison.models import DEFAULT, MINILM, TAGGER
from comparison.texts import HAND, cut, dealt, of_length, read_texts
from model.runtime.bundle import Bundle
from model.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from comparison.contestants import Route

Kind = Literal["time", "start", "overload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One row of measurements.

    Attributes:
        name: in files.
        title: in tables.
        model: by name; what lengths are counted in.
        texts: which: ``mixed``, a number of tokens, ``document`` or ``queries``.
        language: of them.
        clients, per_request: see ``Job``.
        route: what is asked for.
        rounds: how often everybody's turn comes, at most.
        early: whether it has had its third round before others have their first: the figures that are quoted.
        kind: ``start`` starts servers anew, ``overload`` sends ten times of what was answered right before.
    """

    name: str
    title: str
    model: str = MINILM
    texts: Literal["mixed", "document", "queries"] | int = "mixed"
    language: str = "en"
    clients: int = 8
    per_request: int = 32
    route: Route = "embed"
    rounds: int = 3
    early: bool = False
    kind: Kind = "time"


ONE: Final = Workload(name="one", title="1 client, 1 text", clients=1, per_request=1, rounds=5, early=True)
SHORT: Final = Workload(
    name="one-short", title="1 client, 1 text of 16 tokens", texts=16, clients=1, per_request=1, early=True
)
MANY: Final = Workload(
    name="many", title="32 clients, 1 text", clients=32, per_request=1, rounds=5, early=True
)
BATCHES: Final = Workload(name="batches", title="8 clients, 32 texts", rounds=5, early=True)
BULK: Final = Workload(name="bulk", title="1 client, 2,048 texts", clients=1, per_request=2048)
OVERLOAD: Final = Workload(name="overload", title="10 times too many, 32 texts", kind="overload")
START: Final = Workload(name="start", title="start to ready", kind="start")
SEARCH: Final = Workload(
    name="search", title="/search, 100,000 entries, 8 clients", model=DEFAULT, texts="queries",
    route="search", per_request=1,
)  # fmt: skip
WORKLOADS: Final = (
    ONE,
    SHORT,
    MANY,
    BATCHES,
    BULK,
    OVERLOAD,
    # Eight texts of each client: 32 of the longest take the slower contestants a minute.
    Workload(name="tokens-16", title="16 tokens, 8 clients, 8 texts", texts=16, per_request=8),
    Workload(name="tokens-64", title="64 tokens, 8 clients, 8 texts", texts=64, per_request=8),
    Workload(name="tokens-256", title="256 tokens, 8 clients, 8 texts", texts=256, per_request=8),
    Workload(
        name="chinese", title="default model, Chinese, 8 clients, 32 texts", model=DEFAULT, language="zh",
    ),
    Workload(name="english", title="default model, English, 8 clients, 32 texts", model=DEFAULT),
    Workload(
        name="ner-english", title="/ner, English documents, 8 clients", model=TAGGER, texts="document",
        per_request=1, route="ner",
    ),
    Workload(
        name="ner-chinese", title="/ner, Chinese documents, 8 clients", model=TAGGER, texts="document",
        language="zh", per_request=1, route="ner",
    ),
    SEARCH,
    START,
)  # fmt: skip
QUICK: Final = ("one", "many", "batches", "overload", "ner-english", "search", "start")


class Texts:
    """Texts by workload, made once, and the tokens in them.

    Args:
        bundles: folder of each model's bundle, whose tokenizer counts.
    """

    def __init__(self, bundles: Mapping[str, Path]) -> None:
        self._bundles = bundles
        self._tokenizers: dict[str, Tokenizer] = {}
        self._made: dict[tuple[object, ...], tuple[list[str], list[int]]] = {}

    def job(
        self, workload: Workload, *, seconds: float, rate: float | None = None, patience: float = 60
    ) -> Job:
        """A workload as a job."""
        texts, lengths = self.of(workload)
        return Job(
            route=workload.route,
            texts=texts,
            lengths=lengths,
            clients=workload.clients,
            per_request=workload.per_request,
            seconds=seconds,
            rate=rate,
            patience=patience,
        )

    def of(self, workload: Workload) -> tuple[list[str], list[int]]:
        """The texts of a workload and their lengths in tokens, special ones included."""
        key = (workload.texts, workload.language, workload.model)
        if key not in self._made:
            self._made[key] = self._make(workload)
        return self._made[key]

    def _make(self, workload: Workload) -> tuple[list[str], list[int]]:
        tokenizer = self._tokenizer(workload.model)

        def ends(texts: Sequence[str]) -> list[list[int]]:
            tokenized = tokenizer.tokenize(texts)
            return [one.offsets[~one.special][:, 1].tolist() for one in tokenized]

        def lengths(texts: Sequence[str]) -> list[int]:
            return [len(one) for one in tokenizer.tokenize(texts)]

        if workload.texts == "queries":
            texts = search_queries()
        elif workload.texts == "document":
            texts = read_texts("document", workload.language)
        else:
            texts = read_texts("text", workload.language)
            if workload.texts == "mixed":
                texts = cut(texts, ends)
                texts = dealt(texts, lengths(texts))
            else:
                texts = of_length(texts, ends, workload.texts, 4 * HAND)
        return texts, lengths(texts)

    def _tokenizer(self, model: str) -> Tokenizer:
        if model not in self._tokenizers:
            self._tokenizers[model] = Tokenizer.from_bundle(Bundle.load(self._bundles[model]))
        return self._tokenizers[model]
