"""The file of API keys: made, kept as digests, read again when it changes; and what each key may use."""

import json
import logging
import os
import select
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from service.api_keys import (
    ApiKey,
    KeyFile,
    KeyFileError,
    KeyHolder,
    KeyRing,
    change_keys,
    new_key,
    read_keys,
    write_keys,
)
from service.errors import RateLimitedError, TooManyConcurrentError


class Clock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.now


def write(path: Path, *records: ApiKey) -> None:
    """A file of these keys."""
    write_keys(path, KeyFile(keys=records))


def test_a_key_has_256_random_bits_and_is_not_in_its_file(tmp_path: Path) -> None:
    """A copy of the file, in a backup say, opens nothing."""
    key, record = new_key("shop", ["read"])
    assert len(key.removeprefix("conche_")) == 43  # 32 bytes in base64
    assert key != new_key("shop", ["read"])[0]
    path = tmp_path / "keys.json"
    write(path, record)
    assert key not in path.read_text()
    assert read_keys(path).keys == (record,)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]


# Changes the file when it is told to, and stops in the middle until it is told to go on.
_CHANGER = """
import sys
from pathlib import Path
from service.api_keys import KeyFile, change_keys, new_key

path, name = Path(sys.argv[1]), sys.argv[2]

def change(file):
    print(f"read {len(file.keys)}", flush=True)
    sys.stdin.readline()
    return KeyFile(keys=(*file.keys, new_key(name, ["read"])[1]))

print("here", flush=True)
sys.stdin.readline()
change_keys(path, change, create=True)
"""


def test_two_processes_change_the_file_one_after_the_other(tmp_path: Path) -> None:
    """Or the second would put back what it read before the first was done; a link makes no difference."""
    path, link = tmp_path / "keys.json", tmp_path / "link.json"
    link.symlink_to(path)
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", _CHANGER, str(where), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for where, name in ((path, "first"), (link, "second"))
    )
    _expect(first, "here")
    _expect(second, "here")
    _tell(first)
    _expect(first, "read 0")
    _tell(second)
    # The time is for a second one that does not wait to be seen; one that waits says nothing in any time.
    assert select.select([second.stdout], [], [], 1.0)[0] == []
    _tell(first)
    _expect(second, "read 1")
    _tell(second)
    assert [process.wait(timeout=120) for process in (first, second)] == [0, 0]
    assert [record.name for record in read_keys(path).keys] == ["first", "second"]
    assert link.is_symlink()


def _expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == line + "\n"


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_lock_that_another_holds_for_ever_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped in the middle must not hang every later one; the file stays as it is."""
    path = tmp_path / "keys.json"
    write(path, new_key("a", ["read"])[1])
    before = path.read_bytes()
    monkeypatch.setattr("service.api_keys._LOCK_PATIENCE_S", 0.0)

    def change_within(file: KeyFile) -> KeyFile:
        with pytest.raises(KeyFileError, match=r"another process"):
            change_keys(path, lambda inner: inner)
        raise LookupError

    with pytest.raises(LookupError):
        change_keys(path, change_within)
    assert path.read_bytes() == before
    change_keys(path, lambda file: KeyFile(keys=()))  # the lock went with its holder
    assert read_keys(path).keys == ()


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    """Deployments point a link at the current file."""
    link = tmp_path / "keys.json"
    link.symlink_to(tmp_path / "real.json")
    write(link, new_key("a", ["read"])[1])
    write(link, new_key("b", ["read"])[1])
    assert link.is_symlink()
    assert read_keys(tmp_path / "real.json").keys[0].name == "b"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"", "Invalid JSON"),
        (b'{"keys": [{}]}', "keys.0.name"),
        (b'{"key": []}', "keys"),
        (b"[" * 2_000_000, "larger than"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_place(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    """And with its name."""
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyFileError, match=said) as caught:
        KeyRing(path)
    assert str(path) in str(caught.value)


def test_a_refusal_never_quotes_the_file(tmp_path: Path) -> None:
    """Somebody may have put the key itself where its digest belongs; logs are read by many."""
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "a", "sha256": "conche_secret", "scopes": ["read"]}]}))
    with pytest.raises(KeyFileError) as caught:
        read_keys(path)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("same", ["name", "sha256"])
def test_two_keys_are_told_apart(tmp_path: Path, same: str) -> None:
    """Else one has the other's scopes."""
    first, second = new_key("a", ["read"])[1], new_key("b", ["write"])[1]
    path = tmp_path / "keys.json"
    records = [first.model_dump(mode="json"), second.model_dump(mode="json")]
    records[1][same] = records[0][same]
    path.write_text(json.dumps({"keys": records}))
    with pytest.raises(KeyFileError, match=f"the same {same}"):
        read_keys(path)


