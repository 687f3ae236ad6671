"""What the image is made of: listed whole, under licences that let anybody use it."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from model.runtime.bundle import Bundle

ROOT = Path(__file__).parents[2]
SBOM = runpy.run_path(str(ROOT / "deploy" / "sbom.py"))
LISTS = ROOT / "deploy" / "sbom"
BILL: dict[str, Any] = json.loads((LISTS / "conche.cdx.json").read_text(encoding="utf-8"))
# Each lets everybody use, change and pass on what is under it, for money too. MPL-2.0 asks for the source of
# changed files, CC-BY-SA-4.0 (of a model) for credit and the same licence for changed weights.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC-BY-SA-4.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "PSF-2.0",
    "Zlib",
}


def not_allowed(expression: str) -> set[str]:
    """The identifiers of an SPDX expression that nobody may be asked to accept."""
    return set(re.split(r"\s+(?:AND|OR|WITH)\s+", re.sub(r"[()]", "", expression))) - ALLOWED


@pytest.mark.parametrize("name", SBOM["FILES"])
def test_the_lists_are_what_their_script_writes(name: str) -> None:
    """`make sbom` was run since the locks and models changed."""
    written = (ROOT / "deploy" / "sbom" / name).read_text(encoding="utf-8")
    assert written == SBOM["FILES"][name]()


@pytest.mark.parametrize("component", BILL["components"], ids=lambda component: component["name"])
def test_a_licence_is_known_and_lets_anybody_use_it(component: dict[str, Any]) -> None:
    """Not for research only, not by a text that nobody has read."""
    (licence,) = component["licenses"]
    assert not_allowed(licence["expression"]) == set()


@pytest.mark.parametrize(
    "expression", ["CC-BY-NC-SA-4.0", "MIT AND CC-BY-NC-4.0", "AGPL-3.0-only", "UNKNOWN", "Proprietary", ""]
)
def test_other_licences_are_refused(expression: str) -> None:
    """A check that takes anything proves nothing."""
    assert not_allowed(expression)


def test_prose_in_place_of_a_licence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new dependency whose licence has to be read by somebody stops `make sbom`."""
    monkeypatch.setattr(
        SBOM["metadata"], "metadata", lambda name: _Described({"License": "Free for research use"})
    )
    with pytest.raises(ValueError, match="no identifier"):
        SBOM["licence_of"]("anything")


class _Described(dict[str, str]):
    def get_all(self, name: str) -> list[str]:
        return []


def test_every_pin_of_the_image_is_listed() -> None:
    """With its version; those of another system or Python are not, and what only some images hold says so."""
    listed = {one["name"]: one for one in BILL["components"] if one["type"] == "library"}
    for lock, scopes in (
        ("serve", {"required"}),
        ("milvus", {"required", "optional"}),
        ("openvino", {"optional"}),
    ):
        text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
        for name, version, marker in re.findall(r"^([a-z0-9-]+)==(\S+)(.*?) \\$", text, re.MULTILINE):
            if not marker or name in listed:
                assert listed[name]["scope"] in scopes
                assert marker or listed[name]["version"] == version
    assert "colorama" not in listed  # on Windows only
    assert "torch" not in listed


def test_every_model_is_listed_with_the_licence_of_its_manifest() -> None:
    """Models are works of others as much as packages are."""
    listed = {one["name"]: one for one in BILL["components"] if one["type"] == "machine-learning-model"}
    bundles = [Bundle.load(path.parent).manifest for path in (ROOT / "models").glob("*/manifest.json")]
    assert {one.name: [{"expression": one.licence}] for one in bundles} == {
        name: one["licenses"] for name, one in listed.items()
    }


def test_dependencies_lead_to_what_is_listed() -> None:
    """Every package is there because something needs it."""
    references = {one["bom-ref"] for one in BILL["components"]} | {"conche"}
    edges = {one["ref"]: set(one["dependsOn"]) for one in BILL["dependencies"]}
    assert edges.keys() <= references
    assert set().union(*edges.values()) <= references
    needed = edges["conche"]
    assert {one["bom-ref"] for one in BILL["components"] if one["scope"] == "required"} == needed


def test_the_image_holds_its_list() -> None:
    """Whoever has the image and not the repository can read what is in it."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(
        r"^COPY LICENSE NOTICE deploy/sbom/conche\.cdx\.json /opt/conche/$", dockerfile, re.MULTILINE
    )
