"""What is written about the columns in Milvus is what lies there."""

from typing import Any

import numpy as np
import pytest
from pymilvus import MilvusClient
from pymilvus.client.types import LoadState

from service.faq.entries import FaqEntry
from service.faq.milvus_schema import (
    BM25_FIELDS,
    ENTRY_FIELDS,
    FILTER_FIELDS,
    VECTOR_FIELDS,
    create_entries,
    create_vectors,
    entry_rows,
    filter_fields,
    numbered_texts,
    tombstone_row,
    vector_rows,
)

ENTRY = FaqEntry(id="a", question="q", answer="x", tags=("t",))


class SchemaKeeper:
    """Keeps the schema that a Milvus collection would be made with."""

    create_schema = staticmethod(MilvusClient.create_schema)

    def __init__(self) -> None:
        self.fields: list[str] = []

    def has_collection(self, _: str) -> bool:
        """Not there yet."""
        return False

    def create_collection(self, _: str, *, schema: Any, **__: Any) -> None:
        """Keep the names."""
        self.fields = [field.name for field in schema.fields]

    def list_indexes(self, _: str, *, field_name: str) -> list[str]:
        """All are there."""
        return [field_name]

    def get_load_state(self, _: str) -> dict[str, LoadState]:
        """It is loaded."""
        return {"state": LoadState.Loaded}


@pytest.mark.parametrize("bm25", [False, True])
def test_entries_have_the_columns_that_are_described(bm25: bool) -> None:
    """In the schema and in each row; the server itself makes the sparse vector of a row's terms."""
    described = {*ENTRY_FIELDS, *(BM25_FIELDS if bm25 else ())}
    client: Any = SchemaKeeper()
    create_entries(client, "entries", bm25=bm25)
    assert set(client.fields) == described
    where = {"incarnation": 1, "version": 2, "sequence": 3, "bm25": bm25}
    [row] = entry_rows(ENTRY, "{}", ["q", "x"], **where)
    assert set(row) == set(tombstone_row("a", **where)) == described - {"terms_bm25"}


def test_vectors_have_the_columns_that_are_described() -> None:
    """The same of the rows that hold vectors."""
    client: Any = SchemaKeeper()
    create_vectors(client, "vectors", 2, approximate=True)
    vectors = dict.fromkeys(numbered_texts(ENTRY), np.array([1.0, 0.0]))
    [row, *_] = vector_rows(ENTRY, vectors, incarnation=1, generation=1, version=2, sequence=3)
    assert set(client.fields) == set(row) == set(VECTOR_FIELDS)


def test_filters_find_their_columns_in_both() -> None:
    """One filter serves entries and vectors."""
    assert set(filter_fields(ENTRY)) == set(FILTER_FIELDS)
    assert set(FILTER_FIELDS) <= ENTRY_FIELDS.keys() & VECTOR_FIELDS.keys()
