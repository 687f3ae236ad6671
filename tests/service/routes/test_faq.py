"""``/faq``: collections over HTTP, from the first entry to the last."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.faq.entries import FaqEntry
from service.faq.entry_files import read_csv, read_jsonl, read_xlsx, write_xlsx
from service.faq.imports import WRITERS, XLSX_TYPE
from service.lifespan import StartupError
from tests.service.fakes_http import running, tiny_settings

JSON = {"content-type": "application/json"}
CSV = {"content-type": "text/csv"}
MARK = b"\xef\xbb\xbf"
BOM_CSV = MARK + "id,question,answer\r\n7,可以开发票吗？,可以。\r\n".encode()

Client = httpx.AsyncClient


def _entry(id_: str, question: str = "reset my password", answer: str = "so", **more: Any) -> dict[str, Any]:
    return {"id": id_, "question": question, "answer": answer, **more}


async def _put(client: Client, *entries: dict[str, Any], collection: str = "shop", **more: Any) -> Any:
    answer = await client.post(f"/faq/{collection}/entries", json={"entries": list(entries), **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _ids(client: Client, collection: str = "shop") -> list[str]:
    answer = await client.get(f"/faq/{collection}/entries")
    assert answer.status_code == 200, answer.text
    return [entry["id"] for entry in answer.json()["entries"]]


async def _found(client: Client, query: str, mode: str = "hybrid", top_k: int = 10) -> list[dict[str, Any]]:
    body = {"query": query, "collection": "shop", "mode": mode, "top_k": top_k, "min_score": 0}
    answer = await client.post("/search", json=body)
    assert answer.status_code == 200, answer.text
    hits: list[dict[str, Any]] = answer.json()["results"][0]["hits"]
    return hits


async def test_posting_entries_makes_the_collection(client: Client) -> None:
    """One request from nothing to an answer."""
    report = await _put(client, _entry("a"), _entry("b", "怎么退货", tags=["x"], metadata={"n": 1}))
    assert (report["added"], report["replaced"], report["unchanged"], report["skipped"]) == (2, 0, 0, [])
    assert (await _found(client, "怎么退货"))[0]["id"] == "b"
    read = (await client.get("/faq/shop/entries/b")).json()
    assert FaqEntry.model_validate(read) == FaqEntry.model_validate(
        _entry("b", "怎么退货", tags=["x"], metadata={"n": 1})
    )
    listed = (await client.get("/faq")).json()["collections"]
    assert [(one["name"], one["entries"]) for one in listed] == [("default", 3), ("shop", 2)]
    assert listed[1]["model"] == "tiny-embedding"


async def test_fields_that_are_null_are_not_said_and_an_id_is_made_of_the_question(client: Client) -> None:
    """Generated clients send every field; and the same question is the same entry."""
    entry = {"question": "How?", "answer": "So.", "alternates": None, "language": None, "metadata": None}
    assert (await _put(client, entry))["added"] == 1
    assert (await _put(client, entry))["unchanged"] == 1
    assert (await _put(client, _entry(7)))["added"] == 1  # type: ignore[arg-type]  # as spreadsheets have it
    assert (await _ids(client))[1] == "7"


@pytest.mark.parametrize(
    ("policy", "status", "answer"), [("replace", 200, "new"), ("skip", 200, "old"), ("error", 409, "old")]
)
async def test_an_id_that_is_taken_is_treated_as_asked(
    client: Client, policy: str, status: int, answer: str
) -> None:
    """With "error", the entry beside it is not written either."""
    await _put(client, _entry("a", answer="old"))
    body = {"entries": [_entry("b"), _entry("a", answer="new")], "on_duplicate": policy}
    written = await client.post("/faq/shop/entries", json=body)
    assert written.status_code == status
    if status == 409:
        assert (written.json()["code"], written.json()["index"]) == ("duplicate_entry", 1)
    assert (await client.get("/faq/shop/entries/a")).json()["answer"] == answer
    assert await _ids(client) == (["a"] if status == 409 else ["a", "b"])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (_entry("a", question=" "), "entries[1].question: empty"),
        (_entry("a", question="q" * 2001), "entries[1].question"),
        (_entry("a", answer="a" * 32_769), "entries[1].answer"),
        (_entry("i" * 201), "entries[1].id"),
        (_entry("a", alternates=["q"] * 201), "entries[1].alternates"),
        (_entry("a", metadata={"n": [1]}), "entries[1].metadata"),
        (_entry("a", language="Chinese (simplified)"), "entries[1].language"),
        (_entry("a", similar=["q"]), "entries[1].similar"),
        ({"id": "a", "question": "q"}, "entries[1].answer"),
        ({"id": True, "question": "q", "answer": ""}, "entries[1].id"),
        (_entry("first"), "entries[1]"),
        ("text", "entries"),
    ],
)
async def test_an_entry_that_cannot_be_kept_is_named(client: Client, entry: Any, said: str) -> None:
    """By position and field; nothing beside it is written."""
    answer = await client.post("/faq/shop/entries", json={"entries": [_entry("first"), entry]})
    error = answer.json()
    assert (answer.status_code, error["index"], error["param"]) == (422, 1, "entries")
    assert error["error"].startswith(said)
    assert (await client.get("/faq/shop/entries/first")).status_code == 404


async def test_more_entries_than_one_request_may_write_are_refused_with_the_setting(
    models_folder: Any,
) -> None:
    """An operator can raise it."""
    async with running(tiny_settings(models_folder, limits={"max_faq_entries": 3})) as client:
        answer = await client.post("/faq/shop/entries", json={"entries": [_entry(str(n)) for n in range(4)]})
        assert (answer.status_code, answer.json()["code"]) == (422, "too_many_inputs")
        assert "CONCHE_LIMITS__MAX_FAQ_ENTRIES" in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/faq/nowhere"),
        ("DELETE", "/faq/nowhere"),
        ("GET", "/faq/nowhere/entries"),
        ("GET", "/faq/nowhere/entries/a"),
        ("DELETE", "/faq/nowhere/entries/a"),
        ("GET", "/faq/nowhere/count"),
        ("GET", "/faq/nowhere/export"),
        ("GET", "/faq/nowhere/reindex"),
        ("POST", "/faq/nowhere/reindex"),
    ],
)
async def test_an_unknown_collection_is_404_and_lists_what_is_there(
    client: Client, method: str, path: str
) -> None:
    """Mostly it is a slip."""
    error = (await client.request(method, path)).json()
    assert error["code"] == "unknown_collection"
    assert error["error"] == "there is no collection nowhere; there are: default"


async def test_bodies_for_unknown_collections_and_entries_are_404_too(client: Client) -> None:
    """Only what adds entries makes a collection."""
    for method, path, body in [
        ("POST", "/faq/nowhere/delete", {"ids": ["a"]}),
        ("POST", "/faq/nowhere/evaluate", {"queries": [{"query": "q", "faq_id": None}]}),
        ("PATCH", "/faq/nowhere/entries/a", {"answer": "x"}),
    ]:
        answer = await client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_collection"), path
    for method, body in [("GET", None), ("DELETE", None), ("PATCH", {"answer": "x"})]:
        answer = await client.request(method, "/faq/default/entries/none", json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_entry"), method


@pytest.mark.parametrize("name", ["Shop", "a b", "-a", "a" * 65, "商店", "a.b"])
async def test_a_bad_name_for_a_collection_is_refused(client: Client, name: str) -> None:
    """With what a name may look like."""
    for method, path, body in [
        ("POST", f"/faq/{name}/entries", {"entries": [_entry("a")]}),
        ("PUT", f"/faq/{name}", {}),
    ]:
        answer = await client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["param"]) == (422, "collection")
        assert "1 to 64 of a-z" in answer.json()["error"]


async def test_settings_of_a_collection_hold_for_its_searches(client: Client) -> None:
    """And PUT without them takes them away."""
    settings = {"default_answer": "请联系客服。", "min_score": 1}
    assert (await client.put("/faq/shop", json=settings)).json()["default_answer"] == "请联系客服。"
    await _put(client, _entry("a"))
    body = {"query": "something else entirely", "collection": "shop"}
    result = (await client.post("/search", json=body)).json()["results"][0]
    assert (result["hits"], result["default_answer"]) == ([], "请联系客服。")
    plain = (await client.put("/faq/shop", json={})).json()
    assert (plain["default_answer"], plain["min_score"], plain["entries"]) == (None, None, 1)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_json_does_not_know_are_refused(client: Client, number: str) -> None:
    """Wherever they stand."""
    for path, body in [
        ("/faq/shop", f'{{"min_score":{number}}}'),
        ("/faq/shop/entries", f'{{"entries":[{{"id":{number},"question":"q","answer":"a"}}]}}'),
        ("/faq/shop/entries", f'{{"entries":[{{"question":"q","answer":"","metadata":{{"n":{number}}}}}]}}'),
        ("/faq/shop/evaluate", f'{{"queries":[],"wanted_precision":{number}}}'),
        ("/faq/default/delete", f'{{"filter":{{"field":"metadata.n","gt":{number}}}}}'),
    ]:
        method = "PUT" if path == "/faq/shop" else "POST"
        answer = await client.request(method, path, content=body, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json"), path
        assert number not in answer.text


HALF = "\\ud83d parcel"


async def test_half_an_emoji_reaches_no_index(client: Client) -> None:
    """It could never be written out again."""
    await _put(client, _entry("good"))
    entry = f'{{"id":"half","question":"{HALF}","answer":"{HALF}"}}'
    for method, path, body in [
        ("POST", "/faq/shop/entries", f'{{"entries":[{entry}]}}'),
        ("PUT", "/faq/shop/entries/half", entry),
        ("PATCH", "/faq/shop/entries/good", f'{{"answer":"{HALF}"}}'),
        ("PATCH", "/faq/shop/entries/good", f'{{"metadata":{{"{HALF}":"{HALF}"}}}}'),
        ("POST", "/faq/shop/delete", f'{{"ids":["{HALF}"]}}'),
        ("POST", "/faq/shop/delete", f'{{"filter":{{"field":"id","equals":"{HALF}"}}}}'),
        ("POST", "/faq/shop/evaluate", f'{{"queries":[{{"query":"{HALF}","faq_id":null}}]}}'),
        ("PUT", "/faq/shop", f'{{"default_answer":"{HALF}"}}'),
    ]:
        answer = await client.request(method, path, content=body, headers=JSON)
        assert 400 <= answer.status_code < 500, (path, answer.text)
        json.loads(answer.content.decode())
    line = await client.post(
        "/faq/shop/import", content=entry, headers={"content-type": "application/x-ndjson"}
    )
    assert line.status_code == 422
    assert await _ids(client) == ["good"]
    assert len(await _found(client, "parcel")) == 1


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
async def test_an_old_wording_is_gone_with_the_acknowledgement(client: Client, mode: str) -> None:
    """Replaced, deleted, added again: never an old text among the hits, and each id once."""
    await _put(client, _entry("b", "hello world"))
    old = _entry("a", "pet zebra", "striped", alternates=["striped horse"])
    new = _entry("a", "Sunday delivery", "yes")
    for write, texts in [
        (old, {"pet zebra"}),
        (new, {"Sunday delivery"}),
        (None, set()),
        (new, {"Sunday delivery"}),
    ]:
        if write is None:
            assert (await client.delete("/faq/shop/entries/a")).json() == {"deleted": 1}
        else:
            await _put(client, write)
        for query in ("pet zebra striped horse", "Sunday delivery"):
            hits = [hit for hit in await _found(client, query, mode) if hit["id"] == "a"]
            assert {hit["question"] for hit in hits} <= texts
            assert len(hits) <= 1
            assert "zebra" not in json.dumps(hits) or write is old
    assert (await _found(client, "Sunday delivery", mode))[0]["id"] == "a"


async def test_one_character_and_full_width_forms_are_found(client: Client) -> None:
    """As they are typed on a Chinese keyboard."""
    await _put(
        client,
        _entry("tax", "税费怎么算", "按规定。"),
        _entry("err", "错误 E1024 是什么", "重启。"),
        _entry("pw", "forgot password", "reset it"),
        _entry("5g", "5G套餐多少钱", "99"),
        _entry("other", "怎么退货", "七天"),
    )
    for query, first in [
        ("税", "tax"),
        ("Ｅ１０２４", "err"),
        ("e1024", "err"),
        ("PASSWORD", "pw"),
        ("５Ｇ套餐", "5g"),
    ]:
        assert (await _found(client, query, "lexical"))[0]["id"] == first, query


async def test_a_page_follows_the_other(client: Client) -> None:
    """Each entry once, in the order in which they came."""
    await _put(client, *(_entry(f"e{n}", f"hello {n}", tags=["odd" if n % 2 else "even"]) for n in range(7)))
    seen: list[str] = []
    after: str | None = None
    for _ in range(4):
        parameters = {"limit": "2"} | ({"after": after} if after else {})
        page = (await client.get("/faq/shop/entries", params=parameters)).json()
        seen += [entry["id"] for entry in page["entries"]]
        after = page["next"]
    assert (seen, after) == ([f"e{n}" for n in range(7)], None)
    odd = {"filter": '{"field": "tags", "equals": "odd"}'}
    answer = (await client.get("/faq/shop/entries", params=odd)).json()
    assert [entry["id"] for entry in answer["entries"]] == ["e1", "e3", "e5"]
    assert (await client.get("/faq/shop/count", params=odd)).json() == {"count": 3}
    assert (await client.get("/faq/shop/count")).json() == {"count": 7}


@pytest.mark.parametrize("limit", ["-1", "0", "1.5", "many", "[]", "1" + "0" * 30, "1001", "NaN"])
async def test_edges_of_the_page_size_are_refused(client: Client, limit: str) -> None:
    """None of them reaches the store."""
    error = (await client.get("/faq/default/entries", params={"limit": limit})).json()
    assert (error["code"], error["param"]) == ("invalid_input", "limit")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "NaN",
        "[]",
        "{}",
        '{"field":"price","equals":1}',
        '{"not":' * 2000,
        '{"not":' * 20 + "1" + "}" * 20,
    ],
)
async def test_a_filter_that_cannot_be_read_is_refused(client: Client, text: str) -> None:
    """In the query as in a body."""
    for path in ("entries", "count", "export"):
        error = (await client.get(f"/faq/default/{path}", params={"filter": text})).json()
        assert (error["code"], error["param"]) == ("invalid_filter", "filter")


@pytest.mark.parametrize("after", ["x", "-1", "9" * 40, "\x00"])
async def test_a_place_that_is_not_from_here_is_refused(client: Client, after: str) -> None:
    """It is opaque."""
    assert (await client.get("/faq/default/entries", params={"after": after})).status_code in (200, 422)


async def test_a_patch_changes_what_it_names(client: Client) -> None:
    """And null takes a field back to its default."""
    await _put(client, _entry("a", tags=["t"], language="en", metadata={"n": 1, "m": "x"}))
    body = {"answer": "new", "language": None, "metadata": {"n": None, "k": True}}
    entry = (await client.patch("/faq/shop/entries/a", json=body)).json()
    assert (entry["question"], entry["answer"], entry["tags"]) == ("reset my password", "new", ["t"])
    assert (entry["language"], entry["metadata"]) == (None, {"m": "x", "k": True})
    assert (await client.get("/faq/shop/entries/a")).json() == entry
    for wrong in ({}, {"question": ""}, {"question": None}, {"id": "b"}, {"nothing": 1}, {"tags": "t"}):
        answer = await client.patch("/faq/shop/entries/a", json=wrong)
        assert answer.status_code == 422, wrong
    await client.patch("/faq/shop/entries/a", json={"enabled": False})
    assert await _found(client, "reset my password") == []


@pytest.mark.parametrize("id_", ["a/b", "7", "发票", "a b", "x?y#z%", ".a"])
async def test_an_entry_is_reached_by_any_id(client: Client, id_: str) -> None:
    """Ids come from other systems; they are quoted once, as every URL is."""
    path = httpx.URL("http://conche.test/faq/shop/entries/").raw_path + _quoted(id_)
    url = httpx.URL("http://conche.test").copy_with(raw_path=path)
    assert (await client.put(url, json={"question": "q", "answer": "a"})).json()["added"] == 1
    assert (await client.get(url)).json()["id"] == id_
    assert (await client.delete(url)).json() == {"deleted": 1}


def _quoted(text: str) -> bytes:
    return "".join(f"%{byte:02X}" for byte in text.encode()).encode()


async def test_the_id_in_the_path_counts(client: Client) -> None:
    """Another one in the body is a slip."""
    answer = await client.put("/faq/shop/entries/a", json=_entry("b"))
    assert (answer.status_code, answer.json()["param"]) == (422, "id")
    assert (await client.put("/faq/shop/entries/a", json=_entry("a"))).status_code == 200
    for bad in ("%00", "%20", "a" * 201):
        assert (await client.put(f"/faq/shop/entries/{bad}", json=_entry("a"))).status_code == 422, bad


async def test_entries_are_deleted_by_id_or_filter_and_not_by_neither(client: Client) -> None:
    """An empty request must not empty a collection."""
    await _put(client, *(_entry(f"{n}", metadata={"n": n}) for n in range(6)))
    assert (await client.post("/faq/shop/delete", json={"ids": [0, "1", "gone"]})).json() == {"deleted": 2}
    above = {"filter": {"field": "metadata.n", "gte": 4}}
    assert (await client.post("/faq/shop/delete", json=above)).json() == {"deleted": 2}
    for wrong in ({}, {"ids": []}, {"ids": ["2"], **above}, {"filter": {}}, {"ids": "2"}, {"filter": None}):
        assert (await client.post("/faq/shop/delete", json=wrong)).status_code == 422, wrong
    assert await _ids(client) == ["2", "3"]
    assert (await client.delete("/faq/shop")).json() == {"deleted": 2}
    assert (await client.get("/faq/shop")).status_code == 404


async def test_a_spreadsheets_csv_keeps_its_ids_each_time(client: Client) -> None:
    """The byte-order mark is no part of the first column's name."""
    for added, unchanged in ((1, 0), (0, 1)):
        answer = (await client.post("/faq/demo2/import", content=BOM_CSV, headers=CSV)).json()
        assert (answer["added"], answer["unchanged"], answer["bad_lines"]) == (added, unchanged, [])
    assert await _ids(client, "demo2") == ["7"]


