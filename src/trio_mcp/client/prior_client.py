"""`PriorClient`: a client that opens with an earlier response to ``server/discover`` (`ClientSettings.prior`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import trio

from ..jsonrpc.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MCPError, PeerError
from ..protocol.errors import UNSUPPORTED_PROTOCOL_VERSION, MethodUnavailable
from ..protocol.methods import Method
from ..protocol.types.notifications import LogLevel
from ..runtime.transport import FramedTransport, HTTPError
from .client import Client, adopt
from .current_call import CallRecord
from .options import ClientSettings
from .prior import read_prior
from .remote_tasks import RunningTask
from .timeouts import CallTimeouts

_NOT_RUN: Final = (UNSUPPORTED_PROTOCOL_VERSION, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS)
_NOT_RUN_STATUSES: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


class PriorClient(Client):
    """A client that opens with an earlier discovery response. It negotiates again only if something suggests that the
    server has changed."""

    def __init__(
        self,
        transport: FramedTransport,
        settings: ClientSettings,
        timeouts: CallTimeouts,
        settle: Callable[[Client], Awaitable[None]],
    ) -> None:
        super().__init__(transport, settings, timeouts)
        self._settle: Callable[[Client], Awaitable[None]] | None = settle
        """Negotiates the revision and the capabilities with the server; `None` once that has been done."""
        self._settling = trio.Lock()

    def _adopt_prior(self) -> bool:
        """If there is an earlier discovery response that may still be used, use its revision and capabilities, and
        return true.

        Does nothing if the response has expired, or if the client has already opened.
        """
        if self.settings.prior is None or self._discovered is not None:
            return False
        prior = read_prior(self.settings.prior)
        if not prior.is_fresh:
            self._settle = None
            return False
        result = prior.result
        adopt(self, prior.revision, prior.info, result.capabilities, result.instructions, (result, prior.expires))
        return True

    async def _ask(self) -> None:
        """Negotiate the revision with the server, unless this client has already done so. Raises the same errors as the
        ``open_*`` functions."""
        async with self._settling:
            if self._settle is not None:
                with self._timeouts.move_on_after(self.settings.connect_timeout) as scope:
                    await self._settle(self)
                if scope.cancelled_caught:
                    raise trio.TooSlowError("the server did not answer server/discover within connect_timeout")
                self._settle = None

    async def _request_plain(self, call: CallRecord, **options: Any) -> Any:
        revision = self.revision
        try:
            return await super()._request_plain(call, **options)
        except (PeerError, HTTPError) as error:
            if (self._settle is None and self.revision is revision) or not _has_not_run(error):
                raise
            try:
                await self._ask()
            except (MCPError, trio.TooSlowError):
                raise error from None  # raise the server's own error, which says more than the failure to negotiate
            if self.revision is revision:
                raise
        return await super()._request_plain(call, **options)

    async def _check_declared(self, row: Method) -> None:
        try:
            await super()._check_declared(row)
        except MethodUnavailable:
            await self._ask()
            await super()._check_declared(row)

    async def start_task(self, *args: Any, **options: Any) -> RunningTask:
        """Negotiate the protocol revision if necessary, then start a task as `Client.start_task` does."""
        await self._ask()
        return await super().start_task(*args, **options)

    async def subscribe(self, uri: str) -> None:
        """Negotiate the protocol revision if necessary, then subscribe as `Client.subscribe` does."""
        await self._ask()
        await super().subscribe(uri)

    async def set_log_level(self, level: LogLevel | str) -> None:
        """Negotiate the protocol revision if necessary, then set the log level as `Client.set_log_level` does."""
        await self._ask()
        await super().set_log_level(level)


def _has_not_run(error: MCPError) -> bool:
    """Return whether ``error`` shows that the server refused the request before a handler ran, for example because of
    its protocol revision."""
    return getattr(error, "code", None) in _NOT_RUN or getattr(error, "status", None) in _NOT_RUN_STATUSES
