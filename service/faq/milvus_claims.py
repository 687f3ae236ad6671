"""One writer at a time for each FAQ collection in Milvus, and writes that happen wholly or never.

How versions are claimed and sealed, and why that needs no clock, is told in `service.faq.milvus_schema`. The
lease only decides how long a writer is waited for; a write that was given up too early fails and leaves
nothing.
"""

import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from service.errors import ServiceError, UnavailableError
from service.faq.milvus_connection import MilvusConnection, ServerRefusedError
from service.faq.milvus_heads import MilvusHeads
from service.faq.milvus_schema import Head, Names, create_owner, head_keys

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.02
_DAY_S: Final = 24 * 3600.0
# What a process left that ended without closing its store; a living one makes itself a new one every day.
_OWNERS_KEPT_S: Final = 7 * _DAY_S


class Claim:
    """The right to write one version of one FAQ collection.

    Attributes:
        name: of the FAQ collection.
        version: all rows of this write carry it.
        voids: versions that never happened and that the newest head does not know of.
    """

    def __init__(self, claims: "MilvusClaims", name: str, version: int, voids: tuple[int, ...]) -> None:
        self._claims = claims
        self.name = name
        self.version = version
        self.voids = voids
        self.sealed = False
        self.in_doubt = False  # the seal may be on its way
        self.dirty = False  # rows of it may be in Milvus
        self.beats = 0
        self._beaten_at = time.monotonic()

    def beat(self) -> None:
        """Show that this write goes on; to be called often, it does little."""
        if time.monotonic() - self._beaten_at > self._claims.beat_every_s:
            self._claims.beat(self)
            self._beaten_at = time.monotonic()

    def seal(self) -> None:
        """Commit: from now on everybody sees this version.

        Raises:
            UnavailableError: another writer gave this one up, so nothing was written; or there was no answer,
                and nobody can tell.
        """
        self._claims.seal(self)