async def test_every_bad_line_of_an_import_is_reported(client: Client) -> None:
    """With its number and the reason; what is good is taken, unless asked otherwise."""
    lines = ["id,question,answer,类别", "1,q,a,x", "2,,a,", "3,q", *(f"b{n},,a," for n in range(30))]
    data = "\n".join(lines).encode()
    strict = await client.post("/faq/shop/import?strict=true", content=data, headers=CSV)
    assert (strict.status_code, strict.json()["code"]) == (422, "bad_lines")
    assert "line 3: question: " in strict.json()["error"]
    assert strict.json()["error"].endswith("and 12 more bad lines")
    assert (await client.get("/faq/shop")).status_code == 404
    report = (await client.post("/faq/shop/import", content=data, headers=CSV)).json()
    assert [bad["line"] for bad in report["bad_lines"]] == list(range(3, 35))
    assert report["bad_lines"][1]["reason"] == "2 cells where the header has 4"
    assert (report["added"], report["metadata_columns"]) == (1, ["类别"])


NDJSON = "application/x-ndjson"


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        ("id,question,answer\n1,退货,七天\n".encode("gb18030"), "text/csv", 422, "unreadable_file"),
        ("id,question,answer\n1,退货,七天\n".encode("utf-16"), "text/csv", 422, "unreadable_file"),
        (
            "id,question,answer\n1,退货,七天\n".encode(),
            "text/csv; charset=gbk",
            415,
            "unsupported_media_type",
        ),
        ('{"question":"退货","answer":""}'.encode("gb18030"), NDJSON, 422, "unreadable_file"),
        ('{"question":"退货","answer":""}'.encode("utf-16"), NDJSON, 422, "unreadable_file"),
        ('{"question":"q","answer":""}'.encode("utf-16-le"), NDJSON, 422, "bad_lines"),
        (b"no workbook", XLSX_TYPE, 422, "unreadable_file"),
        (b"PK\x03\x04", XLSX_TYPE, 422, "unreadable_file"),
        (BOM_CSV, XLSX_TYPE, 422, "unreadable_file"),
        (b"", "text/csv", 422, "unreadable_file"),
        (b"id,question,answer\n", "text/csv", 422, "empty_input"),
        (b"\n\n", NDJSON, 422, "empty_input"),
        (b"id,question\n1,q\n", "text/csv", 422, "unreadable_file"),
        (b"{", NDJSON, 422, "bad_lines"),
        (BOM_CSV, "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (BOM_CSV, "application/json", 415, "unsupported_media_type"),
    ],
)
async def test_files_that_cannot_be_read_are_refused_as_a_whole(
    client: Client, content: bytes, media_type: str, status: int, code: str
) -> None:
    """Never a 5xx, and nothing of them is kept."""
    answer = await client.post("/faq/new/import", content=content, headers={"content-type": media_type})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert (await client.get("/faq/new")).status_code == 404


