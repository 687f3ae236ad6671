"""The store in Milvus: what every store must do, on milvus-lite's server and on a real one."""

from collections.abc import Iterator

import pytest

from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_store import MilvusFaqStore
from tests.service.faq.milvus_servers import MilvusProcess
from tests.service.faq.store_conformance import OpenStore, StoreConformance

PREFIX = "conformance"


@pytest.fixture
def open_store(server: MilvusProcess) -> Iterator[OpenStore]:
    """Opens the store of a server; afterwards it is empty again, which is quicker than another one."""
    opened: list[MilvusFaqStore] = []

    def open_one() -> MilvusFaqStore:
        opened.append(MilvusFaqStore(MilvusConnection(server.uri), prefix=PREFIX))
        return opened[-1]

    yield open_one
    last = open_one()
    for info in last.collections():
        last.drop(info.name)
    for store in opened:
        store.close()


class TestOnMilvusLite(StoreConformance):
    """milvus-lite 3, behind its server."""

    @pytest.fixture
    def server(self, milvus_lite: MilvusProcess) -> MilvusProcess:
        """The server."""
        return milvus_lite


class TestOnMilvus(StoreConformance):
    """Milvus 2.3.5, standalone."""

    @pytest.fixture
    def server(self, milvus: MilvusProcess) -> MilvusProcess:
        """The server."""
        return milvus
