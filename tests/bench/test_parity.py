"""The documented comparison with transformers runs, and finds a small model equal."""

import re
from pathlib import Path

import parity
from click.testing import CliRunner
from transformers import PreTrainedTokenizerFast

from tests.model.encoder.checkpoints import reference_model, save_checkpoint, tiny_tokenizer


def test_a_small_checkpoint_equals_transformers(tmp_path: Path) -> None:
    """Tokens of every text and, to float32 rounding, every output of the encoder and of the bundle."""
    folder = save_checkpoint(reference_model("bert"), tmp_path / "checkpoint")
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), **special).save_pretrained(folder)
    done = CliRunner().invoke(parity.main, [str(folder)])
    assert done.exit_code == 0, done.output
    agreeing, texts = map(int, re.findall(r"ids as transformers: (\d+) of (\d+)", done.output)[0])
    assert agreeing == texts > 50
    differences = [float(number) for number in re.findall(r"\d\.\de[+-]\d\d", done.output)]
    assert len(differences) == 10
    assert max(differences) < 1e-5
