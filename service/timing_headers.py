"""``TimingHeaders``: tell in each answer, and in its trace, what the models did for it, as plain ASGI."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.request_trace import trace_of_request
from service.request_work import gathering_work
from service.response_headers import work_headers


class TimingHeaders:
    """Gather the work of each request; answers that took any get the headers of `work_headers`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        with gathering_work() as work:

            async def send_with_times(message: Message) -> None:
                if message["type"] == "http.response.start" and work.used:
                    total = time.perf_counter() - started_at
                    told = work_headers(work, total_seconds=total).items()
                    added = ((name.encode(), value.encode()) for name, value in told)
                    message["headers"] = [*message.get("headers", ()), *added]
                await send(message)

            try:
                await self._app(scope, receive, send_with_times)
            finally:
                if work.used and (trace := trace_of_request()) is not None:
                    trace.note({"tokens": work.tokens, "characters": work.characters})
