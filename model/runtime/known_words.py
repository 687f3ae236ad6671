"""Token ids of words seen before: a BERT tokenizer makes those of a word from nothing but the word.

The library reads each text anew, character by character, and most of that is finding where words are and
keeping account of places that nobody asks for when a text is embedded. Here words are found by a regular
expression, in texts of characters for which that is certain, and each word is asked of the library once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Final, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, normalizers, pre_tokenizers

# Printable ASCII: letters and digits make words, all else but the space is punctuation, one word each.
_ASCII: Final = r" -~"
# Chinese characters, and the punctuation that stands between them: one word each, and the same before
# and after BERT's normaliser. Not all that it reads: it takes accents off, and controls out.
_CHINESE: Final = (
    r"\u4e00-\u9fff\u00b7\u2014\u2018\u2019\u201c\u201d\u2026"
    r"\u3001\u3002\u3008-\u3011\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)
_WORDS: Final = re.compile("[a-zA-Z0-9]+|[^ ]")

# Python finds the words, with the interpreter's lock; in a text of so many characters for some 0.3 ms.
MOST_CHARACTERS: Final = 8_192
# English text of any length has most of its words among fewer. Together they take some 4 MB, and 18 at most.
MOST_WORDS: Final = 20_000
# Of a text. One with more is quicker read by the tokenizer itself.
MOST_NEW_WORDS: Final = 64
# Longer ones come seldom twice.
MOST_LETTERS: Final = 24

# Ids before a text's own, and behind them.
Frame = tuple[list[int], list[int]]


class KnownWords:
    """The words that a tokenizer has been asked for. May be used from several threads at once.

    It forgets all of them where they become too many, so that those of one hour do not keep out those of
    the next.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, *, lowercase: bool, readable: re.Pattern[str], frame: Frame
    ) -> None:
        """Know nothing yet; see `of`."""
        self._tokenizer = tokenizer
        self._lowercase = lowercase
        self._readable = readable
        self._known: dict[str, tuple[int, ...]] = {}
        self._before, self._after = frame

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> Self | None:
        """Of a tokenizer that reads special tokens as text, but has not been told to look for them spelt out.

        Returns:
            None: its words are not BERT's, or a text is more to it than its words.

        Source: tokenizers, ``normalizers/bert.rs``, ``pre_tokenizers/bert.rs`` and ``models/wordpiece``.
        """
        normalizer = tokenizer.normalizer
        is_bert = (
            isinstance(normalizer, normalizers.BertNormalizer)
            and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and isinstance(tokenizer.model, models.WordPiece)
        )
        # Those that are not special are looked for in the text as a whole.
        added = tokenizer.get_added_tokens_decoder().values()
        if not is_bert or not all(token.special for token in added):
            return None
        # Where the model lacks it, a word without pieces is an error.
        if tokenizer.model.token_to_id(tokenizer.model.unk_token) is None:
            return None
        frame = _frame(tokenizer)
        if frame is None:
            return None
        readable = _ASCII + (_CHINESE if normalizer.handle_chinese_chars else "")
        return cls(
            tokenizer, lowercase=normalizer.lowercase, readable=re.compile(f"[{readable}]+"), frame=frame
        )

    def ids(self, texts: Sequence[str]) -> list[NDArray[np.int64] | None]:
        """The ids of each text, special tokens included, as the tokenizer itself gives them.

        Returns:
            [S] int64 each. None = the text is to be read by the tokenizer: it is long, or blank, or has
            characters of which nobody can say without it what becomes of them, or many new words.
        """
        known = self._known  # this call's: another may forget them meanwhile
        read: list[NDArray[np.int64] | None] = [None] * len(texts)
        waiting: dict[int, list[str]] = {}
        for index, text in enumerate(texts):
            if words := self._words(text):
                try:
                    read[index] = self._framed(words, known)
                except KeyError:
                    waiting[index] = words
        if waiting:
            asked: set[str] = set()
            for index, words in list(waiting.items()):
                new = [word for word in dict.fromkeys(words) if word not in known]
                if len(new) > MOST_NEW_WORDS:
                    del waiting[index]
                    asked.update(new[:MOST_NEW_WORDS])  # some of them, so that such texts become known, too
                else:
                    asked.update(words)
            known = self._learn(asked, known)
            for index, words in waiting.items():
                read[index] = self._framed(words, known)
        return read

    def _words(self, text: str) -> list[str] | None:
        if len(text) > MOST_CHARACTERS or not self._readable.fullmatch(text):
            return None
        return _WORDS.findall(text.lower() if self._lowercase else text)

    def _learn(self, words: set[str], known: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Ask the tokenizer for those that are not known, and keep what it says of those that may come again.

        Returns:
            All of ``words``.
        """
        found = {word: known[word] for word in words if word in known}
        unknown = sorted(words - found.keys())
        learnt = self._asked(unknown)
        kept = {word: ids for word, ids in learnt.items() if len(word) <= MOST_LETTERS}
        if len(self._known) + len(kept) > MOST_WORDS:
            self._known = {}
        if len(kept) <= MOST_WORDS:
            self._known.update(kept)
        return found | learnt

    def _asked(self, words: list[str]) -> dict[str, tuple[int, ...]]:
        """What the tokenizer says of each word, asked for all as one text: many texts take far longer."""
        (encoding,) = self._tokenizer.encode_batch([" ".join(words)], add_special_tokens=False)
        parts: dict[int | None, list[int]] = {}
        for token_id, place in zip(encoding.ids, encoding.word_ids, strict=True):
            parts.setdefault(place, []).append(token_id)
        if list(parts) == list(range(len(words))):
            return {word: tuple(ids) for word, ids in zip(words, parts.values(), strict=True)}
        # A word that spells a special token is split, and so counts as two.
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        return {word: tuple(encoding.ids) for word, encoding in zip(words, encodings, strict=True)}

    def _framed(self, words: list[str], known: dict[str, tuple[int, ...]]) -> NDArray[np.int64]:
        own = chain.from_iterable(map(known.__getitem__, words))
        return np.array([*self._before, *own, *self._after], dtype=np.int64)


def _frame(tokenizer: tokenizers.Tokenizer) -> Frame | None:
    """What a tokenizer puts around a text; None if that is not all that it does with a text's tokens."""
    own = [token.id for word in ("a", "b") for token in tokenizer.model.tokenize(word)]
    encoding = tokenizer.encode("a b")
    first = next((place for place, special in enumerate(encoding.special_tokens_mask) if not special), 0)
    before, after = encoding.ids[:first], encoding.ids[first + len(own) :]
    is_all = encoding.ids[first : first + len(own)] == own and all(
        encoding.special_tokens_mask[first + len(own) :]
    )
    return (before, after) if is_all else None
