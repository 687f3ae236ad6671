"""Labelled queries and what two modes found for them: each way to go wrong once."""

from dataclasses import dataclass

from service.faq.queries import LabelledQuery


@dataclass(frozen=True)
class Found:
    """A hit, as far as an evaluation looks."""

    id: str
    score: float

    @property
    def question(self) -> str:
        """Some wording."""
        return f"<{self.id}>"


QUERIES = [
    LabelledQuery("good", ("a",)),
    LabelledQuery("unsure", ("b",)),
    LabelledQuery("mistaken", ("c",)),
    LabelledQuery("unheard of"),
    LabelledQuery("off topic"),
    LabelledQuery("nothing", ("d",)),
]
HYBRID = [
    [Found("a", 0.95), Found("b", 0.1)],
    [Found("b", 0.2)],
    [Found("a", 0.6), Found("c", 0.5)],
    [Found("a", 0.7)],
    [Found("b", 0.1)],
    [],
]
LEXICAL = [[Found("b", 0.5), Found("a", 0.4)], [], [], [], [], []]
