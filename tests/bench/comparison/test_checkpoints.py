"""A bundle written as a checkpoint is the same model to transformers."""

import json
from pathlib import Path

import pytest
import torch
from comparison.checkpoints import write_checkpoint
from comparison.models import DEFAULT, TAGGER
from torch.nn.functional import normalize
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer

from model.runtime.bundle import Bundle

ROOT = Path(__file__).parents[3]
TEXTS = 6


@pytest.mark.parametrize(
    ("name", "kind", "output"),
    [
        (DEFAULT, AutoModel, "embeddings_mean_normalized"),
        (TAGGER, AutoModelForTokenClassification, "logits"),
    ],
)
def test_peers_get_the_same_model(tmp_path: Path, name: str, kind: type, output: str) -> None:
    """Tokens, outputs and labels as the bundle's golden file has them; else other models were compared."""
    bundle = Bundle.load(ROOT / "models" / name)
    write_checkpoint(bundle, tmp_path / name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
    model = kind.from_pretrained(tmp_path / name).eval()  # type: ignore[attr-defined]
    golden = json.loads(bundle.file("golden.json").read_bytes())
    for text, ids, expected in list(
        zip(golden["texts"], golden["input_ids"], golden["outputs"][output], strict=True)
    )[:TEXTS]:
        encoded = tokenizer(text, return_tensors="pt")
        assert encoded["input_ids"][0].tolist() == ids
        with torch.inference_mode():
            answer = model(**encoded)[0][0]
        if output != "logits":
            answer = normalize(answer.mean(dim=0), dim=0)
        torch.testing.assert_close(answer, torch.tensor(expected), rtol=0, atol=1e-3)
    assert tokenizer.pad_token_id == bundle.manifest.architecture.pad_token_id
    if output == "logits":
        assert tuple(model.config.id2label.values()) == bundle.manifest.labels
