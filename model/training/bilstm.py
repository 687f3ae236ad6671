"""What taggers were before Transformers: a bidirectional LSTM, trained from nothing, as a yardstick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

_EMBEDDING_SIZE: Final = 128
_HIDDEN_SIZE: Final = 128  # a direction


class BiLstm(nn.Module):
    """Embeddings of the tokens seen in training, one bidirectional LSTM, one linear layer.

    With a CRF on it, the network of Huang, Xu and Yu 2015, arXiv:1508.01991. Its tokens are those of the
    tagger beside which it is measured: single Han characters, pieces of words elsewhere.

    Shapes: B batch, S tokens, L labels.
    """

    row_of: Tensor

    def __init__(
        self, seen: Sequence[int], vocab_size: int, labels: Sequence[str], *, dropout: float
    ) -> None:
        """Draw fresh weights.

        Args:
            seen: Token ids that get an embedding of their own; all others share one.
            vocab_size: Token ids are below it.
            labels: In logit order.
            dropout: Share of embeddings and hidden values set to zero while training.
        """
        super().__init__()
        self.labels = tuple(labels)
        row_of = torch.zeros(vocab_size, dtype=torch.int64)
        row_of[torch.tensor(list(seen), dtype=torch.int64)] = torch.arange(1, len(seen) + 1)
        self.register_buffer("row_of", row_of)
        self.embeddings = nn.Embedding(len(seen) + 1, _EMBEDDING_SIZE)
        nn.init.uniform_(
            self.embeddings.weight, -((3 / _EMBEDDING_SIZE) ** 0.5), (3 / _EMBEDDING_SIZE) ** 0.5
        )
        self.lstm = nn.LSTM(_EMBEDDING_SIZE, _HIDDEN_SIZE, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(2 * _HIDDEN_SIZE, len(self.labels))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Score every label for every token.

        Args:
            input_ids: [B, S], int64.
            attention_mask: [B, S], int64; 1 = token, 0 = padding, at the end only.

        Returns:
            logits, [B, S, L], float. Rows at padding are meaningless.
        """
        embedded = self.dropout(self.embeddings(self.row_of[input_ids]))  # [B, S, E]
        packed = pack_padded_sequence(embedded, attention_mask.sum(1), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=input_ids.shape[1]
        )
        logits: Tensor = self.classifier(self.dropout(states))
        return logits
