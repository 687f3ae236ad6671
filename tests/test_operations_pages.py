"""docs/backup.md and docs/upgrade.md: the commands in fences are run, in order, on a FAQ of three entries."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.faq.entries import FaqEntry
from service.lifespan import open_services
from service.metrics import Metrics
from tests.service.fakes_http import FAQ, running, tiny_settings, write_bundles

ROOT = Path(__file__).parents[1]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with bundles, and data in which the collection ``shop`` has entries."""
    models = write_bundles(tmp_path / "models")

    async def fill() -> None:
        settings = tiny_settings(models, data_dir=tmp_path / "data", faq_file="none")
        async with open_services(settings, Metrics()) as services:
            assert services.catalogue is not None
            entries = [FaqEntry.model_validate_json(line) for line in FAQ]
            await services.catalogue.upsert("shop", entries)

    asyncio.run(fill())
    return tmp_path


def _fences(page: str) -> Iterator[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    yield from re.findall(r"^```\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["backup.md", "upgrade.md"])
def test_the_commands_of_the_page_do_what_it_says(place: Path, page: str) -> None:
    """Whoever needs them is in no mood for commands that do not work; at the end all entries are there."""
    blocks = list(_fences(page))
    assert len(blocks) >= 4
    commands = "\n".join(["set -eux", *blocks, "conche faq count -c shop"])
    (place / "bin").mkdir()
    program = place / "bin" / "conche"
    program.write_text(
        f"#!{sys.executable}\nfrom service.cli import main\nmain()\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CONCHE_")}
    variables |= {
        "PATH": f"{place / 'bin'}:{variables['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CONCHE_MODELS_DIR": str(place / "models"),
        "CONCHE_EMBEDDING_BUNDLE": "tiny-embedding",
        "CONCHE_DATA_DIR": str(place / "data"),
        "CONCHE_ENGINE": "onnxruntime",
        "CONCHE_BATCHING__MAX_BATCH_TOKENS": "2048",
    }
    done = subprocess.run(
        ["bash", "-c", commands], cwd=place, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "3"


async def test_what_the_page_on_capacity_watches_is_there(tmp_path: Path) -> None:
    """Every metric and path that it names."""
    page = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
    settings = tiny_settings(write_bundles(tmp_path))
    async with running(settings) as client:
        metrics = (await client.get("/metrics")).text
        named = set(re.findall(r"\b(?:conche|process)_\w+", page))
        assert len(named) >= 4
        assert named <= set(re.findall(r"^(\w+)", metrics, re.MULTILINE))
        for path in re.findall(r'"\$CONCHE_URL(/\w+)"', page):
            assert (await client.get(path)).status_code == 200
