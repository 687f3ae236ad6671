"""What sits on the encoder for a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from model.encoder.encoder import Encoder
from model.encoder.pooling import cls_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model.encoder.config import EncoderConfig

HeadActivation = Literal["tanh", "relu"]


class TokenClassifier(nn.Module):
    """The encoder with one linear layer over each token, for named entities.

    Source: Devlin et al. 2019, arXiv:1810.04805, section 5.3.
    """

    def __init__(self, config: EncoderConfig, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = _different(labels)
        self.encoder = Encoder(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, len(self.labels))
        nn.init.normal_(self.classifier.weight, std=config.initializer_range)
        nn.init.zeros_(self.classifier.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Score every label for every token.

        Args:
            input_ids: [B, S], int64.
            attention_mask: [B, S], int64; 1 = token, 0 = padding.
            token_type_ids: [B, S], int64; None = all 0.

        Returns:
            logits, [B, S, L], float, in the order of ``labels``. Rows at padding are meaningless.
        """
        hidden_states = self.encoder(input_ids, attention_mask, token_type_ids)
        logits: Tensor = self.classifier(self.dropout(hidden_states))
        return logits


class SequenceClassifier(nn.Module):
    """The encoder with one hidden layer and one linear layer over the first token, for whole texts or pairs.

    BERT calls the hidden layer its pooler, RoBERTa and DistilBERT count it to the classifier; DistilBERT's
    has ReLU where theirs have tanh. With a single label this is a cross-encoder: its logit says how well a
    text fits the one before it.

    Source: Devlin et al. 2019, arXiv:1810.04805, section 4.1; transformers 5.24,
    ``RobertaClassificationHead``, ``DistilBertForSequenceClassification``; Nogueira and Cho 2019,
    arXiv:1901.04085 (cross-encoders).
    """

    def __init__(self, config: EncoderConfig, labels: Sequence[str], *, head_act: HeadActivation) -> None:
        super().__init__()
        self.labels = _different(labels)
        self.encoder = Encoder(config)
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh() if head_act == "tanh" else nn.ReLU()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, len(self.labels))
        for linear in (self.transform, self.classifier):
            nn.init.normal_(linear.weight, std=config.initializer_range)
            nn.init.zeros_(linear.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Score every label for every text, or pair of texts.

        Args:
            input_ids: [B, S], int64.
            attention_mask: [B, S], int64; 1 = token, 0 = padding.
            token_type_ids: [B, S], int64; 1 = token of a pair's second text, if the model has segments;
                None = all 0.

        Returns:
            logits, [B, L], float, in the order of ``labels``.
        """
        first = cls_pool(self.encoder(input_ids, attention_mask, token_type_ids))  # [B, H]
        logits: Tensor = self.classifier(self.dropout(self.activation(self.transform(first))))
        return logits


def _different(labels: Sequence[str]) -> tuple[str, ...]:
    if len(set(labels)) != len(labels) or not labels:
        raise ValueError(f"labels must be one or more different names, not {list(labels)}")
    return tuple(labels)