async def test_json_in_another_encoding_is_refused_by_every_route_that_takes_it(client: Client) -> None:
    """A mark before UTF-8 is none of that."""
    body = {"entries": [_entry("a", "可以开发票吗")]}
    text = json.dumps(body, ensure_ascii=False)
    assert (
        await client.post("/faq/shop/entries", content=MARK + text.encode(), headers=JSON)
    ).status_code == 200
    for encoding in ("gb18030", "utf-16"):
        answer = await client.post("/faq/shop/entries", content=text.encode(encoding), headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")


@pytest.mark.parametrize(("format_", "read"), [("csv", read_csv), ("jsonl", read_jsonl), ("xlsx", read_xlsx)])
async def test_what_is_exported_is_imported_the_same(client: Client, format_: str, read: Any) -> None:
    """In every format, through HTTP and back."""
    odd = _entry(
        "=1", "怎么|退货", "a\nb", alternates=["x|y", "z"], metadata={"n": 1, "b": True}, enabled=False
    )
    await _put(client, odd, _entry("b"))
    file = await client.get("/faq/shop/export", params={"format": format_})
    assert file.headers["content-disposition"] == f'attachment; filename="shop.{format_}"'
    assert read(file.content).entries[0] == FaqEntry.model_validate(odd)
    headers = {"content-type": file.headers["content-type"]}
    again = (await client.post("/faq/shop/import", content=file.content, headers=headers)).json()
    assert (again["unchanged"], again["bad_lines"]) == (2, [])
    some = await client.get(
        "/faq/shop/export", params={"filter": '{"field":"id","equals":"b"}', "format": format_}
    )
    assert [entry.id for entry in read(some.content).entries] == ["b"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "xlsx"])
