"""Bundles are whole or refused, and the refusal names the check and the file."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from model.runtime.bundle import Bundle, BundleError, discover
from tests.bundles import (
    refresh_manifest,
    write_tiny_classifier_bundle,
    write_tiny_embedding_bundle,
    write_tiny_ner_bundle,
    write_tiny_reranker_bundle,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A valid bundle to spoil."""
    return write_tiny_embedding_bundle(tmp_path / "models" / "tiny")


def refusal(folder: Path, **options: bool) -> BundleError:
    """The error that loading ``folder`` ends with."""
    with pytest.raises(BundleError) as caught:
        Bundle.load(folder, **options)
    return caught.value


def edit_manifest(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Apply ``change`` to the manifest's content."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    "write",
    [
        write_tiny_classifier_bundle,
        write_tiny_embedding_bundle,
        write_tiny_ner_bundle,
        write_tiny_reranker_bundle,
    ],
)
def test_a_whole_bundle_loads(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """What the export writes, the service reads."""
    bundle = Bundle.load(write(tmp_path / "bundle"))
    assert bundle.file("graph.onnx").is_file()
    assert set(bundle.manifest.files) == {path.name for path in bundle.path.iterdir()} - {"manifest.json"}


def test_the_digest_changes_with_any_file(folder: Path) -> None:
    """An index remembers the digest, so that it is never searched with another model's vectors."""
    before = Bundle.load(folder).digest
    (folder / "LICENSE").write_text("another", encoding="utf-8")
    refresh_manifest(folder)
    assert Bundle.load(folder).digest != before


def test_a_changed_byte_fails_sha256_and_names_the_file(folder: Path) -> None:
    """Size alone would let a damaged download through."""
    path = folder / "encoder.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    error = refusal(folder)
    assert error.check == "sha256"
    assert "tiny/encoder.safetensors" in str(error)
    assert Bundle.load(folder, verify_hashes=False).path == folder


def test_a_cut_file_fails_size_even_without_hashes(folder: Path) -> None:
    """Sizes cost nothing, so they are always compared."""
    path = folder / "graph.onnx"
    path.write_bytes(path.read_bytes()[:-1])
    error = refusal(folder, verify_hashes=False)
    assert error.check == "size"
    assert "tiny/graph.onnx" in str(error)


def test_a_missing_and_an_unlisted_file_are_both_named(folder: Path) -> None:
    """A bundle half copied over another one must not pass."""
    (folder / "golden.json").rename(folder / "golden-old.json")
    error = refusal(folder)
    assert error.check == "files"
    assert "missing golden.json" in str(error)
    assert "not in the manifest: golden-old.json" in str(error)


def test_a_folder_inside_is_refused_and_hidden_entries_are_not(folder: Path) -> None:
    """File managers and volume mounts leave hidden entries behind; nobody reads them."""
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "..data").mkdir()
    Bundle.load(folder)
    (folder / "notes").mkdir()
    assert refusal(folder).check == "files"


def test_a_relative_link_to_a_neighbouring_bundle_is_followed(folder: Path) -> None:
    """Two models may share one word table, kept once."""
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    (other / "embeddings.safetensors").unlink()
    (other / "embeddings.safetensors").symlink_to("../tiny/embeddings.safetensors")
    Bundle.load(other)


def test_a_linked_bundle_folder_is_followed(folder: Path, tmp_path: Path) -> None:
    """Operators switch models by moving a link."""
    link = tmp_path / "current"
    link.symlink_to(folder)
    assert Bundle.load(link).path == folder.resolve()


@pytest.mark.parametrize("target", ["../../outside/{name}", "/{absolute}"])
def test_a_link_that_leaves_the_models_folder_is_refused(folder: Path, tmp_path: Path, target: str) -> None:
    """It would break, or change, when the folder is copied elsewhere."""
    name = "embeddings.safetensors"
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / name).rename(outside / name)
    (folder / name).symlink_to(target.format(name=name, absolute=str(outside / name).lstrip("/")))
    error = refusal(folder)
    assert error.check == "files"
    assert f"tiny/{name}" in str(error)


def test_an_absolute_link_is_refused_even_to_a_neighbour(folder: Path) -> None:
    """It names this machine's folders, so it breaks on the next."""
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    (other / "LICENSE").unlink()
    (other / "LICENSE").symlink_to(folder / "LICENSE")
    assert "absolute link" in str(refusal(other))


def test_a_link_to_nothing_is_refused(folder: Path) -> None:
    """A copy by `cp -r` leaves the neighbour behind; the message says what is lacking, and how to copy."""
    (folder / "LICENSE").unlink()
    (folder / "LICENSE").symlink_to("../gone/LICENSE")
    error = refusal(folder)
    assert error.check == "files"
    assert "tiny/LICENSE is a link to ../gone/LICENSE, where there is no file" in str(error)
    assert "cp -rL" in str(error)


def test_a_link_to_itself_is_refused(folder: Path) -> None:
    """Following it never ends; Python before 3.13 has an exception of its own for that."""
    (folder / "LICENSE").unlink()
    (folder / "LICENSE").symlink_to("LICENSE")
    assert refusal(folder).check == "files"
    loop = folder.with_name("loop")
    loop.symlink_to("loop")
    assert refusal(loop).check == "manifest"


