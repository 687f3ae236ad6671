"""service.cli.worker_link: what a worker says, to a supervisor of our own."""

import socket

import orjson

from service.cli.worker_link import WorkerLink
from service.cli.worker_messages import Inbox, Kind, Message


def test_a_supervisor_that_takes_nothing_holds_up_nobody() -> None:
    """One that is stopped, say: the loop has requests to serve. What was said comes when it goes on."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = WorkerLink(theirs, number=1, size=2, orphaned_after_s=60.0)
        link.answer("metrics", lambda _: ["counted"])
        page = "x" * 10_000_000  # more than any socket keeps
        link.ready({"page": page})
        link.stopping()
        link.close()
        inbox = Inbox()
        said: list[Message] = []
        while len(said) < 3:
            said += inbox.take(ours.recv(1 << 20))
    assert [message.kind for message in said] == [Kind.READY, Kind.STOPPING, Kind.ANSWER]
    assert orjson.loads(said[0].content) == {"page": page}
    assert orjson.loads(said[2].content) == ["counted"]
