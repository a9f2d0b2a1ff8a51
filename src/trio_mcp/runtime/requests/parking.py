"""Parking keeps requests that were answered with questions, and whose handlers wait for the client to come back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...concurrency.on_demand import OnDemand
from ...jsonrpc.errors import INVALID_PARAMS, TOO_BUSY, CodedError
from ...protocol.types.input_required import InputRequiredResult
from .cancellation import CancelCause
from .retry import Retry

if TYPE_CHECKING:
    from ...state.requests import InboundRequest
    from ..replies import Replies
    from .admission import InFlight
    from .request_scope import RequestScope
    from .rounds import Question
    from .wiring import Wiring

__all__ = ["Parking"]

_HANDLE_BYTES: Final = 16

_UNKNOWN: Final = (
    "Invalid params: this requestState was used already, has expired, or belongs to another connection; "
    "call again without it"
)


@attrs.frozen(eq=False)
class _Place:
    scope: RequestScope
    due: float


class Parking:
    """The parked handlers of one connection, each under a handle that is good for one retry.

    A parked request is answered and no longer in flight. Its handler stays where it asked, in its nursery, for up
    to `Limits.retry_timeout`; of more than `Limits.max_parked` the oldest is cancelled. While it is parked nothing
    is sent for it.
    """

    def __init__(
        self,
        wiring: Wiring,
        replies: Replies,
        in_flight: InFlight,
        cancel: Callable[[RequestScope, CancelCause, str | None], None],
    ) -> None:
        self._wiring = wiring
        self._replies = replies
        self._in_flight = in_flight
        self._cancel = cancel
        self._places: dict[bytes, _Place] = {}
        """Places by handle, oldest first. All wait equally long, so the oldest is always the next to expire."""
        self._handles: dict[InboundRequest, bytes] = {}
        self.task = OnDemand()
        """Task that lets parked handlers expire."""

    def __iter__(self) -> Iterator[RequestScope]:
        """Iterate over the scopes that are parked now, oldest first."""
        return iter([place.scope for place in self._places.values()])

    def find(self, request: InboundRequest) -> RequestScope | None:
        """Return the scope parked when ``request`` was answered with questions; `None` when it is parked no more."""
        handle = self._handles.get(request)
        return None if handle is None else self._places[handle].scope

    def park(self, scope: RequestScope, questions: Sequence[Question]) -> None:
        """Answer the request of ``scope`` with ``questions`` and let its handler wait. Synchronous. Raises
        `NotSerializable`, and has done nothing, when the questions cannot be written any more."""
        wiring, request = self._wiring, scope.request
        assert wiring.seal is not None, "who cannot park has no way back"
        handle = secrets.token_bytes(_HANDLE_BYTES)
        asked = {question.key: question.request for question in questions}
        line = self._replies.line(request, InputRequiredResult(asked, wiring.seal(request, handle=handle)))
        scope.park()
        wiring.state.park(request)
        wiring.outbox.put_now(line, scope)
        self._in_flight.park(scope)
        self._places[handle] = _Place(scope, trio.current_time() + wiring.limits.retry_timeout)
        self._handles[request] = handle
        if len(self._places) > wiring.limits.max_parked:
            self._expire(next(iter(self)), "too many handlers wait for answers")
        self.task.wake(self._run)

    def resume(self, request: InboundRequest, retry: Retry) -> RequestScope:
        """Let the parked handler go on with ``request``, once it is its turn, and return its scope. Synchronous.

        Raises `CodedError`, and nothing has changed then: -32602 for a handle that is not good (any more), and
        "too busy" when the request is one too many.
        """
        place = self._places.get(retry.handle)
        if place is None or place.scope.due <= trio.current_time():  # its nursery may be cancelled already
            raise CodedError(INVALID_PARAMS, _UNKNOWN)
        scope = place.scope
        if not self._in_flight.has_room(request.size, scope.size, parked=True):
            raise CodedError(TOO_BUSY, "Too busy: too many requests are in flight or waiting; try again later")
        self.forget(scope)
        self._wiring.state.finish(scope.request)  # its old id names nothing any more
        assert scope.rounds is not None, "what is parked has asked"
        scope.rounds.bring(retry.responses)
        scope.bind(request)
        self._in_flight.come_back(scope)
        return scope

    def forget(self, scope: RequestScope) -> None:
        """Note that ``scope`` is parked no more. Idempotent."""
        handle = self._handles.pop(scope.request, None)
        if handle is not None:
            del self._places[handle]
            self._in_flight.unpark()

    def let_go(self) -> None:
        """Let go of the callback, since the connection is over, and no handler is parked any more."""
        del self._cancel

    def _expire(self, scope: RequestScope, reason: str) -> None:
        self._wiring.load.expired += 1
        self._cancel(scope, CancelCause.EXPIRED, reason)

    async def _run(self) -> None:
        timeout = self._wiring.limits.retry_timeout
        while True:
            while not self._places:
                await self.task.sleep()
            due = next(iter(self._places.values())).due  # and no reference to the place: this frame would keep it alive
            if due > trio.current_time():
                await trio.sleep_until(due)
            else:
                self._expire(next(iter(self)), f"no answers came within {timeout:g} seconds")
