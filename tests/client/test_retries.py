"""Which calls are sent again, and after how long."""

from datetime import UTC, datetime

import httpx
import pytest

from conche_client import Retries
from conche_client.retries import hint_s, retried_failure, retried_status

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_waits_double_are_jittered_and_bounded() -> None:
    """Half of each is by chance, so that callers refused together do not come back together."""
    least = Retries(most=4, first_wait_s=1, longest_wait_s=5, jitter=lambda: 0.0)
    longest = Retries(most=4, first_wait_s=1, longest_wait_s=5, jitter=lambda: 1.0)
    assert [least.wait_s(tried) for tried in range(1, 6)] == [0.5, 1, 2, 2.5, None]
    assert [longest.wait_s(tried) for tried in range(1, 6)] == [1, 2, 4, 5, None]


def test_the_servers_hint_is_a_lower_bound() -> None:
    """Sooner would be refused again."""
    retries = Retries(longest_wait_s=10, jitter=lambda: 0.5)
    assert retries.wait_s(1, 2.0) == 2.25
    assert Retries(jitter=lambda: 0.0).wait_s(1, 2.0) == 2.0


def test_a_hint_beyond_the_callers_patience_ends_the_tries() -> None:
    """The error says how long; the caller decides."""
    assert Retries(longest_wait_s=10).wait_s(1, 10.5) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:07 GMT"}, 7),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "tomorrow"}, None),
    ],
)
def test_hints_are_read_in_all_their_forms(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds, seconds or a date; nonsense of a proxy is no hint."""
    assert hint_s(headers, now=NOW) == seconds


def test_only_what_cannot_do_harm_twice_is_repeated() -> None:
    """429 says that nothing was begun; 503 and a broken connection leave that open."""
    assert retried_status(429, repeatable=False)
    assert not retried_status(503, repeatable=False)
    assert retried_status(503, repeatable=True)
    assert not any(retried_status(status, repeatable=True) for status in (400, 404, 409, 422, 500))
    assert retried_failure(httpx.ConnectError("refused"), repeatable=False)
    assert not retried_failure(httpx.ReadError("reset"), repeatable=False)
    assert retried_failure(httpx.ReadError("reset"), repeatable=True)
    assert retried_failure(httpx.RemoteProtocolError("closed"), repeatable=True)
    assert not retried_failure(httpx.ReadTimeout("slow"), repeatable=True)


@pytest.mark.parametrize("wrong", [{"most": -1}, {"first_wait_s": -0.1}, {"longest_wait_s": -1.0}])
def test_negative_numbers_are_refused(wrong: dict[str, float]) -> None:
    """They would mean nothing."""
    with pytest.raises(ValueError, match="negative"):
        Retries(**wrong)  # type: ignore[arg-type]