class MilvusClaims:
    """Takes and settles versions.

    Args:
        milvus: connected.
        names: of this Conche.
        heads: of the FAQ collections.
        lease_s: after which a writer that shows no sign of life is given up.
        wait_s: how long another writer is waited for; longer than the lease, or a dead one blocks for ever.
    """

    def __init__(
        self, milvus: MilvusConnection, names: Names, heads: MilvusHeads, *, lease_s: float, wait_s: float
    ) -> None:
        self._milvus = milvus
        self._names = names
        self._heads = heads
        self._lease_s = lease_s
        self.beat_every_s = lease_s / 4
        self._wait_s = max(wait_s, lease_s + 5.0)
        self._lock = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._owner = ""
        self._owner_made_at = 0.0

    @contextmanager
    def writing(self, name: str) -> Iterator[Claim]:
        """Be the only writer of ``name``, until the block ends; what is not sealed by then never happened.

        Raises:
            UnavailableError: others wrote for too long.
        """
        with self._lock:
            lock = self._locks[name]
        if not lock.acquire(timeout=self._wait_s):
            raise self._busy(name)
        try:
            claim = self._claim(name)
            try:
                yield claim
            finally:
                self._let_go(claim)
        finally:
            lock.release()

    def beat(self, claim: Claim) -> None:
        """See `Claim.beat`."""
        claim.beats += 1
        self._milvus.make_alias(self._own(), self._names.beat(claim.name, claim.version, claim.beats))
        self._milvus.drop_alias(self._names.beat(claim.name, claim.version, claim.beats - 1))

    def seal(self, claim: Claim) -> None:
        """See `Claim.seal`."""
        seal = self._names.seal(claim.name, claim.version)
        try:
            done = self._milvus.make_alias(self._names.heads, seal)
        except UnavailableError:
            claim.in_doubt = True
            raise UnavailableError(
                f"Milvus did not answer when a write to {claim.name} was to be settled; "
                "read it again to see whether it happened"
            ) from None
        if not done or self._is_void(claim):
            raise UnavailableError(
                f"a write to {claim.name} stood still for longer than another writer waits "
                f"({self._lease_s:g} s) and was given up; nothing was written, try again"
            )
        claim.sealed = True

    def forget_older(self, head: Head, before: Head | None) -> None:
        """Remove the aliases and the head that ``head`` has taken the place of."""
        names = self._names
        for alias in self._milvus.aliases():
            settled = names.sealed(alias) or names.claimed(alias) or names.beaten(alias)
            if settled and settled[0] == head.name and settled[1] < head.version:
                self._milvus.drop_alias(alias)
        if before is not None:
            self._milvus.delete(names.heads, head_keys(before))

    def close(self) -> None:
        """Remove what claims pointed to."""
        with self._lock:
            owner, self._owner = self._owner, ""
        if owner:
            with suppress(ServiceError):
                self._milvus.drop(owner)

    def _claim(self, name: str) -> Claim:
        ends_at = time.monotonic() + self._wait_s
        seen: tuple[int, str, list[str]] | None = None
        seen_at = 0.0
        while True:
            newest, voids = self._settled(name)
            version = newest + 1
            alias = self._names.claim(name, version)
            if self._take(alias):
                # Between the look and the claim another one may have claimed, sealed and gone.
                newest, voids = self._settled(name)
                if newest < version:
                    return Claim(self, name, version, voids)
                self._milvus.drop_alias(alias)
                continue
            now = time.monotonic()
            holder = (version, self._milvus.alias_target(alias) or "", self._beats(name))
            if holder != seen:
                seen, seen_at = holder, now
            elif now - seen_at > self._lease_s:
                logger.warning("a writer of FAQ collection %s shows no sign of life and is given up", name)
                self._milvus.make_alias(self._names.entries, self._names.seal(name, version))
                self._milvus.drop_alias(alias)
                continue
            if now > ends_at:
                raise self._busy(name)
            time.sleep(_POLL_S)

    def _beats(self, name: str) -> list[str]:
        """The signs of life of writers of ``name``."""
        return [
            alias
            for alias in self._milvus.aliases()
            if (beaten := self._names.beaten(alias)) and beaten[0] == name
        ]

    def _settled(self, name: str) -> tuple[int, tuple[int, ...]]:
        """The newest version of ``name`` that is settled either way, and those that are void."""
        done = self._heads.newest().get(name, 0)
        voids = {
            sealed[1]
            for alias in self._milvus.aliases(self._names.entries)
            if (sealed := self._names.sealed(alias)) and sealed[0] == name
        }
        return max([done, *voids]), tuple(sorted(voids))

    def _take(self, alias: str) -> bool:
        try:
            return self._milvus.make_alias(self._own(), alias)
        except ServerRefusedError:
            with self._lock:  # somebody cleaned up and took us for dead
                self._owner = ""
            return self._milvus.make_alias(self._own(), alias)

    def _own(self) -> str:
        with self._lock:
            if not self._owner or time.time() - self._owner_made_at > _DAY_S:
                self._owner_made_at = time.time()
                owner = self._names.owner(f"{int(self._owner_made_at)}_{secrets.token_hex(6)}")
                self._milvus.make(lambda client: create_owner(client, owner), owner)
                self._owner = owner
                self._drop_old_owners()
            return self._owner

    def _drop_old_owners(self) -> None:
        start = self._names.owner("")
        for name in self._milvus.collections():
            made_at = name.removeprefix(start).split("_")[0]
            if (
                name.startswith(start)
                and made_at.isdecimal()
                and time.time() - int(made_at) > _OWNERS_KEPT_S
                and not self._milvus.aliases(name)
            ):
                self._milvus.drop(name)

    def _is_void(self, claim: Claim) -> bool:
        """Whether a later version was settled that knows this one as void, although its alias had gone."""
        newest = self._heads.newest().get(claim.name, 0)
        if newest <= claim.version:
            return False
        head = self._heads.head(claim.name)
        return head is not None and claim.version in head.voids

    def _let_go(self, claim: Claim) -> None:
        try:
            if not claim.in_doubt:
                if claim.dirty and not claim.sealed:
                    self._milvus.make_alias(self._names.entries, self._names.seal(claim.name, claim.version))
                if claim.beats:
                    self._milvus.drop_alias(self._names.beat(claim.name, claim.version, claim.beats))
                self._milvus.drop_alias(self._names.claim(claim.name, claim.version))
                return
        except ServiceError as error:
            # What is to be said about the write itself matters more.
            logger.warning("a claim on FAQ collection %s could not be let go: %s", claim.name, error)
        # The claim stays, and whoever waits for it settles it after the lease. So must this writer,
        # which under its old name would take it for a new claim and write among the rows of the old one.
        with self._lock:
            self._owner = ""

    def _busy(self, name: str) -> UnavailableError:
        return UnavailableError(f"FAQ collection {name} is busy with another writer; try again")