def test_a_name_must_do_as_a_label_of_a_metric() -> None:
    """It stands in logs and metrics."""
    for name in ("", "a b", 'a"', "x" * 65, "\n"):
        with pytest.raises(KeyFileError, match="name"):
            new_key(name, ["read"])


def test_a_changed_file_is_in_force_without_a_restart(tmp_path: Path) -> None:
    """A new key is taken and a removed one refused, a second later at most."""
    path, clock = tmp_path / "keys.json", Clock()
    old_key, old = new_key("old", ["read"])
    fresh_key, fresh = new_key("fresh", ["write"])
    write(path, old)
    ring = KeyRing(path, clock=clock)
    found = ring.find(old_key.encode())
    assert found is not None
    assert found.key == old
    write(path, fresh)
    clock.now += 0.5
    assert ring.find(fresh_key.encode()) is None  # not looked at yet: no file is read for every request
    clock.now += 0.6
    assert ring.find(fresh_key.encode()) is not None
    assert ring.find(old_key.encode()) is None
    assert len(ring) == 1


@pytest.mark.parametrize("slip", ["gone", "half", "forbidden"])
def test_a_slip_in_the_file_leaves_the_old_keys_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, slip: str
) -> None:
    """Said once in the log and counted; nobody is locked out, and nobody let in."""
    path, clock = tmp_path / "keys.json", Clock()
    key, record = new_key("shop", ["read"])
    write(path, record)
    failures: list[None] = []
    ring = KeyRing(path, clock=clock, on_reload_failure=lambda: failures.append(None))
    if slip == "gone":
        path.unlink()
    else:
        path.write_text('{"keys": [' if slip == "half" else '{"keys": [{"name": "x"}]}')
    for _ in range(3):
        clock.now += 2
        assert ring.find(key.encode()) is not None
    assert len(failures) == 1
    (line,) = [logged for logged in caplog.records if logged.levelno == logging.ERROR]
    assert "the old ones stay in force" in line.getMessage()
    write(path, record.model_copy(update={"name": "again"}))
    clock.now += 2
    found = ring.find(key.encode())
    assert found is not None
    assert found.key.name == "again"


def test_no_key_is_like_none_that_is_known(tmp_path: Path) -> None:
    """Nor is a digest a key."""
    path = tmp_path / "keys.json"
    _, record = new_key("shop", ["read"])
    write(path, record)
    ring = KeyRing(path)
    for presented in (b"", b"\xff", record.sha256.encode(), b"conche_"):
        assert ring.find(presented) is None


def holder(clock: Clock, **limits: int) -> KeyHolder:
    """Of a key with these limits."""
    return KeyHolder(new_key("shop", ["read"], **limits)[1], clock)


def test_a_minutes_worth_may_come_at_once_and_comes_back_evenly() -> None:
    """A burst is no offence; and the answer says when the next one is taken."""
    clock = Clock()
    shop = holder(clock, requests_per_minute=30)
    for _ in range(30):
        shop.begin()
        shop.end()
    with pytest.raises(RateLimitedError, match="30 requests a minute") as caught:
        shop.begin()
    assert caught.value.retry_after_s == pytest.approx(2)
    assert shop.in_work == 0
    clock.now += 2
    shop.begin()
    with pytest.raises(RateLimitedError):
        shop.begin()
    clock.now += 3600  # never more than a minute's worth
    for _ in range(30):
        shop.begin()
    with pytest.raises(RateLimitedError):
        shop.begin()


def test_requests_in_work_are_bounded_and_a_refusal_costs_nothing() -> None:
    """What was not begun must not be counted against the rate."""
    clock = Clock()
    shop = holder(clock, concurrent_requests=1, requests_per_minute=2)
    shop.begin()
    for _ in range(5):
        with pytest.raises(TooManyConcurrentError, match="1 request in work"):
            shop.begin()
    shop.end()
    shop.begin()


def test_a_change_of_another_key_gives_nobody_a_new_allowance(tmp_path: Path) -> None:
    """What a key has used stays used while its record stays."""
    path, clock = tmp_path / "keys.json", Clock()
    key, record = new_key("shop", ["read"], requests_per_minute=1)
    write(path, record)
    ring = KeyRing(path, clock=clock)
    first = ring.find(key.encode())
    assert first is not None
    first.begin()
    os.utime(path, (1, 1))
    write(path, record, new_key("other", ["read"])[1])
    clock.now += 2
    again = ring.find(key.encode())
    assert again is not None
    assert len(ring) == 2
    with pytest.raises(RateLimitedError):
        again.begin()
