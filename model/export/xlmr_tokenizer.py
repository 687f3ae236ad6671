"""Builds the tokenizer of an XLM-RoBERTa vocabulary for the ``tokenizers`` library."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

_WORD_START: Final = "\u2581"
_ZERO_WIDTH_JOINER: Final = "\u200d"


def build_xlmr_tokenizer(
    pieces: Sequence[tuple[str, float]], special: Mapping[str, int], *, mask: str | None = "<mask>"
) -> Tokenizer:
    """Build a Unigram tokenizer with SentencePiece's ``nmt_nfkc`` normalisation.

    Args:
        pieces: Text and log probability, in id order.
        special: Ids of ``bos``, ``eos``, ``pad`` and ``unk``.
        mask: A further special piece, if the vocabulary has it.

    Returns:
        A tokenizer that puts ``bos`` and ``eos`` around a text.
    """
    tokenizer = Tokenizer(models.Unigram(list(pieces), unk_id=special["unk"], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            # XLM-R's table makes it a blank; the SentencePiece at hand leaves it alone.
            normalizers.Replace(_ZERO_WIDTH_JOINER, " "),
            normalizers.Precompiled(nmt_nfkc_table()),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(_WORD_START, prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(_WORD_START, prepend_scheme="always")
    bos, eos, pad, unk = (pieces[special[name]][0] for name in ("bos", "eos", "pad", "unk"))
    tokenizer.add_special_tokens(
        [AddedToken(piece, special=True, normalized=False) for piece in (bos, pad, eos, unk)]
    )
    if mask is not None and tokenizer.token_to_id(mask) is not None:
        tokenizer.add_special_tokens([AddedToken(mask, special=True, normalized=False, lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, special["bos"]), (eos, special["eos"])],
    )
    return tokenizer


def nmt_nfkc_table() -> bytes:
    """SentencePiece's built-in ``nmt_nfkc`` rules, compiled, as its model files carry them.

    The library gives the table only inside a model, so a throw-away one is trained. Needed at build time
    only: plain NFKC differs from it, for one in the full-width tilde of Chinese text.
    """
    import sentencepiece  # noqa: PLC0415 - only those who build a tokenizer need it installed

    messages = importlib.import_module("sentencepiece.sentencepiece_model_pb2")

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g"] * 20),
        model_writer=written,
        vocab_size=20,
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    trained = messages.ModelProto()
    trained.ParseFromString(written.getvalue())
    table: bytes = trained.normalizer_spec.precompiled_charsmap
    return table
