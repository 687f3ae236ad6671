"""Small seeded models of ours, with a tokenizer, for export."""

import numpy as np
import torch

from model.encoder.config import EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.heads import SequenceClassifier, TokenClassifier
from model.export.storage import encode
from model.export.writer import BundleContents
from model.runtime.bundle import Source, Storage
from tests.bundles import tiny_tokenizer

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
VOCABULARY = tiny_tokenizer().get_vocab_size()
MAX_TOKENS = 40


def config(**changes: object) -> EncoderConfig:
    """64 wide, two layers, 40 tokens."""
    fields: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": MAX_TOKENS,
    }
    return EncoderConfig(**(fields | changes))  # type: ignore[arg-type]


def scramble(model: torch.nn.Module, *, grid: Storage | None = None) -> None:
    """Draw every parameter anew, biases and norms too, so that one in another's place shows.

    Args:
        model: Changed in place.
        grid: An encoding that matrices shall survive without loss.
    """
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
            if grid is not None and parameter.ndim == 2 and parameter.shape[1] % 32 == 0:
                decoded = encode(name, parameter.numpy().astype(np.float32), grid).decode()
                parameter.copy_(torch.from_numpy(decoded))


def encoder(*, grid: Storage | None = None, **changes: object) -> Encoder:
    """An encoder in evaluation mode."""
    torch.manual_seed(0)
    model = Encoder(config(**changes)).eval()
    scramble(model, grid=grid)
    return model


def tagger(*, grid: Storage | None = None) -> TokenClassifier:
    """A token classifier in evaluation mode, whose encoder is that of ``encoder``."""
    torch.manual_seed(0)
    model = TokenClassifier(config(), LABELS).eval()
    scramble(model.classifier)
    model.encoder.load_state_dict(encoder(grid=grid).state_dict())
    return model


def classifier() -> SequenceClassifier:
    """A classifier of texts in evaluation mode, whose encoder is that of ``encoder``."""
    torch.manual_seed(0)
    model = SequenceClassifier(config(), LABELS[:3], head_act="tanh").eval()
    scramble(model.transform)
    scramble(model.classifier)
    model.encoder.load_state_dict(encoder().state_dict())
    return model


def contents(model: Encoder | TokenClassifier | SequenceClassifier, name: str = "small") -> BundleContents:
    """What ``write_bundle`` takes."""
    return BundleContents(
        name=name,
        model=model,
        family="conche",
        tokenizer=tiny_tokenizer(),
        source=Source(name="test"),
        licence="Apache-2.0",
        languages=("en",),
        description="a test",
        max_tokens=MAX_TOKENS - 8,
        pooling="mean",
        normalize=True,
        prompts={"query": "query: "},
        notices={"NOTICE": "ours\n"},
    )