async def test_a_fault_found_while_writing_is_named_by_its_line(client: Client, kind: str) -> None:
    """Not by its place among the good lines, which nobody can look up."""
    good = [FaqEntry(id=name, question="ok", answer="ok") for name in "ab"]
    blank = FaqEntry(id="blank", question="ok", answer="ok", alternates=("\u200b",))
    write, media_type = WRITERS[kind]
    headers = {"content-type": media_type.partition(";")[0]}
    twice = [good[0], good[0], blank]  # the second one is a bad line
    place = {"csv": "line 4", "jsonl": "line 3", "xlsx": "row 4"}[kind]
    answer = await client.post("/faq/new/import", content=write(twice), headers=headers)
    assert (answer.status_code, answer.json()["index"], answer.json()["param"]) == (422, None, None)
    assert answer.json()["error"].startswith(f"{place}, id 'blank': ")
    await client.post("/faq/new/import", content=write(good[:1]), headers=headers)
    taken = await client.post(
        "/faq/new/import?on_duplicate=error", content=write([good[1], good[1], good[0]]), headers=headers
    )
    assert (taken.status_code, taken.json()["error"]) == (409, f"{place} has an id that is taken")


async def test_an_import_that_cannot_be_embedded_writes_nothing(client: Client) -> None:
    """Wholly there or wholly absent."""
    await _put(client, _entry("taken"))
    data = write_xlsx(
        [FaqEntry(id="new", question="q", answer=""), FaqEntry(id="taken", question="q", answer="")]
    )
    answer = await client.post(
        "/faq/shop/import?on_duplicate=error", content=data, headers={"content-type": XLSX_TYPE}
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "duplicate_entry")
    assert await _ids(client) == ["taken"]


