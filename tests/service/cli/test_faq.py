"""``conche faq``: collections in the data folder, without a server and beside one."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.cli import main
from service.faq.entry_files import read_entries
from service.faq.store import Write
from service.settings import options
from tests.service.fakes_http import running, share_calibrations, tiny_settings

BOM_CSV = b"\xef\xbb\xbf" + "id,question,answer\r\n7,可以开发票吗？,可以。\r\n".encode()


@pytest.fixture(autouse=True)
def _tiny_bundles(models_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for option in options():
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.setenv("CONCHE_MODELS_DIR", str(models_folder))
    monkeypatch.setenv("CONCHE_EMBEDDING_BUNDLE", "tiny-embedding")
    monkeypatch.setenv("CONCHE_DATA_DIR", str(share_calibrations(tmp_path / "data")))
    monkeypatch.setenv("CONCHE_ENGINE", "onnxruntime")
    monkeypatch.chdir(tmp_path)


def _faq(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["faq", *arguments])


def _done(*arguments: str) -> str:
    result = _faq(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def _refused(*arguments: str) -> str:
    result = _faq(*arguments)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    return result.stderr


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The collection `shop` of three entries; the file that they came from."""
    file = tmp_path / "shop.jsonl"
    rows = [
        ("refund", "How do I return my order", "x"),
        ("password", "reset my password", "y"),
        ("怎么", "怎么退货", "x"),
    ]
    lines = [{"id": id_, "question": question, "answer": "a", "tags": [tag]} for id_, question, tag in rows]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    _done("import", str(file), "-c", "shop")
    return file


def test_a_spreadsheets_csv_keeps_its_ids_each_time(tmp_path: Path) -> None:
    """The byte-order mark is no part of the first column's name."""
    file = tmp_path / "bom.csv"
    file.write_bytes(BOM_CSV)
    assert "1 added" in _done("import", str(file), "--collection", "demo2")
    assert "0 added, 0 replaced, 1 unchanged" in _done("import", str(file), "--collection", "demo2")
    assert json.loads(_done("get", "7", "-c", "demo2"))["question"] == "可以开发票吗？"
    assert _done("count", "-c", "demo2") == "1\n"


def test_every_bad_line_is_told_and_the_rest_is_taken_unless_strict(tmp_path: Path) -> None:
    """Results on standard output, complaints beside them."""
    file = tmp_path / "faq.csv"
    file.write_text("id,question,answer\n1,q,a\n2,,a\n3,q\n", encoding="utf-8")
    complaint = _refused("import", str(file), "--strict")
    assert "line 3 is left out: question: " in complaint
    assert "2 bad lines" in complaint
    result = _faq("import", str(file))
    assert (result.exit_code, result.stderr.count("is left out")) == (0, 2)
    assert "default: 1 added, 0 replaced, 0 unchanged, 0 skipped, 2 bad lines" in result.stdout


def test_columns_that_are_no_field_are_told(tmp_path: Path) -> None:
    """A misspelt one, and all wordings in it, would be metadata without a word."""
    file = tmp_path / "faq.csv"
    file.write_text("question,alternate,answer,price:number\nq,r|s,a,7\n", encoding="utf-8")
    result = _faq("import", str(file))
    assert result.exit_code == 0
    assert f"{file}: columns kept as metadata: alternate, price\n" in result.stderr


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    """Of several in a script one has to be found."""
    for name, content, said in (
        ("faq.csv", "question,anser\nq,a\n", "Error: faq.csv: the header has no column answer"),
        ("faq.docx", "", "Error: faq.docx: not one of .jsonl"),
    ):
        file = tmp_path / name
        file.write_text(content, encoding="utf-8")
        complaint = _refused("import", str(file))
        assert said in complaint
        assert complaint.count(name) == 1


@pytest.mark.parametrize("policy", ["replace", "skip", "error"])
def test_an_id_that_is_taken_is_treated_as_asked(shop: Path, policy: str) -> None:
    """As over HTTP."""
    shop.write_text(shop.read_text(encoding="utf-8").replace('"a"', '"b"'), encoding="utf-8")
    result = _faq("import", str(shop), "-c", "shop", "--on-duplicate", policy)
    assert result.exit_code == (1 if policy == "error" else 0), result.output
    assert json.loads(_done("get", "refund", "-c", "shop"))["answer"] == ("b" if policy == "replace" else "a")


