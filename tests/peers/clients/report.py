"""A report: what a client saw, as JSON lines on standard output."""

import json
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any


class Late(logging.Handler):
    """Answers that nobody waited for any more, of which both clients say only this."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []
        log = logging.getLogger("mcp.shared.jsonrpc_dispatcher")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("dropping response"):
            self.messages.append(record.getMessage())


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
