"""How tests run beside each other (``make test``): one thread a computation, one Milvus of each kind."""

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

# Before anything imports torch, and inherited by the processes that tests start. A thread pool for a handful
# of numbers spends its time waiting for the other thread, above all where something else has that core.
os.environ["OMP_NUM_THREADS"] = "1"


def milvus_of(nodeid: str) -> str | None:
    """The Milvus server that a test needs, by its id: "milvus", "milvus_lite" or none."""
    if not nodeid.startswith("tests/service/faq/"):
        return None  # names it, and takes none
    lowered = nodeid.lower().replace("milvuslite", "milvus_lite")
    return next((server for server in ("milvus_lite", "milvus") if server in lowered), None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that wait for a Milvus first, as they take longest; the others keep their order."""
    order = {"milvus": 0, "milvus_lite": 1, None: 2}
    items.sort(key=lambda item: order[milvus_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: "WorkerController"
) -> "LoadScopeScheduling | None":
    """Hand a file to one process, and all tests that share a server; two real Milvus starve each other."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class SharedServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/clients/"):
                return "clients"  # all of them ask the same servers
            return milvus_of(nodeid) or str(super()._split_scope(nodeid))

    return SharedServers(config, log)