def test_a_file_in_another_encoding_is_refused_as_a_whole(tmp_path: Path) -> None:
    """With what to do about it."""
    file = tmp_path / "gbk.csv"
    file.write_bytes("id,question,answer\n1,how,so\n2,退货,七天\n".encode("gbk"))
    assert "line 3 is not UTF-8" in _refused("import", str(file))
    assert "there is no FAQ in" in _refused("list")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "xlsx"])
def test_an_export_reads_back_the_same(shop: Path, tmp_path: Path, ending: str) -> None:
    """The ending of the file's name says how it is written."""
    file = tmp_path / f"out.{ending}"
    assert "3 entries" in _done("export", str(file), "-c", "shop")
    assert read_entries(file).entries == read_entries(shop).entries
    assert "none of csv, jsonl, xlsx" in _refused("export", "out.docx", "-c", "shop")
    _done("export", str(file), "-c", "shop", "--filter", '{"field": "tags", "equals": "y"}')
    assert [entry.id for entry in read_entries(file).entries] == ["password"]


def test_entries_are_deleted_by_id_by_filter_or_all(shop: Path) -> None:
    """And only by one of them at a time."""
    del shop
    assert "has no entry 'nowhere'" in _refused("delete", "nowhere", "-c", "shop")
    assert "--all" in _refused("delete", "-c", "shop")
    assert "--all" in _refused("delete", "refund", "--all", "-c", "shop")
    assert "not JSON" in _refused("delete", "--filter", "{", "-c", "shop")
    assert _done("delete", "password", "-c", "shop") == "1 entries deleted\n"
    assert (
        _done("delete", "--filter", '{"field": "id", "equals": "refund"}', "-c", "shop")
        == "1 entries deleted\n"
    )
    assert _done("delete", "--all", "-c", "shop") == "1 entries deleted\n"
    assert "there is no collection shop" in _refused("count", "-c", "shop")


def test_collections_are_listed(shop: Path) -> None:
    """For people, or as JSON lines."""
    del shop
    assert "shop  3 entries, tiny-embedding" in _done("list")
    facts = json.loads(_done("list", "--json"))
    assert (facts["name"], facts["entries"], facts["model"]) == ("shop", 3, "tiny-embedding")


def test_an_evaluation_writes_a_report_and_its_figures(shop: Path, tmp_path: Path) -> None:
    """And says in the terminal what matters."""
    del shop
    file = tmp_path / "queries.jsonl"
    rows = [("reset my password", "password"), ("怎么退货", ["怎么", "gone"]), ("hello", None)]
    lines = [json.dumps({"query": query, "faq_id": id_}) for query, id_ in rows]
    file.write_text("\n".join([*lines, "{}"]), encoding="utf-8")
    result = _faq("eval", str(file), "-c", "shop")
    assert result.exit_code == 0, result.output
    assert "line 4 is left out" in result.stderr
    assert "1 labels name no entry of shop: gone" in result.stderr
    assert "3 queries, 2 of them answerable" in result.stdout
    assert "<svg" in (tmp_path / "faq-eval.html").read_text(encoding="utf-8")
    figures = json.loads((tmp_path / "faq-eval.json").read_text(encoding="utf-8"))
    assert figures["modes"]["hybrid"]["accuracy_at_1"] == 1
    assert figures["unknown_ids"] == ["gone"]


def test_a_reindex_takes_place_and_an_unknown_collection_has_none(shop: Path) -> None:
    """The name comes as the errors of another model's collection show it."""
    del shop
    assert _done("reindex", "shop") == "shop: embedded by tiny-embedding\n"
    assert "there is no collection nowhere; there are: shop" in _refused("reindex", "nowhere")