QUERIES = [
    {"query": "reset my password", "faq_id": "a"},
    {"query": "怎么退货", "faq_id": ["b", "nowhere"]},
    {"query": "hello world", "faq_id": None},
]


async def test_an_evaluation_compares_the_modes_and_proposes_a_threshold(client: Client) -> None:
    """In figures, or as a page."""
    await _put(client, _entry("a"), _entry("b", "怎么退货"))
    figures = (await client.post("/faq/shop/evaluate", json={"queries": QUERIES})).json()
    assert set(figures["modes"]) == {"hybrid", "dense", "lexical"}
    assert figures["modes"]["hybrid"]["accuracy_at_1"] == 1
    assert (figures["queries"], figures["answerable"], figures["unknown_ids"]) == (3, 2, ["nowhere"])
    page = await client.post("/faq/shop/evaluate?format=html", json={"queries": QUERIES})
    assert page.headers["content-type"].startswith("text/html")
    assert "<svg" in page.text
    for wrong in (
        [],
        [{"query": "q"}],
        [{"query": "", "faq_id": None}],
        [{"query": "q", "faq_id": 1.5}],
        "q",
    ):
        assert (await client.post("/faq/shop/evaluate", json={"queries": wrong})).status_code == 422, wrong
    for precision in (0, 1.1, "0.9", True):
        body = {"queries": QUERIES, "wanted_precision": precision}
        assert (await client.post("/faq/shop/evaluate", json=body)).status_code == 422, precision


