"""Labelled spans that no tagger can give back, since they are no whole words or lose a mark at a border.

A tagger labels words as its tokenizer has them, and its entities are trimmed; see ``model.runtime.tagging``.
Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.runtime.bundle import Bundle
from model.runtime.documents import Document, Paragraph, read_documents
from model.runtime.tagging import LIST_SEPARATORS, Trimmer, Word, words_of
from model.runtime.tokenization import TOKENIZER_NAME, Tokenizer
from model.training.spans import LabelledText, Span
from model.training.tokens import tagging_tokenizer

# Windows are not looked at here, only words.
_MAX_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Misfit:
    """A span that cannot be found exactly, and why not."""

    span: Span
    reason: str


def tagger_reader(bundle: Path) -> Tokenizer:
    """The tokenizer that a tagger has which is trained from a bundle; a tagger's own.

    Raises:
        BundleError: The bundle is damaged.
    """
    if Bundle.load(bundle).manifest.task == "embedding":
        return Tokenizer(tagging_tokenizer(bundle / TOKENIZER_NAME))
    return Tokenizer.from_file(bundle / TOKENIZER_NAME)  # Han characters are tokens of their own already


def misfits_of(texts: Sequence[LabelledText], reader: Tokenizer) -> list[list[Misfit]]:
    """What cannot be found exactly in each text.

    Args:
        texts: As labelled.
        reader: See ``tagger_reader``.
    """
    documents = read_documents([text.text for text in texts], reader, max_tokens=_MAX_TOKENS)
    return [
        list(misfits_in(labelled.spans, document))
        for labelled, document in zip(texts, documents, strict=True)
    ]


def misfits_in(spans: Sequence[Span], document: Document) -> Iterator[Misfit]:
    """Those of a text's spans that cannot be found exactly.

    Args:
        spans: In code points of the document.
        document: The text, as the tagger reads it.
    """
    left = list(spans)
    for paragraph in document.paragraphs if spans else ():
        end = paragraph.start + len(paragraph.text)
        own = [span for span in left if paragraph.start <= span.start and span.end <= end]
        left = [span for span in left if span not in own]
        if own:
            yield from _misfits_in(own, paragraph)
    for span in left:
        yield Misfit(span, "goes over the end of a paragraph")


def _misfits_in(spans: Sequence[Span], paragraph: Paragraph) -> Iterator[Misfit]:
    text, tokenized = paragraph.text, paragraph.tokenized
    words = words_of(text, tokenized.offsets, tokenized.word_ids)
    trimmer = Trimmer(text)
    for span in spans:
        reason = _reason(text, span.start - paragraph.start, span.end - paragraph.start, words, trimmer)
        if reason is not None:
            yield Misfit(span, reason)


def _reason(text: str, start: int, end: int, words: Sequence[Word], trimmer: Trimmer) -> str | None:
    """Why the entity of all words that the span touches is another; None if it is the span."""
    touched = [word for word in words if word.start < end and start < word.end]
    if not touched:
        return "holds no token"
    if LIST_SEPARATORS.intersection(text[start:end]):
        return "holds an enumeration comma, which parts entities"
    kept = trimmer.without_stray_marks(*trimmer.tidy(touched[0].start, touched[-1].end))
    if kept == (start, end):
        return None
    cut = [
        text[word.start : word.end]
        for word in (touched[0], touched[-1])
        if word.start < start < word.end or word.start < end < word.end
    ]
    if cut:
        return f"cuts {' and '.join(map(repr, dict.fromkeys(cut)))}"
    if kept[0] >= kept[1]:
        return "is marks only, of which no entity is made"
    return f"has marks at a border that no entity keeps; {text[kept[0] : kept[1]]!r} is left"
