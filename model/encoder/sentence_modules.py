"""The files sentence-transformers keeps beside the weights: pooling, normalisation, length, prompts.

Source: sentence-transformers 5, ``modules.json`` and the configuration of each module in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal

from model.encoder.errors import CheckpointError, UnsupportedCheckpointError
from model.encoder.json_files import read_json, read_json_object

if TYPE_CHECKING:
    from collections.abc import Mapping

Pooling = Literal["cls", "mean"]

_MODULES: Final = "modules.json"
_PACKAGE: Final = "sentence_transformers."
_SUPPORTED: Final = "Transformer, then Pooling (cls or mean), then Normalize or nothing"
# How one flag of 1_Pooling/config.json per mode (or the newer "pooling_mode") maps to ours.
_POOLING_FLAGS: Final[Mapping[str, str]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSettings:
    """How a checkpoint turns token vectors into one vector per text.

    Attributes:
        transformer_path: Folder of the transformer's own files.
        pooling: None = the checkpoint does not say.
        normalize: Vectors leave with length one.
        max_seq_length: Tokens, special ones included; None = the transformer's own limit.
        do_lower_case: Texts are put in lower case before the tokeniser sees them.
        prompts: Texts to put in front of an input, by name.
        default_prompt_name: The prompt used when none is asked for.
    """

    transformer_path: Path
    pooling: Pooling | None = None
    normalize: bool = False
    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None


def read_sentence_settings(folder: Path) -> SentenceSettings:
    """Read what sentence-transformers left in ``folder``; a folder without its files states nothing.

    Raises:
        CheckpointError: A file is broken or contradicts another.
        UnsupportedCheckpointError: A module, an order of modules or a way of pooling that is not
            computed here, named in the message.
    """
    prompts, default_prompt_name = _prompts(folder)
    transformer, pooling_config, normalize = _modules(folder)
    pooling: Pooling | None = None
    if pooling_config is not None:
        pooling = _pooling(pooling_config, has_prompts=any(prompts.values()))
    transformer_config = _transformer_config(transformer)
    return SentenceSettings(
        transformer_path=transformer,
        pooling=pooling,
        normalize=normalize,
        max_seq_length=_max_seq_length(transformer_config, transformer),
        do_lower_case=bool(transformer_config.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=default_prompt_name,
    )


def _modules(folder: Path) -> tuple[Path, Path | None, bool]:
    """The transformer's folder, the pooling configuration, and whether vectors are normalised."""
    path = folder / _MODULES
    if not path.is_file():
        pooling = folder / "1_Pooling" / "config.json"
        return folder, pooling if pooling.is_file() else None, False
    modules = read_json(path)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules
    ):
        raise CheckpointError(f"{path} is not a list of modules with a type and a path each")
    kinds = [_kind(module["type"]) for module in modules]
    if kinds not in (["Transformer"], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        for position, kind in enumerate(kinds):
            if kind not in ("Transformer", "Pooling", "Normalize"):
                where = f"module {position} ({modules[position]['path'] or '.'})"
                raise UnsupportedCheckpointError(
                    f"{path}: {where} is a {kind}, which is not supported, and leaving it out would give "
                    f"other vectors; supported: {_SUPPORTED}"
                )
        raise UnsupportedCheckpointError(
            f"{path} chains {', '.join(kinds) or 'no module'}; supported: {_SUPPORTED}"
        )
    transformer = _inside(folder, modules[0]["path"])
    if len(modules) == 1:
        return transformer, None, False
    return transformer, _inside(folder, modules[1]["path"]) / "config.json", len(modules) == 3


def _kind(type_name: Any) -> str:
    """``sentence_transformers.models.Pooling`` -> ``Pooling``; an author's own classes stay as they are."""
    name = str(type_name)
    return name.rpartition(".")[2] if name.startswith(_PACKAGE) else name


def _inside(folder: Path, relative: Any) -> Path:
    path = PurePosixPath(str(relative))
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"{folder / _MODULES} names a folder outside its own: {relative}")
    return folder / path


def _pooling(path: Path, *, has_prompts: bool) -> Pooling:
    config = read_json_object(path)
    named = config.get("pooling_mode")
    if named is None:
        modes = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
    else:
        modes = [str(mode) for mode in named] if isinstance(named, list | tuple) else str(named).split("+")
    if has_prompts and config.get("include_prompt") is False:
        raise UnsupportedCheckpointError(
            f"{path} leaves the prompt's tokens out of pooling (include_prompt false), which is not supported"
        )
    match modes:
        case ["cls"]:
            return "cls"
        case ["mean"]:
            return "mean"
        case _:
            raise UnsupportedCheckpointError(
                f"{path} asks for pooling {' + '.join(modes) or 'of no kind'}; supported: cls, mean"
            )


def _transformer_config(transformer: Path) -> dict[str, Any]:
    # sentence_bert_config.json; early releases wrote the family's name instead of "bert".
    for path in sorted(transformer.glob("sentence_*_config.json")):
        return read_json_object(path)
    return {}


def _max_seq_length(config: Mapping[str, Any], transformer: Path) -> int | None:
    length = config.get("max_seq_length")
    if length is None:
        return None
    if not isinstance(length, int) or length < 1:
        raise CheckpointError(f"{transformer}: max_seq_length must be a positive number, not {length!r}")
    return length


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    path = folder / "config_sentence_transformers.json"
    if not path.is_file():
        return {}, None
    config = read_json_object(path)
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{path}: prompts must map names to texts")
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise CheckpointError(
            f"{path}: default_prompt_name {default!r} is none of its prompts ({', '.join(prompts) or 'none'})"
        )
    return prompts, default
