"""JSON files beside a checkpoint's weights, read so that a broken one is named."""

import json
from pathlib import Path
from typing import Any

from model.encoder.errors import CheckpointError


def read_json(path: Path) -> Any:
    """Parse the JSON file ``path``.

    Raises:
        CheckpointError: Not there, not UTF-8, or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON in UTF-8: {error}") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse the JSON file ``path``, which must hold an object.

    Raises:
        CheckpointError: Not there, not JSON, or another kind of value.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value
