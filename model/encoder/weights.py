"""Tensors of a checkpoint into our network: one table of names per family, and no tensor unaccounted for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from model.encoder.encoder import Encoder
from model.encoder.errors import CheckpointError, WeightsError
from model.encoder.heads import HeadActivation, SequenceClassifier, TokenClassifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from model.encoder.checkpoint import Checkpoint

# One row per tensor name of a family, with the parameter of ours that it fills; None = known, and of no
# use here. {i} stands for each layer that the configuration has, {p} for "weight" and "bias".
# A leading "bert." (and so on) is taken off first: whether it is there depends on the class that saved.
# Source: transformers 5.24, models/bert/modeling_bert.py, modeling_roberta.py, modeling_distilbert.py;
# the old names of LayerNorm and the heads are those of the 2018 release of BERT.
_BERT_BODY: Final[Mapping[str, str | None]] = {
    "embeddings.word_embeddings.weight": "embeddings.word.weight",
    "embeddings.position_embeddings.weight": "embeddings.position.weight",
    "embeddings.token_type_embeddings.weight": "embeddings.token_type.weight",
    "embeddings.LayerNorm.{p}": "embeddings.norm.{p}",
    "encoder.layer.{i}.attention.self.query.{p}": "layers.{i}.attention.query.{p}",
    "encoder.layer.{i}.attention.self.key.{p}": "layers.{i}.attention.key.{p}",
    "encoder.layer.{i}.attention.self.value.{p}": "layers.{i}.attention.value.{p}",
    "encoder.layer.{i}.attention.output.dense.{p}": "layers.{i}.attention.output.{p}",
    "encoder.layer.{i}.attention.output.LayerNorm.{p}": "layers.{i}.attention_norm.{p}",
    "encoder.layer.{i}.intermediate.dense.{p}": "layers.{i}.feed_forward.expand.{p}",
    "encoder.layer.{i}.output.dense.{p}": "layers.{i}.feed_forward.contract.{p}",
    "encoder.layer.{i}.output.LayerNorm.{p}": "layers.{i}.feed_forward_norm.{p}",
    "classifier.{p}": "classifier.{p}",
    "embeddings.position_ids": None,  # 0, 1, 2, ...: a buffer that old releases stored
    "embeddings.token_type_ids": None,  # all 0, likewise
    "pooler.dense.{p}": None,  # feeds next-sentence prediction; no pooling of ours goes through it
}
_BERT: Final[Mapping[str, str | None]] = {
    **_BERT_BODY,
    "cls.predictions.bias": None,
    "cls.predictions.transform.dense.{p}": None,
    "cls.predictions.transform.LayerNorm.{p}": None,
    "cls.predictions.decoder.{p}": None,
    "cls.seq_relationship.{p}": None,
}
_ROBERTA: Final[Mapping[str, str | None]] = {
    **_BERT_BODY,
    "lm_head.bias": None,
    "lm_head.dense.{p}": None,
    "lm_head.layer_norm.{p}": None,
    "lm_head.decoder.{p}": None,
}
_DISTILBERT: Final[Mapping[str, str | None]] = {
    "embeddings.word_embeddings.weight": "embeddings.word.weight",
    "embeddings.position_embeddings.weight": "embeddings.position.weight",
    "embeddings.LayerNorm.{p}": "embeddings.norm.{p}",
    "transformer.layer.{i}.attention.q_lin.{p}": "layers.{i}.attention.query.{p}",
    "transformer.layer.{i}.attention.k_lin.{p}": "layers.{i}.attention.key.{p}",
    "transformer.layer.{i}.attention.v_lin.{p}": "layers.{i}.attention.value.{p}",
    "transformer.layer.{i}.attention.out_lin.{p}": "layers.{i}.attention.output.{p}",
    "transformer.layer.{i}.sa_layer_norm.{p}": "layers.{i}.attention_norm.{p}",
    "transformer.layer.{i}.ffn.lin1.{p}": "layers.{i}.feed_forward.expand.{p}",
    "transformer.layer.{i}.ffn.lin2.{p}": "layers.{i}.feed_forward.contract.{p}",
    "transformer.layer.{i}.output_layer_norm.{p}": "layers.{i}.feed_forward_norm.{p}",
    "classifier.{p}": "classifier.{p}",
    "embeddings.position_ids": None,
    "vocab_transform.{p}": None,
    "vocab_layer_norm.{p}": None,
    "vocab_projector.{p}": None,
}
TABLES: Final[Mapping[str, tuple[str, Mapping[str, str | None]]]] = {  # family -> prefix, rows
    "bert": ("bert.", _BERT),
    "roberta": ("roberta.", _ROBERTA),
    "xlm-roberta": ("roberta.", _ROBERTA),
    "distilbert": ("distilbert.", _DISTILBERT),
}

# What stands in place of a family's classifier where whole texts are classified, and its hidden layer's
# activation.
_SEQUENCE_HEADS: Final[Mapping[str, tuple[Mapping[str, str | None], HeadActivation]]] = {
    "bert": ({"pooler.dense.{p}": "transform.{p}", "classifier.{p}": "classifier.{p}"}, "tanh"),
    "roberta": (
        {"classifier.dense.{p}": "transform.{p}", "classifier.out_proj.{p}": "classifier.{p}"},
        "tanh",
    ),
    "xlm-roberta": (
        {"classifier.dense.{p}": "transform.{p}", "classifier.out_proj.{p}": "classifier.{p}"},
        "tanh",
    ),
    "distilbert": ({"pre_classifier.{p}": "transform.{p}", "classifier.{p}": "classifier.{p}"}, "relu"),
}

_HEAD: Final = "classifier."
_CLASSIFIER: Final = "classifier.{p}"
# How LayerNorm's two vectors were called in BERT's TensorFlow release, and in what was converted from it.
_OLD_NORM_NAMES: Final[Mapping[str, str]] = {"weight": "gamma", "bias": "beta"}
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What became of a checkpoint's tensors.

    Attributes:
        loaded: Tensors that fill a parameter.
        parameters: Numbers in them.
        unused: Names of tensors that are known and of no use here, in order: pooler, pre-training heads.
        stored_types: Number types that the loaded ones were stored in, such as ``float16``; all are
            float32 now.
    """

    loaded: int
    parameters: int
    unused: tuple[str, ...]
    stored_types: tuple[str, ...]


