"""A pretrained model as its author published it: a folder of files, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from model.encoder.config import SUPPORTED_MODEL_TYPES, EncoderConfig, UnsupportedArchitectureError
from model.encoder.errors import CheckpointError, UnsupportedCheckpointError
from model.encoder.hub import locate
from model.encoder.json_files import read_json_object
from model.encoder.model_card import read_model_card
from model.encoder.sentence_modules import Pooling, read_sentence_settings
from model.encoder.tensor_files import TensorFiles
from model.encoder.tokenizer_files import (
    find_tokenizer_file,
    gives_token_types,
    model_max_length,
    read_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CheckpointTask = Literal["embedding", "token-classification", "sequence-classification"]
LabelActivation = Literal["softmax", "sigmoid", "none"]

_TAGGER: Final = "ForTokenClassification"
_CLASSIFIER: Final = "ForSequenceClassification"
_ROBERTA: Final = tuple(
    prefix + suffix
    for prefix in ("Roberta", "XLMRoberta")
    for suffix in ("Model", "ForMaskedLM", _TAGGER, _CLASSIFIER)
)
# Classes of transformers whose network is the family's encoder, and a head that is computed here or dropped.
SUPPORTED_ARCHITECTURES: Final[Mapping[str, tuple[str, ...]]] = {
    "bert": (
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForTokenClassification",
        "BertForSequenceClassification",
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": (
        "DistilBertModel",
        "DistilBertForMaskedLM",
        "DistilBertForTokenClassification",
        "DistilBertForSequenceClassification",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that a checkpoint says of itself.

    Attributes:
        path: Folder of the transformer's files (``config.json``, weights, tokeniser).
        name: The hub id if it is known, else the folder's name.
        hub_id: The hub id, None for a folder that does not say.
        revision: The commit on the hub, where it is known.
        family: ``bert``, ``roberta``, ``xlm-roberta`` or ``distilbert``.
        architecture: The class that saved it, such as ``BertModel``; None = not stated.
        hf_config: ``config.json`` as it stands.
        config: The same as our hyper-parameters.
        tensors: The weights by their names in the files, read when asked for.
        pooling: How token vectors become one; None = not stated, for the importer to choose.
        normalize: Vectors leave with length one.
        max_tokens: Longest input in tokens, special ones included.
        prompts: Texts to put in front of an input, by name.
        default_prompt_name: The prompt used when none is asked for.
        task: What it was trained for, as its architecture says; ``embedding`` if that names no classifier.
        labels: In logit order; empty unless the checkpoint is for classification.
        label_activation: From logits to scores, of a sequence classifier: ``softmax`` over the labels,
            ``sigmoid`` of each, or ``none`` (regression); None for any other task.
        pair_token_types: Whether the model is told which of a pair's texts a token is of.
        tokenizer_file: ``tokenizer.json`` or BERT's ``vocab.txt``; ``tokenizer_json`` reads either.
        lowercase_first: Texts are put in lower case before the tokeniser sees them.
        licence: SPDX identifier from the model card; None = not stated.
        languages: Language codes from the model card.
    """

    path: Path
    name: str
    hub_id: str | None
    revision: str | None
    family: str
    architecture: str | None
    hf_config: dict[str, Any]
    config: EncoderConfig
    tensors: TensorFiles
    pooling: Pooling | None
    normalize: bool
    max_tokens: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    task: CheckpointTask
    labels: tuple[str, ...]
    label_activation: LabelActivation | None
    pair_token_types: bool
    tokenizer_file: Path
    lowercase_first: bool
    licence: str | None
    languages: tuple[str, ...]

    def tokenizer_json(self) -> str:
        """The tokeniser as the text of a ``tokenizer.json``, without truncation or padding.

        Raises:
            CheckpointError: The file is broken, or its ids do not fit the word table.
        """
        tokenizer = read_tokenizer(self.tokenizer_file, lowercase_first=self.lowercase_first)
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if largest >= self.config.vocab_size:
            raise CheckpointError(
                f"{self.tokenizer_file} has ids up to {largest}, but the word table has "
                f"{self.config.vocab_size} rows: they are not of one model"
            )
        return str(tokenizer.to_str())


