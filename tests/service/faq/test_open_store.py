"""Opening the store that the settings name, and what is said if it cannot be."""

import sys
from pathlib import Path

import pytest

from service.errors import InvalidInputError, StorageError, UnavailableError
from service.faq.entries import FaqEntry
from service.faq.milvus_store import MilvusFaqStore
from service.faq.open_store import STORE_FILE, open_faq_store, open_place, searcher_of
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import Write
from service.settings import Settings
from tests.fakes import without_home
from tests.service.faq.milvus_servers import PREFIX, MilvusProcess, free_ports


def test_the_embedded_store_is_a_file_of_the_folder(tmp_path: Path) -> None:
    """Without any setting."""
    store = open_faq_store(Settings(), tmp_path)
    assert isinstance(store, SqliteFaqStore)
    store.close()
    assert (tmp_path / STORE_FILE).is_file()


def test_the_settings_lead_to_a_server_of_milvus_lite(tmp_path: Path, milvus_lite: MilvusProcess) -> None:
    """Address, database and prefix; nothing is written into the folder."""
    settings = Settings(faq_store="milvus", milvus_uri=milvus_lite.uri, milvus_prefix=PREFIX)
    for _ in range(2):
        store = open_faq_store(settings, tmp_path)
        hidden = FaqEntry(id="a", question="q", answer="", enabled=False)
        store.apply("kept", Write(upserts=(hidden,)), create=True)
        store.close()
    store = open_faq_store(settings, tmp_path)
    assert store.get("kept", ["a"]) == {"a": hidden}
    store.drop("kept")
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional, so many will not have it."""
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(StorageError, match=r"pip install -e '\.\[milvus\]'"):
        open_faq_store(Settings(faq_store="milvus"), tmp_path)


def test_a_server_that_is_not_there_is_told_without_the_token(tmp_path: Path) -> None:
    """The message goes into logs."""
    (port,) = free_ports(1)
    settings = Settings(
        faq_store="milvus",
        milvus_uri=f"http://127.0.0.1:{port}",
        milvus_token="root:geheim",
        milvus_timeout_seconds=1,
    )
    assert "geheim" not in repr(settings)
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} does not answer") as refused:
        open_faq_store(settings, tmp_path)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"milvus_uri": "./local.db"},
        {"milvus_uri": "http://root:geheim@host:19530"},
        {"milvus_prefix": "a_b"},
        {"milvus_prefix": ""},
        {"milvus_timeout_seconds": 0},
    ],
)
def test_settings_that_lead_nowhere_are_refused(wrong: dict[str, object]) -> None:
    """A file would open another engine inside the service, and credentials in an address end up in logs."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)


def test_pymilvus_is_imported_only_where_it_is_used() -> None:
    """It takes a second and 120 MB."""
    import subprocess

    program = (
        "import sys, tempfile; from pathlib import Path; from service.settings import Settings; "
        "from service.faq.open_store import open_faq_store; "
        "open_faq_store(Settings(), Path(tempfile.mkdtemp())).close(); print('pymilvus' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_folder_or_a_file_is_an_embedded_store(tmp_path: Path) -> None:
    """Made if it is to be written to; what is only read must be there."""
    with pytest.raises(InvalidInputError, match="no FAQ store"):
        open_place(str(tmp_path / "data"), Settings(), make=False)
    assert not (tmp_path / "data").exists()
    for place in (tmp_path / "data", tmp_path / "data" / "faq.sqlite"):
        store = open_place(str(place), Settings(), make=True)
        assert isinstance(store, SqliteFaqStore)
        assert searcher_of(store) is None
        store.create(place.name.replace(".", "-"))
        store.close()
    with SqliteFaqStore(tmp_path / "data" / "faq.sqlite") as store:
        assert [info.name for info in store.collections()] == ["data", "faq-sqlite"]


def test_an_address_is_a_store_in_milvus_lite(milvus_lite: MilvusProcess) -> None:
    """The prefix keeps two of them apart."""
    host = milvus_lite.uri.removeprefix("http://")
    for place in (f"milvus://{host}?prefix=opena", f"{milvus_lite.uri}?prefix=openb"):
        store = open_place(place, Settings(), make=False)
        assert isinstance(store, MilvusFaqStore)
        assert searcher_of(store) is not None
        assert store.collections() == []
        store.create("faq")
        store.drop("faq")
        store.close()


@pytest.mark.parametrize(
    "place",
    [
        "redis://host",
        "milvus://",
        "milvus://host?x=1",
        "milvus://host?prefix=a_b",
        "milvus://host?prefix=%22",
    ],
)
def test_other_addresses_are_refused(place: str) -> None:
    """With what an address may look like."""
    with pytest.raises(InvalidInputError):
        open_place(place, Settings(), make=True)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    """It would be in the shell's history and in error messages."""
    with pytest.raises(InvalidInputError, match="CONCHE_MILVUS_TOKEN") as refused:
        open_place("milvus://user:hunter2@host:19530", Settings(), make=True)
    assert "hunter2" not in str(refused.value)


def test_a_place_in_a_home_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a container that runs under any number."""
    without_home(monkeypatch)
    with pytest.raises(InvalidInputError, match="~/conche: the home folder is not known"):
        open_place("~/conche", Settings(), make=True)
