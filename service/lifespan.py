"""Builds the long-lived objects in order, closes them in reverse; says what could not be built, and why."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from model.runtime.bundle import Bundle, BundleError, discover
from model.runtime.engine import Engine, OnnxRuntimeEngine
from model.runtime.golden import check_golden
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer
from service.absence import ModelFailedError, NoModelError
from service.batching import BatchingLimits
from service.errors import ServiceError
from service.faq.entry_files import EntryFile, FaqFileError, demo_entries, read_entries
from service.faq.search import FaqSearcher
from service.inference import ComputeBudget, Embedder, EntityTagger
from service.metrics import Metrics
from service.settings import DEMO, OFF, Settings

logger = logging.getLogger(__name__)

Model = TypeVar("Model", Embedder, EntityTagger)


class StartupError(Exception):
    """The service cannot start as configured; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a route cannot be served.

    Attributes:
        reason: for operators and callers.
        failed: something configured did not pass its checks; False if nothing was configured.
    """

    reason: str
    failed: bool = False


@dataclass(slots=True)
class Services:
    """What the routes use.

    Attributes:
        threads: of one model run.
        embedder, tagger, searcher: None if they could not be built; ``absences`` then says why.
        faq_source: the FAQ's file, or "demo".
        faq_left_out: lines of that file that hold no usable entry; the log names each.
        absences: by route.
        draining: the process is about to stop.
    """

    threads: int
    embedder: Embedder | None = None
    tagger: EntityTagger | None = None
    searcher: FaqSearcher | None = None
    faq_source: str = ""
    faq_left_out: int = 0
    absences: dict[str, Absence] = field(default_factory=dict)
    draining: bool = False

    def not_ready(self) -> list[str]:
        """Why no requests should be sent here; empty = send them."""
        reasons = ["the service is shutting down"] if self.draining else []
        reasons += [
            f"{route}: {absence.reason}" for route, absence in self.absences.items() if absence.failed
        ]
        for model in (self.embedder, self.tagger):
            if model is not None and not model.healthy:
                reasons.append(f"{model.model_id}: {model.failure or 'not accepting work'}")
        if self.embedder is None and self.tagger is None and not reasons:
            reasons.append("no model is loaded")
        return reasons

    def absence(self, route: str) -> ServiceError:
        """The error that a request to ``route`` gets: 503 if its bundle failed, 404 if it has none."""
        absence = self.absences.get(route, Absence("not configured"))
        message = f"{route} is not available: {absence.reason}"
        return ModelFailedError(message) if absence.failed else NoModelError(message)


@asynccontextmanager
async def open_services(settings: Settings, metrics: Metrics) -> AsyncIterator[Services]:
    """Load what ``settings`` name, in worker threads, and close it afterwards.

    The models get ``shutdown_grace_seconds``, together, to finish what is in work; then it is given up.

    Raises:
        StartupError: a bundle or the FAQ file cannot be used and ``on_bundle_error`` says to stop; or there
            is no bundle at all.
    """
    async with AsyncExitStack() as stack:
        threads = thread_count() if settings.threads == "auto" else settings.threads
        # asyncio would start a thread for each core of the host, whatever the quota. Two at least, or one
        # large search would hold up all others.
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(max(2, threads), thread_name_prefix="conche-worker")
        )
        budget = ComputeBudget()
        stack.callback(budget.close)
        services = Services(threads)
        opener = _Opener(settings, metrics, stack, budget, services)
        services.embedder = await opener.model("/embed", "embedding_bundle", Embedder)
        services.tagger = await opener.model("/ner", "ner_bundle", EntityTagger)
        services.searcher = await opener.searcher()
        if services.embedder is None and services.tagger is None:
            opener.refuse_to_serve_nothing()
        try:
            yield services
        finally:
            await _close_models(services, settings.shutdown_grace_seconds)


async def _close_models(services: Services, within_s: float) -> None:
    ends_at = time.monotonic() + within_s
    for model in (services.embedder, services.tagger):
        if model is not None:
            await model.close(max(0.0, ends_at - time.monotonic()))


@dataclass(slots=True)
class _Opener:
    """Opens one thing after the other; notes in ``services`` what is missing."""

    settings: Settings
    metrics: Metrics
    stack: AsyncExitStack
    budget: ComputeBudget
    services: Services

    async def model(self, route: str, setting: str, kind: Callable[..., Model]) -> Model | None:
        """The model that ``setting`` names, running; None if there is none."""
        name: str = getattr(self.settings, setting)
        if name == OFF:
            self._off(route, f"CONCHE_{setting.upper()}")
            return None
        path = self.settings.bundle_path(name)
        if setting not in self.settings.model_fields_set and not path.exists():
            # Nobody asked for it by name: serve with what there is.
            self._absent(route, f"there is no bundle {name} in {self.settings.models_path()}")
            return None
        try:
            bundle, tokenizer, engine = await asyncio.to_thread(_load, path, self.services.threads)
        except BundleError as error:
            self._failed(route, f"bundle {name} is refused, check {error}")
            return None
        self.stack.callback(engine.close)
        observer = self.metrics.observe_model(bundle.manifest)
        try:
            model = kind(
                bundle.manifest,
                tokenizer,
                engine,
                budget=self.budget,
                limits=_batching_limits(self.settings),
                observer=observer,
            )
        except ValueError as error:
            self._failed(route, f"CONCHE_{setting.upper()}: {error}")
            return None
        return await self.stack.enter_async_context(model)

    async def searcher(self) -> FaqSearcher | None:
        """The FAQ, embedded and indexed; None if there is none."""
        route, source = "/search", self.settings.faq_file
        if source == OFF:
            self._off(route, "CONCHE_FAQ_FILE")
            return None
        if self.services.embedder is None:
            reason = self.services.absences["/embed"]
            self.services.absences[route] = Absence(
                f"it needs the embedding model; {reason.reason}", reason.failed
            )
            return None
        try:
            file = await asyncio.to_thread(_read_faq, source)
        except (FaqFileError, OSError) as error:
            self._failed(route, f"FAQ file {source} cannot be read: {error}")
            return None
        if not file.entries:
            self._failed(route, f"FAQ file {source} holds no usable entry")
            return None
        try:
            searcher = await FaqSearcher.build(self.services.embedder, file.entries)
        except (ServiceError, ValueError) as error:
            self._failed(route, f"FAQ file {source} cannot be used: {error}")
            return None
        self.services.faq_source, self.services.faq_left_out = source, len(file.bad_lines)
        self.metrics.watch_faq(lambda: len(searcher.index))
        return searcher

    def refuse_to_serve_nothing(self) -> None:
        """Stop rather than answer 404 to everything."""
        if self.settings.on_bundle_error == "exit":
            reasons = " and ".join(self.services.absences[route].reason for route in ("/embed", "/ner"))
            raise StartupError(f"no model to serve: {reasons}; CONCHE_MODELS_DIR says where bundles lie")

    def _off(self, route: str, variable: str) -> None:
        self.services.absences[route] = Absence(f"{variable} is {OFF}")

    def _absent(self, route: str, reason: str) -> None:
        logger.warning("%s is not available: %s", route, reason)
        self.services.absences[route] = Absence(reason)

    def _failed(self, route: str, reason: str) -> None:
        if self.settings.on_bundle_error == "exit":
            raise StartupError(f"{route}: {reason}")
        logger.error("%s is not available: %s", route, reason)
        self.services.absences[route] = Absence(reason, failed=True)


def _load(path: Path, threads: int) -> tuple[Bundle, Tokenizer, Engine]:
    """Load a bundle and prove that it computes what it did when it was written; this warms it up, too."""
    if not path.exists():
        there = ", ".join(sorted(found.name for found in discover(path.parent))) or "none"
        raise BundleError("manifest", f"{path} does not exist; bundles there: {there}")
    bundle = Bundle.load(path)
    tokenizer = Tokenizer.from_bundle(bundle)
    engine = OnnxRuntimeEngine(bundle, threads=threads)
    try:
        check_golden(bundle, tokenizer, engine)
    except BundleError:
        engine.close()
        raise
    return bundle, tokenizer, engine


def _read_faq(source: str) -> EntryFile:
    if source == DEMO:
        return EntryFile(demo_entries())
    file = read_entries(Path(source).expanduser())
    for bad in file.bad_lines:
        logger.warning("FAQ file %s, line %d is left out: %s", source, bad.number, bad.reason)
    return file


def _batching_limits(settings: Settings) -> BatchingLimits:
    batching = settings.batching
    return BatchingLimits(
        max_batch_tokens=batching.max_batch_tokens,
        max_batch_size=batching.max_batch_size,
        max_queue_tokens=batching.max_queue_tokens,
        max_queue_items=batching.max_queue_items,
        max_wait_s=batching.max_wait_ms / 1000,
        stall_timeout_s=batching.stall_timeout_seconds,
    )
