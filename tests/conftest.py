"""How tests run beside each other (``make test``): one thread a computation, one Milvus for all of them."""

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

# Before anything imports torch, and inherited by the processes that tests start. A thread pool for a handful
# of numbers spends its time waiting for the other thread, above all where something else has that core.
os.environ["OMP_NUM_THREADS"] = "1"


def needs_milvus(nodeid: str) -> bool:
    """Whether a test needs a Milvus server, by its id."""
    return "milvus" in nodeid.lower()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that wait for Milvus first, as they take longest; the others keep their order."""
    items.sort(key=lambda item: not needs_milvus(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: "WorkerController"
) -> "LoadScopeScheduling | None":
    """Hand a file to one process, and all tests that need Milvus: two servers at once starve each other."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneMilvus(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "milvus" if needs_milvus(nodeid) else str(super()._split_scope(nodeid))

    return OneMilvus(config, log)
