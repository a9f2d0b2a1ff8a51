"""`confirm_cancels`: when a call is cancelled, wait until the server has really stopped the call's handler, and report
how each call ended.

The caller of such a call is being cancelled and can't get a return value, so the endings are collected in a list. The
wait is shielded and bounded; afterwards the cancellation continues unchanged.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Generator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import trio

from ..classes import frozen
from ..concurrency.contexts import contextmanager
from ..jsonrpc.errors import MCPError, PeerError
from ..protocol.cancel_acknowledged import CANCEL, CANCEL_STATES, NAME, CancelParams, CancelResult
from ..protocol.converters import structure, unstructure
from ..protocol.fields import JSONObject
from ..protocol.meta import CANCEL_TOKEN
from ..runtime.outbound import Outbound, cancel_reason, on_leaving
from ..runtime.requests.scope import current_request
from ..runtime.transport import ConnectionLost, HTTPError
from .current_call import variable_set
from .requests import Requests, confirming

if TYPE_CHECKING:
    from ..runtime.calls import CallOutcome

T = TypeVar("T")

EndState: TypeAlias = Literal[
    "stopped", "finished", "overran", "abandoned", "relayed", "unknown", "lost", "silent", "undeclared", "unsent"
]
"""How the handler of a cancelled request ended, as the server reports it."""
_WITHOUT_HANDLER: Final = frozenset(("initialize", "ping", "server/discover", "logging/setLevel"))
"""The methods that have no handler to stop, since the server answers them at once."""
_TRANSIT: Final = 0.25
"""Margin in seconds: the server waits this much shorter than the client for a handler to end, so that the server's
answer arrives in time."""
_TOKEN_BYTES: Final = 16
_DRIFT: Final = 1.01
"""The largest accepted ratio between the speeds of the server's clock and this machine's clock."""
_ROUNDING_MS: Final = 2


@frozen
class CallEnding:
    """How a call ended that was cancelled inside a `confirm_cancels` block.

    ``state`` is one of

    - ``stopped``: the handler, its tasks and its cleanup have ended; with ``never_ran``, the handler hadn't begun
    - ``finished``: the call had its reply before the server acted on the cancel, so all its effects may have happened;
      ``outcome`` says whether the reply was a result or an error
    - ``overran``: the handler was still cleaning up when the time was over
    - ``abandoned``: a thread of the handler was abandoned, and is still running
    - ``relayed``: a proxy has stopped, but the server behind the proxy can't report
    - ``unknown``: the server doesn't know the call, or no longer; conclude nothing from this
    - ``lost``: the connection was lost meanwhile
    - ``silent``: the server didn't answer in time
    - ``undeclared``: the server, or this client, has not declared ``trio-mcp/cancelAcknowledged``
    - ``unsent``: the call was never sent
    """

    method: str
    """Method of the call, such as ``tools/call``."""
    name: str | None
    """Name of the tool or prompt, or URI of the resource; `None` for other methods."""
    state: EndState
    """How the call ended, as far as the client knows, such as ``stopped`` or ``unknown``."""
    seconds: float
    """Seconds that the client waited for the confirmation."""
    cleanup: float | None = None
    """Seconds that the cleanup took, as reported by the server; `None` if unknown, or if longer than the call."""
    never_ran: bool = False
    """True if the call was cancelled before its handler began."""
    outcome: Literal["result", "error"] | None = None
    """Kind of the reply if the call had finished: ``result`` or ``error``; otherwise `None`."""
    behind: str | None = None
    """State of the call at the server behind a proxy; `None` if unknown."""


@contextmanager
def confirm_cancels(within: float = 6.0) -> Generator[list[CallEnding]]:
    """Make each call that is cancelled inside the block wait until the server has stopped the call's handler. Yields a
    list of `CallEnding` objects.

        with confirm_cancels(within=6.0) as endings:
            with trio.move_on_after(2):
                await client.call_tool("pay", {"amount": 5})
        for ending in endings:
            print(ending.method, ending.name, ending.state, ending.seconds)

    The list gets one `CallEnding` for each such call, before the call's cancellation continues. Both client and server
    must declare `CancelAcknowledged`; otherwise a call is cancelled as usual.

    The wait is shielded, so a deadline or the end of the program is delayed by it, once for each task. It ends at once
    if the connection is lost or closed. In a handler that is being cancelled itself, the wait counts as cleanup, and
    ends before `Limits.cleanup_grace` does.

    The block applies to the calls of its task, and of tasks started inside. An inner block takes precedence over an
    outer one.

    Args:
        within: For how many seconds a cancelled call waits at most.

    Raises:
        ValueError: ``within`` isn't positive and finite.
    """
    if not 0 < within < math.inf:
        raise ValueError(f"within must be a positive and finite number of seconds, not {within!r}")
    scope = ConfirmScope(within)
    with variable_set(confirming, scope):
        yield scope.endings


class ConfirmScope:
    """The calls that are made in one `confirm_cancels` block. For each cancelled call, ``endings`` contains how it
    ended."""

    def __init__(self, within: float) -> None:
        self.within = within
        self.endings: list[CallEnding] = []

    def track(self, requests: Requests, method: str, data: Mapping[str, Any]) -> Confirmation | None:
        """Return a `Confirmation`, which finds out how the handler ended if this call of ``method`` is cancelled.
        Returns `None` for methods such as ``ping``, which the server answers without a handler."""
        if method in _WITHOUT_HANDLER:
            return None
        name: Any = data.get("name", data.get("uri"))
        return Confirmation(self, requests, method, name if isinstance(name, str) else None)


class Confirmation:
    """Tracks one call of ``method``. If the call is cancelled, sends a request to the server to find out how the call's
    handler ended."""

    def __init__(self, scope: ConfirmScope, requests: Requests, method: str, name: str | None) -> None:
        self._scope = scope
        self._requests = requests
        self._method = method
        self._name = name
        declared = requests.server_capabilities.extensions or {}
        here = any(extension.name == NAME for extension in requests.settings.extensions)
        self._token = secrets.token_urlsafe(_TOKEN_BYTES) if here and type(declared.get(NAME)) is dict else None
        """The token that identifies the call; `None` if the server can't report how calls ended."""
        self._sent = math.inf
        """The time at which the call was sent, on trio's clock."""
        self._server_notified = False
        """True once the server has received the call and its cancellation."""
        self._end: CallOutcome | None = None
        """The outcome of the request, if it arrived after the call was cancelled, and before the cancellation was
        sent."""

    def meta(self, given: JSONObject | None) -> JSONObject | None:
        """Return the ``_meta`` of the call, with the token that identifies the call."""
        return given if self._token is None else {**(given or {}), CANCEL_TOKEN: self._token}

    async def follow(self, sent: Awaitable[T]) -> T:
        """Await ``sent``, which sends the call, and return the reply. If the call is cancelled, wait until the server
        reports how the call's handler ended."""
        self._sent = trio.current_time()
        before = on_leaving.set(self._on_left)
        try:
            return await sent
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._server_notified or not isinstance(error, MCPError):
                await self._confirm(error)
            raise
        finally:
            on_leaving.reset(before)

    def _on_left(self, outbound: Outbound, end: CallOutcome | None) -> None:
        if outbound is self._requests._outbound:
            self._server_notified = self._server_notified or end is None
            self._end = end or self._end

    async def _confirm(self, error: BaseException) -> None:
        """Record how a cancelled call ended. ``error`` is the exception with which the call was cancelled."""
        began = trio.current_time()
        if not self._server_notified:
            self._record(_reported_by(self._end), 0.0)
        elif self._token is None:
            self._record(CancelResult("undeclared"), 0.0)
        else:
            on_leaving.set(None)
            result = await self._ask(self._token, error, began)
            self._record(result, trio.current_time() - began)

    def _record(self, result: CancelResult, seconds: float) -> None:
        state: Any = result.state
        outcome: Any = result.outcome if result.outcome in ("result", "error") else None
        # Ignore a reported cleanup time that is longer than the whole call, because the cleanup is a part of the call.
        # Accept a slightly longer time, because the server's clock may run faster than this machine's clock.
        most = (trio.current_time() - self._sent) * 1000 * _DRIFT + _ROUNDING_MS
        said = result.cleanup_ms
        cleanup = said / 1000 if said is not None and 0 <= said <= most else None
        never_ran = result.never_ran is True
        behind = result.behind if result.behind in CANCEL_STATES else None
        self._scope.endings.append(
            CallEnding(self._method, self._name, state, seconds, cleanup, never_ran, outcome, behind)
        )

    async def _ask(self, token: str, error: BaseException, began: float) -> CancelResult:
        """Request from the server how the handler of the cancelled call ended, and wait for the answer."""
        requests = self._requests
        within = min(self._scope.within, _remaining_grace(began))
        if within <= 0:
            return CancelResult("silent")
        wait = max(within - _TRANSIT, within / 2)
        params = CancelParams(token, cancel_reason(error), math.floor(wait * 1000))
        data: JSONObject = unstructure(params, requests.revision)
        if requests._meta:
            data = {**data, "_meta": requests._meta}
        with trio.CancelScope(shield=True, deadline=began + within):
            try:
                found = structure(await requests._outbound.request_ahead(CANCEL, data, requests.revision), CancelResult)
            except MCPError as failed:
                return _after_failure(failed)
            except ValueError:
                return CancelResult("unknown")
            return found if found.state in CANCEL_STATES else CancelResult("unknown")
        return CancelResult("silent")


