"""Builds the long-lived objects in order, closes them in reverse; says what could not be built, and why."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from model.runtime.bundle import BundleError
from model.runtime.engine_choice import EngineUnavailableError
from service.absence import FaqFailedError, ModelFailedError, NoFaqError, NoModelError
from service.batching import BatchingLimits
from service.bundle_reading import BundleReader, StreamsError, compute_threads
from service.errors import ServiceError, UnavailableError, UnknownModelError
from service.faq.catalogue import FaqCatalogue
from service.faq.embedding import Progress
from service.faq.entry_files import EntryFile, FaqFileError, demo_entries, read_entries
from service.faq.imports import faults_by_line
from service.faq.open_store import open_faq_store, searcher_of
from service.faq.source_file import bring_in
from service.inference import Classifier, ComputeBudget, CrossEncoder, Embedder, EntityTagger
from service.loaded_models import LoadedModels, ModelLoadedError, ServedKind
from service.metrics import Metrics
from service.prompts import prompt_of
from service.settings import DEMO, OFF, Settings
from service.stream_following import StreamFollower
from service.token_ids import Cl100kVocabulary, VocabularyFileError

logger = logging.getLogger(__name__)

_PROGRESS_EVERY_S: Final = 2.0


class StartupError(Exception):
    """The service cannot start as configured; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a route cannot be served.

    Attributes:
        reason: for callers: no paths of this machine, which are in the log.
        kind: of the error that a request gets.
        by_default: nobody asked for what is missing; not worth a line when the service starts.
        in_full: the reason with the paths that are left out of it, for whoever starts the service.
    """

    reason: str
    kind: type[ServiceError] = NoModelError
    by_default: bool = False
    in_full: str = ""

    @property
    def failed(self) -> bool:
        """Whether something configured did not pass its checks; False if nothing was configured."""
        return issubclass(self.kind, UnavailableError)


@dataclass(slots=True)
class Services:
    """What the routes use.

    Attributes:
        threads: of all model runs together.
        models: those loaded.
        default_embedder, default_tagger, default_classifier, default_reranker: names of the models that serve
            requests which name none. Without a reranker set, the embedder ranks.
        catalogue: None if it could not be built; ``absences`` then says why.
        cl100k: OpenAI's vocabulary; None if ids of it are not taken.
        faq_source: the file that fills the FAQ's first collection, "demo", or "none".
        faq_left_out: lines of that file that hold no usable entry; the log names each.
        absences: by route, or by the model beside a route's first.
        draining: the process is about to stop.
    """

    threads: int
    models: LoadedModels
    default_embedder: str | None = None
    default_tagger: str | None = None
    default_classifier: str | None = None
    default_reranker: str | None = None
    catalogue: FaqCatalogue | None = None
    cl100k: Cl100kVocabulary | None = None
    faq_source: str = ""
    faq_left_out: int = 0
    absences: dict[str, Absence] = field(default_factory=dict)
    draining: bool = False

    @property
    def streams(self) -> int:
        """Model runs at a time: as many as the model has that has most."""
        return max((loaded.engine.streams for loaded in self.models), default=1)

    @property
    def embedder(self) -> Embedder | None:
        """The one that serves requests which name none; None if there is none."""
        return self.models.embedders().get(self.default_embedder or "")

    @property
    def tagger(self) -> EntityTagger | None:
        """The same for entities."""
        return self.models.taggers().get(self.default_tagger or "")

    @property
    def classifier(self) -> Classifier | None:
        """The same for labels of whole texts."""
        return self.models.classifiers().get(self.default_classifier or "")

    @property
    def reranker(self) -> CrossEncoder | None:
        """The cross-encoder that ranks for requests which name no model; None if there is none."""
        return self.models.cross_encoders().get(self.default_reranker or "")

    @property
    def defaults(self) -> set[str]:
        """Names of the models that serve requests which name none."""
        named = (self.default_embedder, self.default_tagger, self.default_classifier, self.default_reranker)
        return {name for name in named if name is not None}

    def not_ready(self) -> list[str]:
        """Why no requests should be sent here; empty = send them."""
        reasons = ["the service is shutting down"] if self.draining else []
        reasons += [
            f"{route}: {absence.reason}" for route, absence in self.absences.items() if absence.failed
        ]
        models = [loaded.model for loaded in self.models]
        reasons += [
            f"{model.model_id}: {model.failure or 'not accepting work'}"
            for model in models
            if not model.healthy
        ]
        if not models and not reasons:
            reasons.append("no model is loaded")
        return reasons

    def lost(self) -> list[str]:
        """The models that worked and no more do, with the reason; a new process is what helps."""
        models = [loaded.model for loaded in self.models]
        return [f"{model.model_id}: {model.failure}" for model in models if model.failure is not None]

    def embedder_named(self, model: str | None) -> tuple[Embedder, str | None]:
        """The embedder that a request asks for, and the prompt that it names with it, if any.

        Args:
            model: as sent: None for the default one, ``NAME``, or ``NAME:PROMPT``.

        Raises:
            UnknownModelError: there is none of that name; the message lists what there is.
            NoModelError, ModelFailedError: none is named, and the default one is not there.
            InvalidInputError: it has no such prompt.
        """
        name, _, prompt = (model or "").partition(":")
        embedders = self.models.embedders()
        chosen = self.embedder if not name else embedders.get(name)
        if chosen is None:
            raise self._not_there(name, embedders, "/embed", "embeds")
        if prompt:
            prompt_of(chosen.manifest, prompt, param="model")
        return chosen, prompt or None

    def tagger_named(self, model: str | None) -> EntityTagger:
        """The tagger that a request asks for; as `embedder_named`, without prompts."""
        taggers = self.models.taggers()
        chosen = self.tagger if not model else taggers.get(model)
        if chosen is None:
            raise self._not_there(model, taggers, "/ner", "finds entities")
        return chosen

    def classifier_named(self, model: str | None, *, route: str) -> Classifier:
        """The classifier that a request to ``route`` asks for; as `tagger_named`."""
        classifiers = self.models.classifiers()
        chosen = self.classifier if not model else classifiers.get(model)
        if chosen is None and not model and classifiers:
            absence = self.absences.get("/predict", Absence("not configured"))
            raise absence.kind(
                f"{route} has no model for requests that name none: {absence.reason}; "
                f"`model` can name: {', '.join(classifiers)}"
            )
        if chosen is None:
            raise self._not_there(model, classifiers, "/predict", "classifies texts", asked=route)
        return chosen

    def ranker_named(self, model: str | None) -> Embedder | CrossEncoder:
        """What ranks texts for a request: the cross-encoder set, else the embedder, or the one that it names.

        Args:
            model: as sent: None for the default one, else the name of either kind.

        Raises:
            ModelFailedError: none is named, and a cross-encoder is set that did not pass its checks.
            as `embedder_named`.
        """
        name, _, prompt = (model or "").partition(":")
        cross_encoders = self.models.cross_encoders()
        if not name and self.default_reranker is None and "/rerank" in self.absences:
            raise self.absence("/rerank")
        if not name and self.reranker is None:
            return self.embedder_named(None)[0]
        chosen = self.reranker if not name else cross_encoders.get(name)
        if chosen is not None:
            if prompt:
                prompt_of(chosen.manifest, prompt, param="model")
            return chosen
        if name in self.models.embedders() or not cross_encoders:
            return self.embedder_named(model)[0]
        raise self._not_there(name, {**self.models.embedders(), **cross_encoders}, "/rerank", "ranks texts")

    def _not_there(
        self,
        name: str | None,
        there: Mapping[str, object],
        route: str,
        does: str,
        *,
        asked: str | None = None,
    ) -> ServiceError:
        if not name or not there:
            return self.absence(route, asked=asked)
        return UnknownModelError(f"no model of that name {does}; there is: {', '.join(there)}", param="model")

    def absence(self, route: str, *, asked: str | None = None) -> ServiceError:
        """The error that a request to ``route`` gets: 503 if what it needs failed, 404 if it has none.

        Args:
            route: under which ``absences`` has the reason.
            asked: the route that was asked, if another needs the same.
        """
        absence = self.absences.get(route, Absence("not configured"))
        return absence.kind(f"{asked or route} is not available: {absence.reason}")


@asynccontextmanager
async def open_services(
    settings: Settings,
    metrics: Metrics,
    *,
    faq_folder: Path | None = None,
    cache_folder: Path | None = None,
    reader: Future[BundleReader] | None = None,
) -> AsyncIterator[Services]:
    """Load what ``settings`` name, in worker threads, and close it afterwards.

    The models get ``shutdown_grace_seconds``, together, to finish what is in work; then it is given up.

    Args:
        settings: of the process.
        metrics: told about everything that is opened.
        faq_folder: where the FAQ store lies; None = in the data folder.
        cache_folder: where measurements of models are kept; None = in the data folder.
        reader: what ``service.bundle_reading.begin_reading`` gave, with the same settings; None = nothing was
            read yet.

    Raises:
        StartupError: the engine that is set is not there; a bundle, the FAQ store or the FAQ file cannot be
            used and ``on_bundle_error`` says to stop; or there is no bundle at all.
    """
    async with AsyncExitStack() as stack:
        threads = compute_threads(settings)
        # asyncio would start a thread for each core of the host, whatever the quota. Two at least, or one
        # large search would hold up all others.
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(max(2, threads), thread_name_prefix="conche-worker")
        )
        cache_folder = cache_folder or settings.data_path()
        budget = ComputeBudget()
        stack.callback(budget.close)
        models = LoadedModels(
            budget=budget,
            limits=_batching_limits(settings),
            reader=await asyncio.to_thread(_reader, settings, cache_folder, reader),
            observers=metrics,
        )
        services = Services(threads, models)
        if settings.input_ids == "cl100k":
            services.cl100k = await asyncio.to_thread(_read_cl100k, settings.openai_vocabulary)
        faq_folder = faq_folder or settings.data_path()
        opener = _Opener(settings, metrics, stack, services, faq_folder, cache_folder)
        stack.push_async_callback(models.close, 0.0)  # should opening fail half-way
        services.default_embedder = await opener.models("/embed", "embedding_bundle", Embedder)
        if await models.are_to_measure(opener.other_paths()):
            # Beside what embeds the FAQ it would be noise that is measured, and kept for later starts.
            await opener.other_models()
            await opener.catalogue()
        else:  # what loads a model leaves the interpreter to what builds the FAQ's index
            await _beside_each_other(opener.other_models(), opener.catalogue())
        opener.put_absences_in_order()
        if not list(models):
            opener.refuse_to_serve_nothing()
        follower = StreamFollower(models, paused=lambda: services.draining)
        follower.start()
        try:
            yield services
        finally:
            await asyncio.gather(follower.close(), _close_models(services, settings.shutdown_grace_seconds))


async def _beside_each_other(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until they end, or one fails: then the others are stopped, and its error is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _reader(settings: Settings, cache_folder: Path, begun: Future[BundleReader] | None) -> BundleReader:
    try:
        return BundleReader.of(settings, cache_folder) if begun is None else begun.result()
    except EngineUnavailableError as error:
        raise StartupError(
            f"CONCHE_ENGINE={settings.engine}, CONCHE_PRECISION={settings.precision}, "
            f"CONCHE_ONNXRUNTIME_PROVIDERS={settings.onnxruntime_providers}: {error}"
        ) from error
    except StreamsError as error:
        raise StartupError(str(error)) from error


def _read_cl100k(path: str) -> Cl100kVocabulary:
    try:
        return Cl100kVocabulary.from_file(Path(path).expanduser())
    except VocabularyFileError as error:
        raise StartupError(f"CONCHE_OPENAI_VOCABULARY: {error}") from error


async def _close_models(services: Services, within_s: float) -> None:
    ends_at = time.monotonic() + within_s
    if services.catalogue is not None:  # before the model that its background work embeds with
        await services.catalogue.close()
    await services.models.close(max(0.0, ends_at - time.monotonic()))


@dataclass(slots=True)
class _Opener:
    """Opens one thing after the other; notes in ``services`` what is missing."""

    settings: Settings
    metrics: Metrics
    stack: AsyncExitStack
    services: Services
    faq_folder: Path
    cache_folder: Path

    async def models(self, route: str, setting: str, kind: ServedKind) -> str | None:
        """Load what ``setting`` names; return the first one's name, or None if that one is not there.

        Another one never takes its place: requests that name none would get other vectors than before.
        """
        names = self.settings.bundle_names(setting)
        if not names:
            if setting != "reranker_bundle":  # without one the embedder ranks
                self._off(
                    route,
                    f"CONCHE_{setting.upper()}",
                    NoModelError,
                    by_default=setting not in self.settings.model_fields_set,
                )
            return None
        first = await self._model(route, names[0], setting, kind)
        for name in names[1:]:
            await self._model(f"model {Path(name).name}", name, setting, kind)
        return first

    async def other_models(self) -> None:
        """Load all models but the embedders."""
        services = self.services
        services.default_tagger = await self.models("/ner", "ner_bundle", EntityTagger)
        services.default_classifier = await self.models("/predict", "classifier_bundle", Classifier)
        services.default_reranker = await self.models("/rerank", "reranker_bundle", CrossEncoder)

    def other_paths(self) -> list[Path]:
        """Of the bundles that `other_models` loads."""
        settings = self.settings
        return [
            settings.bundle_path(name)
            for setting in ("ner_bundle", "classifier_bundle", "reranker_bundle")
            for name in settings.bundle_names(setting)
        ]

    async def _model(self, what: str, name: str, setting: str, kind: ServedKind) -> str | None:
        path = self.settings.bundle_path(name)
        if setting not in self.settings.model_fields_set and not path.exists():
            # Nobody asked for it by name: serve with what there is.
            reason = f"there is no bundle {name} in {self.settings.models_path()}"
            logger.warning("%s is not available: %s", what, reason)
            self.services.absences[what] = Absence(self._without_folders(reason), in_full=reason)
            return None
        try:
            model = await self.services.models.load(path, kind)
        except BundleError as error:
            reason = f"CONCHE_{setting.upper()}: bundle {name} is refused, check {error}"
            self._failed(what, reason, ModelFailedError)
            self.metrics.model_failed(path.name)
        except (ModelLoadedError, ValueError) as error:
            self._failed(what, f"CONCHE_{setting.upper()}: {error}", ModelFailedError)
            if not isinstance(
                error, ModelLoadedError
            ):  # else one of that name serves, and shows its own state
                self.metrics.model_failed(path.name)
        else:
            return model.model_id
        return None

    def put_absences_in_order(self) -> None:
        """Tell of models first, then of the FAQ, whichever was found missing first."""
        absences = self.services.absences
        if (faq := absences.pop("/search", None)) is not None:
            absences["/search"] = faq

    async def catalogue(self) -> None:
        """Open the FAQ: its store, its model measured, its file brought in, its indexes built."""
        self.services.catalogue = await self._catalogue()

    async def _catalogue(self) -> FaqCatalogue | None:
        route = "/search"
        if self.settings.faq_store == OFF:
            self._off(route, "CONCHE_FAQ_STORE", NoFaqError)
            return None
        if self.services.embedder is None:
            reason = self.services.absences["/embed"]
            self.services.absences[route] = Absence(
                f"it needs the embedding model; {reason.reason}", reason.kind
            )
            return None
        try:
            store = await asyncio.to_thread(open_faq_store, self.settings, self.faq_folder)
        except ServiceError as error:
            setting = "CONCHE_MILVUS_URI" if self.settings.faq_store == "milvus" else "CONCHE_DATA_DIR"
            self._failed(route, f"{error}; {setting} says where it lies")
            return None
        catalogue = FaqCatalogue(
            store,
            self.services.embedder,
            max_entries_per_write=self.settings.limits.max_faq_entries,
            calibrations=self.cache_folder / "calibrations",
            observer=self.metrics.faq,
            searcher=searcher_of(store, on_unproven=self.metrics.faq.on_unproven),
        )
        self.stack.push_async_callback(catalogue.close)
        try:
            await catalogue.calibrate(_logged(f"measuring {catalogue.model_id}, once", "texts"))
        except ServiceError as error:
            self._failed(route, f"{catalogue.model_id} cannot be measured: {error}")
            return None
        if not await self._bring_in_file(route, catalogue):
            return None
        await _load_indexes(catalogue)
        self.metrics.faq.watch(store, fingerprint=catalogue.fingerprint)
        return catalogue

    async def _bring_in_file(self, route: str, catalogue: FaqCatalogue) -> bool:
        """Fill the first collection; False if it cannot be done."""
        source = self.services.faq_source = self.settings.faq_file
        if source == OFF:
            return True
        try:
            file = await asyncio.to_thread(_read_faq, source)
        except (FaqFileError, OSError) as error:
            self._failed(route, f"CONCHE_FAQ_FILE: {source} cannot be read: {error}")
            return False
        if not file.entries:
            self._failed(route, f"CONCHE_FAQ_FILE: {source} holds no usable entry")
            return False
        try:
            with faults_by_line(file):
                await bring_in(
                    catalogue,
                    file.entries,
                    self.faq_folder / "faq_file.json",
                    # The built-in one is for trying out, and never comes between entries of one's own.
                    only_if_empty="faq_file" not in self.settings.model_fields_set,
                    is_whole=not file.bad_lines,
                    progress=_logged(f"FAQ file {source}", "entries or texts"),
                )
        except (ServiceError, ValueError) as error:
            self._failed(route, f"CONCHE_FAQ_FILE: {source} cannot be used: {error}")
            return False
        self.services.faq_left_out = len(file.bad_lines)
        return True

    def refuse_to_serve_nothing(self) -> None:
        """Stop rather than answer 404 to everything."""
        if self.settings.on_bundle_error == "exit":
            absences = [self.services.absences[route] for route in ("/embed", "/ner")]
            reasons = " and ".join(absence.in_full or absence.reason for absence in absences)
            raise StartupError(f"no model to serve: {reasons}; CONCHE_MODELS_DIR says where bundles lie")

    def _off(self, route: str, variable: str, kind: type[ServiceError], *, by_default: bool = False) -> None:
        self.services.absences[route] = Absence(f"{variable} is {OFF}", kind, by_default)

    def _failed(self, route: str, reason: str, kind: type[ServiceError] = FaqFailedError) -> None:
        if self.settings.on_bundle_error == "exit":
            raise StartupError(f"{route}: {reason}")
        logger.error("%s is not available: %s", route, reason)
        self.services.absences[route] = Absence(self._without_folders(reason), kind)

    def _without_folders(self, reason: str) -> str:
        """What callers are told: files by their names, not where they lie on this machine."""
        settings = self.settings
        folders = [settings.models_path(), settings.data_path(), self.faq_folder]
        named = [
            *settings.bundle_names("embedding_bundle"),
            *settings.bundle_names("ner_bundle"),
            *settings.bundle_names("classifier_bundle"),
            *settings.bundle_names("reranker_bundle"),
            settings.faq_file,
        ]
        folders += [Path(name).expanduser().parent for name in named if "/" in name]
        forms = {str(form) for folder in folders for form in (folder, folder.absolute(), folder.resolve())}
        for form in sorted(forms - {".", "/"}, key=len, reverse=True):
            reason = reason.replace(f"{form}/", "").replace(form, Path(form).name)
        return reason


async def _load_indexes(catalogue: FaqCatalogue) -> None:
    """Build all indexes; a collection that cannot be searched is no reason not to serve the others."""
    for info in await catalogue.collections():
        try:
            await catalogue.load(info.name)
        except ServiceError as error:
            logger.warning("FAQ collection %s cannot be searched: %s", info.name, error)


def _logged(what: str, unit: str) -> Progress:
    """Progress as a log line now and then; work that is done in a moment needs none."""
    said_at = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _PROGRESS_EVERY_S:
            said_at = time.monotonic()
            logger.info("%s: %d of %d %s", what, done, total, unit)

    return progress


def _read_faq(source: str) -> EntryFile:
    if source == DEMO:
        entries = demo_entries()
        return EntryFile(entries, lines=list(range(1, len(entries) + 1)))
    file = read_entries(Path(source).expanduser())
    for bad in file.bad_lines:
        logger.warning("FAQ file %s, %s %d is left out: %s", source, file.unit, bad.number, bad.reason)
    return file


def _batching_limits(settings: Settings) -> BatchingLimits:
    """All but the tokens of a batch, which are each model's own."""
    batching = settings.batching
    return BatchingLimits(
        max_batch_size=batching.max_batch_size,
        max_queue_tokens=batching.max_queue_tokens,
        max_queue_items=batching.max_queue_items,
        max_queue_s=batching.max_queue_seconds,
        max_wait_s=batching.max_wait_ms / 1000,
        stall_timeout_s=batching.stall_timeout_seconds,
    )
