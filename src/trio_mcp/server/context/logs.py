"""`ClientLogHandler` sends log records of the standard library's `logging` to the client. `SilentLog` sends nothing."""

from __future__ import annotations

import logging
from typing import Any

import trio

from ...jsonrpc.errors import NotSerializable
from ...runtime.requests.reports import RequestLog
from ...runtime.requests.scope import RequestScope, current_request

_LEVELS = (
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
)


class ClientLogHandler(logging.Handler):
    """A `logging.Handler` that sends each log record to the client of the current request.

        logging.getLogger("myapp").addHandler(ClientLogHandler())

    Records made in child tasks and worker threads of a request belong to that request. Records made outside of
    requests, and this package's own records, are not sent. The handler never blocks: if the outbox is full, the record
    is dropped and counted in ``dropped``.
    """

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.dropped = 0
        """The number of log records that were dropped, for example because an outbox was full."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log record to the client of the current request. See `logging.Handler.emit`."""
        scope = current_request.get(None)
        if scope is None or record.name.partition(".")[0] == "trio_mcp":
            return
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        level = next((name for number, name in _LEVELS if record.levelno >= number), "debug")
        if not scope.runner.trio_run.call_soon(self._send, scope, level, text, record.name):
            self.dropped += 1

    def _send(self, scope: RequestScope, level: str, text: str, name: str) -> None:
        try:
            sent = scope.log.log_nowait(level, text, name) or not scope.log._admits(level)
        except NotSerializable:
            sent = False
        if not sent:
            self.dropped += 1
            scope.runner.load.dropped_logs += 1


class SilentLog(RequestLog):
    """A log that sends nothing to the client."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    async def _log(self, level: str, rank: int, data: Any, logger: str | None) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    def log_nowait(self, level: str, data: Any, logger: str | None = None) -> bool:
        """Send nothing to the client, and return `False`."""
        return False
