"""A report: what a client saw, as JSON lines on standard output."""

import json
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.client.streamable_http import StreamableHTTPTransport


class Late(logging.Handler):
    """Answers that nobody waited for any more, of which both clients say only this."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []
        self._own = own_answers()
        log = logging.getLogger("mcp.shared.jsonrpc_dispatcher")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("dropping response") and self._own.isdisjoint(record.args or ()):
            self.messages.append(record.getMessage())


def own_answers() -> set[Any]:
    """The ids of requests that the SDK answers itself, some seconds after their streams have ended."""
    ids = set[Any]()
    resolve = getattr(StreamableHTTPTransport, "_resolve_abandoned_request", None)

    async def resolve_abandoned(transport: Any, writer: Any, request_id: Any, *args: Any, **options: Any) -> None:
        ids.add(request_id)
        await resolve(transport, writer, request_id, *args, **options)

    if resolve is not None:
        StreamableHTTPTransport._resolve_abandoned_request = resolve_abandoned
    return ids


class Report:
    """Takes down one step after another; a step that fails costs only itself."""

    def __init__(self) -> None:
        self.late = Late()

    async def step(self, name: str, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run one step and tell what it returned or raised."""
        try:
            entry = {"saw": await function(*args)}
        except Exception as error:
            entry = {
                "raised": type(error).__name__,
                "code": getattr(error, "code", None),
                "message": str(error),
                "data": getattr(error, "data", None),
            }
        self.tell(name, **entry)

    def tell(self, name: str, **entry: Any) -> None:
        """One line."""
        sys.stdout.write(json.dumps({"step": name, **entry}) + "\n")
        sys.stdout.flush()