async def test_a_reindex_is_begun_and_told_of(client: Client) -> None:
    """In the background; searches go on."""
    await _put(client, _entry("a"))
    assert (await client.get("/faq/shop/reindex")).json()["state"] == "none"
    begun = await client.post("/faq/shop/reindex")
    assert (begun.status_code, begun.json()["state"]) == (202, "running")
    for _ in range(2000):
        status = (await client.get("/faq/shop/reindex")).json()
        if status["state"] != "running":
            break
        await asyncio.sleep(0.005)
    assert (status["state"], status["error"]) == ("finished", None)
    assert status["done"] == status["total"] > 0
    assert (await _found(client, "reset my password"))[0]["id"] == "a"


async def test_a_reindex_of_another_process_is_not_begun_again(client: Client) -> None:
    """A command's, say: nobody here knows how far it is, but that it runs."""
    await _put(client, _entry("a"))
    catalogue = client.app.state.services.catalogue  # type: ignore[attr-defined]
    let_go = catalogue.store.claim_reindex("shop", fingerprint=catalogue.fingerprint)
    answer = await client.post("/faq/shop/reindex")
    assert (answer.status_code, answer.json()["state"], answer.json()["total"]) == (202, "running", 0)
    assert (await client.get("/faq/shop/reindex")).json()["state"] == "none"
    let_go()
    await client.post("/faq/shop/reindex")
    assert (await client.get("/faq/shop/reindex")).json()["state"] != "none"


