"""Which texts of an entry have a vector: what the store keeps vectors for and the index is built from."""

from collections.abc import Iterable

from service.faq.entries import FaqEntry


def texts_to_embed(entries: Iterable[FaqEntry]) -> list[str]:
    """Return the distinct texts whose vectors searching ``entries`` needs, in a fixed order.

    A disabled entry is never found, so it needs none.
    """
    texts: dict[str, None] = {}
    for entry in entries:
        if entry.enabled:
            texts.update(dict.fromkeys(entry.phrasings))
            texts[question_and_answer(entry)] = None
    return list(texts)


def question_and_answer(entry: FaqEntry) -> str:
    """Return the text that stands for the whole entry."""
    # Without an answer the question stands in: averaging with it steadies a lucky match of one alternate
    # among many.
    return f"{entry.question}\n{entry.answer}" if entry.answer else entry.question
