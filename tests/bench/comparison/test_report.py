"""From measured lines to figures, tables and pictures; and the READMEs hold what was recorded."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from comparison import report

ROOT = Path(__file__).parents[3]
SPEED = ROOT / "bench" / "results" / "speed.json"


def line(workload: str, contestant: str, number: int, rate: float, **more: Any) -> dict[str, Any]:
    """One turn."""
    return {"workload": workload, "contestant": contestant, "round": number, "texts_per_s": rate, **more}


LINES = [
    line("batches", "Conche", 0, 400.0, p50_ms=10.0, p99_ms=20.0, padding=1.02, failed={}),
    line("batches", "Infinity, torch", 0, 50.0, p50_ms=90.0, p99_ms=99.0, failed={"status 500": 1}),
    line("batches", "Conche", 1, 200.0, p50_ms=12.0, p99_ms=22.0, padding=1.04, failed={}),
    line("batches", "Infinity, torch", 1, 20.0, p50_ms=91.0, p99_ms=99.0, failed={}),
    line("batches", "bare engine, packed, x", 0, 500.0, failed={}),
    line("batches", "bare engine, packed, x", 1, 250.0, failed={}),
    {"workload": "batches", "contestant": "other", "round": 0, "error": "ended: no memory"},
    line("overload", "Conche", 0, 270.0, p99_ms=900.0, refused=7, refused_p99_ms=30.0, kept=0.9, failed={}),
    {
        "workload": "start",
        "contestant": "Conche, default models",
        "round": 0,
        "start_s": 2.5,
        "rss_mib": 500.0,
    },
    line("ner-english", "Conche, default models", 0, 40.0, rss_mib=550.0, failed={}),
]

MORE_LINES = [
    line("batches", "Conche, two streams", 0, 440.0, failed={}),
    line("overload", "Conche, two streams", 0, 300.0, kept=0.909, failed={}),
    line("one", "Conche", 0, 250.0, p50_ms=4.0, failed={}),
    line("one", "bare engine, packed, x", 0, 400.0, p50_ms=2.25, failed={}),
    line("one-short", "Conche", 0, 500.0, p50_ms=2.0, failed={}),
    line("one-short", "bare engine, packed, x", 0, 900.0, p50_ms=0.75, failed={}),
    line("one-short", "bare engine, packed, y", 0, 800.0, p50_ms=1.0, failed={}),
]


def results(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole run."""
    return {
        "date": "2026-11-30", "commit": "abc", "minutes": 1.0, "out_of_time": False, "versions": {"x": "1"},
        "machine": {"processor": "P", "cores": 2, "memory_gib": 8, "features": "AVX2", "python": "3.11"},
        "contestants": [{"name": "Conche", "note": "ours"}, {"name": "other", "note": "theirs"}],
        "absent": {"other": "not installed: no | such package"}, "starts": {"Conche": 2.0},
        "cosines": {"Conche": 1.0}, "workloads": report.summary(lines),
    }  # fmt: skip


def test_rounds_become_medians_and_ratios_by_round() -> None:
    """The second round was slow for both: 8 x and 10 x, not 300 over 35."""
    found = report.summary(LINES)["batches"]
    assert found["Conche"]["texts_per_s"] == [300.0, 200.0, 400.0]
    assert found["Infinity, torch"]["ratio"] == [9.0, 8.0, 10.0]
    assert "ratio" not in found["Conche"]
    assert found["Conche"]["rounds"] == 2


def test_who_failed_is_shown_as_such_and_has_no_figures() -> None:
    """Never invented."""
    found = report.summary(LINES)["batches"]
    assert found["other"] == {"rounds": 0, "failed": "ended: no memory"}
    assert "status 500" in found["Infinity, torch"]["failed"]
    assert "| other |  |" in report.full_report(results(LINES))


