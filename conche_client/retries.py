"""Which calls are sent again, and when. Pure: nothing here sends or sleeps."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

_RETRIED_STATUSES: Final = frozenset({429, 503})
# Raised before anything was sent: the server cannot have begun.
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_BROKEN: Final = (httpx.NetworkError, httpx.RemoteProtocolError)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and how patiently, a call is sent again.

    Sent again are: any call that could not be sent, or that was answered 429, which says that nothing was
    started; and calls that may be repeated without harm, if the connection broke or the answer was 503. A
    call that took longer than the client's ``timeout_s`` is not.

    Attributes:
        most: times after the first; 0 = never.
        first_wait_s: about how long before the first of them, if the server does not say; each later wait is
            twice as long.
        longest_wait_s: of one wait. A server that asks for more is not waited for.
        jitter: a number of [0, 1); parts callers that were refused together.
    """

    most: int = 3
    first_wait_s: float = 0.25
    longest_wait_s: float = 20.0
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if self.most < 0 or self.first_wait_s < 0 or self.longest_wait_s < 0:
            raise ValueError(f"retries cannot be negative: {self}")

    def wait_s(self, tried: int, hint_s: float | None = None) -> float | None:
        """How long to wait after so many tries, 1 or more; None = give up.

        Args:
            tried: tries that have failed.
            hint_s: what the server asks for.
        """
        if tried > self.most:
            return None
        if hint_s is not None:
            # Never sooner than asked for, and a little later, or all come back in the same moment.
            return None if hint_s > self.longest_wait_s else hint_s * (1 + 0.25 * self.jitter())
        return float(min(self.longest_wait_s, self.first_wait_s * 2 ** (tried - 1)) * (1 + self.jitter()) / 2)


def retried_status(status: int, *, repeatable: bool) -> bool:
    """Whether a call with this answer is worth another try."""
    return status in _RETRIED_STATUSES and (repeatable or status == 429)


def retried_failure(error: httpx.RequestError, *, repeatable: bool) -> bool:
    """Whether a call without an answer is worth another try."""
    return isinstance(error, _NEVER_SENT) or (repeatable and isinstance(error, _BROKEN))


def hint_s(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Seconds that an answer asks to wait, at least 0; None if it does not say.

    Args:
        headers: names in lower case, or a mapping that does not mind. ``retry-after-ms`` goes first; it is
            finer than ``retry-after``, which is in whole seconds or a date (RFC 9110, section 10.2.3).
        now: for a date; the clock's time if not given.
    """
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())
