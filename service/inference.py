"""Text -> tokens -> batcher -> typed results: ``Embedder``, ``EntityTagger`` and ``Classifier``.

Each bundle has a batcher of its own. What they share is the ``ComputeBudget``: the threads that run models,
as many as the engine of most streams may have, and two that tokenise, so that the event loop does so for a
few short texts only. Models whose runs take several threads each take turns.
All three are watched: should a job hang, those who wait for it fail, and ``healthy`` turns false.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from model.runtime.allocation import return_freed_memory
from model.runtime.bundle import Bundle, LabelActivation, Manifest
from model.runtime.crf import LinearChainCrf
from model.runtime.documents import Document, read_documents
from model.runtime.engine import PER_TOKEN_OUTPUTS, Engine, lacks_memory, pad_batch
from model.runtime.entities import EntityFinder, EntityOptions
from model.runtime.offset_units import OffsetUnit, places_in
from model.runtime.sequences import TextOrPair, TokenSequence, read_sequences, truncate_sequence
from model.runtime.threads import give_way
from model.runtime.tokenization import NotTextError, TextIds, Tokenizer, check_characters
from model.runtime.windows import Window
from service.batching import BatchingLimits, BatchStats, BrokenModelError, DynamicBatcher, RequestLog
from service.errors import (
    EmptyInputError,
    InferenceError,
    InputTooLongError,
    InvalidInputError,
    InvalidTextError,
    OverloadedError,
    UnavailableError,
)
from service.execution import ExecutionThreads, StalledError
from service.places import Places
from service.request_trace import Attribute, PastStage, RequestTrace, stage, trace_of_request
from service.request_work import work_of_request
from service.token_estimate import TokenEstimate, utf8_sizes

Pooling = Literal["cls", "mean"]
Value = TypeVar("Value")
Other = TypeVar("Other")
Text = TypeVar("Text", str, TextOrPair)

# What a job of the tokenising threads takes at most. A request has one job there at a time, so that a small
# one waits for one job of each other request; this size keeps a job to some 15 ms. One text may be longer.
_TEXTS_PER_JOB: Final = 32
_CHARACTERS_PER_JOB: Final = 16_384
# Of a million characters, 1.5 s of work, the tokenizer library frees 80 MB in small blocks, which the
# allocator would keep; giving them back takes 7 to 17 ms. So it is done from an eighth of that on.
_CHARACTERS_TO_TRIM: Final = 131_072
# What is tokenised in place, some 100 us at most: to a thread and back takes three times as long.
_TEXTS_IN_PLACE: Final = 4
_CHARACTERS_IN_PLACE: Final = 512
# Characters that may be in tokenisation, for each token that may wait in the queue: about what a token of
# English comes to, so that this limit is not the narrower of the two.
_CHARACTERS_PER_TOKEN: Final = 4
# The fewest tokens a text can come to, for the check made before tokenising: two special ones and a word.
_LEAST_TOKENS: Final = 3
# Of the requests that only an estimate of their tokens refuses one in so many is tokenised all the same: what
# is refused unread teaches nothing, and an estimate that is too high would stay so while much waits.
_READ_ALL_THE_SAME: Final = 16
# What any model can read: run by itself after a run that went wrong.
_KNOWN_TEXT: Final = "1"
# So often in a row, each at least so long after the one before, there was no memory even for that text: it
# will not come back by itself. What fails within a moment, the parts of one large batch say, counts once.
_MOST_STARVED: Final = 5
_STARVED_APART_S: Final = 2.0
# Vectors are made this much shorter than one, so that rounding to float32 cannot make them longer than one.
_UNIT_MARGIN: Final = 2.0**-24


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """How to embed the texts of one request.

    Attributes:
        pooling: how token vectors become one; None = as the bundle says.
        normalize: unit length.
        prompt: put before every text.
        truncate: cut a text that is too long, instead of refusing it.
        truncate_from_start: cut its beginning, behind the prompt, instead of its end.
        dimensions: keep this many leading numbers; with ``normalize``, brought to unit length again.
        read_empty: a text without anything to read gets what the model makes of prompt and special tokens,
            instead of being refused.
    """

    pooling: Pooling | None = None
    normalize: bool = True
    prompt: str = ""
    truncate: bool = False
    truncate_from_start: bool = False
    dimensions: int | None = None
    read_empty: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """One vector per text, in the order given.

    Attributes:
        vectors: [n, d] float32, finite; with ``normalize`` no longer than 1, and short of it by 1e-6 at most.
        tokens: per text, tokens read; prompt and special tokens included.
        truncated: per text, tokens cut off; 0 = all of it was read.
        empty: positions of texts in which there was nothing to read, ascending.
    """

    vectors: NDArray[np.float32]
    tokens: list[int]
    truncated: list[int]
    empty: Sequence[int] = ()


class TooManyNumbersError(Exception):
    """The vectors of all tokens would hold more numbers than are wanted.

    Attributes:
        numbers: how many.
    """

    def __init__(self, numbers: int) -> None:
        super().__init__(f"{numbers} numbers")
        self.numbers = numbers


@dataclass(frozen=True, slots=True)
class TokenEmbeddings:
    """The vectors of every token of every text.

    Attributes:
        states: per text, [S, H] float32, finite, not normalised; the last hidden states.
        tokens, truncated, empty: as of `EmbeddingResult`.
    """

    states: list[NDArray[np.float32]]
    tokens: list[int]
    truncated: list[int]
    empty: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Entity:
    """A named entity; ``text`` is exactly what stands at [start, end), in the unit asked for."""

    start: int
    end: int
    text: str
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class TaggedText:
    """The entities of one text, in order.

    Attributes:
        entities: in order; without overlap, unless tokens were asked for (strategy ``none``).
        windows: in which the text was read, equal ones in one run; 0 = it holds nothing that the model reads.
        tokens: of the text, all of which are read; special tokens included.
    """

    entities: list[Entity]
    windows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Classification:
    """The logits of each text or pair, in the order given.

    Attributes:
        logits: [n, L] float32, finite; in the order of the model's labels.
        tokens: per text or pair, tokens read; special ones included.
        truncated: per text or pair, tokens cut off; 0 = all of it was read.
        empty: places of those with a text that held nothing to read.
    """

    logits: NDArray[np.float32]
    tokens: list[int]
    truncated: list[int]
    empty: list[int]


class InferenceObserver(Protocol):
    """What is told about the work of one model; none of it may block or raise."""

    def watch(self, model: "_Model", *, threads: int) -> None:
        """The model is this one, with so many threads; told once, at the beginning."""
        ...

    def on_tokenize(self, seconds: float) -> None:
        """The texts of one request were tokenised."""
        ...

    def on_batch(self, stats: BatchStats) -> None:
        """The model has run."""
        ...

    def on_texts(self, *, texts: int, truncated: int) -> None:
        """A request was answered; ``truncated`` of its texts were cut."""
        ...

    def on_entities(self, found: Mapping[str, int]) -> None:
        """A request was answered with so many entities, by label."""
        ...


class ComputeBudget:
    """The threads of one process that do the computing, whatever the number of models.

    Attributes:
        execution: runs the models.
    """

    def __init__(self) -> None:
        # The tokenizer library would start a thread per core of the host, whatever the quota; here it works
        # in the threads below. It reads the variable at each call.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.execution = ExecutionThreads(at_start=give_way)
        self._tokenizing = ExecutionThreads("conche-tokenize")
        self._tokenizing_long = ExecutionThreads("conche-tokenize-long")

    def lane(self, characters: int) -> ExecutionThreads:
        """The thread that tokenises a job of so many characters.

        A text of a million characters takes seconds; those have a thread of their own, or they would be
        seconds of everyone.
        """
        return self._tokenizing if characters <= _CHARACTERS_PER_JOB else self._tokenizing_long

    def make_room(self, streams: int) -> None:
        """Let so many runs be at work at a time, at least.

        Raises:
            RuntimeError: see ``ExecutionThreads.grow``.
        """
        self.execution.grow(streams)

    @property
    def failure(self) -> str | None:
        """Why one of the threads takes no more work; None if all do."""
        return self.execution.failure or self._tokenizing.failure or self._tokenizing_long.failure

    def close(self) -> None:
        """Let the threads end; waits for none, since a job may hang."""
        for thread in (self.execution, self._tokenizing, self._tokenizing_long):
            thread.close()


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a batch: [S] int64 ids, the graph output wanted for it, and token types; None = all 0."""

    input_ids: NDArray[np.int64]
    output: str
    token_type_ids: NDArray[np.int64] | None = None


