"""Text to token ids, with each token's place in the caller's text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from model.runtime.bundle import Bundle, BundleError
from model.runtime.known_words import KnownWords

TOKENIZER_NAME = "tokenizer.json"
_PAD_TOKENS = ("[PAD]", "<pad>")
# The last part of the file, as the library writes it.
_MODEL = '"model":'
_PARTS = {
    "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
    "decoder", "model",
}  # fmt: skip

Made = TypeVar("Made", bound="Tokenizer")


class NotTextError(ValueError):
    """A string with half of a surrogate pair, which is no character and has no UTF-8 form.

    Attributes:
        index: of the text, from 0; None = the prefix.
        character: where in it, in code points.
    """

    def __init__(self, string: str, character: int, *, index: int | None) -> None:
        what = "the prefix" if index is None else f"text {index}"
        super().__init__(
            f"{what} holds half of a surrogate pair (U+{ord(string[character]):04X}) at {character}"
        )
        self.index = index
        self.character = character


class UnknownIdError(ValueError):
    """An id that no token of the vocabulary has.

    Attributes:
        index: of the sequence, from 0.
        position: of the id in it.
    """

    def __init__(self, index: int, position: int, vocab_size: int) -> None:
        super().__init__(
            f"sequence {index} holds at {position} an id that no token has; ids end at {vocab_size - 1}"
        )
        self.index = index
        self.position = position


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as tokens; S tokens, special ones included.

    Attributes:
        input_ids: [S] int64.
        offsets: [S, 2] int64, half-open [start, end) in code points of the caller's text, without surrounding
            white space. (0, 0) for special tokens and for those of a prefix. Neighbours may overlap: a bare
            word-start mark (SentencePiece) claims the first character of the piece after it.
        word_ids: [S]; the pre-tokeniser's word number, None for special tokens and for those of a prefix.
        special: [S] bool; True for tokens added around the text; inside it none is, see ``Tokenizer``.
        truncated_tokens: how many tokens were cut off; 0 = the whole text is here.
    """

    input_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    word_ids: list[int | None]
    special: NDArray[np.bool_]
    truncated_tokens: int = 0

    def __len__(self) -> int:
        """Tokens, special ones included."""
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class TextIds:
    """One text as token ids, for callers that need no offsets.

    Attributes:
        input_ids: [S] int64, special tokens included.
        is_empty: no token of the whole text stands for anything in it.
        truncated_tokens: how many tokens were cut off; 0 = the whole text is here.
    """

    input_ids: NDArray[np.int64]
    is_empty: bool
    truncated_tokens: int = 0

    def __len__(self) -> int:
        """Tokens, special ones included."""
        return len(self.input_ids)


