"""Callers that are too many, too slow, half there, or too large; and a clock that jumps."""

import socket
import threading
from pathlib import Path

from tests.chaos.served import HANG_S, Answer, serving, until

ROOM = 8


def test_ten_times_too_much_gets_429_and_what_was_taken_is_answered(folder: Path) -> None:
    """Refused at once and with a time to come back; the probes stay green, and so do those who got in."""
    answers: list[Answer] = []
    with serving(folder, "--batching-max-queue-items", str(ROOM)) as served:
        served.say("engine", "hold")
        callers = [
            threading.Thread(target=lambda n=n: answers.append(served.embed(f"order {n}")))  # type: ignore[misc]
            for n in range(10 * ROOM)
        ]
        for caller in callers:
            caller.start()
        # As many as may wait, and the batch that is running.
        until(lambda: len(answers) >= 10 * ROOM - 2 * ROOM, "the refusals")
        assert {answer.status for answer in answers} == {429}
        assert served.ask("GET", "/livez").status == 200
        assert served.ask("GET", "/readyz").status == 200
        served.unsay("engine")
        for caller in callers:
            caller.join(HANG_S)
        assert served.embed().status == 200
    taken = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(taken) + len(refused) == 10 * ROOM
    assert 1 <= len(taken) <= 2 * ROOM
    assert {answer.json()["code"] for answer in refused} == {"overloaded"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def _all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    return received


def test_slow_and_half_open_callers_are_cut_and_cost_the_others_nothing(folder: Path) -> None:
    """A head or a body that does not come, and callers that went without a word."""
    head = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 20\r\n"
    beginnings = {"nothing": b"", "head": head, "body": head + b"\r\n{"}
    flags = ("--limits-header-seconds", "2", "--limits-body-seconds", "2")
    with serving(folder, *flags) as served:

        def connect(sent: bytes) -> socket.socket:
            connection = socket.create_connection(("127.0.0.1", served.port), timeout=HANG_S)
            connection.sendall(sent)
            return connection

        slow = {name: [connect(sent) for _ in range(20)] for name, sent in beginnings.items()}
        for connection in [connect(head + b"\r\n{") for _ in range(20)]:
            connection.close()
        assert [served.embed().status for _ in range(10)] == [200] * 10
        answers = {name: [_all(one) for one in connections] for name, connections in slow.items()}
        assert set(answers["nothing"]) == {b""}
        for name in ("head", "body"):
            assert {answer.split(b"\r\n")[0] for answer in answers[name]} == {b"HTTP/1.1 408 Request Timeout"}
        page = "\nconche_connections 1.0\n"  # the one that asks
        until(lambda: page in served.ask("GET", "/metrics").body.decode(), "all others closed")
        assert served.stop() == 0


def test_a_clock_that_jumps_moves_no_deadline(folder: Path) -> None:
    """Requests in work, the limits of keys and the stall watch go by a clock that cannot be set."""
    from service.api_keys import KeyFile, change_keys, new_key

    key, record = new_key("shop", ("read",), requests_per_minute=3)
    keys = folder / "keys.json"
    change_keys(keys, lambda file: KeyFile(keys=(*file.keys, record)), create=True)
    headers = {"x-api-key": key}
    year = 365 * 24 * 3600
    statuses: list[int] = []
    with serving(folder, variables={"CONCHE_API_KEYS_FILE": str(keys)}) as served:

        def embed() -> int:
            return served.ask("POST", "/embed", {"inputs": "hello"}, **headers).status

        for place, jump in enumerate((year, -year)):
            (folder / "held").unlink(missing_ok=True)
            served.say("engine", "hold")
            in_work = threading.Thread(target=lambda: statuses.append(embed()))
            in_work.start()
            until((folder / "held").exists, "a run in work")
            served.say("clock", str(jump))
            assert served.ask("GET", "/readyz").status == 200
            served.unsay("engine")
            in_work.join(HANG_S)
            assert statuses == [200] * (place + 1)
        assert embed() == 200
        for jump in (year, -year, 0):
            served.say("clock", str(jump))
            assert embed() == 429  # three a minute, whatever the clock says
        assert served.ask("GET", "/readyz").status == 200
        assert served.stop() == 0


def _peak_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0])


def test_requests_that_are_too_large_are_refused_and_take_no_memory(folder: Path) -> None:
    """What is sent without an end, and what says that it is huge: the memory of the process hardly moves."""
    head = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    piece = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"  # 1 MiB, as a chunk
    with serving(folder, "--limits-max-body-bytes", str(4 << 20)) as served:
        assert served.embed().status == 200
        before = _peak_kib(served.process.pid)

        def endless() -> bytes:
            connection = socket.create_connection(("127.0.0.1", served.port), timeout=HANG_S)
            connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
            try:
                for _ in range(64):
                    connection.sendall(piece)
            except OSError:  # refused meanwhile
                pass
            return connection.recv(100)

        for _ in range(3):
            assert endless().startswith(b"HTTP/1.1 413 ")
        huge = b"content-length: 1000000000000\r\nexpect: 100-continue\r\n\r\n"
        with socket.create_connection(("127.0.0.1", served.port), timeout=HANG_S) as connection:
            connection.sendall(head + huge)
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
        many = {"inputs": ["a"] * 100_000}
        assert served.ask("POST", "/embed", many).status == 422
        assert served.embed().status == 200
        # Bounded by the limit on a body, not by the 64 MiB of each.
        assert _peak_kib(served.process.pid) - before < 48 << 10
        assert served.stop() == 0
