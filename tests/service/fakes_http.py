"""The app over tiny real bundles, and a client of it; for tests of routes."""

import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from service.app import OpenServices, create_app
from service.lifespan import open_services
from service.settings import Settings
from tests.bundles import (
    write_tiny_classifier_bundle,
    write_tiny_embedding_bundle,
    write_tiny_ner_bundle,
    write_tiny_reranker_bundle,
)

FAQ = [
    '{"id": "refund", "question": "How do I return my order", "answer": "With the label in the box."}',
    '{"id": "password", "question": "reset my password", "answer": "On the account page."}',
    '{"id": "delivery", "question": "怎么退货", "answer": "七天内。"}',
]


def write_bundles(folder: Path) -> Path:
    """A bundle of each kind, a cross-encoder and a spare one among them, and a FAQ of three entries."""
    write_tiny_embedding_bundle(folder / "tiny-embedding")
    write_tiny_embedding_bundle(folder / "tiny-spare", name="tiny-spare", seed=8)
    write_tiny_ner_bundle(folder / "tiny-ner")
    write_tiny_classifier_bundle(folder / "tiny-classifier")
    write_tiny_reranker_bundle(folder / "tiny-reranker")
    (folder / "faq.jsonl").write_text("\n".join(FAQ) + "\n", encoding="utf-8")
    return folder


# One for each process that runs tests; gone when it ends.
_CALIBRATIONS: Final = tempfile.TemporaryDirectory(prefix="conche-calibrations-")


def share_calibrations(folder: Path) -> Path:
    """Make data or cache folder ``folder``, its calibrations shared with all others, and return it.

    They are found by what they were measured with, and measuring a model takes longer than most tests.
    """
    folder.mkdir(parents=True)
    (folder / "calibrations").symlink_to(_CALIBRATIONS.name, target_is_directory=True)
    return folder


def tiny_settings(folder: Path, **changes: Any) -> Settings:
    """Settings for what ``write_bundles`` wrote, with a data folder of their own.

    Nothing of the environment's but what a test sets.
    """
    values: dict[str, object] = {
        "models_dir": folder,
        "embedding_bundle": "tiny-embedding",
        "ner_bundle": "tiny-ner",
        "classifier_bundle": "tiny-classifier",
        "faq_file": str(folder / "faq.jsonl"),
        "data_dir": share_calibrations(folder / "data" / uuid.uuid4().hex),
        "threads": 1,
        # Measurements would choose now this one, now that, with other vectors.
        "engine": "onnxruntime",
        "precision": "float32",
        "batching": {"max_batch_tokens": 2048, **changes.pop("batching", {})},
        "admin": True,
    }
    return Settings.model_validate(values | changes)


@asynccontextmanager
async def running(
    settings: Settings, *, services: OpenServices = open_services
) -> AsyncIterator[httpx.AsyncClient]:
    """The app, started, behind a client; stopped afterwards."""
    app = create_app(settings, services=services)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://conche.test") as client:
            client.app = app  # type: ignore[attr-defined]  # for tests that reach behind the routes
            yield client
