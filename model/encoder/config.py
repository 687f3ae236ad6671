"""Hyper-parameters of the encoder, checked once, and the presets people ask for by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

HiddenAct = Literal["relu", "gelu"]
PositionEmbedding = Literal["learned", "sinusoidal"]
NormPlacement = Literal["post", "pre"]

SUPPORTED_MODEL_TYPES: Final = ("bert", "roberta", "xlm-roberta", "distilbert")


class UnsupportedArchitectureError(ValueError):
    """A checkpoint asks for something that this encoder does not compute."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """What the network is; fields are named as ``config.json`` names them.

    Attributes:
        vocab_size: Rows of the word table.
        hidden_size: H, the width of the residual stream.
        num_hidden_layers: Identical layers, one after another.
        num_attention_heads: N; H must be a multiple of it.
        intermediate_size: Width inside the feed-forward block, usually 4 * H.
        max_position_embeddings: Rows of the position table, ``position_offset`` included.
        hidden_act: ``relu`` (the paper) or ``gelu``, exact with erf (BERT).
        position_embedding: ``learned`` (BERT) or ``sinusoidal`` (the paper, section 3.5).
        position_offset: Row of the first token; RoBERTa counts from ``pad_token_id + 1``.
        type_vocab_size: Segments; 0 = the model has no segment table.
        norm_placement: LayerNorm after the addition (``post``) or before the sub-layer (``pre``).
        embedding_layer_norm: LayerNorm over the summed embeddings (BERT) or none (the paper).
        scale_embeddings: Multiply token embeddings by sqrt(H) (the paper, section 3.4).
        layer_norm_eps: Added to the variance.
        hidden_dropout_prob: Dropout after embeddings and sub-layers; training only.
        attention_probs_dropout_prob: Dropout on attention weights; training only.
        initializer_range: Standard deviation of freshly drawn weights.
        pad_token_id: Its word embedding gets no gradient.

    Raises:
        ValueError: Numbers that do not fit together, with those numbers.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    hidden_act: HiddenAct = "gelu"
    position_embedding: PositionEmbedding = "learned"
    position_offset: int = 0
    type_vocab_size: int = 2
    norm_placement: NormPlacement = "post"
    embedding_layer_norm: bool = True
    scale_embeddings: bool = False
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.position_embedding == "sinusoidal" and self.hidden_size % 2:
            raise ValueError(f"sinusoidal positions need an even hidden_size, not {self.hidden_size}")
        if not 0 <= self.position_offset < self.max_position_embeddings:
            raise ValueError(
                f"position_offset {self.position_offset} leaves no room in "
                f"max_position_embeddings {self.max_position_embeddings}"
            )
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is not in 0..{self.vocab_size - 1}")
        if self.type_vocab_size < 0:
            raise ValueError(f"type_vocab_size must not be negative, not {self.type_vocab_size}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}")

    @property
    def head_dim(self) -> int:
        """D, the width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def max_tokens(self) -> int:
        """The longest sequence, in tokens, special ones included."""
        return self.max_position_embeddings - self.position_offset

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> EncoderConfig:
        """Read a Hugging Face ``config.json``.

        Args:
            hf_config: The parsed file; ``model_type`` must be one of ``SUPPORTED_MODEL_TYPES``.

        Raises:
            UnsupportedArchitectureError: Another ``model_type``, or a variant of a supported one
                that this encoder does not compute (relative positions, decoders, other activations).
            ValueError: The numbers do not fit together.
        """
        model_type = hf_config.get("model_type")
        if model_type not in SUPPORTED_MODEL_TYPES:
            raise UnsupportedArchitectureError(
                f"model_type {model_type!r} is not supported; supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
            )
        fields = _distilbert_fields(hf_config) if model_type == "distilbert" else _bert_fields(hf_config)
        fields["pad_token_id"] = _pad_token_id(hf_config)
        if model_type in {"roberta", "xlm-roberta"}:
            # RoBERTa's positions start behind the row that stands for padding.
            fields["position_offset"] = fields["pad_token_id"] + 1
        _refuse_variants(hf_config)
        return cls(**fields)


def _pad_token_id(hf_config: Mapping[str, Any]) -> int:
    declared = hf_config.get("pad_token_id")
    if declared is not None:
        return int(declared)
    # What transformers takes when a config does not say; RoBERTa's positions hang on it.
    return 1 if hf_config["model_type"] in {"roberta", "xlm-roberta"} else 0


def _bert_fields(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    fields = {name: int(hf_config[name]) for name in names}
    return fields | {
        "max_position_embeddings": int(hf_config["max_position_embeddings"]),
        "hidden_act": hf_config.get("hidden_act", "gelu"),
        "type_vocab_size": int(hf_config.get("type_vocab_size", 2)),
        "layer_norm_eps": float(hf_config.get("layer_norm_eps", 1e-12)),
        "hidden_dropout_prob": float(hf_config.get("hidden_dropout_prob", 0.1)),
        "attention_probs_dropout_prob": float(hf_config.get("attention_probs_dropout_prob", 0.1)),
        "initializer_range": float(hf_config.get("initializer_range", 0.02)),
    }


def _distilbert_fields(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": int(hf_config["vocab_size"]),
        "hidden_size": int(hf_config["dim"]),
        "num_hidden_layers": int(hf_config["n_layers"]),
        "num_attention_heads": int(hf_config["n_heads"]),
        "intermediate_size": int(hf_config["hidden_dim"]),
        "max_position_embeddings": int(hf_config["max_position_embeddings"]),
        "hidden_act": hf_config.get("activation", "gelu"),
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": float(hf_config.get("dropout", 0.1)),
        "attention_probs_dropout_prob": float(hf_config.get("attention_dropout", 0.1)),
        "initializer_range": float(hf_config.get("initializer_range", 0.02)),
    }


def _refuse_variants(hf_config: Mapping[str, Any]) -> None:
    activation = hf_config.get("hidden_act", hf_config.get("activation", "gelu"))
    if activation not in {"relu", "gelu"}:
        raise UnsupportedArchitectureError(
            f"activation {activation!r} is not supported; supported: gelu, relu"
        )
    positions = hf_config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise UnsupportedArchitectureError(
            f"position_embedding_type {positions!r} is not supported; supported: absolute"
        )
    for flag in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
        if hf_config.get(flag):
            raise UnsupportedArchitectureError(f"{flag} is set: only bidirectional encoders are supported")


_BERT_VOCABULARY: Final = 30522

# Vaswani et al. 2017, table 3, "base": six layers, Post-LN, no LayerNorm over the embeddings.
_TRANSFORMER_BASE: Final = EncoderConfig(
    vocab_size=_BERT_VOCABULARY,
    hidden_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    intermediate_size=2048,
    max_position_embeddings=512,
    hidden_act="relu",
    position_embedding="sinusoidal",
    type_vocab_size=0,
    embedding_layer_norm=False,
    scale_embeddings=True,
    layer_norm_eps=1e-5,
    initializer_range=512**-0.5,
)

PRESETS: Final[Mapping[str, EncoderConfig]] = {
    "transformer-base": _TRANSFORMER_BASE,
    # Its Pre-LN twin (Xiong et al. 2020, arXiv:2002.04745): steadier when deep.
    "transformer-base-pre-ln": dataclasses.replace(_TRANSFORMER_BASE, norm_placement="pre"),
    # Devlin et al. 2019, arXiv:1810.04805, section 3.
    "bert-base": EncoderConfig(
        vocab_size=_BERT_VOCABULARY,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
    ),
    "bert-large": EncoderConfig(
        vocab_size=_BERT_VOCABULARY,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=512,
    ),
    # Wang et al. 2020, arXiv:2002.10957, as sentence-transformers/all-MiniLM-L6-v2 has it.
    "minilm-l6": EncoderConfig(
        vocab_size=_BERT_VOCABULARY,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    ),
}