class _Model:
    """What all tasks do alike: tokenise off the event loop, and run rows through a batcher."""

    def __init__(
        self,
        manifest: Manifest,
        tokenizer: Tokenizer,
        engine: Engine,
        *,
        budget: ComputeBudget,
        limits: BatchingLimits | None,
        observer: InferenceObserver | None,
        most_streams: int | None,
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.observer = observer
        self._engine = engine
        self._budget = budget
        self.limits = limits or BatchingLimits()
        self.requests = 0
        self._starved = 0
        self._starved_at = 0.0
        self._texts = Places(self.limits.max_queue_items)  # of these, in tokenisation
        self._characters = Places(self.limits.max_queue_tokens * _CHARACTERS_PER_TOKEN)
        self._estimate = TokenEstimate()
        self._refused_unread = 0
        most_streams = engine.streams if most_streams is None else most_streams
        budget.make_room(most_streams)
        self.batcher: DynamicBatcher[_Row, NDArray[np.float32]] = DynamicBatcher(
            self._run,
            length=lambda row: len(row.input_ids),
            computed_tokens=engine.computed_tokens,
            padding_cost=engine.padding_cost,
            execution=budget.execution,
            most_streams=most_streams,
            streams=lambda: engine.streams,
            # Runs of one thread each have cores to themselves, whichever models they are of.
            exclusive=lambda: engine.threads > engine.streams,
            lends_threads=engine.lends_threads,
            limits=self.limits,
            name=manifest.name,
            on_batch=None if observer is None else observer.on_batch,
        )
        if observer is not None:
            observer.watch(self, threads=engine.threads)

    @property
    def healthy(self) -> bool:
        """Whether work submitted now would be done, whatever its size."""
        return self.batcher.healthy and self.failure is None

    @property
    def failure(self) -> str | None:
        """Why the model stopped working; None if it has not."""
        return self.batcher.failure or self._budget.failure

    @property
    def streams(self) -> int:
        """Runs at a time, now."""
        return self._engine.streams

    @property
    def queued_items(self) -> int:
        """Texts, or windows of them, that wait for a run."""
        return self.batcher.queued_items

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait for a run."""
        return self.batcher.queued_tokens

    @property
    def queue_limit_tokens(self) -> int:
        """Tokens that may wait now."""
        return self.batcher.queue_limit_tokens

    async def tokenize(
        self,
        texts: Sequence[Text],
        *,
        sizes: Sequence[int],
        param: str,
        read: Callable[[int, Sequence[Text]], list[Value]],
        most_tokens: int | None = None,
    ) -> list[Value]:
        """Map ``read(position of the first, texts)``, which tokenises, over the texts in the threads for it.

        A few short texts are tokenised in place. The first fault, in order, is raised. Texts may be pairs of
        them as well; ``sizes`` are their characters, and ``most_tokens`` what one comes to at most.

        Raises:
            OverloadedError: the queue has no room, or too much is being tokenised; nothing was started.
            UnavailableError: the model does not take work, or tokenising hangs.
            InvalidTextError: a text holds half of a surrogate pair.
        """
        self._ensure_room(texts, most_tokens)

        def work(first: int, chunk: Sequence[Text]) -> list[Value]:
            try:
                return read(first, chunk)
            except NotTextError as error:
                index = None if error.index is None else first + error.index
                where = "the prompt" if index is None else f"{param}[{index}]"
                raise InvalidTextError(
                    f"{where} holds half of a surrogate pair at character {error.character}",
                    index=index,
                    param=param,
                ) from error

        started_at = time.perf_counter()
        model = self.manifest.name
        characters = sum(sizes)
        with stage("tokenize", model=model, texts=len(texts), characters=characters):
            if len(texts) <= _TEXTS_IN_PLACE and characters <= _CHARACTERS_IN_PLACE:
                if (failure := self._budget.failure) is not None:  # nor is anything else served
                    raise UnavailableError(failure)
                prepared = work(0, texts)
            else:
                with self._backlog(sizes):
                    prepared = await self.off_loop(texts, work, sizes=sizes)
        seconds = time.perf_counter() - started_at
        if (request := work_of_request()) is not None:
            request.add_tokenizing(seconds, characters=characters)
        if self.observer is not None:
            self.observer.on_tokenize(seconds)
        return prepared

    def _ensure_room(self, texts: Sequence[TextOrPair], most_tokens: int | None) -> None:
        """Refuse what will find no room, as far as can be told without tokenising it.

        Raises:
            OverloadedError, UnavailableError: as `tokenize`.
        """
        self.batcher.ensure_room(len(texts), len(texts) * _LEAST_TOKENS)
        try:
            self.batcher.ensure_likely_room(self._estimate.at_least(utf8_sizes(texts), most=most_tokens))
        except OverloadedError:
            self._refused_unread += 1
            if self._refused_unread % _READ_ALL_THE_SAME:
                raise

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a call among those in work."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextmanager
    def _backlog(self, sizes: Sequence[int]) -> Iterator[None]:
        """Count a request among those in tokenisation, which is bounded like the queue behind it."""
        texts, characters = self._texts.share(len(sizes)), self._characters.share(sum(sizes))
        if texts is None or characters is None:
            raise OverloadedError(
                f"{self.manifest.name} has no room: {self._texts.taken} of {self._texts.limit} texts and "
                f"{self._characters.taken} of {self._characters.limit} characters are being tokenised",
                retry_after_s=self.batcher.retry_after_s,
            )
        self._texts.taken += texts
        self._characters.taken += characters
        try:
            yield
        finally:
            self._texts.taken -= texts
            self._characters.taken -= characters

    async def off_loop(
        self,
        items: Sequence[Value],
        work: Callable[[int, Sequence[Value]], list[Other]],
        *,
        sizes: Sequence[int],
    ) -> list[Other]:
        """Map ``work(position of the first, items)`` over pieces of ``items`` in the tokenising threads.

        Args:
            items: any.
            work: returns a list with one value per item; the first error, in order, is raised.
            sizes: characters of each item, which decide on the pieces and their thread.

        Raises:
            UnavailableError: a job hangs.
        """

        def job(first: int, piece: Sequence[Value], characters: int) -> list[Other]:
            try:
                return work(first, piece)
            finally:
                if characters > _CHARACTERS_TO_TRIM:
                    return_freed_memory()

        results: list[Other] = []
        for first, last in _pieces(sizes):
            # One piece after the other: the next stands behind what others have asked for meanwhile.
            piece, characters = items[first:last], sum(sizes[first:last])
            try:
                results += await self._budget.lane(characters).run(
                    partial(job, first, piece, characters),
                    name=f"tokenising for {self.manifest.name}",
                    stall_timeout_s=self.limits.stall_timeout_s,
                )
            except StalledError as error:
                raise UnavailableError(str(error)) from error
        return results

    async def run(self, rows: Sequence[_Row], *, texts: Sequence[TextOrPair]) -> list[NDArray[np.float32]]:
        """Have the batcher run the rows that ``texts`` came to."""
        self._estimate.note(sum(utf8_sizes(texts)), sum(len(row.input_ids) for row in rows))
        trace = trace_of_request()
        log = None if trace is None or not trace.recorded else RequestLog(trace.trace_id)
        try:
            results, times = await self.batcher.submit_timed(rows, log=log)
        finally:
            if trace is not None and log is not None:
                self._add_stages(trace, log, rows)
        if (request := work_of_request()) is not None:
            request.add_rows(
                len(rows),
                tokens=sum(len(row.input_ids) for row in rows),
                queue_seconds=times.queue_seconds,
                run_seconds=times.run_seconds,
            )
        return results

    def _add_stages(self, trace: RequestTrace, log: RequestLog, rows: Sequence[_Row]) -> None:
        """Put into a trace what its request waited for a run, and each run of rows of it."""
        if log.admitted_at is None:
            return
        model = self.manifest.name
        tokens = sum(len(row.input_ids) for row in rows)
        queued_until = log.runs[0].formed_at if log.runs else time.monotonic()
        attributes: dict[str, Attribute] = {"model": model, "rows": len(rows), "tokens": tokens}
        trace.add(
            PastStage("queue", log.admitted_at, queued_until, attributes, None if log.runs else "not_run")
        )
        for run in log.runs:
            attributes = {
                "model": model,
                "rows": run.rows,
                "batch.number": run.number,
                "batch.rows": run.size,
                "batch.tokens": run.tokens,
                "batch.padded_tokens": run.padded_tokens,
            }
            error = InferenceError.code if run.failed else None
            inside = PastStage("run", run.started_at, run.ended_at, {"model": model}, error)
            trace.add(PastStage("batch", run.formed_at, run.done_at, attributes, error, (inside,)))
        if log.more_runs:
            trace.note({"runs_not_shown": log.more_runs})

    def note(self, *, texts: int, truncated: int) -> None:
        if self.observer is not None:
            self.observer.on_texts(texts=texts, truncated=truncated)

    def _run(self, rows: Sequence[_Row]) -> list[NDArray[np.float32]]:
        """Run one batch; in an execution thread. Each row has the output that it asked for."""
        # Rows of one batch may want different outputs: the graph is asked once, for all of them.
        wanted = sorted({row.output for row in rows})
        try:
            results = self._outputs(rows, wanted)
            finite = all(np.isfinite(result).all() for result in results)
        except Exception as error:
            self._look_for_fault(wanted, error)
            raise
        self._starved = 0
        if not finite:
            self._look_for_fault(wanted, None)
        return results

    def _outputs(self, rows: Sequence[_Row], wanted: Sequence[str]) -> list[NDArray[np.float32]]:
        batch = pad_batch(
            [row.input_ids for row in rows],
            self.tokenizer.pad_token_id,
            token_types=[row.token_type_ids for row in rows],
        )
        outputs = self._engine.run(batch, wanted)
        return [
            # Copied, or each row would keep the padded batch of all in memory.
            outputs[row.output][n, : len(row.input_ids)].copy()
            if row.output in PER_TOKEN_OUTPUTS
            else outputs[row.output][n]
            for n, row in enumerate(rows)
        ]

    def _look_for_fault(self, outputs: Sequence[str], error: Exception | None) -> None:
        """Find out, after a run that went wrong, whether the fault lies with its texts or with the model.

        A model that fails on everything would otherwise stay ready and answer each request with an error. One
        that has no memory for the text either is left as it is for a while.

        Raises:
            BrokenModelError: it fails on a text that it has to know, too.
        """
        name = self.manifest.name
        try:
            sequence = read_sequences(self.tokenizer, [_KNOWN_TEXT], token_types=False)[0]
            answers = self._engine.run(pad_batch([sequence.input_ids], self.tokenizer.pad_token_id), outputs)
            finite = all(np.isfinite(answer).all() for answer in answers.values())
        except Exception as again:
            if lacks_memory(again):
                self._bear_with(again)
                return
            raise BrokenModelError(f"{name} fails on every text: {type(again).__name__}") from again
        self._starved = 0
        if not finite:
            raise BrokenModelError(f"{name} gives numbers that are not finite for every text") from error

    def _bear_with(self, error: Exception) -> None:
        """Note that there was no memory for any text; what took it may give it back.

        Raises:
            BrokenModelError: that has been hoped for long enough.
        """
        now = time.monotonic()
        if self._starved and now - self._starved_at < _STARVED_APART_S:
            return
        self._starved += 1
        self._starved_at = now
        if self._starved >= _MOST_STARVED:
            raise BrokenModelError(
                f"{self.manifest.name} had no memory for any text {self._starved} times in a row"
            ) from error


class _Served:
    """The life and state of a served model.

    Args:
        manifest: of a bundle for the class's task.
        tokenizer: of the same bundle.
        engine: loaded with its graph; closed by whoever opened it.
        budget: the threads shared with the other models.
        limits: of the batcher, and of what is being tokenised.
        observer: told about the work done.
        most_streams: that the engine may come to have; None = as many as it has.

    Raises:
        ValueError: the bundle is for another task.
    """

    def __init__(
        self,
        manifest: Manifest,
        tokenizer: Tokenizer,
        engine: Engine,
        *,
        budget: ComputeBudget,
        limits: BatchingLimits | None = None,
        observer: InferenceObserver | None = None,
        most_streams: int | None = None,
    ) -> None:
        self._adopt(manifest)
        self._model = _Model(
            manifest,
            tokenizer,
            engine,
            budget=budget,
            limits=limits,
            observer=observer,
            most_streams=most_streams,
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle, tokenizer: Tokenizer, engine: Engine, **arguments: Any) -> Self:
        """Serve ``bundle``; the other arguments as of the class.

        Raises:
            BundleError: a file of the task's own is damaged.
            ValueError: the bundle is for another task.
        """
        return cls(bundle.manifest, tokenizer, engine, **arguments, **cls._extras(bundle))

    @classmethod
    def _extras(cls, bundle: Bundle) -> dict[str, Any]:
        """Arguments of the class that only the bundle's files have."""
        del bundle
        return {}

    def _adopt(self, manifest: Manifest) -> None:
        """Take from the manifest what the task needs; ValueError if the bundle is for another."""
        raise NotImplementedError

    @property
    def model_id(self) -> str:
        """The bundle's name."""
        return self._model.manifest.name

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self._model.manifest

    @property
    def requests(self) -> int:
        """How many calls are in work, from their tokenising to their results."""
        return self._model.requests

    @property
    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer."""
        return self._model.tokenizer

    async def in_tokenizing_thread(
        self,
        items: Sequence[Value],
        work: Callable[[int, Sequence[Value]], list[Other]],
        sizes: Sequence[int],
    ) -> list[Other]:
        """Map ``work(position of the first, items)`` over pieces of ``items``, as `_Model.off_loop` does."""
        started_at = time.perf_counter()
        results = await self._model.off_loop(items, work, sizes=sizes)
        if (request := work_of_request()) is not None:
            request.add_tokenizing(time.perf_counter() - started_at, characters=0)
        return results

    @property
    def batcher(self) -> DynamicBatcher[_Row, NDArray[np.float32]]:
        """The queue of this model, for metrics and for who changes its streams."""
        return self._model.batcher

    @property
    def healthy(self) -> bool:
        """Whether a request made now would be served."""
        return self._model.healthy

    @property
    def failure(self) -> str | None:
        """Why the model stopped working; None if it has not."""
        return self._model.failure

    def start(self) -> None:
        """Begin to take work. Call once, inside the event loop."""
        self._model.batcher.start()

    async def close(self, deadline_s: float = 30.0) -> None:
        """Finish what was admitted, within the deadline; refuse the rest."""
        await self._model.batcher.close(deadline_s)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Embedder(_Served):
    """Texts to vectors, by an embedding bundle."""

    def _adopt(self, manifest: Manifest) -> None:
        if manifest.task != "embedding" or manifest.pooling is None or manifest.dimensions is None:
            raise ValueError(f"{manifest.name} is no embedding bundle")
        self._pooling: Pooling = manifest.pooling
        self._dimensions = manifest.dimensions
        self._hidden_size = manifest.architecture.hidden_size
        self._max_tokens = manifest.max_tokens

    async def embed(
        self, texts: Sequence[str], options: EmbeddingOptions, *, param: str = "inputs"
    ) -> EmbeddingResult:
        """Embed each text, in the order given; equal texts get equal answers of their own.

        Args:
            texts: any number, any length.
            options: for all of them.
            param: the request field that holds them, for error messages.

        Raises:
            InvalidInputError: more dimensions than the model has.
            EmptyInputError: a text holds nothing that the model reads, and ``read_empty`` was not asked for,
                or there is nothing else either: no prompt, no special tokens.
            InvalidTextError: a text holds half of a surrogate pair.
            InputTooLongError: a text is too long, and cutting was not asked for.
            OverloadedError, UnavailableError: as ``DynamicBatcher.submit_many``.
            InferenceError: the model failed, or a vector came out that is not finite.
        """
        self._check_dimensions(options.dimensions)
        output = f"embeddings_{options.pooling or self._pooling}" + (
            "_normalized" if options.normalize else ""
        )
        if not texts:
            empty = np.empty((0, options.dimensions or self._dimensions), dtype=np.float32)
            return EmbeddingResult(empty, [], [])

        with self._model.request():
            tokenized = await self._read(texts, options, param)
            pooled = await self._model.run([_Row(text.input_ids, output) for text in tokenized], texts=texts)
            finished = await self._finish(pooled, options)
        return EmbeddingResult(finished, *self._accounts(tokenized))

    async def embed_tokens(
        self,
        texts: Sequence[str],
        options: EmbeddingOptions,
        *,
        param: str = "inputs",
        max_numbers: int | None = None,
    ) -> TokenEmbeddings:
        """Give the vector of each token of each text, special tokens and those of the prompt included.

        Args:
            texts: any number, any length.
            options: ``prompt`` and ``truncate`` are followed; the others are about one vector a text.
            param: the request field that holds them, for error messages.
            max_numbers: of all vectors together; None = any. Checked before the model runs.

        Raises:
            TooManyNumbersError: the vectors would hold more.
            as `embed`.
        """
        if not texts:
            return TokenEmbeddings([], [], [])
        with self._model.request():
            tokenized = await self._read(texts, options, param)
            numbers = sum(map(len, tokenized)) * self._hidden_size
            if max_numbers is not None and numbers > max_numbers:
                raise TooManyNumbersError(numbers)
            states = await self._model.run(
                [_Row(text.input_ids, "last_hidden_state") for text in tokenized], texts=texts
            )
        for index, state in enumerate(states):
            if not np.isfinite(state).all():
                raise InferenceError(
                    f"the model gave no usable vectors for item {index}: not finite", index=index
                )
        return TokenEmbeddings(states, *self._accounts(tokenized))

    async def _read(self, texts: Sequence[str], options: EmbeddingOptions, param: str) -> list[TextIds]:
        """Tokenise; refuse, or cut, what is too long."""

        def check(index: int, tokenized: TextIds) -> None:
            if tokenized.is_empty and not (options.read_empty and len(tokenized)):
                raise EmptyInputError(
                    f"{param}[{index}] holds nothing that the model reads", index=index, param=param
                )
            if len(tokenized) <= self._max_tokens:
                return
            raise InputTooLongError(
                f"{param}[{index}] has {len(tokenized)} tokens, prompt and special tokens included, and "
                f'{self.model_id} reads {self._max_tokens}; shorten it, or send "truncate": true to have the '
                "rest cut off (CONCHE_TRUNCATE sets what happens when a request does not say)",
                tokens=len(tokenized),
                limit=self._max_tokens,
                setting="truncate",
                index=index,
                param=param,
            )

        def read(first: int, chunk: Sequence[str]) -> list[TextIds]:
            tokenized = self._model.tokenizer.tokenize_ids(
                chunk,
                prefix=options.prompt,
                max_tokens=self._max_tokens if options.truncate else None,
                from_start=options.truncate_from_start,
            )
            for place, text in enumerate(tokenized):
                check(first + place, text)
            return tokenized

        sizes = [len(text) for text in texts]
        return await self._model.tokenize(
            texts, sizes=sizes, param=param, read=read, most_tokens=self._max_tokens
        )

    def _accounts(self, tokenized: Sequence[TextIds]) -> tuple[list[int], list[int], list[int]]:
        """Tokens read and tokens cut, per text, and which texts were empty; the observer is told."""
        truncated = [text.truncated_tokens for text in tokenized]
        self._model.note(texts=len(tokenized), truncated=sum(1 for cut in truncated if cut > 0))
        empty = [index for index, text in enumerate(tokenized) if text.is_empty]
        return [len(text) for text in tokenized], truncated, empty

    async def _finish(
        self, pooled: list[NDArray[np.float32]], options: EmbeddingOptions
    ) -> NDArray[np.float32]:
        if len(pooled) <= _TEXTS_PER_JOB:  # a few: cheaper here than the way to a thread and back
            return finish_vectors(pooled, options)
        rows = await self._model.off_loop(
            pooled,
            lambda first, piece: list(finish_vectors(piece, options, first=first)),
            sizes=[0] * len(pooled),
        )
        return np.stack(rows)

    def _check_dimensions(self, dimensions: int | None) -> None:
        if dimensions is not None and not 1 <= dimensions <= self._dimensions:
            raise InvalidInputError(
                f"dimensions is {dimensions}; {self.model_id} has 1 to {self._dimensions}", param="dimensions"
            )


def finish_vectors(
    pooled: Sequence[NDArray[np.float32]], options: EmbeddingOptions, *, first: int = 0
) -> NDArray[np.float32]:
    """Cut to the dimensions asked for, bring to unit length again, check.

    Args:
        pooled: [H] each, as the graph gave them.
        options: of the request.
        first: position of the first one in the request, for messages.

    Returns:
        [n, d] float32, finite. Unit vectors are never longer than 1, so that no exact cosine exceeds 1.

    Raises:
        InferenceError: a vector holds NaN or an infinity, or has no direction.
    """
    vectors = np.array(pooled, dtype=np.float64)[:, : options.dimensions]
    # Squares of float32 numbers and their sum fit into float64: not finite, or zero, only if the vector is.
    squares = np.einsum("nd,nd->n", vectors, vectors)
    usable = squares < np.inf  # False for NaN, too
    if options.normalize:
        usable &= squares > 0
    if not usable.all():
        index = first + int(np.argmin(usable))
        raise InferenceError(
            f"the model gave no usable vector for item {index}: it is not finite, or zero", index=index
        )
    if options.normalize:
        vectors *= ((1.0 - _UNIT_MARGIN) / np.sqrt(squares))[:, np.newaxis]
    return vectors.astype(np.float32)


class EntityTagger(_Served):
    """Texts of any length to named entities, by a token-classification bundle.

    Args:
        manifest, tokenizer, engine, budget, limits, observer: as of ``Embedder``.
        crf: of the bundle, if it has one.

    Raises:
        ValueError: the bundle is for another task, or its labels make no scheme.
    """

    _PER_TOKEN = True

    def __init__(
        self,
        manifest: Manifest,
        tokenizer: Tokenizer,
        engine: Engine,
        *,
        budget: ComputeBudget,
        limits: BatchingLimits | None = None,
        observer: InferenceObserver | None = None,
        most_streams: int | None = None,
        crf: LinearChainCrf | None = None,
    ) -> None:
        self._crf = crf
        super().__init__(
            manifest,
            tokenizer,
            engine,
            budget=budget,
            limits=limits,
            observer=observer,
            most_streams=most_streams,
        )

    @classmethod
    def _extras(cls, bundle: Bundle) -> dict[str, Any]:
        return {"crf": LinearChainCrf.from_bundle(bundle)}

    def _adopt(self, manifest: Manifest) -> None:
        if manifest.task != "token-classification":
            raise ValueError(f"{manifest.name} is no token-classification bundle")
        self._finder = EntityFinder.from_manifest(manifest, self._crf)
        self._max_tokens = manifest.max_tokens

    @property
    def labels(self) -> tuple[str, ...]:
        """Entity types, in the order of the labels."""
        return self._finder.entity_types

    async def tag(
        self,
        texts: Sequence[str],
        options: EntityOptions = EntityOptions(),  # noqa: B008 - frozen
        *,
        offset_unit: OffsetUnit = "code-points",
        param: str = "inputs",
    ) -> list[TaggedText]:
        """Find the entities of each text, read to its end: paragraph by paragraph, in overlapping windows.

        Args:
            texts: any number, any length; one without words has no entities.
            options: which entities are wanted.
            offset_unit: what ``start`` and ``end`` count.
            param: the request field that holds the texts, for error messages.

        Raises:
            InvalidInputError: ``options`` name an entity type that the model does not have.
            InvalidTextError: a text holds half of a surrogate pair.
            OverloadedError, UnavailableError: as ``DynamicBatcher.submit_many``.
            InferenceError: the model failed, or gave a number that is not finite.
        """
        self._check_labels(options.labels)
        if not texts:
            return []

        def read(_: int, chunk: Sequence[str]) -> list[Document]:
            return read_documents(chunk, self._model.tokenizer, max_tokens=self._max_tokens)

        with self._model.request():
            sizes = [len(text) for text in texts]
            documents = await self._model.tokenize(texts, sizes=sizes, param=param, read=read)
            windows = [document.windows for document in documents]
            logits = iter(
                await self._run_once_each([window for of_text in windows for window in of_text], texts)
            )
            outputs = [list(itertools.islice(logits, len(of_text))) for of_text in windows]

            def decode(
                first: int, piece: Sequence[tuple[Document, list[NDArray[np.float32]]]]
            ) -> list[TaggedText]:
                return [
                    self._decode(first + place, document, output, options, offset_unit)
                    for place, (document, output) in enumerate(piece)
                ]

            decoding_at = time.perf_counter()
            with stage("decode", model=self.model_id, texts=len(texts)):
                tagged = await self._model.off_loop(
                    list(zip(documents, outputs, strict=True)), decode, sizes=sizes
                )
            if (request := work_of_request()) is not None:
                request.add_decoding(time.perf_counter() - decoding_at)
        self._model.note(texts=len(texts), truncated=0)
        if self._model.observer is not None:
            self._model.observer.on_entities(Counter(one.label for text in tagged for one in text.entities))
        return tagged

    async def _run_once_each(
        self, windows: Sequence[Window], texts: Sequence[str]
    ) -> list[NDArray[np.float32]]:
        """Run windows, equal ones once: one character a million times over has a thousand of them."""
        places: dict[bytes, int] = {}
        rows: list[_Row] = []
        of_windows: list[int] = []
        for window in windows:
            place = places.setdefault(window.input_ids.tobytes(), len(rows))
            if place == len(rows):
                rows.append(_Row(window.input_ids, "logits"))
            of_windows.append(place)
        logits = await self._model.run(rows, texts=texts)
        return [logits[place] for place in of_windows]

    def _check_labels(self, labels: frozenset[str] | None) -> None:
        unknown = sorted((labels or frozenset()) - set(self.labels))
        if unknown:
            raise InvalidInputError(
                f"{self.model_id} has no such entity type as {len(unknown)} of those in labels; "
                f"it has {', '.join(self.labels)}",
                param="labels",
            )

    def _decode(
        self,
        index: int,
        document: Document,
        outputs: list[NDArray[np.float32]],
        options: EntityOptions,
        offset_unit: OffsetUnit,
    ) -> TaggedText:
        if not all(np.isfinite(output).all() for output in outputs):
            raise InferenceError(f"the model gave no usable answer for item {index}: not finite", index=index)
        found = self._finder.find(document, outputs, options)
        places = places_in(document.text, offset_unit)
        entities = [
            Entity(
                places(entity.start),
                places(entity.end),
                document.text[entity.start : entity.end],
                entity.label,
                entity.score,
            )
            for entity in found
        ]
        return TaggedText(entities, len(outputs), document.tokens)


class Classifier(_Served):
    """Texts, or pairs of texts, to the logits of labels, by a sequence-classification bundle."""

    def _adopt(self, manifest: Manifest) -> None:
        if manifest.task != "sequence-classification" or manifest.label_activation is None:
            raise ValueError(f"{manifest.name} is no sequence-classification bundle")
        self.labels = manifest.labels
        self.activation: LabelActivation = manifest.label_activation
        self._token_types = manifest.pair_token_types
        self._max_tokens = manifest.max_tokens

    async def classify(
        self,
        items: Sequence[TextOrPair],
        *,
        truncate: bool,
        truncate_from_start: bool = False,
        read_empty: bool = False,
        param: str = "inputs",
        first_param: str | None = None,
    ) -> Classification:
        """Give the logits of each text or pair, in the order given.

        Args:
            items: any number, any length; a pair is read together.
            truncate: cut what is too long, as `truncate_sequence` does, instead of refusing it.
            truncate_from_start: cut the beginning of each text instead of its end.
            read_empty: read a text that holds nothing, by its special tokens, instead of refusing it; not the
                one in ``first_param``, with which all others are compared.
            param: the request field that holds them, for error messages.
            first_param: the field that holds the first text of all pairs; None = ``param`` holds both.

        Raises:
            EmptyInputError: a text comes to no tokens at all, and must not.
            InvalidTextError: a text holds half of a surrogate pair.
            InputTooLongError: a text or pair is too long, and cutting was not asked for.
            OverloadedError, UnavailableError: as ``DynamicBatcher.submit_many``.
            InferenceError: the model failed, or gave a number that is not finite.
        """
        if not items:
            return Classification(np.empty((0, len(self.labels)), dtype=np.float32), [], [], [])

        if first_param is not None:
            _check_text(items[0][0], first_param)

        def read(first: int, chunk: Sequence[TextOrPair]) -> list[TokenSequence]:
            return [
                self._prepare(
                    sequence,
                    _Place(param, first + place, first_param, isinstance(item, str)),
                    truncate=truncate,
                    from_start=truncate_from_start,
                    read_empty=read_empty,
                )
                for place, (item, sequence) in enumerate(
                    zip(
                        chunk,
                        read_sequences(self._model.tokenizer, chunk, token_types=self._token_types),
                        strict=True,
                    )
                )
            ]

        sizes = [len(item) if isinstance(item, str) else sum(map(len, item)) for item in items]
        with self._model.request():
            sequences = await self._model.tokenize(
                items, sizes=sizes, param=param, read=read, most_tokens=self._max_tokens
            )
            rows = [_Row(one.input_ids, "sequence_logits", one.token_type_ids) for one in sequences]
            logits = np.stack(await self._model.run(rows, texts=items))
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            index = int(np.argmin(finite))
            raise InferenceError(f"the model gave no usable answer for item {index}: not finite", index=index)
        truncated = [one.truncated_tokens for one in sequences]
        self._model.note(texts=len(items), truncated=sum(1 for cut in truncated if cut > 0))
        empty = [place for place, one in enumerate(sequences) if one.empty]
        return Classification(logits, [len(one) for one in sequences], truncated, empty)

    def _prepare(
        self,
        sequence: TokenSequence,
        place: "_Place",
        *,
        truncate: bool,
        from_start: bool,
        read_empty: bool,
    ) -> TokenSequence:
        """Refuse, or cut, what is too long; refuse what is nothing.

        Raises:
            EmptyInputError, InputTooLongError: as `classify`.
        """
        needed = 0 in sequence.empty and place.first_param is not None
        if sequence.empty and (needed or not read_empty):
            what, param, index = place.of_text(sequence.empty[0])
            raise EmptyInputError(f"{what} holds nothing that the model reads", index=index, param=param)
        if len(sequence) <= self._max_tokens:
            return sequence
        cuttable = True
        if truncate:
            try:
                return truncate_sequence(sequence, self._max_tokens, from_start=from_start)
            except ValueError:  # special tokens alone fill the model
                cuttable = False
        way_out = (
            'shorten it, or send "truncate": true to have the rest cut off '
            "(CONCHE_TRUNCATE sets what happens when a request does not say)"
        )
        raise InputTooLongError(
            f"{place.whole} has {len(sequence)} tokens, {place.beside}special tokens included, and "
            f"{self.model_id} reads {self._max_tokens}" + (f"; {way_out}" if cuttable else ""),
            tokens=len(sequence),
            limit=self._max_tokens,
            setting="truncate",
            index=place.index,
            param=place.param,
        )


class CrossEncoder(Classifier):
    """Query and text, read together, to how well the one answers the other: a classifier of one label."""

    def _adopt(self, manifest: Manifest) -> None:
        super()._adopt(manifest)
        if len(manifest.labels) != 1:
            raise ValueError(
                f"{manifest.name} is no cross-encoder: it has {len(manifest.labels)} labels instead of one"
            )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an item of a request stands, for messages; as the arguments of `Classifier.classify`."""

    param: str
    index: int
    first_param: str | None
    single: bool

    @property
    def whole(self) -> str:
        """The item."""
        return f"{self.param}[{self.index}]"

    @property
    def beside(self) -> str:
        """What is counted with it."""
        return "" if self.first_param is None else f"those of the {self.first_param} and "

    def of_text(self, place: int) -> tuple[str, str, int | None]:
        """Name, field and index of the first or second text."""
        if place == 0 and self.first_param is not None:
            return self.first_param, self.first_param, None
        if self.single or self.first_param is not None:
            return self.whole, self.param, self.index
        return f"the {('first', 'second')[place]} text of {self.whole}", self.param, self.index


def _check_text(text: str, param: str) -> None:
    try:
        check_characters(text, None)
    except NotTextError as error:
        raise InvalidTextError(
            f"{param} holds half of a surrogate pair at character {error.character}", param=param
        ) from error


def _pieces(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """[first, last) of each job, in order; an item that is too large for one is one by itself."""
    first = characters = 0
    for index, size in enumerate(sizes):
        if index > first and (index - first == _TEXTS_PER_JOB or characters + size > _CHARACTERS_PER_JOB):
            yield first, index
            first, characters = index, 0
        characters += size
    if first < len(sizes):
        yield first, len(sizes)
