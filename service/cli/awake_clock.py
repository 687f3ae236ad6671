"""A clock for deadlines that others are held to: it stands still while nothing could run.

A frozen container, SIGSTOP, a machine that sleeps: the system's clocks go on in some of these, and afterwards
every deadline would be over at once, for those as well who had no time to do what was asked of them.
"""

import time
from collections.abc import Callable
from typing import Final

_LONGEST_STEP_S: Final = 1.0


class AwakeClock:
    """Counts no step from one look to the next as longer than a second; so it is to be looked at more often.

    Args:
        tell: the clock underneath, in seconds.
    """

    def __init__(self, tell: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._looked_at = tell()
        self._now = 0.0

    def now(self) -> float:
        """Seconds since it was made."""
        told = self._tell()
        self._now += min(told - self._looked_at, _LONGEST_STEP_S)
        self._looked_at = told
        return self._now
