"""A bundle as a checkpoint folder, as transformers and sentence-transformers read one."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import save_file

from model.encoder.weights import TABLES
from model.export.writer import read_bundle_weights
from model.runtime.tokenization import TOKENIZER_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from model.runtime.bundle import Bundle, Manifest

_WEIGHTS: Final = "model.safetensors"


def write_checkpoint(bundle: Bundle, target: Path) -> None:
    """Write a bundle's model as a checkpoint that transformers and sentence-transformers read.

    Weights come out as the bundle computes them: float32, whatever they are stored as.

    Args:
        bundle: of a BERT, which those that ship are.
        target: a folder that is not there yet; it appears whole or not at all.

    Raises:
        ValueError: another family.
    """
    manifest = bundle.manifest
    if manifest.architecture.family != "bert":
        raise ValueError(f"{manifest.name} is a {manifest.architecture.family}; only BERTs are written here")
    partial = target.with_name(f".{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    ours = {name: torch.from_numpy(array.copy()) for name, array in read_bundle_weights(bundle.path).items()}
    save_file(_their_names(ours, manifest), partial / _WEIGHTS, metadata={"format": "pt"})
    shutil.copy(bundle.file(TOKENIZER_NAME), partial)
    _write_json(partial / "config.json", _hf_config(manifest))
    _write_json(partial / "tokenizer_config.json", _tokenizer_config(partial / TOKENIZER_NAME, manifest))
    if manifest.task == "embedding":
        _write_sentence_modules(partial, manifest)
    partial.rename(target)


def _their_names(ours: dict[str, torch.Tensor], manifest: Manifest) -> dict[str, torch.Tensor]:
    prefix, table = TABLES["bert"]
    prefix = prefix if manifest.task == "token-classification" else ""
    theirs = {}
    for layer in range(manifest.architecture.num_hidden_layers):
        for name, our_name in table.items():
            for part in ("weight", "bias"):
                wanted = our_name and our_name.format(i=layer, p=part)
                if wanted in ours:
                    spelt = name.format(i=layer, p=part)
                    theirs[spelt if spelt.startswith("classifier.") else prefix + spelt] = ours[wanted]
    return theirs


def _hf_config(manifest: Manifest) -> dict[str, Any]:
    of_ours = manifest.architecture.model_dump(mode="json")
    names = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
        "max_position_embeddings", "hidden_act", "type_vocab_size", "layer_norm_eps", "pad_token_id",
    )  # fmt: skip
    config = {name: of_ours[name] for name in names} | {"model_type": "bert"}
    if manifest.task == "token-classification":
        labels = list(manifest.labels or ())
        return config | {
            "architectures": ["BertForTokenClassification"],
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
        }
    return config | {"architectures": ["BertModel"]}


def _tokenizer_config(tokenizer_json: Path, manifest: Manifest) -> dict[str, Any]:
    added = json.loads(tokenizer_json.read_text(encoding="utf-8"))["added_tokens"]
    by_id = {token["id"]: token["content"] for token in added}
    spelt = {token["content"] for token in added}
    roles = {
        "cls_token": ("<s>", "[CLS]"), "sep_token": ("</s>", "[SEP]"), "bos_token": ("<s>",),
        "eos_token": ("</s>",), "unk_token": ("<unk>", "[UNK]"), "mask_token": ("<mask>", "[MASK]"),
    }  # fmt: skip
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": manifest.max_tokens,
        "pad_token": by_id[manifest.architecture.pad_token_id],
    }
    for role, spellings in roles.items():
        found = [spelling for spelling in spellings if spelling in spelt]
        if found:
            config[role] = found[0]
    return config


def _write_sentence_modules(folder: Path, manifest: Manifest) -> None:
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if manifest.normalize:
        kinds.append(("2_Normalize", "Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": manifest.max_tokens})
    (folder / "1_Pooling").mkdir()
    pooling = {
        "word_embedding_dimension": manifest.architecture.hidden_size,
        "pooling_mode_cls_token": manifest.pooling == "cls",
        "pooling_mode_mean_tokens": manifest.pooling == "mean",
    }
    _write_json(folder / "1_Pooling" / "config.json", pooling)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
