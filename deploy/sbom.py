# ruff: noqa: INP001 - a script
"""Writes deploy/sbom: what the image is made of, for machines (CycloneDX) and for people (`make sbom`).

Versions come from the locks, licences from the metadata of the packages, which the development environment
has in the same versions; models and their licences from the bundles' manifests. Python and the system below
it are the base image's and are not listed. No time and no serial number: the same locks give the same files.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "deploy" / "sbom"
# What the image is built for by default; on other machines a package more or less.
TARGET = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
    "extra": "",
}
# Where metadata has prose: the identifier of SPDX that it means.
IDENTIFIERS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


@dataclass(frozen=True)
class Component:
    """A package of a lock.

    Attributes:
        name: as the lock spells it.
        version: pinned.
        licence: SPDX expression.
        required: False = only in images built with REQUIREMENTS=milvus, or with OPENVINO=1, the default on
            x86-64.
    """

    name: str
    version: str
    licence: str
    required: bool

    @property
    def reference(self) -> str:
        """Package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def pins(lock: str) -> dict[str, str]:
    """Versions by name that a lock has for the image's machine."""
    found = {}
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    for line in re.findall(r"^[a-z0-9].*==.*?(?= \\$)", text, re.MULTILINE):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(TARGET):
            found[requirement.name] = next(iter(requirement.specifier)).version
    return found


def licence_of(name: str) -> str:
    """SPDX expression of an installed package's licence.

    Raises:
        ValueError: its metadata has none, or one that IDENTIFIERS does not know.
    """
    described = metadata.metadata(name)
    if expression := described.get("License-Expression"):
        return str(expression)
    prefix = "License :: OSI Approved :: "
    classifiers = [one for one in described.get_all("Classifier") or [] if one.startswith(prefix)]
    stated = described.get("License") or " AND ".join(one.removeprefix(prefix) for one in classifiers)
    parts = [IDENTIFIERS.get(part, part) for part in stated.split(" AND ")]
    if not parts[0] or any(" " in part for part in parts):
        raise ValueError(f"{name}: licence {stated[:80]!r} is no identifier; IDENTIFIERS has those known")
    return " AND ".join(parts)


def components() -> list[Component]:
    """All packages, by name."""
    required = pins("serve")
    optional = pins("milvus") | pins("openvino")
    return [
        Component(name, version, licence_of(name), name in required)
        for name, version in sorted((optional | required).items())
    ]


def manifests() -> list[dict[str, Any]]:
    """Those of the models, by name."""
    return [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "models").glob("*/manifest.json"))
    ]


def _dependencies(listed: list[Component]) -> Iterator[dict[str, Any]]:
    references = {one.name: one.reference for one in listed}
    for one in listed:
        wanted = [Requirement(text) for text in metadata.requires(one.name) or []]
        names = {
            re.sub(r"[-_.]+", "-", requirement.name).lower()
            for requirement in wanted
            if requirement.marker is None or requirement.marker.evaluate(TARGET)
        }
        yield {
            "ref": one.reference,
            "dependsOn": [references[name] for name in sorted(names & references.keys())],
        }


def bill_of_materials() -> dict[str, Any]:
    """CycloneDX 1.6."""
    listed = components()
    packages = [
        {
            "type": "library",
            "bom-ref": one.reference,
            "name": one.name,
            "version": one.version,
            "scope": "required" if one.required else "optional",
            "licenses": [{"expression": one.licence}],
            "purl": one.reference,
        }
        for one in listed
    ]
    models = [
        {
            "type": "machine-learning-model",
            "bom-ref": f"model:{manifest['name']}",
            "name": manifest["name"],
            "version": manifest["source"].get("revision") or "1",
            "scope": "required",
            "licenses": [{"expression": manifest["licence"]}],
            "hashes": [
                {"alg": "SHA-256", "content": manifest["files"]["encoder.safetensors"]["sha256"]},
            ],
        }
        for manifest in manifests()
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "conche",
                "name": "conche",
                "version": metadata.version("conche"),
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": [*packages, *models],
        "dependencies": [
            {
                "ref": "conche",
                "dependsOn": [
                    *(one.reference for one in listed if one.required),
                    *(model["bom-ref"] for model in models),
                ],
            },
            *_dependencies(listed),
        ],
    }


def licence_list() -> str:
    """The same for people, in Markdown."""
    lines = [
        "# Licences of what the image holds",
        "",
        "Written by `make sbom`. Licence texts lie beside each package in the image (`*.dist-info`) and",
        "beside each model; Python and the system are the base image's. Packages that are *optional*",
        "come with `REQUIREMENTS=milvus`, or with `OPENVINO=1`, the default on x86-64.",
        "",
        "| what | version | licence |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {one.name}{'' if one.required else ' (optional)'} | {one.version} | {one.licence} |"
        for one in components()
    ]
    lines += [
        f"| model {one['name']} | {one['source'].get('revision') or ''} | {one['licence']} |"
        for one in manifests()
    ]
    return "\n".join(lines) + "\n"


FILES = {
    "conche.cdx.json": lambda: json.dumps(bill_of_materials(), indent=1) + "\n",
    "LICENCES.md": licence_list,
}


def main() -> None:
    """Write both."""
    FOLDER.mkdir(exist_ok=True)
    for name, write in FILES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