class Refusing:
    """Makes the operating system refuse one path; the rights of a file would not stop a test run as root."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, wrapped: Callable[..., object]) -> Callable[..., object]:
        """``wrapped``, a method of Path, but refused for the one."""

        def refuse(path: Path, *arguments: object, **options: object) -> object:
            if path == self.path:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return wrapped(path, *arguments, **options)

        return refuse


@pytest.mark.parametrize(
    ("method", "name", "check"),
    [
        ("open", "encoder.safetensors", "files"),
        ("is_file", "encoder.safetensors", "files"),
        ("is_symlink", "LICENSE", "files"),
        ("iterdir", "", "files"),
        ("read_bytes", "manifest.json", "manifest"),
        ("is_dir", "", "manifest"),
    ],
)
def test_what_may_not_be_read_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str, check: str
) -> None:
    """An image built by another user, often; a traceback would not say which file."""
    monkeypatch.setattr(Path, method, Refusing(folder / name)(getattr(Path, method)))
    for verify_hashes in (True, False):
        error = refusal(folder, verify_hashes=verify_hashes)
        assert error.check == check
        assert f"tiny/{name}".removesuffix("/") in str(error)
        assert "Permission denied" in str(error)


def test_a_disk_that_fails_while_hashing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a file proves nothing yet."""

    def fail(*_: object) -> object:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("model.runtime.bundle._sha256", fail)
    assert "tiny/LICENSE: Input/output error" in str(refusal(folder))


def test_a_newer_format_says_so(folder: Path) -> None:
    """A newer manifest has fields unknown here; complaining about those would mislead."""
    edit_manifest(folder, lambda content: content.update(format_version=2, new_field=1))
    error = refusal(folder)
    assert error.check == "manifest"
    assert "format_version 2, newer than the 1" in str(error)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"surprise": 1}, "surprise"),
        ({"max_tokens": 10_000}, "max_position_embeddings"),
        ({"pooling": None}, "pooling"),
        ({"labels": ["O"]}, "labels"),
        ({"task": "token-classification"}, "labels"),
        ({"task": "sequence-classification", "labels": ["a", "b"]}, "label_activation"),
        (
            {"task": "sequence-classification", "labels": ["a"], "label_activation": "softmax"},
            "single label",
        ),
        ({"label_activation": "sigmoid"}, "label_activation"),
        ({"pair_token_types": True}, "type_vocab_size"),
        ({"default_prompt_name": "search"}, "search"),
        ({"files": {"../LICENSE": {"sha256": "0" * 64, "size": 1}}}, "../LICENSE"),
        ({"files": {"manifest.json": {"sha256": "0" * 64, "size": 1}}}, "manifest.json"),
        ({"files": {"LICENSE": {"sha256": "abc", "size": 1}}}, "sha256"),
        ({"format_version": 0}, "format_version"),
        ({"name": "../x"}, "name"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    folder: Path, change: dict[str, object], told: str
) -> None:
    """Found when loading, not at the first request."""
    edit_manifest(folder, lambda content: content.update(change))
    error = refusal(folder)
    assert error.check == "manifest"
    assert told in str(error)


def test_rows_in_front_of_the_first_position_hold_no_token(folder: Path) -> None:
    """RoBERTa has 514 rows and begins at row 2; a text of 514 tokens would end outside the table."""

    def give(max_tokens: int) -> None:
        def change(content: dict[str, object]) -> None:
            architecture = content["architecture"]
            assert isinstance(architecture, dict)
            architecture.update(max_position_embeddings=514, position_offset=2)
            content.update(max_tokens=max_tokens)

        edit_manifest(folder, change)

    give(513)
    assert "max_tokens 513 exceeds max_position_embeddings 514 less position_offset 2" in str(refusal(folder))
    give(512)
    assert Bundle.load(folder).manifest.max_tokens == 512


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_manifest_that_is_no_object_is_refused(folder: Path, content: bytes) -> None:
    """A cut or foreign file must not end in a traceback."""
    (folder / "manifest.json").write_bytes(content)
    assert refusal(folder).check == "manifest"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A mistyped path gives a message, not a traceback."""
    assert refusal(tmp_path / "missing").check == "manifest"
    assert refusal(tmp_path).check == "manifest"


def test_a_file_that_the_manifest_does_not_name_cannot_be_asked_for(folder: Path) -> None:
    """All access goes through the checked list."""
    bundle = Bundle.load(folder)
    with pytest.raises(BundleError, match=r"other\.bin"):
        bundle.file("other.bin")


def test_discover_finds_children_by_name_or_the_folder_itself(tmp_path: Path) -> None:
    """`conche models` and the settings take either."""
    first, second = tmp_path / "a", tmp_path / "b"
    write_tiny_ner_bundle(second)
    write_tiny_embedding_bundle(first)
    (tmp_path / "empty").mkdir()
    assert discover(tmp_path) == [first, second]
    assert discover(first) == [first]
    assert discover(tmp_path / "missing") == []


def test_discover_passes_over_an_export_in_progress(tmp_path: Path) -> None:
    """It is made in a hidden folder, which holds a manifest towards the end."""
    write_tiny_embedding_bundle(tmp_path / ".partial")
    assert discover(tmp_path) == []


@pytest.mark.parametrize(("method", "name"), [("is_file", "a/manifest.json"), ("iterdir", "")])
def test_discover_finds_what_may_not_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    """Loading refuses it by name, while here one closed folder would hide all others."""
    write_tiny_embedding_bundle(tmp_path / "a")
    write_tiny_ner_bundle(tmp_path / "b")
    monkeypatch.setattr(Path, method, Refusing(tmp_path / name)(getattr(Path, method)))
    assert discover(tmp_path) == ([tmp_path / "a", tmp_path / "b"] if name else [tmp_path])
