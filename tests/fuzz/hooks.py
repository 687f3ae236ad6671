"""Loaded by schemathesis: how bodies that are no JSON are made and sent."""

from typing import Any

import schemathesis
from hypothesis import strategies as st

from service.faq.imports import XLSX_TYPE

schemathesis.openapi.media_type(XLSX_TYPE, st.binary(max_size=2_000))


@schemathesis.serializer("text/csv", "application/x-ndjson", XLSX_TYPE)
def send_as_it_is(context: Any, value: Any) -> bytes:
    """A file's bytes; examples and generated tables are texts."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")
