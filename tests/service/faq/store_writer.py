"""A program that writes to a store until it is killed, and the plan that it follows.

usage: store_writer.py PATH              (the embedded store)
       store_writer.py URI PREFIX LEASE  (a Milvus server; seconds)

Started once, it forks one writer for each line it reads (``worker first last``), so that a hundred of them
cost one start. With ``commit share`` added, the writer kills itself in that commit of its own, counted from
1, when ``share`` of the time of the commit before has passed: 0 = as it begins, above 1 = when it has
returned and before anything is acknowledged. It prints, a line each, so that a test can follow:

    started PID         the writer runs
    done NUMBER REV     the store has acknowledged that step of the plan
    gone STATUS         the writer has ended; its status, or minus the signal that ended it
"""

import hashlib
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from service.faq import sqlite_file
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import FaqStore, Vector, Write

COLLECTION = "faq"
# The worker whose plan has reindexes: they change all vectors, so it must write alone.
LONER = "loner"


def vectors_of(entries: Iterable[FaqEntry], model: str) -> dict[str, Vector]:
    """Return a unit vector for each text, as ``model`` would make it."""
    return {text: _vector(model, text) for text in texts_to_embed(entries)}


def _vector(model: str, text: str) -> Vector:
    digest = hashlib.sha256(f"{model}\n{text}".encode()).digest()
    vector = np.frombuffer(digest, dtype=np.uint8).astype(np.float32) - np.float32(127.5)
    return vector / np.linalg.norm(vector)


def planned(worker: str, number: int) -> Write | str:
    """Step ``number`` of the worker's plan: a write without its vectors, or the model to reindex with."""
    rng = random.Random(f"{worker} {number}")
    kind = rng.choices(["one", "import", "delete", "mixed", "reindex"], [4, 3, 1, 2, 1])[0]
    if kind == "reindex" and worker == LONER:
        return f"model-{number}"
    if kind == "import":
        # Always the same ids with the number in the text: seeing two numbers is seeing half an import.
        size = 25
        return Write(
            upserts=tuple(
                FaqEntry(id=f"{worker}-batch-{part}", question=f"import {number}", answer=f"part {part}")
                for part in range(size)
            )
        )
    names = rng.sample([f"{worker}-{place}" for place in range(12)], 4)
    upserts = tuple(
        FaqEntry(id=name, question=f"question {number}", answer="answer", alternates=(f"other {name}",))
        for name in (names[:2] if kind == "mixed" else names[:1])
    )
    return Write(
        upserts=() if kind == "delete" else upserts,
        deletes=tuple(names[2:]) if kind in {"delete", "mixed"} else (),
    )


def carry_out(store: FaqStore, step: Write | str) -> int:
    """Do one step; return the revision after it."""
    if isinstance(step, str):
        entries = store.changes(COLLECTION, 0).entries
        generation = store.begin_reindex(COLLECTION, fingerprint=step, model_id=step)
        vectors = list(vectors_of(entries, step).items())
        half = len(vectors) // 2
        store.add_vectors(COLLECTION, generation, dict(vectors[:half]))
        store.add_vectors(COLLECTION, generation, dict(vectors[half:]))
        return store.finish_reindex(COLLECTION, generation)
    model = store.info(COLLECTION).model_id or "model-0"
    write = Write(step.upserts, step.deletes, vectors_of(step.upserts, model))
    return store.apply(COLLECTION, write, fingerprint=model, model_id=model)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one call: whole or not at all


def opener(store: list[str]) -> Callable[[], FaqStore]:
    """What opens the store that the command line names."""
    if len(store) == 1:
        return lambda: SqliteFaqStore(Path(store[0]))
    import pymilvus  # noqa: F401 - here, so that not every writer spends a second on it

    from service.faq.milvus_connection import MilvusConnection
    from service.faq.milvus_store import MilvusFaqStore

    uri, prefix, lease_s = store
    return lambda: MilvusFaqStore(MilvusConnection(uri), prefix=prefix, lease_s=float(lease_s))


def _write(open_store: Callable[[], FaqStore], worker: str, first: int, last: int) -> None:
    program = os.getppid()
    with closing(open_store()) as store:
        store.create(COLLECTION, exist_ok=True)
        for number in range(first, last + 1):
            if os.getppid() != program:
                return  # the test has ended
            revision = carry_out(store, planned(worker, number))
            _say(f"done {number} {revision}")


def die_in_commit(number: int, share: float) -> None:
    """Let this process kill itself in a commit of its embedded store, as the usage above says."""
    commits, took = 0, 0.0

    class Mortal(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            nonlocal commits, took
            if sql != "COMMIT":
                return super().execute(sql, *values)
            commits += 1
            if commits < number:
                started_at = time.perf_counter()
                cursor = super().execute(sql)
                took = time.perf_counter() - started_at
                return cursor
            if share <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            killer = threading.Thread(target=_die_after, args=(share * took,))
            if share <= 1:
                killer.start()  # SQLite lets other threads run meanwhile
            super().execute(sql)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError  # nobody gets here

    sqlite_file.sqlite3.connect = partial(sqlite3.connect, factory=Mortal)  # type: ignore[attr-defined]


def _die_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def main(open_store: Callable[[], FaqStore]) -> None:
    """Fork a writer for each line of standard input."""
    for line in sys.stdin:
        worker, first, last, *moment = line.split()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if moment:
                    die_in_commit(int(moment[0]), float(moment[1]))
                _write(open_store, worker, int(first), int(last))
                status = 0
            except Exception:  # noqa: BLE001 - shown, and told by the status
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        _say(f"started {pid}")
        _say(f"gone {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main(opener(sys.argv[1:]))
