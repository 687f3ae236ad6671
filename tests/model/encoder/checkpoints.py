"""Small random checkpoints, saved as their authors would: transformers' own classes, every file layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
    XLMRobertaModel,
)

Layout = Literal["safetensors", "sharded safetensors", "bin", "sharded bin"]
LAYOUTS: tuple[Layout, ...] = ("safetensors", "sharded safetensors", "bin", "sharded bin")
FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert")
HEADS = ("none", "pre-training", "token-classification", "sequence-classification")
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
VOCABULARY = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("alpha", "beta", "##s", "hello", "world", "cafe", "##ing"),
    *"张三去北京上海的是人",
    *".,!?，。",
)
PAD_TOKEN_ID = 1  # not 0: a mistaken default would show
HIDDEN_SIZE = 16
TEXT = "alpha betas 张三 去 北京"

_CLASSES: dict[str, dict[str, type[PreTrainedModel]]] = {
    family: dict(zip(HEADS, classes, strict=True))
    for family, classes in {
        "bert": (BertModel, BertForPreTraining, BertForTokenClassification, BertForSequenceClassification),
        "roberta": (
            *(RobertaModel, RobertaForMaskedLM, RobertaForTokenClassification),
            RobertaForSequenceClassification,
        ),
        "xlm-roberta": (
            *(XLMRobertaModel, XLMRobertaForMaskedLM, XLMRobertaForTokenClassification),
            XLMRobertaForSequenceClassification,
        ),
        "distilbert": (
            *(DistilBertModel, DistilBertForMaskedLM, DistilBertForTokenClassification),
            DistilBertForSequenceClassification,
        ),
    }.items()
}
_BERT_CONFIGS = {"bert": BertConfig, "roberta": RobertaConfig, "xlm-roberta": XLMRobertaConfig}


def reference_model(
    family: str, head: str = "none", *, label_names: Sequence[str] = LABELS, **changes: Any
) -> PreTrainedModel:
    """A seeded model of ``family`` in evaluation mode, no two of whose parameters are alike.

    Drawn wider than a fresh model: attention is far from uniform, and no bias is 0 nor any norm 1, so that
    one parameter in another's place shows. ``changes`` are entries of its configuration.
    """
    labels: dict[str, Any] = {
        "id2label": dict(enumerate(label_names)),
        "label2id": {name: i for i, name in enumerate(label_names)},
    } | changes
    if family == "distilbert":
        config: Any = DistilBertConfig(
            **{
                "vocab_size": len(VOCABULARY),
                "dim": HIDDEN_SIZE,
                "n_layers": 3,
                "n_heads": 4,
                "hidden_dim": 40,
                "max_position_embeddings": 32,
                "pad_token_id": PAD_TOKEN_ID,
            }
            | labels
        )
    else:
        config = _BERT_CONFIGS[family](
            **{
                "vocab_size": len(VOCABULARY),
                "hidden_size": HIDDEN_SIZE,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "intermediate_size": 40,
                "max_position_embeddings": 32,
                "type_vocab_size": 2,
                "pad_token_id": PAD_TOKEN_ID,
                "layer_norm_eps": 1e-5,
            }
            | labels
        )
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = _CLASSES[family][head](config)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model.eval()


def save_checkpoint(
    model: PreTrainedModel,
    folder: Path,
    *,
    layout: Layout = "safetensors",
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write ``model`` as a snapshot folder: config.json, tokenizer.json, weights in ``layout``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_config(model, folder)
    # clone: tied tensors share storage, which safetensors refuses
    state = {name: value.to(dtype).clone().contiguous() for name, value in model.state_dict().items()}
    save_tensors(state, folder, layout=layout)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def save_config(model: PreTrainedModel, folder: Path, **changes: Any) -> None:
    """Write config.json as transformers does, with ``changes`` (None removes an entry)."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if changes:
        change_json(folder / "config.json", **changes)


def change_json(path: Path, **changes: Any) -> None:
    """Change entries of a JSON object in a file; None removes one."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    merged = {name: value for name, value in (content | changes).items() if value is not None}
    path.write_text(json.dumps(merged), encoding="utf-8")


def save_tensors(state: dict[str, Tensor], folder: Path, *, layout: Layout = "safetensors") -> None:
    """Write weight files only."""
    stem, suffix = ("model", ".safetensors") if layout.endswith("safetensors") else ("pytorch_model", ".bin")
    save = save_file if suffix == ".safetensors" else torch.save
    if not layout.startswith("sharded"):
        save(state, folder / f"{stem}{suffix}")
        return
    names = sorted(state)
    shards = {f"{stem}-{part + 1:05}-of-00002{suffix}": names[part::2] for part in range(2)}
    for file, held in shards.items():
        save({name: state[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps(index), encoding="utf-8")


def tiny_tokenizer() -> Tokenizer:
    """BERT's WordPiece over ``VOCABULARY``."""
    vocabulary = {token: index for index, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(list(VOCABULARY[:5]))
    return tokenizer


def ragged_batch() -> tuple[Tensor, Tensor]:
    """Random ids and a mask for rows of 9, 1, 4 and 12 tokens, padded on the right."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([9, 1, 4, 12])
    attention_mask = (torch.arange(12)[None] < lengths[:, None]).long()
    input_ids = torch.randint(PAD_TOKEN_ID + 1, len(VOCABULARY), (4, 12), generator=generator)
    return torch.where(attention_mask.bool(), input_ids, PAD_TOKEN_ID), attention_mask