def load_encoder(checkpoint: Checkpoint) -> tuple[Encoder, LoadReport]:
    """Build the checkpoint's encoder, without any head, in float32 and evaluation mode.

    Raises:
        CheckpointError: The checkpoint is one for sequence classification.
        WeightsError: Tensors unknown, missing, of a wrong shape or not finite; all of them listed.
    """
    if checkpoint.task == "sequence-classification":
        raise CheckpointError(
            f"{checkpoint.name} is a {checkpoint.architecture}: its token vectors were trained for its head "
            "and not to be pooled, so it makes no embedding model"
        )
    encoder = Encoder(checkpoint.config)
    report = _load(checkpoint, dict(encoder.named_parameters()))
    return encoder.eval(), report


def load_token_classifier(checkpoint: Checkpoint) -> tuple[TokenClassifier, LoadReport]:
    """Build the checkpoint's encoder with its token-classification head, in float32 and evaluation mode.

    Raises:
        CheckpointError: The checkpoint is not one for token classification.
        WeightsError: Tensors unknown, missing, of a wrong shape or not finite; all of them listed.
    """
    if checkpoint.task != "token-classification":
        raise CheckpointError(
            f"{checkpoint.name} has no labels of tokens: it is a "
            f"{checkpoint.architecture or checkpoint.family}, and a token classifier needs a checkpoint "
            "whose architecture ends in ForTokenClassification"
        )
    classifier = TokenClassifier(checkpoint.config, checkpoint.labels)
    report = _load(checkpoint, _by_bare_names(classifier))
    return classifier.eval(), report


def load_sequence_classifier(checkpoint: Checkpoint) -> tuple[SequenceClassifier, LoadReport]:
    """Build the checkpoint's encoder with its head for whole texts, in float32 and evaluation mode.

    Raises:
        CheckpointError: The checkpoint is not one for sequence classification.
        WeightsError: Tensors unknown, missing, of a wrong shape or not finite; all of them listed.
    """
    if checkpoint.task != "sequence-classification":
        raise CheckpointError(
            f"{checkpoint.name} has no labels of texts: it is a "
            f"{checkpoint.architecture or checkpoint.family}, and a sequence classifier needs a checkpoint "
            "whose architecture ends in ForSequenceClassification"
        )
    rows, head_act = _SEQUENCE_HEADS[checkpoint.family]
    classifier = SequenceClassifier(checkpoint.config, checkpoint.labels, head_act=head_act)
    report = _load(checkpoint, _by_bare_names(classifier), head=rows)
    return classifier.eval(), report


def sequence_head_act(family: str) -> HeadActivation:
    """Tell the activation in a sequence classifier's head: its family's, or BERT's for networks of ours."""
    _, head_act = _SEQUENCE_HEADS[family if family in _SEQUENCE_HEADS else "bert"]
    return head_act


