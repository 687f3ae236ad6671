"""One tagger out of several that were trained on from the same one: the mean of their weights.

Trainings that begin at one tagger end near each other, and the middle of where they ended is often better
than any of them. Source: Wortsman et al. 2022, arXiv:2203.05482 ("model soups").
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tokenizers
import torch

from model.export.rounding import input_products, round_for_inputs
from model.export.writer import read_bundle_weights
from model.runtime.bundle import Bundle
from model.runtime.label_schemes import OUTSIDE
from model.runtime.tokenization import TOKENIZER_NAME
from model.training.card import figures, mistakes
from model.training.evaluation import read_tagger
from model.training.tagger import UnfitBaseError, classifier_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from model.encoder.heads import TokenClassifier
    from model.runtime.bundle import Manifest
    from model.training.report import NerReport


MOST_TEXTS: Final = 600
"""More do not change what a layer reads on average."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeanTagger:
    """The mean of taggers.

    Attributes:
        network: With the mean weights.
        tokenizer: That all of them share.
        parts: Manifests of the taggers, in the order given.
        crf: None: taggers with a CRF have no mean.
    """

    network: TokenClassifier
    tokenizer: tokenizers.Tokenizer
    parts: tuple[Manifest, ...]
    crf: None = None


def mean_of_taggers(paths: Sequence[Path], *, outside_bias: float = 0.0) -> MeanTagger:
    """Average taggers, weight by weight; one that is given twice counts twice.

    Args:
        paths: Folders of two bundles or more, trained on from one tagger.
        outside_bias: Added to the logit of O. Texts chosen for the names in them teach a tagger to see names
            too often; development sets tell by how much.

    Raises:
        BundleError: A bundle is damaged.
        NotATaggerError: One is for embedding.
        UnfitBaseError: Fewer than two, or they differ in labels, architecture or tokenizer, or one has a CRF.
    """
    if len(paths) < 2:
        raise UnfitBaseError(f"a mean takes two taggers or more, not {len(paths)}")
    first, *others = bundles = [read_tagger(path) for path in paths]
    for other in others:
        for what in ("labels", "architecture", "max_tokens"):
            if getattr(other.manifest, what) != getattr(first.manifest, what):
                raise UnfitBaseError(
                    f"{other.path.name} has another {what} than {first.path.name}; a mean needs taggers "
                    "that were trained on from one"
                )
        if _tokenizer_digest(other) != _tokenizer_digest(first):
            raise UnfitBaseError(f"{other.path.name} has another tokenizer than {first.path.name}")
    network = classifier_on(first.path, first.manifest.labels or ())
    sums: dict[str, NDArray[np.float64]] = {}
    for bundle in bundles:
        for name, weights in read_bundle_weights(bundle.path).items():
            sums[name] = sums.get(name, np.float64(0)) + weights.astype(np.float64)
    parameters = dict(network.named_parameters()) | {
        name.removeprefix("encoder."): parameter for name, parameter in network.named_parameters()
    }
    with torch.no_grad():
        for name, total in sums.items():
            # Tables that all of them share come out as they were, to the bit.
            parameters[name].copy_(torch.from_numpy((total / len(bundles)).astype(np.float32)))
        network.classifier.bias[network.labels.index(OUTSIDE)] += outside_bias
    return MeanTagger(
        network.eval(),
        tokenizers.Tokenizer.from_file(str(first.file(TOKENIZER_NAME))),
        tuple(bundle.manifest for bundle in bundles),
    )


def rounded_for(mean: MeanTagger, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Weights of the mean on the grid of ``int8_block``, rounded with what the layers read of some texts.

    Args:
        mean: Stays as it is.
        texts: Of the kind that the tagger is for; ``MOST_TEXTS`` of them, evenly spread, are read.

    Returns:
        By name of the parameter, as ``write_bundle`` takes them.
    """
    chosen = texts[:: max(1, -(-len(texts) // MOST_TEXTS))]
    longest = min(part.max_tokens for part in mean.parts)
    ids = (torch.tensor(encoding.ids[:longest]) for encoding in mean.tokenizer.encode_batch(list(chosen)))
    products = input_products(mean.network, ids)
    weights = {
        name.removeprefix("encoder."): parameter.detach().numpy()
        for name, parameter in mean.network.named_parameters()
    }
    return {name: round_for_inputs(weights[name], product) for name, product in products.items()}


def mean_card(name: str, facts: Mapping[str, str], mean: MeanTagger, reports: Mapping[str, NerReport]) -> str:
    """The model card of a mean, in Markdown.

    Args:
        name: Of the model.
        facts: ``description``, ``licence`` and ``languages``, as the card shows them.
        mean: What was averaged.
        reports: Measurements of the mean, by name of the set.
    """
    return "\n".join(_lines(name, facts, mean, reports)) + "\n"


def _lines(
    name: str, facts: Mapping[str, str], mean: MeanTagger, reports: Mapping[str, NerReport]
) -> Iterator[str]:
    yield f"# {name}"
    yield ""
    yield f"{facts['description'].rstrip('.')}."
    yield ""
    yield f"- Made by `conche average`: the mean of the weights of {len(mean.parts)} taggers"
    yield f"- Languages: {facts['languages']}. Licence: {facts['licence']}"
    yield ""
    yield from figures(reports)
    yield "## Made from"
    for part in mean.parts:
        yield ""
        yield f"- {part.name}: {part.description.rstrip('.')}."
        trained: Any = part.quality.get("training", {})
        yield from (f"  - {key}: {_shown(value)}" for key, value in trained.items())
    for of, report in reports.items():
        yield ""
        yield from mistakes(of, report)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _tokenizer_digest(bundle: Bundle) -> str:
    return bundle.manifest.files[TOKENIZER_NAME].sha256
