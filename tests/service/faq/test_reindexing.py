"""A collection gets the vectors of another model, while it is searched and written."""

import asyncio
import errno
import logging
import os
from collections.abc import Sequence

import pytest

from model.runtime.bundle import Manifest
from service.errors import ConflictError, InvalidInputError, ModelMismatchError, UnknownCollectionError
from service.faq import reindexing
from service.faq.catalogue import FaqCatalogue
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.reindexing import ReindexStatus
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import Write
from tests.fakes import until
from tests.service.faq.conftest import OpenCatalogue
from tests.service.faq.hashing_embedder import HashingEmbedder

ENTRIES = [FaqEntry(id=str(n), question=f"how to return item {n}", answer=f"answer {n}") for n in range(300)]
TEXTS = len(texts_to_embed(ENTRIES))


@pytest.fixture
def old(manifest: Manifest) -> HashingEmbedder:
    """The model that the collection has vectors of."""
    return HashingEmbedder(manifest.model_copy(update={"prompts": {}}), "old", turned=True)


async def _best(catalogue: FaqCatalogue, query: str) -> str:
    [found] = await catalogue.search("shop", [query])
    return found.hits[0].hit.id


async def test_a_reindex_makes_the_collection_the_models_own(
    open_catalogue: OpenCatalogue, old: HashingEmbedder
) -> None:
    """Until then it is refused; progress counts the texts."""
    await open_catalogue(old).upsert("shop", ENTRIES)
    catalogue = open_catalogue()
    told: list[tuple[int, int]] = []
    await catalogue.reindex("shop", lambda *numbers: told.append(numbers))
    assert told[0] == (0, TEXTS)
    assert told[-1] == (TEXTS, TEXTS)
    assert catalogue.reindex_status("shop") == ReindexStatus(TEXTS, TEXTS, "finished")
    assert await _best(catalogue, "how to return item 7") == "7"
    assert (await catalogue.info("shop")).model_id == "hashing"
    assert catalogue.reindex_status("other") is None


async def test_the_old_model_answers_until_the_exchange_and_never_after(
    open_catalogue: OpenCatalogue, old: HashingEmbedder, embedder: HashingEmbedder
) -> None:
    """Another process still serves with it; every search there is right or refused, none compares the two."""
    serving, catalogue = open_catalogue(old), open_catalogue()
    await serving.upsert("shop", ENTRIES)
    answered: list[str] = []

    async def search(_: Sequence[str]) -> None:
        answered.append(await _best(serving, "how to return item 7"))

    await serving.calibrate()
    embedder.before = search
    await catalogue.reindex("shop")
    embedder.before = None
    assert answered
    assert set(answered) == {"7"}
    with pytest.raises(ModelMismatchError):
        await _best(serving, "how to return item 7")
    assert await _best(catalogue, "how to return item 7") == "7"


async def test_searches_in_the_same_process_go_on_through_the_exchange(
    open_catalogue: OpenCatalogue,
) -> None:
    """A reindex with the model that is there, as after damage: nobody notices."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", ENTRIES)
    await catalogue.calibrate()
    catalogue.start_reindex("shop")
    catalogue.start_reindex("shop")  # one at a time
    searches = 0
    while (status := catalogue.reindex_status("shop")) is not None and status.state == "running":
        assert await _best(catalogue, "how to return item 7") == "7"
        searches += 1
    assert searches > 1
    assert catalogue.reindex_status("shop") == ReindexStatus(TEXTS, TEXTS, "finished")
    assert await _best(catalogue, "how to return item 7") == "7"


async def test_writes_during_a_reindex_are_in_the_new_vectors(
    open_catalogue: OpenCatalogue, old: HashingEmbedder, embedder: HashingEmbedder
) -> None:
    """Added, changed and deleted by a process that still has the old model."""
    serving, catalogue = open_catalogue(old), open_catalogue()
    await serving.upsert("shop", ENTRIES)
    changes = iter(range(3))

    async def write(_: Sequence[str]) -> None:
        number = next(changes, None)
        if number is not None:
            await serving.upsert(
                "shop", [FaqEntry(id=f"new {number}", question=f"zebra {number}", answer="")]
            )
            await serving.patch("shop", "7", {"question": f"giraffe {number}"})
            await serving.delete("shop", ids=[str(number)])

    embedder.before = write
    await catalogue.reindex("shop")
    embedder.before = None
    assert await _best(catalogue, "zebra 1") == "new 1"
    assert await _best(catalogue, "giraffe 2") == "7"
    assert await catalogue.count("shop") == 300
    assert (await catalogue.info("shop")).model_id == "hashing"


async def test_what_was_embedded_before_a_stop_is_not_embedded_again(
    open_catalogue: OpenCatalogue, old: HashingEmbedder, embedder: HashingEmbedder, manifest: Manifest
) -> None:
    """A process that ends amid it loses a batch at most."""
    await open_catalogue(old).upsert("shop", ENTRIES)
    stopped = open_catalogue()
    hang = asyncio.Event()

    async def hang_late(_: Sequence[str]) -> None:
        if len(embedder.texts) >= 400:
            await hang.wait()

    embedder.before = hang_late
    stopped.start_reindex("shop")
    await until(lambda: len(embedder.texts) >= 400)
    await stopped.close()
    status = stopped.reindex_status("shop")
    assert status is not None
    assert (status.state, status.error) == ("failed", "the service stopped")
    again = HashingEmbedder(manifest)
    catalogue = open_catalogue(again)
    await catalogue.reindex("shop")
    assert len(again.texts) <= TEXTS - 256
    assert await _best(catalogue, "how to return item 7") == "7"


async def test_two_processes_that_are_told_at_once_reindex_once(
    open_catalogue: OpenCatalogue,
    old: HashingEmbedder,
    embedder: HashingEmbedder,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever comes second does nothing, or waits if it needs the result; when both are told both have it."""
    monkeypatch.setattr(reindexing, "_POLL_S", 0.001)
    await open_catalogue(old).upsert("shop", ENTRIES)
    idle = HashingEmbedder(manifest)
    one, other = open_catalogue(), open_catalogue(idle)
    gate = asyncio.Event()

    async def wait(_: Sequence[str]) -> None:
        await gate.wait()

    embedder.before = wait
    assert one.start_reindex("shop")
    assert not other.start_reindex("shop")
    assert other.reindex_status("shop") is None
    waiting = asyncio.create_task(other.reindex("shop"))
    await until(lambda: other.reindex_status("shop") is not None)
    gate.set()
    await waiting
    assert idle.texts == []
    for catalogue in (one, other):
        status = catalogue.reindex_status("shop")
        assert status is not None
        assert status.state == "finished"
    assert await _best(other, "how to return item 7") == "7"
    before = len(idle.texts)
    assert other.start_reindex("shop"), "the claim was let go"
    await other.reindex("shop")
    assert len(idle.texts) == before + TEXTS