def _by_bare_names(classifier: nn.Module) -> dict[str, nn.Parameter]:
    """Its parameters as the tables name them: the encoder's as the bare encoder does."""
    return {name.removeprefix("encoder."): value for name, value in classifier.named_parameters()}


def parameter_names(
    family: str, num_hidden_layers: int, *, head: Mapping[str, str | None] | None = None
) -> dict[str, str | None]:
    """Write a family's table out for a number of layers.

    Args:
        family: One of ``TABLES``.
        num_hidden_layers: How often a row with {i} is repeated.
        head: Rows in place of the family's own classifier; None = as it stands.

    Returns:
        Checkpoint names without prefix -> names of our parameters (None = dropped); for two names of
        one parameter, the current one comes first.
    """
    _, rows = TABLES[family]
    if head is not None:
        rows = {**{source: target for source, target in rows.items() if source != _CLASSIFIER}, **head}
    names: dict[str, str | None] = {}
    for source, target in rows.items():
        layers = range(num_hidden_layers) if "{i}" in source else range(1)
        parts = _OLD_NORM_NAMES if "{p}" in source else ("",)
        for layer in layers:
            for part in parts:
                name = target.format(i=layer, p=part) if target else None
                names[source.format(i=layer, p=part)] = name
                if source.endswith("LayerNorm.{p}"):
                    names[source.format(i=layer, p=_OLD_NORM_NAMES[part])] = name
    return names


@dataclass(frozen=True, slots=True)
class _Assignment:
    """Which tensor fills which parameter, and what is left over."""

    sources: dict[str, str]  # parameter of ours -> tensor of the checkpoint
    unused: list[str]
    unknown: list[str]
    missing: list[str]


def _assign(
    checkpoint: Checkpoint,
    parameters: Mapping[str, nn.Parameter],
    head: Mapping[str, str | None] | None,
) -> _Assignment:
    """Account for every tensor and every parameter by name."""
    prefix, _ = TABLES[checkpoint.family]
    table = parameter_names(checkpoint.family, checkpoint.config.num_hidden_layers, head=head)
    found = _Assignment({}, [], [], [])
    for name in sorted(checkpoint.tensors):
        bare = name.removeprefix(prefix)
        target = table.get(bare)
        if bare not in table:
            found.unknown.append(name)
        elif target is None or (target.startswith(_HEAD) and target not in parameters):
            found.unused.append(name)
        elif target not in parameters:
            found.unknown.append(f"{name}: config.json describes an encoder without it")
        elif target in found.sources:
            found.unknown.append(f"{name}: {found.sources[target]} fills the same parameter")
        else:
            found.sources[target] = name
    for target, parameter in parameters.items():
        if target not in found.sources:
            wanted = next(source for source, filled in table.items() if filled == target)
            found.missing.append(f"{wanted} {list(parameter.shape)}")
    return found


def _load(
    checkpoint: Checkpoint,
    parameters: Mapping[str, nn.Parameter],
    *,
    head: Mapping[str, str | None] | None = None,
) -> LoadReport:
    """Fill ``parameters`` (by the names in the tables) from the checkpoint, or list all that is wrong."""
    found = _assign(checkpoint, parameters, head)
    misshapen: list[str] = []
    stored_types: set[str] = set()
    for target, name in found.sources.items():
        wanted, shape = parameters[target].shape, checkpoint.tensors.shape(name)
        if shape != tuple(wanted):
            misshapen.append(f"{name} {list(shape)}: config.json asks for {list(wanted)}")
            continue
        tensor = checkpoint.tensors[name]
        stored_types.add(_type_name(tensor))
        if problem := _fill(parameters[target], tensor):
            misshapen.append(f"{name}: {problem}")
    if found.unknown or found.missing or misshapen:
        raise WeightsError(checkpoint.name, unknown=found.unknown, missing=found.missing, misshapen=misshapen)
    return LoadReport(
        loaded=len(found.sources),
        parameters=sum(parameter.numel() for parameter in parameters.values()),
        unused=tuple(found.unused),
        stored_types=tuple(sorted(stored_types)),
    )


def _fill(parameter: nn.Parameter, tensor: Tensor) -> str | None:
    """Copy ``tensor`` into ``parameter`` as float32; what is wrong with it, if it does not hold weights."""
    if tensor.dtype not in _FLOATS:
        return f"holds {_type_name(tensor)}, not floating-point weights"
    with torch.no_grad():
        parameter.copy_(tensor)
    if not bool(parameter.isfinite().all()):
        return "holds NaN or infinity"
    return None


def _type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
