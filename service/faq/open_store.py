"""Opens the FAQ store that the settings name, and what searches it.

What belongs to Milvus is imported where it is used: a start without it does without a tenth of a second.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from service.errors import InvalidInputError
from service.faq.searching import MakesSearcher
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import FaqStore
from service.settings import OFF, Settings

if TYPE_CHECKING:
    from service.faq.milvus_store import MilvusFaqStore

STORE_FILE: Final = "faq.sqlite"
_LEASE_S: Final = 30.0
_SCHEMES: Final = {"milvus": "http", "http": "http", "https": "https"}
_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,31}")  # as the setting has it


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
    return _open_milvus(settings, settings.milvus_uri, settings.milvus_database, settings.milvus_prefix)


def open_place(place: str, settings: Settings, *, make: bool) -> FaqStore:
    """Open a store by where it is.

    Args:
        place: a folder or file of an embedded store, or milvus://host:port, with ``?database=`` and
            ``&prefix=`` where they are not those of the settings; also https://... and http://... of Milvus.
        settings: of Milvus, its token among them.
        make: an embedded store that is not there.

    Raises:
        InvalidInputError: there is no such store, or the address is none.
        StorageError, UnavailableError: as `open_faq_store`.
    """
    if "://" not in place:
        try:
            path = Path(place).expanduser()
        except RuntimeError as error:
            raise InvalidInputError(f"{place}: the home folder is not known") from error
        path = path if path.is_file() else path / STORE_FILE
        if not make and not path.is_file():
            raise InvalidInputError(f"there is no FAQ store in {path.parent}: no file {path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        return SqliteFaqStore(path)
    address = urlsplit(place)
    options = dict(parse_qsl(address.query))
    if address.scheme not in _SCHEMES or not address.hostname or options.keys() - {"database", "prefix"}:
        raise InvalidInputError(
            "a place is a folder, a file, or milvus://host:port with ?database= and &prefix= if need be"
        )
    if address.username or address.password:
        raise InvalidInputError("a password belongs into CONCHE_MILVUS_TOKEN, not into an address")
    prefix = options.get("prefix", settings.milvus_prefix)
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInputError("a prefix is 1 to 32 letters and digits, a letter first")
    return _open_milvus(
        settings,
        f"{_SCHEMES[address.scheme]}://{address.netloc}",
        options.get("database", settings.milvus_database),
        prefix,
    )


def _open_milvus(settings: Settings, uri: str, database: str, prefix: str) -> "MilvusFaqStore":
    from service.faq.milvus_connection import MilvusConnection  # noqa: PLC0415 - see above
    from service.faq.milvus_store import MilvusFaqStore  # noqa: PLC0415 - see above

    token = settings.milvus_token.get_secret_value()
    milvus = MilvusConnection(
        uri,
        token="" if token == OFF else token,
        database=database,
        timeout_s=settings.milvus_timeout_seconds,
    )
    try:
        # A call that takes its whole time must not look like a writer that has died.
        lease_s = max(_LEASE_S, 3 * settings.milvus_timeout_seconds)
        return MilvusFaqStore(milvus, prefix=prefix, lease_s=lease_s)
    except BaseException:
        milvus.close()
        raise


def searcher_of(store: FaqStore, *, on_unproven: Callable[[int], None] | None = None) -> MakesSearcher | None:
    """What searches a store where it lies, in Milvus; None = indexes in memory do.

    Args:
        store: what `open_faq_store` opened.
        on_unproven: see `MilvusSearcher`; in memory every search looks at all there is.
    """
    if isinstance(store, SqliteFaqStore):
        return None
    from service.faq.milvus_search import MilvusSearcher  # noqa: PLC0415 - see above
    from service.faq.milvus_store import MilvusFaqStore  # noqa: PLC0415 - see above

    if isinstance(store, MilvusFaqStore):
        return partial(MilvusSearcher, store, on_unproven=on_unproven)
    return None
