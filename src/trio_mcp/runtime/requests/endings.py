"""`Endings` records how requests end, for clients that request confirmation of their cancellations: see
`trio_mcp.protocol.cancel_acknowledged`.

========== ============================================================ =========
before     event                                                        after
========== ============================================================ =========
running    handler and cleanup are over, and a cancel came before       stopped
running    the same, but a thread was abandoned and still runs          abandoned
running    the reply was created before a cancel was handled            finished
========== ============================================================ =========

An `Ending` is identified by the principal and the token of its request. It's kept from the acceptance of the request
until `Limits.ending_timeout` after its end. Without principals, the token alone is enough, because it can't be guessed,
like the id of a task (ruling 25).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...concurrency.fair_share import Caller, EvictionQueue
from ...protocol.cancel_acknowledged import CancelParams, CancelResult, token_in
from ...protocol.converters import structure_params, unstructure
from ..cancellation import CancelCause

if TYPE_CHECKING:
    from ...concurrency.wakeups import Alarms
    from ...protocol.fields import JSONObject
    from ...state.requests import InboundRequest
    from ..limits import Limits
    from ..peer import PrincipalId
    from .scope import RequestScope

_UNKNOWN: Final = CancelResult("unknown")


class Ending:
    """Records how one request ends. The request includes its retries and its background task.

    ``endings`` stores the record for ``caller``.
    """

    __slots__ = ("_behind", "_endings", "_over", "caller", "is_abandoned", "kept_until", "key", "result", "scope")

    def __init__(self, endings: Endings, key: tuple[PrincipalId | None, str], scope: RequestScope) -> None:
        self._endings = endings
        self.key = key
        self.caller: Caller = scope.ticket.caller
        self.scope: RequestScope | None = scope
        """The request. `None` after it has ended."""
        self.result: CancelResult | None = None
        """How the request ended. `None` until it ends."""
        self.is_abandoned = False
        """True if a thread of the handler was abandoned."""
        self.kept_until = 0.0
        self._behind: CancelResult | None = None
        self._over: trio.lowlevel.ParkingLot | None = None
        """Tasks that wait until the request ends. `None` until the first task waits."""

    def note_behind(self, result: CancelResult) -> None:
        """Record how a forwarded request ended at the upstream server of a proxy."""
        self._behind = result

    def end(self, scope: RequestScope, *, has_reply: bool) -> None:
        """Record that the request ``scope.request`` has ended, including its handler's trio tasks and their cleanup.

        ``has_reply`` is true if a reply was created, even if it wasn't sent. Synchronous.
        """
        cancelled = scope.from_outside
        if has_reply or cancelled is None:
            self.result = CancelResult("finished", outcome="result" if scope.request.error is None else "error")
        else:
            ended = CancelResult("stopped") if self._behind is None else self._behind
            self.result = attrs.evolve(
                CancelResult("abandoned") if self.is_abandoned else ended,
                cleanup_ms=round((trio.current_time() - cancelled.at) * 1000),
                never_ran=True if scope.handler_task is None else None,
            )
        self.scope = None
        self._endings.keep(self)
        if self._over is not None:
            self._over.unpark_all()

    async def over(self, seconds: float) -> CancelResult:
        """Wait until the request has ended, but at most ``seconds``. Return how it ended."""
        if self.result is None:
            if self._over is None:
                self._over = trio.lowlevel.ParkingLot()
            with trio.move_on_after(seconds):
                await self._over.park()
        return self.result or CancelResult("overran")


class Endings:
    """Records how requests end, for clients that want confirmation of their cancellations.

    A record exists for each request with a ``trio-mcp/cancelAcknowledged`` token, on all connections of a running
    server.

    ``max_wait``: how many seconds one request can wait for the end of another. ``alarms`` are used to forget endings in
    time.
    """

    def __init__(self, alarms: Alarms, limits: Limits, max_wait: float) -> None:
        self._alarms = alarms
        self._limits = limits
        self._max_wait = max_wait
        self._all: dict[tuple[PrincipalId | None, str], Ending] = {}
        self._kept: dict[Ending, None] = {}
        """Records of requests that have ended, oldest first."""
        self._of_callers = EvictionQueue[Ending]()
        """Records of requests that have ended, by caller."""
        self._forgets = False
        """True if an alarm is set that removes the oldest record."""

    def __len__(self) -> int:
        """Return the number of records, including records of requests that haven't ended."""
        return len(self._all)

    def enter(self, scope: RequestScope) -> None:
        """Start to record how a request, which ``scope`` represents, ends. This applies only to a request with a
        ``trio-mcp/cancelAcknowledged`` token.

        Called when the request is accepted or retried. Ignores a malformed token, and a token that a request in
        progress already uses.
        """
        request = scope.request
        token = token_in(request.meta)
        if token is None or scope.ending is not None or request.method.ahead:
            return
        key = scope.exchange.peer.principal, token
        before = self._all.get(key)
        if before is not None:
            if before.result is None:
                return
            self._forget(before)
        scope.ending = self._all[key] = Ending(self, key, scope)

    def cancel(self, request: InboundRequest, principal: PrincipalId | None) -> JSONObject | None:
        """Cancel the call that ``request`` names. ``request`` was sent by ``principal`` in order to cancel that call.

        Do nothing if the call is already cancelled or has ended. Synchronous.

        Returns how the call ended, or `None` if it hasn't ended yet. Raises `CodedError` for invalid parameters. A task
        isn't cancelled here, but by ``tasks/cancel``, because its record must be changed first (ruling 25).
        """
        params = structure_params(request.params, CancelParams, request.revision)
        ending = self._all.get((principal, params.cancel_token))
        if ending is None:
            return unstructure(_UNKNOWN, request.revision)
        scope = ending.scope
        if scope is not None and (scope.task is None or not scope.task.has_started):
            scope.abort(CancelCause.PEER, params.reason)
        return None if ending.result is None else unstructure(ending.result, request.revision)

    async def over(self, request: InboundRequest, principal: PrincipalId | None) -> JSONObject:
        """Wait until the call that ``request`` names has ended, and return how it ended. ``request`` is a client's
        request to cancel that call.

        Wait until that call has ended, and return how it ended. Wait at most `max_wait` seconds, or less if ``request``
        sets a time limit.
        """
        params = structure_params(request.params, CancelParams, request.revision)
        ending = self._all.get((principal, params.cancel_token))
        wait = self._max_wait if params.wait_ms is None else min(params.wait_ms / 1000, self._max_wait)
        return unstructure(_UNKNOWN if ending is None else await ending.over(wait), request.revision)

    def keep(self, ending: Ending) -> None:
        """Store ``ending``, which says how a request ended, for a limited time.

        If there are too many records, the oldest are removed.
        """
        limits = self._limits
        ending.kept_until = trio.current_time() + limits.ending_timeout
        self._kept[ending] = None
        self._of_callers.add(ending.caller, ending)
        if self._of_callers.count(ending.caller) > limits.max_endings:
            self._forget(self._of_callers.next_evicted(ending.caller))
        if len(self._kept) > limits.max_server_endings:
            self._forget(next(iter(self._kept)))
        if not self._forgets:
            self._set_alarm()

    def _set_alarm(self) -> None:
        self._forgets = bool(self._kept)
        if self._forgets:
            self._alarms.set(next(iter(self._kept)).kept_until, self._forget_old)

    def _forget_old(self) -> None:
        now = trio.current_time()
        while self._kept and (oldest := next(iter(self._kept))).kept_until <= now:
            self._forget(oldest)
        self._set_alarm()

    def _forget(self, ending: Ending) -> None:
        if self._all.get(ending.key) is ending:
            del self._all[ending.key]
        del self._kept[ending]
        self._of_callers.remove(ending.caller, ending)
