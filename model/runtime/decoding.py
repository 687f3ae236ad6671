"""The best sequence of labels that a scheme allows, and how sure each of its labels is.

Words are scored by their logits, and by a ``LinearChainCrf`` if the bundle has one. The scheme's rules hold
either way: what it forbids is never decoded, and has no share in the probabilities of a CRF.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from model.runtime.crf import LinearChainCrf
from model.runtime.label_schemes import LabelScheme


class Joint(IntEnum):
    """How a word stands to the one before it.

    A ``CONNECTOR`` is the hyphen of "Jean-Claude" or the like: no entity begins or ends with it. So it is
    outside or goes on with the entity before it, and the word ``BEHIND`` it goes on with the connector's.
    """

    FREE = 0
    CONNECTOR = 1
    BEHIND = 2


@dataclass(frozen=True, slots=True)
class _Chain:
    """Log scores of what the rules allow, -inf for the rest.

    Attributes:
        start: [L].
        end: [L].
        steps: [joints, L before, L after].
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    steps: NDArray[np.float64]


class SequenceDecoder:
    """Decodes under a scheme and, if there is one, a CRF.

    Attributes:
        scheme: the labels and their rules.
    """

    def __init__(self, scheme: LabelScheme, crf: LinearChainCrf | None = None) -> None:
        """Take ``scheme`` and ``crf`` of the same L labels.

        Raises:
            ValueError: they have different numbers of labels.
        """
        count = len(scheme.labels)
        if crf is not None and len(crf.start) != count:
            raise ValueError(f"the CRF has {len(crf.start)} labels, the scheme {count}")
        outside = np.arange(count) == scheme.outside
        self._allowed = np.stack(
            [
                scheme.may_follow,
                scheme.may_follow & (scheme.continues | outside[None, :]),
                scheme.may_follow & (scheme.continues | outside[:, None]),
            ]
        )
        self.scheme = scheme
        self._learned = crf is not None
        zeros = LinearChainCrf(np.zeros(count), np.zeros(count), np.zeros((count, count)))
        scores = zeros if crf is None else crf
        self._chain = _Chain(
            start=np.where(scheme.may_start, scores.start, -np.inf),
            end=np.where(scheme.may_end, scores.end, -np.inf),
            steps=np.where(self._allowed, scores.transitions, -np.inf),
        )

    def decode(
        self, logits: NDArray[np.float64], joints: NDArray[np.int8] | None = None
    ) -> tuple[list[int], NDArray[np.float64]]:
        """The best allowed sequence, and the probability of each of its labels.

        Args:
            logits: [W, L], finite.
            joints: [W] ``Joint`` values; by default all words are free.

        Returns:
            [W] label indices, and [W] probabilities: of the label at that word over all allowed sequences if
            there is a CRF; else over the labels of that word alone.
        """
        if len(logits) == 0:
            return [], np.zeros(0)
        kinds = np.zeros(len(logits), dtype=np.int8) if joints is None else joints
        path = self._greedy(logits, kinds) or self._viterbi(logits, kinds)
        of_labels = self._marginals(logits, kinds) if self._learned else softmax(logits)
        return path, np.clip(of_labels[np.arange(len(path)), path], 0.0, 1.0)

    def _greedy(self, logits: NDArray[np.float64], kinds: NDArray[np.int8]) -> list[int] | None:
        """Each word's best label, where that happens to be allowed: nothing can beat them all."""
        if self._learned:
            return None
        best = logits.argmax(axis=1)
        steps = self._allowed[kinds[1:], best[:-1], best[1:]]
        if steps.all() and self.scheme.may_start[best[0]] and self.scheme.may_end[best[-1]]:
            return [int(label) for label in best]
        return None

    def _viterbi(self, logits: NDArray[np.float64], kinds: NDArray[np.int8]) -> list[int]:
        count, width = logits.shape
        labels = np.arange(width)
        previous = np.zeros((count, width), dtype=np.int64)
        best = self._chain.start + logits[0]
        for index in range(1, count):
            arriving = best[:, None] + self._chain.steps[kinds[index]]  # [L before, L after]
            previous[index] = arriving.argmax(axis=0)
            best = arriving[previous[index], labels] + logits[index]
        path = [int((best + self._chain.end).argmax())]
        for index in range(count - 1, 0, -1):
            path.append(int(previous[index, path[-1]]))
        return path[::-1]

    def _marginals(self, logits: NDArray[np.float64], kinds: NDArray[np.int8]) -> NDArray[np.float64]:
        """[W, L] by the forward and backward recursions, each step shifted to stay in range."""
        count = len(logits)
        forward, backward = np.empty_like(logits), np.empty_like(logits)
        forward[0] = self._chain.start + logits[0]
        for index in range(1, count):
            arriving = forward[index - 1][:, None] + self._chain.steps[kinds[index]]
            forward[index] = np.logaddexp.reduce(arriving, axis=0) + logits[index]
            forward[index] -= forward[index].max()
        backward[-1] = self._chain.end
        for index in range(count - 1, 0, -1):
            leaving = self._chain.steps[kinds[index]] + (logits[index] + backward[index])[None, :]
            backward[index - 1] = np.logaddexp.reduce(leaving, axis=1)
            backward[index - 1] -= backward[index - 1].max()
        return softmax(forward + backward)


def softmax(logits: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities over the last axis; float64, each row summing to 1."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities
