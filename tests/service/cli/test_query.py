"""``conche embed | search | ner``: JSON lines without a server."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.cli import main, query
from service.cli.options import read_settings
from service.settings import options
from tests.bundles import write_tiny_ner_bundle
from tests.fakes import without_home
from tests.service.fakes_http import running, share_calibrations, tiny_settings


@pytest.fixture(autouse=True)
def _tiny_bundles(models_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for option in options():
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.setenv("CONCHE_MODELS_DIR", str(models_folder))
    monkeypatch.setenv("CONCHE_EMBEDDING_BUNDLE", "tiny-embedding")
    monkeypatch.setenv("CONCHE_NER_BUNDLE", "tiny-ner")
    monkeypatch.setenv("CONCHE_FAQ_FILE", str(models_folder / "faq.jsonl"))
    monkeypatch.setenv("CONCHE_DATA_DIR", str(tmp_path / "data"))
    share_calibrations(tmp_path / "cache" / "conche")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CONCHE_ENGINE", "onnxruntime")


def _run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def _lines(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_blank_line_is_refused_or_read_as_the_operator_chose() -> None:
    """Never left out: the answers would no longer stand beside their lines."""
    refused = _run("embed", "-", stdin="hello\n\nworld\n")
    assert refused.exit_code == 1
    assert "text 2 is empty" in refused.output
    lines = _lines(_run("embed", "-", "--empty-input", "read", stdin="hello\n\nworld\n"))
    assert [line.get("empty", False) for line in lines] == [False, True, False]
    assert [line["entities"] for line in _lines(_run("ner", "", "--empty-input", "read"))] == [[]]
    assert [line["hits"] for line in _lines(_run("search", "", "--empty-input", "read"))] == [[]]


@pytest.mark.parametrize("command", ["embed", "search", "ner"])
def test_no_data_folder_is_left_behind(command: str, tmp_path: Path) -> None:
    """These read texts and write answers."""
    assert len(_lines(_run(command, "hello"))) == 1
    assert not (tmp_path / "data").exists()


def test_what_is_remembered_of_models_lies_with_a_service_or_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rule of the XDG base directories, which says to ignore a relative path."""
    settings = read_settings({})
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, cache in ((str(tmp_path / "c"), tmp_path / "c"), ("c", tmp_path / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert query.cache_folder(settings) == cache / "conche"
    settings.data_path().mkdir()
    assert query.cache_folder(settings) == settings.data_path()


def test_a_user_without_a_home_is_answered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a container that runs under any number; what was measured is then kept nowhere."""
    without_home(monkeypatch)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert query.cache_folder(read_settings({})) is None
    assert len(_lines(_run("embed", "hello"))) == 1


def test_each_text_is_embedded_on_a_line_of_its_own() -> None:
    """For pipes into jq and files."""
    first, second = _lines(_run("embed", "hello world", "怎么退货", "--dimensions", "8"))
    assert (first["text"], second["text"]) == ("hello world", "怎么退货")
    assert isinstance(first["embedding"], list)
    assert len(first["embedding"]) == 8
    assert first["tokens"] == 6


def test_questions_are_looked_up() -> None:
    """Without a word on routes that nobody asked for."""
    result = _run("search", "怎么退货", "--top-k", "1")
    (line,) = _lines(result)
    (hit,) = line["hits"]  # type: ignore[misc]
    assert hit.pop("score") > 0.5  # type: ignore[attr-defined]
    assert hit == {"id": "delivery", "question": "怎么退货", "answer": "七天内。"}
    assert line["default_answer"] is None
    assert result.stderr == ""


def test_a_look_into_a_file_leaves_the_data_folder_as_it_was(tmp_path: Path) -> None:
    """A server on the same folder must not begin to answer from it."""
    _run("search", "hello")
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "zebra", "question": "zebra", "answer": ""}')
    (line,) = _lines(_run("search", "zebra", "--faq-file", str(other)))
    assert [hit["id"] for hit in line["hits"]] == ["zebra"]  # type: ignore[attr-defined]
    (line,) = _lines(_run("search", "zebra"))
    assert {hit["id"] for hit in line["hits"]} == {"refund", "password", "delivery"}  # type: ignore[attr-defined]


def test_a_collection_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    """With the names of those that are."""
    result = _run("search", "hello", "--collection", "shop")
    assert result.exit_code == 1
    assert "there is no collection shop; there are: default" in result.stderr


def test_entities_are_found_in_lines_of_standard_input() -> None:
    """Byte order marks and Windows line ends are no part of them."""
    lines = _lines(_run("ner", "-", stdin="\ufeffTim Cook\r\nin 北京\n".encode()))
    assert [line["text"] for line in lines] == ["Tim Cook", "in 北京"]
    assert lines[1]["entities"][0]["start"] == 3  # type: ignore[index]


@pytest.mark.parametrize("command", ["embed", "search", "ner"])
def test_a_blank_line_is_refused(command: str) -> None:
    """Passed over without a word, each answer behind it would stand beside the wrong line."""
    result = _run(command, "-", stdin="hello\n \nworld\n")
    assert result.exit_code == 1
    assert result.stderr == "Error: text 2 is empty\n"
    assert result.stdout == ""


def test_a_text_that_is_too_long_is_cut_on_demand() -> None:
    """By the flag that the refusal names, or by the setting that the server has too."""
    refused = _run("embed", "hello", "hello " * 100)
    assert "text 2 has 104 tokens" in refused.stderr
    assert "--truncate" in refused.stderr
    assert '"truncate"' not in refused.stderr
    (line,) = _lines(_run("embed", "hello " * 100, "--truncate"))
    assert (line["tokens"], line["tokens_cut"]) == (64, 40)


def test_the_truncate_setting_holds_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script gets what the server would answer."""
    monkeypatch.setenv("CONCHE_TRUNCATE", "true")
    (line,) = _lines(_run("embed", "hello " * 100))
    assert line["tokens_cut"] == 40


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("embed", "--faq-file"),
        ("embed", "--ner-bundle"),
        ("search", "--ner-bundle"),
        ("ner", "--faq-file"),
        ("ner", "--embedding-bundle"),
    ],
)
def test_flags_that_would_change_nothing_are_not_offered(command: str, flag: str) -> None:
    """Whoever gives one believes that it does something."""
    assert flag not in _run(command, "--help").output
    assert _run(command, "hello", flag, "x").exit_code == 2


def test_ctrl_c_ends_it_without_a_traceback() -> None:
    """Whatever the model is doing at that moment."""
    program = [sys.executable, "-c", "from service.cli import main; main()", "embed", "-"]
    process = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n" * 600)
    process.stdin.flush()
    process.stdout.readline()  # it is at work, and waits for more
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert errors == ""


def test_the_commands_do_without_a_web_framework() -> None:
    """They answer no requests, and every one of them pays for what it imports."""
    program = (
        "import sys; from service.cli import query; "
        "sys.exit(str([name for name in ('fastapi', 'starlette', 'uvicorn') if name in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_fault_is_numbered_over_all_lines() -> None:
    """Lines are answered in groups, which nobody should have to know."""
    lines = "".join("\x00\n" if n == 400 else f"order {n}\n" for n in range(600))
    result = _run("embed", "-", stdin=lines)
    assert result.exit_code == 1
    assert "text 401 holds nothing" in result.stderr
    assert len(result.stdout.splitlines()) == 256


def test_many_lines_come_back_in_order() -> None:
    """Answered in groups."""
    lines = _lines(_run("embed", "-", stdin="".join(f"order {n}\n" for n in range(600))))
    assert [line["text"] for line in lines] == [f"order {n}" for n in range(600)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("embed", "hello", ""), "text 2 is empty"),
        (("embed", "hello " * 100), "has 104 tokens"),
        (("embed", "hello", "--prompt-name", "poem"), "no such prompt"),
        (("embed", "hello", "--embedding-bundle", "missing"), "does not exist"),
        (("ner", "hello", "--ner-bundle", "none"), "CONCHE_NER_BUNDLE is none"),
        (("search", "hello", "--faq-file", "missing.csv"), "cannot be read"),
    ],
)
def test_a_fault_is_one_line_and_a_failure(arguments: tuple[str, ...], said: str) -> None:
    """On standard error, so that a pipe gets answers only."""
    result = _run(*arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_text_that_is_not_utf8_is_refused() -> None:
    """Rather than embedded as something else."""
    result = _run("embed", "-", stdin="退货".encode("gb18030"))
    assert result.exit_code == 1
    assert "Error: text 1 " in result.stderr


def test_entities_are_shown_on_a_page(tmp_path: Path) -> None:
    """One page of files, arguments and lines; standard output stays empty."""
    note, page = tmp_path / "note.txt", tmp_path / "page.html"
    note.write_bytes("\ufeffTim Cook\r\n\r\nParis <b>".encode())
    result = _run("ner", "--html", str(page), "--file", str(note), "北京", "-", stdin="hello\nJohn\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert f"{page}: 4 texts, 4 entities" in result.stderr
    content = page.read_text(encoding="utf-8")
    assert [line for line in content.splitlines() if line.startswith("<h3>")] == [
        f"<h3>{note}</h3>",
        *(f"<h3>text {number}</h3>" for number in (2, 3, 4)),
    ]
    assert "Paris<bdi>LOC</bdi></mark> &lt;b&gt;</p>" in content
    assert content.endswith("</html>\n")
    assert sorted(path.name for path in tmp_path.glob("*page*")) == ["page.html"]


def test_a_page_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    """And nothing half-written beside it."""
    page = tmp_path / "page.html"
    page.write_text("old")
    assert _run("ner", "--html", str(page), "Tim", "").exit_code == 1
    assert page.read_text() == "old"
    assert [path.name for path in tmp_path.glob("*page*")] == ["page.html"]
    result = _run("ner", "--html", str(tmp_path / "nowhere" / "page.html"), "Tim")
    assert result.exit_code == 1
    assert "page.html cannot be written: No such file or directory" in result.stderr


def test_a_file_is_one_text(tmp_path: Path) -> None:
    """However many lines it has; one that is not UTF-8 is refused like any other text."""
    note = tmp_path / "note.txt"
    note.write_text("Tim Cook\n\nworks in\nParis\n", encoding="utf-8")
    (line,) = _lines(_run("ner", "--file", str(note)))
    assert [found["start"] for found in line["entities"]] == [0, 19]  # type: ignore[attr-defined]
    note.write_bytes(b"caf\xe9")
    result = _run("ner", "--file", str(note))
    assert result.exit_code == 1
    assert "text 1" in result.stderr
    assert _run("ner").exit_code == 2


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ((), {}),
        (("--labels", "PER, ORG"), {"labels": ["PER", "ORG"]}),
        (("--threshold", "0.95"), {"threshold": 0.95}),
        (("--offset-unit", "utf-16"), {"offset_unit": "utf-16"}),
        (("--offset-unit", "bytes"), {"offset_unit": "bytes"}),
        *(
            (("--aggregation-strategy", name), {"aggregation_strategy": name})
            for name in ("viterbi", "none", "simple", "first", "average", "max")
        ),
        (("--model", "tiny-ner"), {"model": "tiny-ner"}),
    ],
)
async def test_entities_are_those_of_the_route(
    models_folder: Path, flags: tuple[str, ...], fields: dict[str, object]
) -> None:
    """Every option has the name of a field of ``POST /ner`` and does what that does."""
    texts = ["🙂 Tim Cook flew from 北京 to Paris.", "John paid Apple."]
    async with running(tiny_settings(models_folder)) as client:
        answer = (await client.post("/ner", json={"inputs": texts, **fields})).json()
    lines = _lines(await asyncio.to_thread(_run, "ner", *texts, *flags))
    assert [line["entities"] for line in lines] == answer
    assert all(answer) or flags[0] == "--threshold"


def test_options_of_entities_leave_out_and_count() -> None:
    """Seen without the route, too, which would agree with a flag that neither of the two heeds."""
    text = "🙂 Tim Cook flew from 北京 to Paris."

    def found(*flags: str) -> list[tuple[int, str, str]]:
        (line,) = _lines(_run("ner", text, *flags))
        return [(one["start"], one["text"], one["label"]) for one in line["entities"]]  # type: ignore[attr-defined]

    assert found() == [(2, "Tim Cook", "PER"), (21, "北京", "LOC"), (27, "Paris", "LOC")]
    assert found("--labels", "LOC") == [(21, "北京", "LOC"), (27, "Paris", "LOC")]
    assert [start for start, _, _ in found("--offset-unit", "utf-16")] == [3, 22, 28]
    assert [start for start, _, _ in found("--offset-unit", "bytes")] == [5, 24, 34]
    assert {label for _, _, label in found("--aggregation-strategy", "none")} >= {"B-PER", "B-LOC"}


def test_a_tagger_is_chosen_by_name(tmp_path: Path) -> None:
    """Of several; the page names the one that read."""
    for name in ("one", "two"):
        write_tiny_ner_bundle(tmp_path / name, name=name)
    flags = ("--models-dir", str(tmp_path), "--ner-bundle", "one,two")
    page = tmp_path / "page.html"
    for chosen, title in (((), "one"), (("--model", "two"), "two")):
        assert _run("ner", "Tim", "--html", str(page), *flags, *chosen).exit_code == 0
        assert f"<h1>Named entities by {title}</h1>" in page.read_text(encoding="utf-8")
    result = _run("ner", "Tim", *flags, "--model", "three")
    assert result.exit_code == 1
    assert "no model of that name finds entities; there is: one, two" in result.stderr


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--labels", "PER,MONEY"), 1, "no such entity type as 1 of those in labels; it has PER, LOC, ORG"),
        (("--labels", ","), 2, "names no entity type"),
        (("--offset-unit", "words"), 2, "code-points"),
        (("--aggregation-strategy", "last"), 2, "viterbi"),
        (("--html", "page.html", "--offset-unit", "bytes"), 2, "no --offset-unit"),
        (("--html", "page.html", "--aggregation-strategy", "none"), 2, "no strategy none"),
    ],
)
def test_options_that_entities_cannot_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], code: int, said: str
) -> None:
    """With what there is instead; nothing is written."""
    monkeypatch.chdir(tmp_path)
    result = _run("ner", "Tim", *flags)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "page.html").exists()
