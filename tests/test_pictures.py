"""docs/pictures: each is listed with its digest, small, and shown somewhere."""

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
PICTURES = sorted(FOLDER.glob("*.png"))


def test_every_picture_is_as_the_manifest_says() -> None:
    """`docs/pictures/make.py` writes both; a picture changed by hand would show what nobody saw."""
    listed = MANIFEST["pictures"]
    assert sorted(listed) == [path.name for path in PICTURES]
    for path in PICTURES:
        content = path.read_bytes()
        assert listed[path.name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert listed[path.name]["bytes"] == len(content)


def test_pictures_stay_small() -> None:
    """They are in every clone for ever."""
    sizes = [path.stat().st_size for path in PICTURES]
    assert max(sizes) <= 150_000
    assert sum(sizes) < 1_000_000


def test_every_picture_is_shown_on_a_page() -> None:
    """By its path from there."""
    pages = [*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for path in PICTURES:
        assert f"pictures/{path.name})" in text, path.name
