"""What sits on the encoder for a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from model.encoder.encoder import Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model.encoder.config import EncoderConfig


class TokenClassifier(nn.Module):
    """The encoder with one linear layer over each token, for named entities.

    Source: Devlin et al. 2019, arXiv:1810.04805, section 5.3.
    """

    def __init__(self, config: EncoderConfig, labels: Sequence[str]) -> None:
        super().__init__()
        if len(set(labels)) != len(labels) or not labels:
            raise ValueError(f"labels must be one or more different names, not {list(labels)}")
        self.labels = tuple(labels)
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
