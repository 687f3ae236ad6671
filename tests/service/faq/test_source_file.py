"""The file that an operator names, and what people changed meanwhile: both are kept."""

from pathlib import Path

import pytest

from model.runtime.bundle import Manifest
from service.errors import InvalidInputError
from service.faq.catalogue import FaqCatalogue
from service.faq.entries import FaqEntry
from service.faq.entry_files import demo_entries
from service.faq.source_file import bring_in
from tests.service.faq.conftest import OpenCatalogue
from tests.service.faq.hashing_embedder import HashingEmbedder

FILE = [FaqEntry(id=name, question=f"question {name}", answer="from the file") for name in "abc"]


async def _answers(catalogue: FaqCatalogue) -> dict[str, str]:
    entries, _ = await catalogue.page("default", after=None, limit=1000)
    return {entry.id: entry.answer for entry in entries}


def _changed(entry: FaqEntry, answer: str) -> FaqEntry:
    return entry.model_copy(update={"answer": answer})


async def test_the_file_fills_an_empty_collection(open_catalogue: OpenCatalogue, tmp_path: Path) -> None:
    """Also one that was emptied, and one whose memory says that all is there."""
    catalogue = open_catalogue()
    for _ in range(2):
        await bring_in(catalogue, FILE, tmp_path / "memory.json")
        assert set(await _answers(catalogue)) == {"a", "b", "c"}
        await catalogue.delete("default", ids=["a", "b", "c"])


async def test_the_same_file_again_changes_nothing(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder, tmp_path: Path
) -> None:
    """What was changed or deleted over HTTP outlives a restart."""
    catalogue = open_catalogue()
    await bring_in(catalogue, FILE, tmp_path / "memory.json")
    await catalogue.upsert(
        "default", [_changed(FILE[0], "edited"), FaqEntry(id="x", question="x", answer="")]
    )
    await catalogue.delete("default", ids=["b"])
    embedder.calls.clear()
    await bring_in(catalogue, FILE, tmp_path / "memory.json")
    assert await _answers(catalogue) == {"a": "edited", "c": "from the file", "x": ""}
    assert embedder.calls == []


async def test_what_changed_in_the_file_is_written_and_what_left_it_goes(
    open_catalogue: OpenCatalogue, tmp_path: Path
) -> None:
    """Unless somebody changed it since; entries that never were in it stay."""
    catalogue = open_catalogue()
    await bring_in(catalogue, FILE, tmp_path / "memory.json")
    await catalogue.upsert(
        "default", [_changed(FILE[0], "edited"), FaqEntry(id="x", question="x", answer="")]
    )
    await bring_in(
        catalogue,
        [_changed(FILE[1], "new"), FaqEntry(id="d", question="d", answer="")],
        tmp_path / "memory.json",
    )
    assert await _answers(catalogue) == {"a": "edited", "b": "new", "x": "", "d": ""}


async def test_nothing_is_deleted_for_a_file_that_cannot_be_read_whole(
    open_catalogue: OpenCatalogue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A quote that is not closed takes all lines after it along, and their entries are being served."""
    catalogue = open_catalogue()
    memory = tmp_path / "memory.json"
    await bring_in(catalogue, FILE, memory)
    await bring_in(catalogue, [_changed(FILE[1], "new")], memory, is_whole=False)
    assert await _answers(catalogue) == {"a": "from the file", "b": "new", "c": "from the file"}
    assert "2 FAQ entries that the file had before and has not now are kept" in caplog.text
    await bring_in(catalogue, [_changed(FILE[1], "new"), FILE[2]], memory)
    assert await _answers(catalogue) == {"b": "new", "c": "from the file"}, (
        "what left it goes once it is in order"
    )


async def test_the_built_in_set_goes_for_a_file_of_ones_own_with_a_bad_line(
    open_catalogue: OpenCatalogue, tmp_path: Path
) -> None:
    """Its entries cannot stand in what could not be read, and an invented shop must not answer."""
    catalogue = open_catalogue()
    memory = tmp_path / "memory.json"
    await bring_in(catalogue, demo_entries(), memory, only_if_empty=True)
    await bring_in(catalogue, FILE[:1], memory, is_whole=False)
    assert set(await _answers(catalogue)) == {"a"}


async def test_an_entry_at_fault_is_named_by_its_place_among_all(
    open_catalogue: OpenCatalogue, tmp_path: Path
) -> None:
    """Whatever is written already, and however much is written at a time."""
    catalogue = open_catalogue()
    await bring_in(catalogue, FILE, tmp_path / "memory.json")
    blank = FaqEntry(id="blank", question="ok", answer="ok", alternates=("\u200b",))
    with pytest.raises(InvalidInputError, match=r"^entries\[3\]") as refused:
        await bring_in(catalogue, [*FILE, blank], tmp_path / "memory.json")
    assert refused.value.index == 3


async def test_the_built_in_set_never_comes_between_ones_own(
    open_catalogue: OpenCatalogue, tmp_path: Path
) -> None:
    """Nobody asked for it by name."""
    catalogue = open_catalogue()
    await catalogue.upsert("default", FILE[:1])
    await bring_in(catalogue, FILE, tmp_path / "memory.json", only_if_empty=True)
    assert set(await _answers(catalogue)) == {"a"}


@pytest.mark.parametrize("content", ["", "[]", '{"entries": 1}'])
async def test_a_memory_that_cannot_be_read_costs_nothing_but_edits(
    open_catalogue: OpenCatalogue, tmp_path: Path, content: str
) -> None:
    """The file is the best that is known then."""
    catalogue = open_catalogue()
    await bring_in(catalogue, FILE, tmp_path / "memory.json")
    await catalogue.delete("default", ids=["a"])
    (tmp_path / "memory.json").write_text(content)
    await bring_in(catalogue, FILE, tmp_path / "memory.json")
    assert set(await _answers(catalogue)) == {"a", "b", "c"}


async def test_a_collection_of_another_model_is_embedded_anew(
    open_catalogue: OpenCatalogue, manifest: Manifest, tmp_path: Path
) -> None:
    """Whoever starts with another bundle finds the file's entries, as ever."""
    old = HashingEmbedder(manifest.model_copy(update={"prompts": {}}), "old", turned=True)
    await bring_in(open_catalogue(old), FILE, tmp_path / "memory.json")
    catalogue = open_catalogue()
    await bring_in(catalogue, FILE, tmp_path / "memory.json", only_if_empty=True)
    [found] = await catalogue.search("default", ["question b"])
    assert found.hits[0].hit.id == "b"
