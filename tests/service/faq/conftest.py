"""Fixtures of the FAQ's tests: a model without a network, and catalogues over a real store."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from model.runtime.bundle import Bundle, Manifest
from service.faq.catalogue import FaqCatalogue
from service.faq.sqlite_store import SqliteFaqStore
from tests.bundles import write_tiny_embedding_bundle
from tests.conftest import needs_milvus
from tests.service.faq.hashing_embedder import HashingEmbedder
from tests.service.faq.milvus_servers import MilvusProcess, milvus_lite_server, milvus_server

OpenCatalogue = Callable[..., FaqCatalogue]

_MILVUS: Final = pytest.StashKey[MilvusProcess]()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the real Milvus after the last test that needs it: idle, it takes more than half a core."""
    if (nextitem is None or not needs_milvus(nextitem.nodeid)) and _MILVUS in item.session.stash:
        item.session.stash[_MILVUS].stop()


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Describe some embedding model, with a prompt for each side."""
    bundle = Bundle.load(write_tiny_embedding_bundle(tmp_path_factory.mktemp("bundle") / "tiny"))
    return bundle.manifest.model_copy(update={"prompts": {"query": "query: ", "passage": "passage: "}})


@pytest.fixture
def embedder(manifest: Manifest) -> HashingEmbedder:
    """Embed by letters."""
    return HashingEmbedder(manifest)


@pytest.fixture(scope="session")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measure each of the models of these tests once, not once a test."""
    return tmp_path_factory.mktemp("calibrations")


@pytest_asyncio.fixture
async def open_catalogue(
    tmp_path: Path, embedder: HashingEmbedder, calibrations: Path
) -> AsyncIterator[OpenCatalogue]:
    """Open catalogues on one file, as several processes would; all are closed afterwards."""
    opened: list[FaqCatalogue] = []

    def open_one(by: HashingEmbedder = embedder, **options: object) -> FaqCatalogue:
        store = SqliteFaqStore(tmp_path / "faq.sqlite")
        given = {"calibrations": calibrations, **options}
        opened.append(FaqCatalogue(store, by, **given))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for catalogue in opened:
        await catalogue.close()


@pytest.fixture(scope="session")
def milvus_lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusProcess]:
    """milvus-lite's server, one for all tests."""
    with milvus_lite_server(tmp_path_factory.mktemp("milvus-lite")) as server:
        yield server


@pytest.fixture(scope="session")
def milvus(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MilvusProcess]:
    """A real Milvus server, one for all tests: those with "milvus" in their id, one after the other."""
    with milvus_server(tmp_path_factory.mktemp("milvus")) as server:
        request.session.stash[_MILVUS] = server
        yield server
