"""Licence and languages from a model card's front matter."""

from pathlib import Path

import pytest

from model.encoder.model_card import ModelCard, read_model_card


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\ntags:\n- x\n---\n# Card", ModelCard("Apache-2.0", ("en",))),
        ("---\nlanguage:\n- zh\n- en\nlicense: mit\n---\n", ModelCard("MIT", ("zh", "en"))),
        (
            "---\r\nlanguage: [zh, 'en']\r\nlicense: \"cc-by-sa-4.0\"\r\n---\r\n",
            ModelCard("CC-BY-SA-4.0", ("zh", "en")),
        ),
        ("---\nlicense:\n  - mit\n---\n", ModelCard("MIT")),
        ("---\nlicense: other\nlicense_name: acme-1.0\n---\n", ModelCard("LicenseRef-acme-1.0")),
        ("---\nlicense: openrail++\n---\n", ModelCard("LicenseRef-openrail-")),
        (
            "---\nmodel-index:\n- name: x\n  results:\n  - license: gpl-3.0\nlicense: mit\n---\n",
            ModelCard("MIT"),
        ),
        ("# Card\nlicense: mit\n", ModelCard()),
        ("---\nlicense: mit\n", ModelCard()),
        ("", ModelCard()),
    ],
)
def test_front_matter_is_read(text: str, expected: ModelCard, tmp_path: Path) -> None:
    """Scalars and both kinds of list, at top level, inside the front matter and nowhere else."""
    (tmp_path / "README.md").write_bytes(text.encode())
    assert read_model_card(tmp_path / "README.md") == expected


def test_no_readme_states_nothing(tmp_path: Path) -> None:
    """Most local folders have none."""
    assert read_model_card(tmp_path / "README.md") == ModelCard()