def test_a_snapshot_brings_back_what_was(shop: Path, tmp_path: Path) -> None:
    """After a confirmation: it replaces everything."""
    del shop
    path = Path(_done("snapshot", "before").strip())
    assert path.parent == tmp_path / "data" / "snapshots"
    assert "there is a snapshot before" in _refused("snapshot", "before")
    assert "CONCHE_LIMITS__MAX_SNAPSHOTS" in _refused("snapshot", "--limits-max-snapshots", "1")
    assert _done("snapshots").startswith("before  20")
    _done("delete", "--all", "-c", "shop")
    refused = CliRunner().invoke(main, ["faq", "restore", str(path)], input="n\n")
    assert (refused.exit_code, "--yes does not ask" in refused.stderr) == (1, True)
    assert _done("list") == ""
    _done("restore", str(path), "--yes")
    assert _done("count", "-c", "shop") == "3\n"
    assert "snapshot" in _refused("restore", str(tmp_path / "shop.jsonl"), "--yes").lower()
    _done("restore", "before", "--yes")
    assert "conche faq snapshots" in _refused("restore", "never-made", "--yes")


async def test_a_running_service_sees_what_the_command_did(models_folder: Path, tmp_path: Path) -> None:
    """With its next search, without a restart."""
    async with running(tiny_settings(models_folder, data_dir=tmp_path / "data")) as client:
        file = tmp_path / "bom.csv"
        file.write_bytes(BOM_CSV)
        await asyncio.to_thread(_done, "import", str(file), "-c", "demo2")
        assert [entry["id"] for entry in (await client.get("/faq/demo2/entries")).json()["entries"]] == ["7"]
        body = {"query": "可以开发票吗", "collection": "demo2", "min_score": 0}
        assert (await client.post("/search", json=body)).json()["results"][0]["hits"][0]["id"] == "7"
        await asyncio.to_thread(_done, "delete", "7", "-c", "demo2")
        assert (await client.post("/search", json=body)).json()["results"][0]["hits"] == []


def test_collections_migrate_to_another_folder(shop: Path, tmp_path: Path) -> None:
    """With what was compared, so that one can tell what "done" means; a second run needs to be told how."""
    target = tmp_path / "new"
    said = _done("migrate", "--from", str(tmp_path / "data"), "--to", str(target))
    assert "shop: 3 entries copied, 0 were there, 0 deleted" in said
    for what in ("count: 3 entries", "order:", "entries: 3", "vectors:", "searches: 3"):
        assert f"  checked {what}" in said
    assert _done("get", "refund", "-c", "shop", "--data-dir", str(target)) == _done(
        "get", "refund", "-c", "shop"
    )

    places = ("--from", str(tmp_path / "data"), "--to", str(target))
    assert "--resume" in _refused("migrate", *places)
    assert "0 entries copied, 3 were there" in _done("migrate", *places, "--resume")
    assert "3 entries copied" in _done("migrate", *places, "--replace", "-c", "shop")


def test_a_migration_onto_itself_or_from_nowhere_is_refused(shop: Path, tmp_path: Path) -> None:
    """Nothing is lost or made by it."""
    data = str(tmp_path / "data")
    for flag in ("--replace", "--resume"):
        assert "its exact copy" in _refused("migrate", "--from", data, "--to", f"{data}/../data", flag)
    assert _done("count", "-c", "shop") == "3\n"
    assert "no FAQ store" in _refused("migrate", "--from", str(tmp_path / "no"), "--to", data)
    assert "either" in _refused("migrate", "--from", data, "--to", "x", "--replace", "--resume")
    assert "milvus://host" in _refused("migrate", "--from", data, "--to", "redis://host")
    assert "no collection" in _refused("migrate", "--from", data, "--to", str(tmp_path / "new"), "-c", "nope")


def test_a_migration_whose_copy_differs_fails(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is what a script sees."""
    monkeypatch.setattr("service.faq.migration.Migration._catch_up", lambda self, *_: self._target.apply(
        "shop", Write(deletes=("refund",))
    ))  # fmt: skip
    result = _faq("migrate", "--from", str(tmp_path / "data"), "--to", str(tmp_path / "new"))
    assert result.exit_code == 1
    assert "DIFFERS entry 'refund' is not there" in result.stderr
