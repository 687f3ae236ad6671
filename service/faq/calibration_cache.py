"""Calibrations on disk: a model is measured once, and every later start reads what came of it."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from service.faq.calibration import FEATURES, Calibration, texts_to_measure
from service.faq.json_files import write_json

logger = logging.getLogger(__name__)

# To be raised with any change of how a calibration is fitted or applied: older files are then measured anew.
_PROCEDURE: Final = 2


class CalibrationCache:
    """Files of calibrations, one a model.

    Args:
        folder: made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, fingerprint: str) -> Calibration | None:
        """The calibration of the model; None if it is not there or was made otherwise.

        A file that cannot be read is passed over: it can be made again.
        """
        path = self._path(fingerprint)
        try:
            record: Any = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("calibration %s cannot be read and is made anew: %s", path, error)
            return None
        if not isinstance(record, Mapping) or record.get("made_by") != _made_by():
            return None
        try:
            return Calibration.from_dict(record["calibration"])
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("calibration %s is damaged and is made anew: %s", path, error)
            return None

    def save(self, fingerprint: str, calibration: Calibration) -> None:
        """Keep a calibration; the file is whole or not there. A folder that takes none is no error."""
        path = self._path(fingerprint)
        try:
            write_json(path, {"made_by": _made_by(), "calibration": calibration.as_dict()})
        except OSError as error:
            logger.warning("calibration %s cannot be kept and is made anew next time: %s", path, error)

    def _path(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.json"


def _made_by() -> str:
    """Digest of what a calibration is fitted on and how."""
    parts = [str(_PROCEDURE), *FEATURES, *texts_to_measure()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