async def test_an_answer_has_a_bound(models_folder: Any) -> None:
    """Many queries, many hits and long answers multiply; the message names the setting."""
    async with running(tiny_settings(models_folder, limits={"max_answer_bytes": 1500})) as client:
        await _put(client, *(_entry(f"e{number}", answer="a" * 500) for number in range(3)))
        search = {"query": ["reset"], "collection": "shop", "min_score": 0}
        assert (await client.post("/search", json=search | {"top_k": 1})).status_code == 200
        assert (await client.get("/faq/shop/entries?limit=2")).status_code == 200
        for answer in (
            await client.post("/search", json=search | {"top_k": 3}),
            await client.post("/search", json=search | {"top_k": 1, "query": ["reset"] * 3}),
            await client.get("/faq/shop/entries"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (422, "answer_too_large")
            assert "more than 1500 bytes" in answer.json()["error"]
            assert "CONCHE_LIMITS__MAX_ANSWER_BYTES" in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("PUT", "/faq/shop/entries/%ff"),
        ("GET", "/faq/shop/entries/a%ed%a0%80"),
        ("DELETE", "/faq/%c3/entries/a"),
        ("GET", "/faq/%fe"),
        ("GET", "/faq/shop/entries?after=%ff"),
        ("GET", "/nowhere/%ff"),
    ],
)
async def test_a_url_that_is_not_utf8_is_refused(client: Client, method: str, url: str) -> None:
    """Servers put U+FFFD for such bytes, and all such ids would be one."""
    answer = await client.request(method, url, json={"question": "q", "answer": "a"})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_url")
    assert "percent-encoded UTF-8" in answer.json()["error"]