def _reported_by(end: CallOutcome | None) -> CancelResult:
    """Return how a cancelled call ended. Its cancellation wasn't sent to the server.

    ``end`` is the outcome of the call's request, or `None` if the request was never sent.
    """
    if end is None:
        return CancelResult("unsent")
    if end.error is None:
        return CancelResult("finished", outcome="result")
    if isinstance(end.error, PeerError):
        return CancelResult("finished", outcome="error")
    return _after_failure(end.error)


def _after_failure(error: MCPError) -> CancelResult:
    """Return what the client knows about a cancelled call after the exception ``error``. Either the call itself raised
    it, or the request with which the client asks how the call's handler ended."""
    if isinstance(error, HTTPError):
        return CancelResult("unknown" if error.session_lost or error.status == HTTPStatus.NOT_FOUND else "lost")
    return CancelResult("lost" if isinstance(error, ConnectionLost) else "unknown")


def _remaining_grace(now: float) -> float:
    """If this code runs in a handler that was itself cancelled, return how many seconds of the handler's cleanup time
    remain, less a margin.

    Return infinity outside of a cancelled handler.
    """
    scope = current_request.get(None)
    if scope is None or scope.from_outside is None:
        return math.inf
    return max(0.0, scope.from_outside.at + scope.runner.limits.cleanup_grace - now - _TRANSIT)
