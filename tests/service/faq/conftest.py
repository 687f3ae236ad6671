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
from tests.conftest import milvus_of
from tests.service.faq.hashing_embedder import HashingEmbedder
from tests.service.faq.milvus_servers import MilvusProcess, milvus_lite_server, milvus_server

OpenCatalogue = Callable[..., FaqCatalogue]

_SERVERS: Final = pytest.StashKey[dict[str, MilvusProcess]]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """See that a test's id tells which Milvus it needs: who runs it, and when, goes by that alone."""
    asked = {"milvus", "milvus_lite"} & set(getattr(item, "fixturenames", ()))
    assert asked <= {milvus_of(item.nodeid)}, f"{item.nodeid} takes {asked}"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop a Milvus after the last test that needs it: idle, a real one takes a third of a core."""
    needed = None if nextitem is None else milvus_of(nextitem.nodeid)
    for name, server in item.session.stash.get(_SERVERS, {}).items():
        if name != needed:
            server.stop()


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
def milvus_lite(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MilvusProcess]:
    """milvus-lite's server, one for all tests: those with "milvus_lite" in their id."""
    with milvus_lite_server(tmp_path_factory.mktemp("milvus-lite")) as server:
        request.session.stash.setdefault(_SERVERS, {})["milvus_lite"] = server
        yield server


@pytest.fixture(scope="session")
def milvus(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MilvusProcess]:
    """A real Milvus server, one for all tests: the others with "milvus" in their id."""
    with milvus_server(tmp_path_factory.mktemp("milvus")) as server:
        request.session.stash.setdefault(_SERVERS, {})["milvus"] = server
        yield server
