"""docs/survival.md: every row of its table names a test that is there, and every chaos test has its row."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "survival.md").read_text(encoding="utf-8")
# What may be told by the wall clock: when something was made, for people and logs. Each with its reason.
WALL_CLOCK = {
    "service/api_keys.py": "when a key was made",
    "service/faq/milvus_claims.py": "when owners of claims were made, in days: other machines read them",
    "service/faq/milvus_store.py": "when a collection was changed",
    "service/faq/report.py": "the date of a report",
    "service/faq/snapshots.py": "the name of a snapshot",
    "service/faq/sqlite_file.py": "when a snapshot was made",
    "service/faq/sqlite_store.py": "when a collection was changed",
    "service/loaded_models.py": "when a model was loaded",
    "service/routes/classify.py": "when an answer was made",
    "service/tracing.py": "where spans stand in time",
}


def chaos_tests_in(folder: Path) -> set[str]:
    """Names of the test functions below ``folder``."""
    return {
        node.name
        for path in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    """A promise that nothing checks is none."""
    rows = re.findall(r"^\| (?!---|what happens).*\| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| (?!---|what happens)", PAGE, re.MULTILINE))
    assert sorted(rows) == sorted(chaos_tests_in(ROOT / "tests" / "chaos"))


def test_no_deadline_goes_by_a_clock_that_can_be_set() -> None:
    """`time.time` and `datetime.now` are for timestamps; a new use needs its reason here."""
    found = set()
    for path in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}:
                    found.add(path.relative_to(ROOT).as_posix())
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert not {"time", "time_ns"} & {alias.name for alias in node.names}, path
    assert found == set(WALL_CLOCK)
