"""Opens the FAQ store that the settings name, and what searches it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_search import MilvusSearcher
from service.faq.milvus_store import MilvusFaqStore
from service.faq.searching import MakesSearcher
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import FaqStore
from service.settings import OFF, Settings

STORE_FILE: Final = "faq.sqlite"
_LEASE_S: Final = 30.0


def open_faq_store(settings: Settings, folder: Path) -> FaqStore:
    """Open the store.

    Args:
        settings: ``faq_store`` and what belongs to it.
        folder: that holds, or will hold, the embedded store's file.

    Raises:
        StorageError: it cannot be used; the message says why, and the setting to look at.
        UnavailableError: Milvus does not answer.
    """
    if settings.faq_store != "milvus":
        return SqliteFaqStore(folder / STORE_FILE)
    token = settings.milvus_token.get_secret_value()
    milvus = MilvusConnection(
        settings.milvus_uri,
        token="" if token == OFF else token,
        database=settings.milvus_database,
        timeout_s=settings.milvus_timeout_seconds,
    )
    try:
        # A call that takes its whole time must not look like a writer that has died.
        lease_s = max(_LEASE_S, 3 * settings.milvus_timeout_seconds)
        return MilvusFaqStore(milvus, prefix=settings.milvus_prefix, lease_s=lease_s)
    except BaseException:
        milvus.close()
        raise


def searcher_of(store: FaqStore, *, on_unproven: Callable[[int], None] | None = None) -> MakesSearcher | None:
    """What searches a store where it lies, in Milvus; None = indexes in memory do.

    Args:
        store: what `open_faq_store` opened.
        on_unproven: see `MilvusSearcher`; in memory every search looks at all there is.
    """
    if isinstance(store, MilvusFaqStore):
        return partial(MilvusSearcher, store, on_unproven=on_unproven)
    return None
