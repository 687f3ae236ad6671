"""What can be wrong with a checkpoint, as types.

CheckpointError
├── UnsupportedCheckpointError   sound, but of a kind this package does not compute
└── WeightsError                 its tensors do not fit the encoder its configuration describes
"""

from collections.abc import Sequence


class CheckpointError(Exception):
    """A checkpoint that cannot be read; the message names the file and what to do."""


class UnsupportedCheckpointError(CheckpointError):
    """A checkpoint whose network, pooling or tokeniser this package cannot reproduce exactly.

    Refused because a near miss would load, run, and give vectors that are quietly wrong.
    """


class WeightsError(CheckpointError):
    """Tensors and encoder do not match; every mismatch of the load is listed.

    Attributes:
        unknown: Names in the checkpoint that no table row maps or drops.
        missing: Parameters of the encoder that no tensor of the checkpoint fills.
        misshapen: Tensors of a wrong shape, type or content, each with both sides of the mismatch.
    """

    def __init__(
        self, source: str, *, unknown: Sequence[str], missing: Sequence[str], misshapen: Sequence[str]
    ) -> None:
        self.unknown = tuple(unknown)
        self.missing = tuple(missing)
        self.misshapen = tuple(misshapen)
        lines = [f"the weights of {source} do not fit the encoder that its config.json describes:"]
        for title, names in (
            ("unknown tensors", self.unknown),
            ("missing tensors", self.missing),
            ("unusable tensors", self.misshapen),
        ):
            if names:
                lines.append(f"  {title} ({len(names)}):")
                lines.extend(f"    {name}" for name in names)
        super().__init__("\n".join(lines))