def read_checkpoint(path_or_hub_id: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Read a checkpoint from a folder or, if there is none of that name, from the hub.

    Args:
        path_or_hub_id: See ``locate``.
        revision: Branch, tag or commit on the hub; None = its main branch.

    Raises:
        CheckpointError: Something is missing, broken or contradictory; the message names the file.
        UnsupportedCheckpointError: It is a kind of model that is not computed here.
    """
    snapshot = locate(path_or_hub_id, revision=revision)
    sentence = read_sentence_settings(snapshot.path)
    folder = sentence.transformer_path
    hf_config = read_json_object(folder / "config.json")
    architecture = _architecture(hf_config, folder)
    config = _encoder_config(hf_config, folder)
    family = str(hf_config["model_type"])
    limits = [config.max_tokens, sentence.max_seq_length or model_max_length(folder) or config.max_tokens]
    card = read_model_card(snapshot.path / "README.md")
    task = _task(architecture)
    labels = _labels(hf_config, task, folder)
    return Checkpoint(
        path=folder,
        name=snapshot.name,
        hub_id=snapshot.hub_id,
        revision=snapshot.revision,
        family=family,
        architecture=architecture,
        hf_config=hf_config,
        config=config,
        tensors=TensorFiles.find(folder),
        pooling=sentence.pooling,
        normalize=sentence.normalize,
        max_tokens=min(limits),
        prompts=sentence.prompts,
        default_prompt_name=sentence.default_prompt_name,
        task=task,
        labels=labels,
        label_activation=_label_activation(hf_config, labels, folder)
        if task == "sequence-classification"
        else None,
        pair_token_types=config.type_vocab_size >= 2 and gives_token_types(folder, family),
        tokenizer_file=find_tokenizer_file(folder, family),
        lowercase_first=sentence.do_lower_case,
        licence=card.licence,
        languages=card.languages,
    )


def _architecture(hf_config: Mapping[str, Any], folder: Path) -> str | None:
    """The class that saved the checkpoint, if it is one whose network we compute."""
    family = hf_config.get("model_type")
    named = hf_config.get("architectures") or []
    architecture = str(named[0]) if named else None
    supported = sorted({name for names in SUPPORTED_ARCHITECTURES.values() for name in names})
    if family not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedCheckpointError(
            f"{folder}: {architecture or 'a model'} of type {family!r} is not supported; supported types: "
            f"{', '.join(SUPPORTED_MODEL_TYPES)} ({', '.join(supported)})"
        )
    if architecture is not None and architecture not in SUPPORTED_ARCHITECTURES[family]:
        raise UnsupportedCheckpointError(
            f"{folder}: {architecture} is not supported; supported for {family}: "
            f"{', '.join(SUPPORTED_ARCHITECTURES[family])}"
        )
    own_code = sorted(name for name in hf_config.get("auto_map") or {} if name.startswith("AutoModel"))
    if own_code:
        raise UnsupportedCheckpointError(
            f"{folder}: its network is defined by code of its own (auto_map {', '.join(own_code)}), which is "
            f"never run; supported: {', '.join(supported)}"
        )
    for setting, what in (("quantization_config", "quantised"), ("pruned_heads", "pruned")):
        if hf_config.get(setting):
            raise UnsupportedCheckpointError(
                f"{folder}: a {what} checkpoint ({setting} in config.json) is not supported; "
                "supported: float32, float16 and bfloat16 weights of the whole network"
            )
    return architecture


def _encoder_config(hf_config: Mapping[str, Any], folder: Path) -> EncoderConfig:
    path = folder / "config.json"
    try:
        return EncoderConfig.from_hf_config(hf_config)
    except UnsupportedArchitectureError as error:
        raise UnsupportedCheckpointError(f"{path}: {error}") from error
    except KeyError as error:
        raise CheckpointError(f"{path} lacks {error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _task(architecture: str | None) -> CheckpointTask:
    if architecture is not None and architecture.endswith(_TAGGER):
        return "token-classification"
    if architecture is not None and architecture.endswith(_CLASSIFIER):
        return "sequence-classification"
    return "embedding"


def _labels(hf_config: Mapping[str, Any], task: CheckpointTask, folder: Path) -> tuple[str, ...]:
    """Label names in logit order, for a classifier."""
    if task == "embedding":
        return ()
    path = folder / "config.json"
    names = hf_config.get("id2label")
    if names is None and task == "sequence-classification":
        # transformers leaves out what it would make up again: two labels, or as many as num_labels says.
        return tuple(f"LABEL_{index}" for index in range(_num_labels(hf_config, path)))
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{path} has no id2label, so nothing says what its logits mean")
    try:
        by_index = {int(index): str(name) for index, name in names.items()}
    except ValueError as error:
        raise CheckpointError(f"{path}: id2label must map numbers to names: {error}") from error
    if sorted(by_index) != list(range(len(names))):
        raise CheckpointError(
            f"{path}: id2label must number its labels from 0 without gaps, not {', '.join(names)}"
        )
    labels = tuple(by_index[index] for index in range(len(by_index)))
    if len(set(labels)) != len(labels):
        raise CheckpointError(f"{path}: id2label names a label twice: {', '.join(labels)}")
    return labels


def _num_labels(hf_config: Mapping[str, Any], path: Path) -> int:
    number = hf_config.get("num_labels", 2)
    if type(number) is not int or number < 1:
        raise CheckpointError(f"{path}: num_labels must be a positive number, not {number!r}")
    return number


def _label_activation(hf_config: Mapping[str, Any], labels: tuple[str, ...], folder: Path) -> LabelActivation:
    """As transformers' text-classification pipeline chooses it."""
    match hf_config.get("problem_type"):
        case "regression":
            return "none"
        case "multi_label_classification":
            return "sigmoid"
        case None | "single_label_classification":
            return "sigmoid" if len(labels) == 1 else "softmax"
        case problem_type:
            raise CheckpointError(
                f"{folder / 'config.json'}: problem_type {problem_type!r} is not known; known: regression, "
                "single_label_classification, multi_label_classification"
            )