async def test_who_waited_for_a_process_that_gave_up_goes_on_in_its_place(
    open_catalogue: OpenCatalogue,
    old: HashingEmbedder,
    embedder: HashingEmbedder,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told that the collection will be there."""
    monkeypatch.setattr(reindexing, "_POLL_S", 0.001)
    await open_catalogue(old).upsert("shop", ENTRIES)
    one, other = open_catalogue(), open_catalogue(HashingEmbedder(manifest))
    hang = asyncio.Event()

    async def wait(_: Sequence[str]) -> None:
        await hang.wait()

    embedder.before = wait
    one.start_reindex("shop")
    waiting = asyncio.create_task(other.reindex("shop"))
    await until(lambda: other.reindex_status("shop") is not None)
    await one.close()
    await waiting
    assert other.reindex_status("shop") == ReindexStatus(TEXTS, TEXTS, "finished")
    assert await _best(other, "how to return item 7") == "7"


async def test_two_processes_may_reindex_one_collection(
    open_catalogue: OpenCatalogue,
    old: HashingEmbedder,
    embedder: HashingEmbedder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a store cannot tell them of each other, both have what they wanted, whoever comes last."""
    monkeypatch.setattr(SqliteFaqStore, "claim_reindex", lambda *_, **__: lambda: None)
    await open_catalogue(old).upsert("shop", ENTRIES)
    slow, fast = open_catalogue(), open_catalogue(HashingEmbedder(embedder.manifest))
    others = iter([fast.reindex])

    async def overtake(_: Sequence[str]) -> None:
        for reindex in others:
            await reindex("shop")

    embedder.before = overtake
    with caplog.at_level(logging.INFO):
        await slow.reindex("shop")
    assert slow.reindex_status("shop") == ReindexStatus(TEXTS, TEXTS, "finished")
    assert "another process finished the same reindex" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert await _best(slow, "how to return item 7") == "7"


async def test_a_folder_without_locks_is_reindexed_all_the_same(
    open_catalogue: OpenCatalogue, old: HashingEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be kept from doing the same beside it, which is no reason to refuse."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    await open_catalogue(old).upsert("shop", ENTRIES[:3])
    monkeypatch.setattr("service.faq.file_claim.fcntl.flock", refuse)
    catalogue = open_catalogue()
    await catalogue.reindex("shop")
    assert (await catalogue.info("shop")).model_id == "hashing"


async def test_a_reindex_that_another_model_overtakes_has_failed(
    open_catalogue: OpenCatalogue, old: HashingEmbedder, embedder: HashingEmbedder
) -> None:
    """What was wanted did not come about, and the status says so."""
    serving, catalogue = open_catalogue(old), open_catalogue()
    await serving.upsert("shop", ENTRIES)
    others = iter([serving.reindex])

    async def overtake(_: Sequence[str]) -> None:
        for reindex in others:
            await reindex("shop")

    embedder.before = overtake
    with pytest.raises(ConflictError, match="another model's took its place"):
        await catalogue.reindex("shop")
    status = catalogue.reindex_status("shop")
    assert status is not None
    assert status.state == "failed"


async def test_a_reindex_that_fails_says_why_and_changes_nothing(
    open_catalogue: OpenCatalogue, old: HashingEmbedder
) -> None:
    """In the background there is nobody to raise it to."""
    serving, catalogue = open_catalogue(old), open_catalogue()
    await serving.upsert("shop", ENTRIES[:3])
    with pytest.raises(UnknownCollectionError):
        await catalogue.reindex("none")
    store = catalogue.store
    entry = FaqEntry(id="odd", question="q", answer="", alternates=("\u200b",))
    vectors = (await old.embed(["x"], old.calls[0][1])).vectors
    store.apply(
        "shop",
        Write(upserts=(entry,), vectors=dict.fromkeys(texts_to_embed([entry]), vectors[0])),
        fingerprint=serving.fingerprint,
        model_id="old",
    )
    catalogue.start_reindex("shop")
    await until(lambda: (status := catalogue.reindex_status("shop")) is not None and status.state == "failed")
    status = catalogue.reindex_status("shop")
    assert status is not None
    assert "reads nothing" in str(status.error)
    assert await _best(serving, "how to return item 1") == "1"
    with pytest.raises(InvalidInputError):
        await catalogue.reindex("shop")
