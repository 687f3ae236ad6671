"""API keys: the operator's file of digests, read again when it changes; and what each key may use.

The file, written by ``conche keys``::

    {"keys": [{"name": "shop", "sha256": "<64 hex digits>", "scopes": ["read"], "requests_per_minute": 600,
               "concurrent_requests": null, "created_at": "2026-01-31T12:00:00Z"}]}

A key is 256 random bits, so its plain SHA-256 is what is kept: the slow, salted hashes that passwords need
are there because people choose passwords that can be guessed. Nobody guesses 256 random bits, however fast
the hash, and no two keys are alike, so a salt would tell nothing apart.
"""

import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal, Self, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from service.errors import RateLimitedError, TooManyConcurrentError

logger = logging.getLogger(__name__)

Scope = Literal["read", "write", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

MAX_KEYS: Final = 1000
_MAX_FILE_BYTES: Final = 1024 * 1024
_PREFIX: Final = "conche_"  # by which scanners for leaked secrets find it
_LOOK_EVERY_S: Final = 1.0
# A change takes milliseconds; whoever holds the lock for longer is stopped, or gone wrong.
_LOCK_PATIENCE_S: Final = 10.0
_LOCK_STEP_S: Final = 0.01


class KeyFileError(Exception):
    """The file cannot be used; the message names it, and never quotes what it holds."""


class ApiKey(BaseModel):
    """One key, as the file has it: never the key itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    scopes: frozenset[Scope] = Field(min_length=1)
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    concurrent_requests: int | None = Field(default=None, ge=1, le=100_000)
    created_at: datetime


class KeyFile(BaseModel):
    """What the file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[ApiKey, ...] = Field(max_length=MAX_KEYS)

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        for what in ("name", "sha256"):
            values = [getattr(key, what) for key in self.keys]
            if len(set(values)) < len(values):
                raise ValueError(f"two keys have the same {what}")
        return self


def new_key(
    name: str,
    scopes: Iterable[Scope],
    *,
    requests_per_minute: int | None = None,
    concurrent_requests: int | None = None,
) -> tuple[str, ApiKey]:
    """Make a key of 256 random bits.

    Returns:
        The key, which is kept nowhere, and its record.

    Raises:
        KeyFileError: the name or a limit is out of bounds.
    """
    key = _PREFIX + secrets.token_urlsafe(32)
    try:
        record = ApiKey(
            name=name,
            sha256=hashlib.sha256(key.encode()).hexdigest(),
            scopes=frozenset(scopes),
            requests_per_minute=requests_per_minute,
            concurrent_requests=concurrent_requests,
            created_at=datetime.now(UTC).replace(microsecond=0),
        )
    except ValidationError as error:
        raise KeyFileError(_fault(error)) from None
    return key, record


def read_keys(path: Path) -> KeyFile:
    """The keys of a file.

    Raises:
        KeyFileError: it cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise KeyFileError(f"{path} is larger than {_MAX_FILE_BYTES} bytes")
    try:
        return KeyFile.model_validate_json(content)
    except ValidationError as error:
        raise KeyFileError(f"{path}: {_fault(error)}") from None  # the cause quotes the file


def change_keys(path: Path, change: Callable[[KeyFile], KeyFile], *, create: bool = False) -> None:
    """Put what ``change`` makes of the file's keys in their place; two at once come one after the other.

    Readers do without the lock, since the file is replaced in one step. It is a lock on the folder: one on
    the file would be on what was just replaced.

    Args:
        path: of the file.
        change: may raise, which leaves the file as it is.
        create: whether a file that is not there counts as one without keys.

    Raises:
        KeyFileError: it cannot be read, locked or written.
    """
    with _locked(path):
        file = KeyFile(keys=()) if create and not path.exists() else read_keys(path)
        write_keys(path, change(file))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    folder = path.resolve().parent  # by whatever link it is reached, it is one file
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be locked: {folder}: {error.strerror}") from error
    try:
        give_up_at = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    raise KeyFileError(
                        f"{path} is being changed by another process, for more than {_LOCK_PATIENCE_S:g} s"
                    ) from None
                time.sleep(_LOCK_STEP_S)
            except OSError as error:
                raise KeyFileError(f"{path} cannot be locked: {error.strerror}") from error
        yield
    finally:
        os.close(descriptor)  # and the lock with it


def write_keys(path: Path, keys: KeyFile) -> None:
    """Put ``keys`` in the place of the file, in one step; only its owner may read it.

    Raises:
        KeyFileError: it cannot be written.
    """
    ordered = [
        key.model_dump(mode="json") | {"scopes": [scope for scope in SCOPES if scope in key.scopes]}
        for key in keys.keys
    ]
    content = orjson.dumps({"keys": ordered}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    target = path.resolve()  # where a link leads, rather than the link
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise KeyFileError(f"{path} cannot be written: {error.strerror}") from error


class KeyHolder:
    """One key in force, and what it has used.

    Attributes:
        key: its record.
        in_work: requests that have begun and not ended.
    """

    def __init__(self, key: ApiKey, clock: Callable[[], float] = time.monotonic) -> None:
        self.key = key
        self.in_work = 0
        self._clock = clock
        self._left = float(key.requests_per_minute or 0)
        self._counted_at = clock()

    def begin(self) -> None:
        """Count one request as begun; `end` has to follow.

        A key may use a minute's worth at once; what it used comes back evenly over a minute.

        Raises:
            TooManyConcurrentError: as many are in work as it may have at once.
            RateLimitedError: it has used up what it may; says when one more is allowed.
        """
        most = self.key.concurrent_requests
        if most is not None and self.in_work >= most:
            raise TooManyConcurrentError(
                f"this key may have {most} request{'s' if most > 1 else ''} in work at once"
            )
        self._take()
        self.in_work += 1

    def end(self) -> None:
        """Count one request as done."""
        self.in_work -= 1

    def replaced_by(self, key: ApiKey) -> "KeyHolder":
        """The holder for a new record of this name; what is in work is still counted if nothing changed."""
        return self if key == self.key else KeyHolder(key, self._clock)

    def _take(self) -> None:
        rate = self.key.requests_per_minute
        if rate is None:
            return
        now = self._clock()
        self._left = min(float(rate), self._left + (now - self._counted_at) * rate / 60)
        self._counted_at = now
        if self._left < 1:
            raise RateLimitedError(
                f"this key may send {rate} request{'s' if rate > 1 else ''} a minute",
                retry_after_s=(1 - self._left) * 60 / rate,
            )
        self._left -= 1


class KeyRing:
    """The keys in force, as the file has them now.

    The file is looked at when a key is, at most once a second. One that cannot be used leaves the old keys in
    force: a slip while editing must lock nobody out, and let nobody in.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_reload_failure: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file.

        Raises:
            KeyFileError: it cannot be used.
        """
        self._path = path
        self._on_reload_failure = on_reload_failure
        self._clock = clock
        self._stamp = _stamp(path)
        self._looked_at = clock()
        self._holders: list[KeyHolder] = []
        self._put_in_force(read_keys(path))

    def __len__(self) -> int:
        return len(self._holders)

    def find(self, presented: bytes) -> KeyHolder | None:
        """The holder of a key; None if nobody has it.

        All digests are compared, each in constant time: how long it takes tells nothing of any.
        """
        self._look()
        digest = hashlib.sha256(presented).hexdigest()
        found = None
        for holder in self._holders:
            if hmac.compare_digest(digest, holder.key.sha256):
                found = holder
        return found

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._put_in_force(read_keys(self._path))
        except KeyFileError as error:
            logger.error("API keys: %s; the old ones stay in force", error)  # noqa: TRY400 - it quotes nothing
            self._on_reload_failure()
        else:
            logger.info("API keys: %d in force", len(self._holders))

    def _put_in_force(self, file: KeyFile) -> None:
        old = {holder.key.name: holder for holder in self._holders}
        self._holders = [
            old[key.name].replaced_by(key) if key.name in old else KeyHolder(key, self._clock)
            for key in file.keys
        ]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