class Tokenizer:
    """A bundle's tokenizer. Never truncates or pads by itself; may be used from several threads at once.

    What a caller writes is text, never structure: ``</s>`` or ``[SEP]`` spelt out, in a text or in a prefix,
    is the characters that one sees, so that no text can end itself early or pass a part of itself off as
    padding. Transformers by default makes special tokens of them; ids differ from its ids in such texts only.
    (A special token of a single character that is also a piece of the vocabulary cannot be kept apart.)
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Wrap ``tokenizer``, whose own truncation, padding and reading of special tokens are switched off.

        Raises:
            ValueError: it declares no padding token.
        """
        self.pad_token_id = _pad_token_id(tokenizer)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # its name means: encode them like other text
        self._known_words = KnownWords.of(tokenizer)
        _read_special_tokens_as_text(tokenizer)
        self._vocab_size = _vocab_size(tokenizer)
        self._tokenizer = tokenizer

    @classmethod
    def from_bundle(cls, bundle: Bundle, *, vocabularies: Vocabularies | None = None) -> Self:
        """Read the tokenizer that came with the model.

        Args:
            bundle: a checked bundle.
            vocabularies: those in use, one of which may be this one's.

        Raises:
            BundleError: the bundle has no usable ``tokenizer.json``, or one that has more tokens than the
                model or pads with another.
        """
        loaded = cls.from_file(bundle.file(TOKENIZER_NAME), vocabularies=vocabularies)
        vocab_size = bundle.manifest.architecture.vocab_size
        highest_id = loaded.vocab_size - 1
        if highest_id >= vocab_size:
            raise BundleError(
                "tokenizer",
                f"{bundle.path.name}/{TOKENIZER_NAME} has ids up to {highest_id}, "
                f"the model's vocabulary ends at {vocab_size - 1}",
            )
        wanted = bundle.manifest.architecture.pad_token_id
        if loaded.pad_token_id != wanted:
            raise BundleError(
                "tokenizer",
                f"{bundle.path.name}/{TOKENIZER_NAME} pads with {loaded.pad_token_id}, the model {wanted}",
            )
        return loaded

    @classmethod
    def from_file(cls, path: Path, *, vocabularies: Vocabularies | None = None) -> Self:
        """Read a ``tokenizer.json``.

        Args:
            path: of the file.
            vocabularies: as for ``from_bundle``.

        Raises:
            BundleError: it cannot be read (check "tokenizer").
        """
        try:
            # The library raises bare Exception for a file that it cannot read.
            if vocabularies is None:
                return cls(tokenizers.Tokenizer.from_file(str(path)))
            return vocabularies.share(path.read_text(encoding="utf-8"), cls)
        except Exception as error:
            raise BundleError("tokenizer", f"{path.parent.name}/{path.name}: {error}") from error

    def tokenize(self, texts: Sequence[str], *, prefix: str = "") -> list[TokenizedText]:
        """Tokenise each text whole, special tokens added.

        Args:
            texts: the callers' texts.
            prefix: put before every text (a prompt such as "query: "); its tokens get offsets (0, 0) and no
                word, and the other offsets still count from the start of the caller's text.

        Raises:
            NotTextError: a text or the prefix holds half of a surrogate pair.
        """
        return [
            _from_encoding(encoding, text, len(prefix))
            for encoding, text in zip(self._encode(dict(enumerate(texts)), prefix), texts, strict=True)
        ]

    def tokenize_ids(
        self,
        texts: Sequence[str],
        *,
        prefix: str = "",
        max_tokens: int | None = None,
        from_start: bool = False,
    ) -> list[TextIds]:
        """Do as `tokenize` and, if asked, `truncate`, in less time, and tell the ids only.

        Args:
            texts: the callers' texts.
            prefix: put before every text.
            max_tokens: what is longer is cut to that; None = nothing is cut.
            from_start: where it is cut.

        Raises:
            NotTextError: a text or the prefix holds half of a surrogate pair.
            ValueError: as `truncate`.
        """
        read: dict[int, TextIds] = {}
        if self._known_words is not None:
            for index, ids in enumerate(self._known_words.ids([prefix + text for text in texts])):
                # With a prefix a blank text has words, too.
                if ids is None or texts[index].isspace() or not texts[index]:
                    continue
                if max_tokens is None or len(ids) <= max_tokens:
                    read[index] = TextIds(ids, is_empty=False)
        others = {index: text for index, text in enumerate(texts) if index not in read}
        for (index, text), encoding in zip(others.items(), self._encode(others, prefix), strict=True):
            is_empty = _is_empty(encoding, text, len(prefix))
            if max_tokens is not None and len(encoding) > max_tokens:
                whole = _from_encoding(encoding, text, len(prefix))
                cut = self.truncate(whole, max_tokens, from_start=from_start)
                read[index] = TextIds(cut.input_ids, is_empty, cut.truncated_tokens)
            else:
                read[index] = TextIds(np.array(encoding.ids, dtype=np.int64), is_empty)
        return [read[index] for index in range(len(texts))]

    def _encode(self, texts: Mapping[int, str], prefix: str) -> list[tokenizers.Encoding]:
        """Tokenise ``texts``, by their places among the caller's."""
        check_characters(prefix, None)
        for index, text in texts.items():
            check_characters(text, index)
        # The batch call, even for one text, because it lets go of the interpreter lock.
        return self._tokenizer.encode_batch([prefix + text for text in texts.values()]) if texts else []

    @property
    def vocab_size(self) -> int:
        """Token ids are below it; some ids may have no token."""
        return self._vocab_size

    def encode_batch(
        self, texts: Sequence[str | tuple[str, str]], *, add_special_tokens: bool = True
    ) -> list[tokenizers.Encoding]:
        """Tokenise each text, or pair of texts, whole, and give back what the library says of it.

        Offsets are unaltered: in code points of a text, or of that one of a pair that the token is of.

        Raises:
            NotTextError: a text holds half of a surrogate pair.
        """
        for index, text in enumerate(texts):
            for one in (text,) if isinstance(text, str) else text:
                check_characters(one, index)
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)

    def decode_batch(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """Turn ids into text, as the tokenizer's own decoder puts the pieces together.

        Raises:
            UnknownIdError: an id that no token has.
        """
        for index, sequence in enumerate(ids):
            for position, token_id in enumerate(sequence):
                if not 0 <= token_id < self._vocab_size or self._tokenizer.id_to_token(token_id) is None:
                    raise UnknownIdError(index, position, self._vocab_size)
        return self._tokenizer.decode_batch(
            [list(sequence) for sequence in ids], skip_special_tokens=skip_special_tokens
        )

    def truncate(
        self, tokenized: TokenizedText, max_tokens: int, *, from_start: bool = False
    ) -> TokenizedText:
        """Cut to ``max_tokens``; special tokens stay, and so does a prefix.

        Args:
            tokenized: any tokenised text; returned as it is if short enough.
            max_tokens: special tokens included.
            from_start: cut the beginning of the text instead of its end.

        Raises:
            ValueError: no room for one token between the special ones.
        """
        excess = len(tokenized) - max_tokens
        if excess <= 0:
            return tokenized
        first, last = content_range(tokenized)
        if last - excess <= first:
            raise ValueError(
                f"max_tokens {max_tokens} leaves no room beside {tokenized.special.sum()} special tokens"
            )
        if from_start:
            # A prefix's tokens have no extent in the caller's text.
            extents = tokenized.offsets[first:last, 1] > tokenized.offsets[first:last, 0]
            own = first + int(np.argmax(extents)) if extents.any() else first
            if own + excess >= last:
                raise ValueError(f"max_tokens {max_tokens} leaves no room beside the prefix")
            keep = np.r_[0:own, own + excess : len(tokenized)]
        else:
            keep = np.r_[0 : last - excess, last : len(tokenized)]
        return TokenizedText(
            input_ids=tokenized.input_ids[keep],
            offsets=tokenized.offsets[keep],
            word_ids=[tokenized.word_ids[index] for index in keep],
            special=tokenized.special[keep],
            truncated_tokens=tokenized.truncated_tokens + excess,
        )


class Vocabularies:
    """Those of the tokenizers in use: files that differ in other things only have one between them.

    It is most of a tokenizer: 53 of 55 MB of the default models', and 0.2 s of the interpreter's to read.
    """

    def __init__(self) -> None:
        self._tokenizers: WeakValueDictionary[bytes, Tokenizer] = WeakValueDictionary()

    def share(self, content: str, make: Callable[[tokenizers.Tokenizer], Made]) -> Made:
        """Read a ``tokenizer.json`` with the vocabulary that another has, if it is the same to the letter.

        Args:
            content: of the file.
            make: of what is read; what it returns has the vocabulary while it is in use.
        """
        head, mark, vocabulary = content.partition(_MODEL)
        digest = hashlib.sha256(vocabulary.encode()).digest()
        raw = None
        if mark and (other := self._tokenizers.get(digest)) is not None:
            raw = _with_model(head, other._tokenizer.model)  # noqa: SLF001 - of the same module
        made = make(tokenizers.Tokenizer.from_str(content) if raw is None else raw)
        if mark:
            self._tokenizers[digest] = made
        return made


def _with_model(head: str, model: tokenizers.models.Model) -> tokenizers.Tokenizer | None:
    """Put what a file says before its model together with a model; None if that is not all there is to it."""
    try:
        rest = json.loads(f"{head}{_MODEL}null}}")
        if set(rest) != _PARTS:
            return None
        added = {token["content"]: token["id"] for token in rest["added_tokens"]}
        # Added tokens get their numbers from the model when they are read: here from one of nothing else.
        rest["model"] = {"type": "WordLevel", "vocab": added, "unk_token": ""}
        raw = tokenizers.Tokenizer.from_str(json.dumps(rest))
    except Exception:  # noqa: BLE001 - the library raises it bare; the file is then read as a whole, and said
        return None
    if any(model.token_to_id(token) != token_id for token, token_id in added.items()):
        return None
    raw.model = model
    return raw


def content_range(tokenized: TokenizedText) -> tuple[int, int]:
    """[first, last) of the tokens between the opening and the closing special tokens, a prefix included."""
    positions = np.flatnonzero(~tokenized.special)
    if len(positions) == 0:
        # Nothing but special tokens: an empty range before the closing one.
        middle = max(len(tokenized) - 1, 0)
        return middle, middle
    return int(positions[0]), int(positions[-1]) + 1


def _vocab_size(tokenizer: tokenizers.Tokenizer) -> int:
    """One more than the highest id."""
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    # Where each id below the number of tokens has one, no token is left for an id above. To look takes a
    # fifth of the time that a dictionary of all does.
    if all(tokenizer.id_to_token(token_id) is not None for token_id in range(count)):
        return count
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _pad_token_id(tokenizer: tokenizers.Tokenizer) -> int:
    declared = tokenizer.padding
    if declared is not None:
        return int(declared["pad_id"])
    for token in _PAD_TOKENS:
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            return token_id
    raise ValueError(f"no padding token: neither a padding section nor any of {', '.join(_PAD_TOKENS)}")


def _read_special_tokens_as_text(tokenizer: tokenizers.Tokenizer) -> None:
    # ``encode_special_tokens`` is not enough: a Unigram vocabulary has special tokens among its pieces, and
    # with the best score of all. No piece reaches across a split, so each is split behind its first
    # character; after normalisation, since that makes "</s>" of full-width characters as well.
    spelt = [added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special]
    starts = [f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in spelt if len(token) > 1]
    if not starts:
        return
    split = pre_tokenizers.Split(tokenizers.Regex("|".join(starts)), "merged_with_previous")
    before = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = split if before is None else pre_tokenizers.Sequence([before, split])


def check_characters(string: str, index: int | None) -> None:
    """Refuse what has no UTF-8 form.

    Args:
        string: a text, or a prefix.
        index: of the text, for the message; None = the prefix.

    Raises:
        NotTextError: it holds half of a surrogate pair.
    """
    try:
        string.encode()
    except UnicodeEncodeError as error:
        raise NotTextError(string, error.start, index=index) from error


def _is_empty(encoding: tokenizers.Encoding, text: str, prefix_length: int) -> bool:
    """Whether each token is special, or of the prefix, or has no extent but white space."""
    first = len(text) - len(text.lstrip())
    if first < len(text) and encoding.char_to_token(prefix_length + first) is not None:
        return False  # as nearly always, and without lists of all tokens
    for (start, end), special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
        own = slice(max(start - prefix_length, 0), max(end - prefix_length, 0))
        if not special and not (text[own].isspace() or text[own] == ""):
            return False
    return True


def _from_encoding(encoding: tokenizers.Encoding, text: str, prefix_length: int) -> TokenizedText:
    special = np.array(encoding.special_tokens_mask, dtype=np.bool_)
    word_ids: list[int | None] = list(encoding.word_ids)
    offsets = np.zeros((len(word_ids), 2), dtype=np.int64)
    for index, (raw_start, raw_end) in enumerate(encoding.offsets):
        if special[index]:
            continue
        if prefix_length and raw_end <= prefix_length:
            word_ids[index] = None
            continue
        start, end = max(raw_start - prefix_length, 0), raw_end - prefix_length
        # Byte-level tokenizers count the space before a word as part of it.
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        offsets[index] = start, end
    return TokenizedText(
        input_ids=np.array(encoding.ids, dtype=np.int64),
        offsets=offsets,
        word_ids=word_ids,
        special=special,
    )
