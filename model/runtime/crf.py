"""A trained layer of transition scores on top of the logits; the file ``crf.json`` of a bundle.

The file is one JSON object; L labels, in the order of the manifest::

    {"labels": [L strings], "start": [L], "end": [L], "transitions": [[L] * L]}

``transitions[a][b]`` is the score of label b right after label a. A sequence y of W *words* scores

    start[y_1] + sum_t logits[t, y_t] + sum_t transitions[y_(t-1), y_t] + end[y_W]

where a sequence is a paragraph (``documents.paragraphs``), its words are those of ``tagging.words_of``, and a
word's logits are those of its first token. Training must score the same sequences.

Source: Lample et al. 2016, arXiv:1603.01360, section 2.2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Bundle, BundleError, reading

CRF_NAME: Final = "crf.json"


@dataclass(frozen=True, slots=True)
class LinearChainCrf:
    """Scores added to the logits; any finite numbers.

    Attributes:
        start: [L] float64.
        end: [L] float64.
        transitions: [L, L] float64, [before, after].
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    transitions: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check shapes and values.

        Raises:
            ValueError: they do not belong together, or a score is not finite.
        """
        count = len(self.start)
        shapes = [list(array.shape) for array in (self.start, self.end, self.transitions)]
        if shapes != [[count], [count], [count, count]]:
            raise ValueError(f"start, end and transitions have shapes {shapes}")
        if not all(np.isfinite(array).all() for array in (self.start, self.end, self.transitions)):
            raise ValueError("a score is not finite")

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self | None:
        """Read the bundle's layer; None if it has none.

        Raises:
            BundleError: the file is damaged or is for other labels (check "crf").
        """
        if CRF_NAME not in bundle.manifest.files:
            return None
        where = f"{bundle.path.name}/{CRF_NAME}"
        with reading("crf", where):
            raw = bundle.file(CRF_NAME).read_bytes()
        try:
            return cls._from_json(json.loads(raw), bundle.manifest.labels)
        except (ValueError, TypeError, KeyError) as error:
            raise BundleError("crf", f"{where}: {error!r}") from error

    @classmethod
    def _from_json(cls, content: Any, labels: Sequence[str]) -> Self:
        if content["labels"] != list(labels):
            raise ValueError(f"labels are {content['labels']}, the manifest has {list(labels)}")
        scores = cls(*(np.array(content[name], dtype=np.float64) for name in ("start", "end", "transitions")))
        if len(scores.start) != len(labels):
            raise ValueError(f"{len(scores.start)} scores for {len(labels)} labels")
        return scores

    def to_json(self, labels: Sequence[str]) -> str:
        """The text of ``crf.json``.

        Args:
            labels: L, as in the manifest.
        """
        content = {
            "labels": list(labels),
            "start": self.start.tolist(),
            "end": self.end.tolist(),
            "transitions": self.transitions.tolist(),
        }
        return json.dumps(content, ensure_ascii=False) + "\n"
