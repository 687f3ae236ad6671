"""The tokeniser files of a checkpoint as one ``tokenizers.Tokenizer``, whatever form they are in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model.encoder.errors import CheckpointError, UnsupportedCheckpointError
from model.encoder.json_files import read_json_object

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOKENIZER_JSON: Final = "tokenizer.json"
VOCABULARY: Final = "vocab.txt"

# Classes whose vocab.txt means WordPiece after BERT's own splitting; others use the same file name
# for something else (Japanese word segmentation, byte pairs).
_WORDPIECE_CLASSES: Final = (
    "BertTokenizer",
    "BertTokenizerFast",
    "DistilBertTokenizer",
    "DistilBertTokenizerFast",
)
_WORDPIECE_FAMILIES: Final = ("bert", "distilbert")
# In lower case; the first three begin the names of classes and of model types alike.
_WITHOUT_TOKEN_TYPES: Final = ("roberta", "xlmroberta", "distilbert", "camembert")
_HOW_TO_CONVERT: Final = (
    "Write one with transformers: AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
)


def find_tokenizer_file(folder: Path, family: str) -> Path:
    """The file in ``folder`` that the tokeniser is built from: ``tokenizer.json``, else BERT's ``vocab.txt``.

    Raises:
        UnsupportedCheckpointError: Neither; the message says how to get a ``tokenizer.json``.
    """
    if (folder / TOKENIZER_JSON).is_file():
        return folder / TOKENIZER_JSON
    vocabulary = folder / VOCABULARY
    config = _tokenizer_config(folder)
    tokenizer_class = config.get("tokenizer_class") or _WORDPIECE_CLASSES[0]
    if vocabulary.is_file() and family in _WORDPIECE_FAMILIES and tokenizer_class in _WORDPIECE_CLASSES:
        if config.get("do_basic_tokenize") is False or config.get("never_split"):
            raise UnsupportedCheckpointError(
                f"{folder} changes how BERT splits words (do_basic_tokenize, never_split), "
                "which is not supported"
            )
        return vocabulary
    pieces = ", ".join(sorted(path.name for path in folder.glob("*.model")))
    have = f"only {pieces}" if pieces else "no vocabulary that can be converted"
    raise UnsupportedCheckpointError(
        f"{folder} has no {TOKENIZER_JSON}, {have}. " + _HOW_TO_CONVERT.format(folder=folder)
    )


def read_tokenizer(tokenizer_file: Path, *, lowercase_first: bool = False) -> Tokenizer:
    """Build the tokeniser that transformers would use for this checkpoint.

    Truncation and padding, which a ``tokenizer.json`` may carry along, are off.

    Args:
        tokenizer_file: What ``find_tokenizer_file`` found; its neighbours are read as well.
        lowercase_first: Put texts in lower case before anything else, as sentence-transformers
            does with ``do_lower_case``.

    Raises:
        CheckpointError: A file is not what its name promises.
    """
    folder = tokenizer_file.parent
    if tokenizer_file.name == VOCABULARY:
        tokenizer = _from_vocabulary(tokenizer_file)
    else:
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"{tokenizer_file} is not a tokeniser: {error}") from error
        _apply_bert_options(tokenizer, _tokenizer_config(folder))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lowercase_first:
        steps = [normalizers.Lowercase()]
        tokenizer.normalizer = normalizers.Sequence(
            [*steps, tokenizer.normalizer] if tokenizer.normalizer else steps
        )
    return tokenizer


def model_max_length(folder: Path) -> int | None:
    """The tokeniser's own limit in tokens, None if it states none."""
    length = _tokenizer_config(folder).get("model_max_length")
    # transformers writes 1e30 for "no limit".
    return int(length) if isinstance(length, int | float) and 0 < length < 1e9 else None


def gives_token_types(folder: Path, family: str) -> bool:
    """Whether transformers' tokeniser of this checkpoint tells the texts of a pair apart by token types.

    It is what ``model_input_names`` says or, failing that, what the class of the tokeniser does: BERT's does,
    those of RoBERTa and DistilBERT do not, whatever their ``tokenizer.json`` says.
    """
    config = _tokenizer_config(folder)
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    tokenizer_class = str(config.get("tokenizer_class") or ("BertTokenizer" if family == "bert" else family))
    return not tokenizer_class.lower().replace("-", "").startswith(_WITHOUT_TOKEN_TYPES)


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json_object(path) if path.is_file() else {}


def _from_vocabulary(vocabulary: Path) -> Tokenizer:
    folder = vocabulary.parent
    config = _tokenizer_config(folder)
    try:
        # Split at line ends only: a vocabulary may hold U+2028 and its like as tokens.
        lines = vocabulary.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{vocabulary} is not a vocabulary in UTF-8: {error}") from error
    if lines[-1] == "":
        lines.pop()
    vocab = {token: index for index, token in enumerate(lines)}
    special = {
        role: _special_token(config, role, default)
        for role, default in (
            ("unk_token", "[UNK]"),
            ("sep_token", "[SEP]"),
            ("cls_token", "[CLS]"),
            ("pad_token", "[PAD]"),
            ("mask_token", "[MASK]"),
        )
    }
    absent = [special[role] for role in ("unk_token", "sep_token", "cls_token") if special[role] not in vocab]
    if absent:
        raise CheckpointError(f"{vocabulary} lacks {', '.join(absent)}")
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=special["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),  # None = as lower case goes
        lowercase=bool(config.get("do_lower_case", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([token for token in special.values() if token in vocab])
    cls_token, sep_token = special["cls_token"], special["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls_token}:0 $A:0 {sep_token}:0",
        pair=f"{cls_token}:0 $A:0 {sep_token}:0 $B:1 {sep_token}:1",
        special_tokens=[(cls_token, vocab[cls_token]), (sep_token, vocab[sep_token])],
    )
    added = folder / "added_tokens.json"
    if added.is_file():
        for token, index in sorted(read_json_object(added).items(), key=lambda item: int(item[1])):
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
            if tokenizer.token_to_id(token) != index:
                raise CheckpointError(
                    f"{added} gives {token!r} the id {index}, which is not the next free one"
                )
    return tokenizer


def _special_token(config: Mapping[str, Any], role: str, default: str) -> str:
    token = config.get(role, default)
    return str(token["content"]) if isinstance(token, dict) else str(token or default)


def _apply_bert_options(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Let ``tokenizer_config.json`` decide case and accents, as it does in transformers.

    The two files of a checkpoint can disagree; its author saw what transformers made of them.
    """
    if config.get("tokenizer_class") not in _WORDPIECE_CLASSES or tokenizer.normalizer is None:
        return
    serialised = json.loads(tokenizer.to_str())["normalizer"]
    if serialised.get("type") != "BertNormalizer":
        return
    options = {
        name: serialised[name]
        for name in ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    }
    for ours, theirs in (
        ("lowercase", "do_lower_case"),
        ("strip_accents", "strip_accents"),
        ("handle_chinese_chars", "tokenize_chinese_chars"),
    ):
        if theirs in config:
            options[ours] = config[theirs]
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
