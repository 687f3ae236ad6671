"""The process may not have more memory."""

import http.client
import resource
from pathlib import Path

from tests.chaos.served import Answer, Served, serving, until


def _size_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmSize:")[1].split()[0]) * 1024


def _asked(served: Served, body: object) -> Answer | None:
    """The answer; None if native code that found no memory ended the process, which then is started anew."""
    try:
        return served.ask("POST", "/embed", body)
    except (OSError, http.client.HTTPException):
        assert served.wait() < 0, "it ended by a signal, and only so may an answer be missing"
        served.start()
        return None


def test_a_request_for_which_there_is_no_memory_fails_alone(folder: Path) -> None:
    """An error in JSON, or a process from which the next takes over; with room again it is served."""
    large = {"inputs": ["hello world " * 10_000] * 10, "truncate": True}
    small_ones: list[Answer] = []
    with serving(folder, "--recycle-seconds", "none") as served:
        assert served.embed().status == 200
        soft, hard = resource.prlimit(served.process.pid, resource.RLIMIT_AS)
        resource.prlimit(
            served.process.pid, resource.RLIMIT_AS, (_size_bytes(served.process.pid) + (1 << 20), hard)
        )
        answer = _asked(served, large)
        if answer is not None:
            assert answer.status in {200, 429, 500, 503}
            assert answer.status == 200 or answer.json()["code"]
            resource.prlimit(served.process.pid, resource.RLIMIT_AS, (soft, hard))
        until(lambda: small_ones.append(served.embed()) or small_ones[-1].status == 200, "a small answer")
        assert served.process.poll() is None
        assert served.ask("POST", "/embed", large).status == 200
        assert served.stop() == 0
