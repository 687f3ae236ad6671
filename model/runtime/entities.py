"""From a document's windows, as the model answered them, to entities: all that a bundle says about it.

The service and the measurements both go through here, so what is measured is what is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from model.runtime.aggregation import PipelineStrategy, aggregate
from model.runtime.bundle import Bundle, Manifest, ScoreCalibration
from model.runtime.calibration import calibrated
from model.runtime.crf import LinearChainCrf
from model.runtime.decoding import SequenceDecoder
from model.runtime.documents import Document, Paragraph
from model.runtime.label_schemes import LabelScheme
from model.runtime.tagging import Entity, find_entities, mean_of
from model.runtime.windows import stitch

Strategy = Literal["viterbi", PipelineStrategy]


@dataclass(frozen=True, slots=True)
class EntityOptions:
    """Which entities are wanted.

    Attributes:
        threshold: least score; drops whole entities and never changes another's borders.
        labels: entity types that are kept; None = all.
        strategy: how labels become entities. ``viterbi``: the best sequence that the scheme allows, over
            words; its scores are calibrated if the bundle says how, else means of the probabilities of the
            words' labels. The others: see ``aggregation``.
    """

    threshold: float = 0.0
    labels: frozenset[str] | None = None
    strategy: Strategy = "viterbi"


class EntityFinder:
    """Reads one tagger's answers; keeps nothing between calls."""

    def __init__(
        self,
        scheme: LabelScheme,
        crf: LinearChainCrf | None = None,
        calibration: ScoreCalibration | None = None,
    ) -> None:
        """Take what is known of labels and scores.

        Raises:
            ValueError: the labels are not those of ``crf``.
        """
        self._scheme = scheme
        self._decoder = SequenceDecoder(scheme, crf)
        self._score = mean_of if calibration is None else partial(calibrated, calibration=calibration)
        self._type_of = dict(zip(self._scheme.labels, self._scheme.types, strict=True))

    @classmethod
    def from_manifest(cls, manifest: Manifest, crf: LinearChainCrf | None = None) -> Self:
        """The finder of the bundle that a manifest describes.

        Raises:
            ValueError: its labels make no scheme, or are not those of ``crf``.
        """
        scheme = LabelScheme.from_labels(manifest.labels, manifest.label_scheme)
        return cls(scheme, crf, manifest.calibration)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """The finder of a token-classification bundle.

        Raises:
            BundleError: its CRF is damaged.
            ValueError: its labels make no scheme.
        """
        return cls.from_manifest(bundle.manifest, LinearChainCrf.from_bundle(bundle))

    @property
    def entity_types(self) -> tuple[str, ...]:
        """What can be found, in the order of the labels."""
        return self._scheme.entity_types

    def find(
        self,
        document: Document,
        outputs: Sequence[NDArray[np.float32]],
        options: EntityOptions = EntityOptions(),
    ) -> list[Entity]:
        """Entities of a document, in its code points and in order; without overlap, but for ``none``.

        Args:
            document: as read.
            outputs: [n_i, L] finite logits of each of ``document.windows``, without padding.
            options: which are wanted.
        """
        of_windows = iter(outputs)
        found = []
        for paragraph in document.paragraphs:
            own = list(islice(of_windows, len(paragraph.windows)))
            for entity in self._find(paragraph, own, options.strategy):
                if entity.score >= options.threshold and self._is_wanted(entity, options):
                    start, end = paragraph.start + entity.start, paragraph.start + entity.end
                    found.append(replace(entity, start=start, end=end))
        return found

    def _find(
        self, paragraph: Paragraph, outputs: Sequence[NDArray[np.float32]], strategy: Strategy
    ) -> list[Entity]:
        if not paragraph.windows:
            return []
        logits = stitch(paragraph.windows, outputs)
        tokenized = paragraph.tokenized
        if strategy != "viterbi":
            return aggregate(paragraph.text, tokenized, logits, self._scheme, strategy)
        return find_entities(
            paragraph.text,
            tokenized.offsets,
            tokenized.word_ids,
            logits,
            self._decoder,
            score=self._score,
        )

    def _is_wanted(self, entity: Entity, options: EntityOptions) -> bool:
        return options.labels is None or self._type_of.get(entity.label, entity.label) in options.labels
