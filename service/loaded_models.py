"""The models of one process: any number of them, by name, come and go without a restart."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from model.runtime.allocation import return_freed_memory
from model.runtime.batch_budget import BatchBudget
from model.runtime.bundle import Manifest
from model.runtime.engine import Engine
from model.runtime.engine_choice import EngineChoice
from model.runtime.stream_changes import StreamChanges
from service.batching import BatchingLimits
from service.bundle_reading import BundleReader
from service.errors import ConflictError, UnknownModelError
from service.inference import (
    Classifier,
    ComputeBudget,
    CrossEncoder,
    Embedder,
    EntityTagger,
    InferenceObserver,
)

logger = logging.getLogger(__name__)

_STEP_S: Final = 0.01

ServedModel = Embedder | EntityTagger | Classifier
ServedKind = type[Embedder] | type[EntityTagger] | type[Classifier]

_KINDS: Final[dict[str, ServedKind]] = {
    "embedding": Embedder,
    "token-classification": EntityTagger,
    "sequence-classification": Classifier,
}
_CALLED: Final[dict[ServedKind, str]] = {
    **{kind: f"{task} bundle" for task, kind in _KINDS.items()},
    CrossEncoder: "cross-encoder (a sequence-classification bundle of a single label)",
}


class Observers(Protocol):
    """Makes an observer for each model; ``service.metrics.Metrics`` is one."""

    def observe_model(self, manifest: Manifest) -> InferenceObserver:
        """A model is about to be served."""
        ...

    def forget_model(self, name: str) -> None:
        """It is served no more."""
        ...


class ModelLoadedError(ConflictError):
    """A model of that name is loaded already."""

    code = "model_loaded"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that serves.

    Attributes:
        model: the embedder, tagger or classifier.
        engine: what it runs on.
        choice: why that one.
        batch_budget: how many tokens its batches have.
        memory_bytes: by how much the process grew while it was loaded; what it uses at work comes on top. At
            the start other parts of the service grow beside it.
        loaded_at: ISO 8601, UTC.
        stream_changes: what changes the engine's streams; None = it has them for good.
    """

    model: ServedModel
    engine: Engine
    choice: EngineChoice
    batch_budget: BatchBudget
    memory_bytes: int
    loaded_at: str
    stream_changes: StreamChanges | None = None

    @property
    def name(self) -> str:
        """Of the bundle."""
        return self.model.model_id

    @property
    def demand(self) -> int:
        """Rows at work, and rows that wait."""
        return self.model.batcher.demand

    def streams_changed(self) -> None:
        """Have the batcher look anew at how many streams there are."""
        self.model.batcher.streams_changed()


class LoadedModels:
    """Loads, finds and unloads models, which share one ``ComputeBudget``.

    Args:
        budget: the threads that compute; outlives the models.
        limits: of each model's queue; how many tokens its batches have, the reader says.
        reader: reads bundles; closed with the models.
        observers: makes what is told of a model's work.
    """

    def __init__(
        self,
        *,
        budget: ComputeBudget,
        limits: BatchingLimits,
        reader: BundleReader,
        observers: Observers,
    ) -> None:
        self._budget = budget
        self._limits = limits
        self._reader = reader
        self._observers = observers
        self._loaded: dict[str, LoadedModel] = {}
        self._changing = asyncio.Lock()

    def __iter__(self) -> Iterator[LoadedModel]:
        """All, in the order in which they were loaded."""
        return iter(list(self._loaded.values()))

    def embedders(self) -> dict[str, Embedder]:
        """By name."""
        return {name: one.model for name, one in self._loaded.items() if isinstance(one.model, Embedder)}

    def taggers(self) -> dict[str, EntityTagger]:
        """By name."""
        return {name: one.model for name, one in self._loaded.items() if isinstance(one.model, EntityTagger)}

    def classifiers(self) -> dict[str, Classifier]:
        """By name; cross-encoders are among them."""
        return {name: one.model for name, one in self._loaded.items() if isinstance(one.model, Classifier)}

    def cross_encoders(self) -> dict[str, CrossEncoder]:
        """By name."""
        return {name: one.model for name, one in self._loaded.items() if isinstance(one.model, CrossEncoder)}

    async def are_to_measure(self, paths: Sequence[Path]) -> bool:
        """Whether loading one of these would measure, beside which nothing else should compute.

        No weights are read for it. A bundle that cannot be used is not measured.
        """
        return await asyncio.to_thread(lambda: any(map(self._reader.is_to_measure, paths)))

    async def load(self, path: Path, kind: ServedKind | None = None) -> ServedModel:
        """Load a bundle, prove that it computes what it should, and serve it; the others go on meanwhile.

        Args:
            path: its folder.
            kind: what it has to be; None = anything.

        Raises:
            BundleError: it fails a check.
            ModelLoadedError: a model of its name is loaded.
            ValueError: it is not of that kind.
        """
        async with self._changing:
            read = await asyncio.to_thread(self._reader.read, path)
            manifest = read.bundle.manifest
            name = manifest.name
            try:
                served = _kind_of(manifest, kind)
                self._refuse_twice(name)
                model = served.from_bundle(
                    read.bundle,
                    read.tokenizer,
                    read.engine,
                    budget=self._budget,
                    limits=replace(self._limits, max_batch_tokens=read.batch_budget.tokens),
                    observer=self._observers.observe_model(manifest),
                    most_streams=None if read.stream_changes is None else read.stream_changes.most,
                )
            except BaseException:
                read.engine.close()
                raise
            model.start()
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._loaded[name] = LoadedModel(
                model,
                read.engine,
                read.choice,
                read.batch_budget,
                read.memory_bytes,
                now,
                read.stream_changes,
            )
            return model

    async def unload(self, name: str, *, within_s: float) -> None:
        """Serve no new requests with a model, finish what is in work, and free its memory.

        Args:
            name: of the model.
            within_s: what is not finished by then is given up.

        Raises:
            UnknownModelError: no such model is loaded.
        """
        async with self._changing:
            loaded = self._loaded.pop(name, None)
            if loaded is None:
                listed = ", ".join(self._loaded) or "none"
                raise UnknownModelError(f"no model of that name is loaded; there is: {listed}", param="model")
            ends_at = time.monotonic() + within_s
            # What is still being tokenised is in work too, and would find the queue closed.
            while loaded.model.requests and time.monotonic() < ends_at:  # noqa: ASYNC110 - a count
                await asyncio.sleep(_STEP_S)
            await loaded.model.close(max(0.0, ends_at - time.monotonic()))
            loaded.engine.close()
            self._observers.forget_model(name)
            del loaded  # with its tokenizer: what is freed can be given back
            await asyncio.to_thread(return_freed_memory)

    def _refuse_twice(self, name: str) -> None:
        if name in self._loaded:
            raise ModelLoadedError(f"a model {name} is loaded already; unload it first", param="model")

    async def close(self, within_s: float) -> None:
        """Unload all, within one deadline."""
        ends_at = time.monotonic() + within_s
        self._reader.close()
        for name in list(self._loaded):
            with suppress(UnknownModelError):  # an operator was quicker
                await self.unload(name, within_s=max(0.0, ends_at - time.monotonic()))


def _kind_of(manifest: Manifest, wanted: ServedKind | None) -> ServedKind:
    kind = _KINDS[manifest.task]
    if kind is Classifier and len(manifest.labels) == 1:
        kind = CrossEncoder
    if wanted is not None and not issubclass(kind, wanted):
        raise ValueError(f"{manifest.name} is no {_CALLED[wanted]}")
    return kind
