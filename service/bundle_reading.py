"""From a bundle's folder to a model that is proved to compute what it should; at a start, before all else.

Most of it is native code, beside which the interpreter has time: `begin_reading` has it done while `conche
serve` imports the rest of the service, and `service.loaded_models` takes what has come of it.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from model.runtime.batch_budget import BatchBudget, BudgetTuner
from model.runtime.bundle import Bundle, BundleError, discover
from model.runtime.engine_choice import EngineChoice, EngineChooser, EngineWishes
from model.runtime.stream_changes import StreamChanges
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer, Vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from model.runtime.engine import Engine
    from service.settings import Settings

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ReadBundle:
    """A bundle that passed its checks, and what serves it.

    Attributes:
        bundle: checked.
        tokenizer: its own.
        engine: loaded, proved and warm.
        choice: why that engine.
        batch_budget: how many tokens its batches have.
        memory_bytes: by how much the process grew meanwhile; at a start it imports beside it, too.
        stream_changes: what changes the engine's streams while it serves; None = it has them for good.
    """

    bundle: Bundle
    tokenizer: Tokenizer
    engine: Engine
    choice: EngineChoice
    batch_budget: BatchBudget
    memory_bytes: int
    stream_changes: StreamChanges | None = None


class BundleReader:
    """Reads bundles, when asked or ahead.

    Args:
        engines: opens what a bundle runs on.
        budgets: how many tokens each model's batches have.
    """

    def __init__(self, *, engines: EngineChooser, budgets: BudgetTuner) -> None:
        self._engines = engines
        self._budgets = budgets
        self._vocabularies = Vocabularies()
        self._begun: dict[Path, Future[ReadBundle]] = {}

    @classmethod
    def of(cls, settings: Settings, cache_folder: Path | None = None) -> Self:
        """As ``settings`` have it.

        Args:
            settings: of the process.
            cache_folder: where measurements of models are kept; None = in the data folder.

        Raises:
            EngineUnavailableError: the engine that is set is not there.
            StreamsError: there is not a thread for each stream.
        """
        threads = compute_threads(settings)
        streams = None if settings.streams == "auto" else settings.streams
        if streams is not None and streams > threads:
            there = "is 1" if threads == 1 else f"are {threads}"
            raise StreamsError(
                f"CONCHE_STREAMS={streams}: each needs a thread, and there {there} "
                f"(CONCHE_THREADS={settings.threads})"
            )
        folder = (cache_folder or settings.data_path()) / "engines"
        wishes = EngineWishes(settings.engine, settings.precision, settings.providers())
        return cls(
            engines=EngineChooser(wishes, threads=threads, streams=streams, folder=folder),
            budgets=BudgetTuner(
                settings.batching.batch_tokens(), threads=threads, streams=streams, folder=folder
            ),
        )

    def is_to_measure(self, path: Path) -> bool:
        """Whether reading the bundle would measure, beside which nothing else should compute.

        No weights are read for it. A bundle that cannot be used is not measured.
        """
        try:
            bundle = Bundle.load(path, verify_hashes=False)
        except BundleError:
            return False
        return self._engines.is_to_measure(bundle) or self._budgets.is_to_measure(bundle)

    def begin(self, paths: Iterable[Path]) -> None:
        """Read these ahead, one after the other; `read` gives what comes of each.

        Nothing is begun where one is to be measured.
        """
        distinct = list(dict.fromkeys(paths))
        if any(map(self.is_to_measure, distinct)):
            return
        begun: dict[Path, Future[ReadBundle]] = {path: Future() for path in distinct}
        self._begun.update(begun)

        def work() -> None:
            for path, future in begun.items():
                # At a start, that is; later the interpreter has others to serve.
                _settle(future, partial(self._read, path, keep_compiled=True))

        _in_background(work)

    def read(self, path: Path) -> ReadBundle:
        """Load a bundle and prove that it computes what it did when it was written; this warms it up, too.

        Raises:
            BundleError: it fails a check.
        """
        begun = self._begun.pop(path, None)
        return self._read(path) if begun is None else begun.result()

    def _read(self, path: Path, *, keep_compiled: bool = False) -> ReadBundle:
        if not path.exists():
            there = ", ".join(sorted(found.name for found in discover(path.parent))) or "none"
            raise BundleError("manifest", f"{path} does not exist; bundles there: {there}")
        before = resident_bytes()
        bundle = Bundle.load(path)
        tokenizer = Tokenizer.from_bundle(bundle, vocabularies=self._vocabularies)
        engine, choice = self._engines.open(bundle, tokenizer, keep_compiled=keep_compiled)
        try:
            batch_budget = self._budgets.budget(bundle, engine, tokenizer.pad_token_id)
        except BaseException:
            engine.close()
            raise
        grown = max(0, resident_bytes() - before)
        changes = self._engines.stream_changes(bundle, engine, choice)
        return ReadBundle(bundle, tokenizer, engine, choice, batch_budget, grown, changes)

    def close(self) -> None:
        """Free what was begun and nobody asked for."""
        while self._begun:
            _, begun = self._begun.popitem()
            begun.add_done_callback(_free)


class StreamsError(Exception):
    """There are fewer threads than streams; the message names the settings."""


def compute_threads(settings: Settings) -> int:
    """Of all model runs together."""
    return thread_count() if settings.threads == "auto" else settings.threads


def begin_reading(settings: Settings) -> Future[BundleReader]:
    """Begin to read the bundles that ``settings`` name and that are there.

    Returns:
        The reader, or the error of `BundleReader.of` for which there is none.
    """
    reader: Future[BundleReader] = Future()

    def begin() -> BundleReader:
        made = BundleReader.of(settings)
        paths = [
            settings.bundle_path(name)
            for setting in ("embedding_bundle", "ner_bundle", "classifier_bundle", "reranker_bundle")
            for name in settings.bundle_names(setting)
        ]
        made.begin(path for path in paths if path.exists())
        return made

    _in_background(partial(_settle, reader, begin))
    return reader


def _in_background(work: Callable[[], None]) -> None:
    # A daemon: what is still loading when the process is to end is not waited for.
    threading.Thread(target=work, name="conche-reader", daemon=True).start()


def _settle(future: Future[Result], work: Callable[[], Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
        future.set_exception(error)


def _free(begun: Future[ReadBundle]) -> None:
    if begun.exception() is None:
        begun.result().engine.close()


def resident_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