async def test_a_snapshot_has_a_name_and_never_a_path(client: Client) -> None:
    """A caller must not choose where the server writes."""
    assert (await client.post("/snapshots", json={"name": "before-import"})).json()["bytes"] > 0
    taken = await client.post("/snapshots", json={"name": "before-import"})
    assert (taken.status_code, taken.json()["code"]) == (409, "snapshot_exists")
    for bad in ("../x", "a/b", "", ".", "A", "a\n"):
        assert (await client.post("/snapshots", json={"name": bad})).status_code == 422, bad
    assert (await client.post("/snapshots", json={})).status_code == 200


async def test_snapshots_are_listed_and_deleted_and_bounded(models_folder: Any) -> None:
    """Each is as large as the store: whoever may write them must not fill the disk."""
    async with running(tiny_settings(models_folder, limits={"max_snapshots": 2})) as client:
        assert (await client.get("/snapshots")).json() == {"snapshots": [], "limit": 2}
        for name in ("b", "a"):
            written = (await client.post("/snapshots", json={"name": name})).json()
            assert (written["name"], written["file"]) == (name, f"{name}.sqlite3")
        listed = (await client.get("/snapshots")).json()["snapshots"]
        assert listed[1] == written
        assert [one["name"] for one in listed] == ["b", "a"]
        refused = await client.post("/snapshots", json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "too_many_snapshots")
        assert "2 snapshots are there" in refused.json()["error"]
        assert "CONCHE_LIMITS__MAX_SNAPSHOTS" in refused.json()["error"]
        assert (await client.delete("/snapshots/b")).json() == {"deleted": 1}
        gone = await client.delete("/snapshots/b")
        assert (gone.status_code, gone.json()["code"]) == (404, "unknown_snapshot")
        for bad in ("A", "a.sqlite3", "%2e%2e%2ffaq"):
            assert (await client.delete(f"/snapshots/{bad}")).status_code in {404, 422}, bad
        assert (await client.post("/snapshots", json={})).status_code == 200


async def test_without_an_embedding_model_the_routes_say_why(models_folder: Any) -> None:
    """404, as the other routes that nothing is configured for."""
    async with running(tiny_settings(models_folder, embedding_bundle="none")) as client:
        answer = await client.get("/faq")
        assert (answer.status_code, answer.json()["code"]) == (404, "no_model")


async def test_a_body_that_is_too_large_is_refused_with_the_setting(models_folder: Any) -> None:
    """A file is a body like any other."""
    async with running(tiny_settings(models_folder, limits={"max_body_bytes": 1024})) as client:
        for path, headers in (("import", CSV), ("entries", JSON)):
            answer = await client.post(f"/faq/shop/{path}", content=b" " * 2000, headers=headers)
            assert answer.status_code == 413
            assert "CONCHE_LIMITS__MAX_BODY_BYTES" in answer.json()["error"]


async def test_a_start_with_a_file_in_another_encoding_is_refused(models_folder: Any, tmp_path: Path) -> None:
    """Its lines of mere ASCII alone would be a FAQ with most of it gone."""
    file = tmp_path / "gbk.csv"
    file.write_bytes("id,question,answer\n1,how,so\n2,退货,七天\n".encode("gbk"))
    with pytest.raises(StartupError, match=r"line 3 is not UTF-8.*save it as UTF-8"):
        async with running(tiny_settings(models_folder, faq_file=str(file))):
            pass


async def test_replicas_on_one_store_see_each_others_writes(models_folder: Any, tmp_path: Path) -> None:
    """With the next search of each."""
    settings = tiny_settings(models_folder, data_dir=tmp_path)
    async with running(settings) as one, running(settings) as other:
        await _put(one, _entry("a", "pet zebra"))
        assert (await _found(other, "pet zebra"))[0]["id"] == "a"
        await other.delete("/faq/shop/entries/a")
        assert await _found(one, "pet zebra") == []
