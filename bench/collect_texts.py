"""Write bench/texts.jsonl.xz, the texts of the comparison, from published data sets.

    python bench/collect_texts.py DATA

DATA holds a folder a set, each with JSON lines: faq_stackfaq_en (faqs, queries), uner_en_ewt, bc5cdr,
uner_zh_gsdsimp (test) and faq_shop_zh (faqs, queries). The result is in the repository; this tells how it
came about. ``bench/README.md`` names sources and licences.
"""

import argparse
import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).parent / "texts.jsonl.xz"
# File, key of a record that holds a text, and the most characters of it that are kept.
ENGLISH = (
    ("faq_stackfaq_en/faqs", "question", 1500),
    ("faq_stackfaq_en/faqs", "answer", 1500),
    ("faq_stackfaq_en/queries", "query", 1500),
    ("uner_en_ewt/test", "text", 1500),
    ("bc5cdr/test", "text", 1500),
)
CHINESE = (
    ("faq_shop_zh/faqs", "question", 500),
    ("faq_shop_zh/faqs", "answer", 500),
    ("faq_shop_zh/queries", "query", 500),
    ("uner_zh_gsdsimp/test", "text", 500),
)
COUNTS = {"en": 2048, "zh": 512}
DOCUMENTS = {"en": ("uner_en_ewt/dev", 48, 900), "zh": ("uner_zh_gsdsimp/dev", 48, 320)}


def read(data: Path, sources: tuple[tuple[str, str, int], ...]) -> Iterator[str]:
    """Yield the texts of some sources that hold anything."""
    for name, key, most in sources:
        for line in (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            text = json.loads(line)[key][:most].strip()
            if text:
                yield text


def documents(data: Path, name: str, count: int, characters: int, between: str) -> Iterator[str]:
    """Yield ``count`` documents, each of sentences that follow one another, of about that length."""
    sentences = iter(read(data, ((name, "text", 1500),)))
    for _ in range(count):
        document = next(sentences)
        while len(document) < characters:
            document += between + next(sentences)
        yield document[:characters]


def main() -> None:
    """Collect, shuffle, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    data: Path = parser.parse_args().data
    lines = []
    for language, sources in (("en", ENGLISH), ("zh", CHINESE)):
        texts = list(read(data, sources))
        random.Random(20261130).shuffle(texts)
        lines += [{"kind": "text", "language": language, "text": text} for text in texts[: COUNTS[language]]]
        name, count, characters = DOCUMENTS[language]
        between = " " if language == "en" else ""
        lines += [
            {"kind": "document", "language": language, "text": text}
            for text in documents(data, name, count, characters, between)
        ]
    written = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    TARGET.write_bytes(lzma.compress(written, preset=9))
    print(f"{len(lines)} texts, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