def test_a_ratio_takes_the_rounds_of_both() -> None:
    """A round that one of them missed is left out of it."""
    lines = [line("one", "Conche", 0, 10.0), line("one", "Conche", 1, 30.0), line("one", "b", 1, 10.0)]
    assert report.summary(lines)["one"]["b"]["ratio"] == [3.0, 3.0, 3.0]


def test_targets_are_told_with_what_was_measured() -> None:
    """By hand from the lines above."""
    told = {what: measured for what, _, measured in report.targets(results(LINES + MORE_LINES))}
    assert told["throughput, 8 clients, 32 texts, over Infinity, torch"] == "9.00 (8.00 to 10.0) x"
    assert told["HTTP, tokenising and batching, of bare engine, packed, x"] == "20.0 %"
    assert told["the same with two streams"] == "12.0 %"
    assert told["p50 of one text of 16 tokens above the bare engine"] == "1.25 ms"
    assert told["p50 of one text of mixed lengths above the bare engine"] == "1.75 ms"
    assert told["throughput kept at 10 times too many"] == "90.0 %"
    assert told["throughput kept with two streams"] == "90.9 %"
    assert told["p99 of refusals there"] == "30.0 ms"
    assert told["start to ready, default models, 10,000 FAQ entries"] == "2.50 s"
    assert told["resident memory then"] == "524 MB"
    assert told["the same after what was asked of them here, at most"] == "577 MB"
    assert not any("32 clients" in what for what in told)


def test_what_was_not_measured_is_left_out() -> None:
    """An empty run has no targets, and still a report."""
    assert report.targets(results([])) == []
    assert "not installed: no / such package" in report.full_report(results([]))


def test_both_languages_quote_the_same_numbers() -> None:
    """Only words differ."""
    rows = [
        [cells.split("|")[2:] for cells in report.short_table(results(LINES), language).splitlines()[4:]]
        for language in ("en", "zh")
    ]
    assert rows[0] == rows[1]
    assert any("300" in cell for row in rows[0] for cell in row)


def test_what_stands_between_the_markers_is_replaced() -> None:
    """Twice gives the same; a file without markers is refused rather than left as it was."""
    text = "a\n<!-- speed:begin -->\nold \\1\n<!-- speed:end -->\nb\n"
    once = report.put_between(text, r"new \1")
    assert once == "a\n<!-- speed:begin -->\nnew \\1\n<!-- speed:end -->\nb\n"
    assert report.put_between(once, r"new \1") == once
    with pytest.raises(ValueError, match="speed:begin"):
        report.put_between("nothing", "new")


def test_pictures_of_before_go_and_those_of_other_measurements_stay(tmp_path: Path) -> None:
    """`bench/soak.py` draws into the same folder."""
    for name in ("soak.svg", "bulk-texts_per_s.svg"):
        (tmp_path / name).write_text("before", encoding="utf-8")
    figures = results(LINES)
    report.write_pictures(figures, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"soak.svg", *report.pictures(figures)}
    assert "bulk-texts_per_s.svg" not in report.pictures(figures)


def test_pictures_are_well_formed_and_show_every_number() -> None:
    """Bars with a figure beside each."""
    drawn = report.pictures(results(LINES))
    assert set(drawn) == {"batches-texts_per_s.svg"}
    ET.fromstring(drawn["batches-texts_per_s.svg"])
    assert all(f">{number}<" in drawn["batches-texts_per_s.svg"] for number in ("300", "35.0", "375"))


@pytest.mark.parametrize(
    ("name", "kind"), [("bench/README.md", "full"), ("README.md", "en"), ("README.zh-CN.md", "zh")]
)
def test_readmes_hold_what_was_recorded(name: str, kind: str) -> None:
    """`make bench ARGS=--report` writes them anew."""
    recorded = json.loads(SPEED.read_text(encoding="utf-8")) if SPEED.is_file() else None
    content = report.full_report(recorded) if kind == "full" else report.short_table(recorded, kind)
    text = (ROOT / name).read_text(encoding="utf-8")
    assert report.put_between(text, content) == text
