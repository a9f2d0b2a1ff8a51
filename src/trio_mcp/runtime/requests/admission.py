"""InFlight decides which requests run now, which wait, and which are refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import trio

from ...concurrency.fair_share import leaves_enough
from ...state.requests import InboundRequest
from ..limits import Limits
from ..load import Load
from .request_scope import RequestScope

__all__ = ["InFlight"]


class InFlight:
    """The inbound requests of one connection, running and waiting, within ``limits``; counted in ``load``, too.

    ``start`` is called for each request whose turn has come. A request gives its slot back when it has ended,
    or when it overran its cleanup grace, whichever comes first. Streams take no slot: they only wait, for as long
    as their client likes, and would keep others from running. They have bounds of their own. Of what is bounded for the
    whole server, the connection gets no more than it leaves for others (`leaves_enough`), unless it is ``alone``.
    """

    def __init__(
        self, limits: Limits, start: Callable[[RequestScope], None], load: Load, *, alone: bool = False
    ) -> None:
        self._limits = limits
        self._shared = 0 if alone else 1
        """Factor 1, or 0 when alone: so many times what the connection holds must be left for others."""
        self._load = load
        self._start = start
        self._scopes: dict[object, RequestScope] = {}
        self._waiting: deque[RequestScope] = deque()
        self._slots = 0
        self._streams = 0
        self._parked = 0
        self._bytes = 0
        self._idlers = trio.lowlevel.ParkingLot()
        self._awaited = 0
        """Number of tasks that wait until no request, or no stream, is left."""

    def __len__(self) -> int:
        return len(self._scopes)

    def __iter__(self) -> Iterator[RequestScope]:
        """Iterate over the requests that run or wait for their turn, oldest first."""
        return iter(tuple(self._scopes.values()))

    def has_room(self, size: int, kept: int = 0, *, parked: bool = False) -> bool:
        """Return whether `admit` takes a request of ``size`` bytes that is no stream, in the place of ``kept`` bytes of
        the round before. ``parked``: the handler that goes on with it still counts as parked."""
        limits = self._limits
        if self._slots >= limits.max_in_flight and len(self._waiting) >= limits.max_queued:
            return False
        held = self._slots + len(self._waiting) + self._parked
        if not parked and not leaves_enough(held * self._shared, self._load.free_requests(limits)):
            return False
        return self._has_bytes(size, kept)

    def _has_bytes(self, size: int, kept: int) -> bool:
        limits, mine, all_others = self._limits, self._bytes - kept, self._load.inbound_bytes - kept
        if mine and mine + size > limits.max_inbound_bytes:
            return False
        return not all_others or leaves_enough(mine * self._shared, limits.max_server_bytes - all_others, size)

    def admit(self, scope: RequestScope) -> bool:
        """Start ``scope``, or let it wait for its turn. Return false when a bound is reached: it never runs then."""
        request = scope.request
        if request.method.streams:
            return self._has_bytes(request.size, 0) and self._admit_stream(scope)
        if not self.has_room(request.size, scope.size):
            return False
        self._take(scope)
        return True

    def _take(self, scope: RequestScope) -> None:
        self._keep(scope, scope.request)
        if self._slots < self._limits.max_in_flight:
            self._take_slot(scope)
            self._start(scope)
        else:
            self._waiting.append(scope)
            self._load.queued += 1

    def _admit_stream(self, scope: RequestScope) -> bool:
        limits = self._limits
        free = self._load.free_streams(limits)
        if self._streams >= limits.max_subscriptions or not leaves_enough(self._streams * self._shared, free):
            return False
        self._streams += 1
        self._load.listening += 1
        self._keep(scope, scope.request)
        self._start(scope)
        return True

    def _keep(self, scope: RequestScope, request: InboundRequest) -> None:
        self._scopes[request] = scope
        more = request.size - scope.size  # the next round repeats what the one before it said
        scope.size = request.size
        self._bytes += more
        self._load.inbound_bytes += more

    def _take_slot(self, scope: RequestScope) -> None:
        scope.holds_slot = True
        self._slots += 1
        self._load.in_flight += 1

    def find(self, request: object) -> RequestScope | None:
        """Return the scope of a request that runs or waits for its turn; `None` for any other."""
        return self._scopes.get(request)

    def drop_waiting(self, scope: RequestScope) -> bool:
        """Forget a request that waits for its turn. Return false when it is not waiting."""
        if scope.holds_slot or scope not in self._waiting:
            return False
        self._waiting.remove(scope)
        self._load.queued -= 1
        self.ended(scope)
        return True

    def clean_up(self, scope: RequestScope) -> None:
        """Give a slot at once to the cleanup of a request that was cancelled while it was parked, its next round
        perhaps waiting for its turn. The slot may be one too many, but else a client could have any number of requests
        cleaning up."""
        if scope.request in self._scopes:
            self._waiting.remove(scope)
            self._load.queued -= 1
        self._scopes[scope.request] = scope
        self._take_slot(scope)

    def park(self, scope: RequestScope) -> None:
        """Note that a request was answered, but its handler waits for more. The request's bytes still count."""
        self._remove(scope)
        self._parked += 1
        self._load.parked += 1

    def unpark(self) -> None:
        """Note that a parked request is parked no more: `come_back` or `clean_up` follows, if anything."""
        self._parked -= 1
        self._load.parked -= 1

    def come_back(self, scope: RequestScope) -> None:
        """Start the next round of a request that was parked, for which there is room, or let it wait for its turn."""
        self._take(scope)

    def release_slot(self, scope: RequestScope) -> None:
        """Let the next request run, though ``scope`` has not ended. Idempotent."""
        if not scope.holds_slot:
            return
        scope.holds_slot = False
        self._slots -= 1
        self._load.in_flight -= 1
        while self._waiting and self._slots < self._limits.max_in_flight:
            self._load.queued -= 1
            scope = self._waiting.popleft()
            self._take_slot(scope)
            self._start(scope)

    def ended(self, scope: RequestScope) -> None:
        """Note that ``scope`` is over, and give back its bytes and its slot. Idempotent."""
        size, scope.size = scope.size, 0
        self._bytes -= size
        self._load.inbound_bytes -= size
        self._remove(scope)

    def _remove(self, scope: RequestScope) -> None:
        if self._scopes.pop(scope.request, None) is None:
            return
        if scope.request.method.streams:
            self._streams -= 1
            self._load.listening -= 1
        self.release_slot(scope)
        if self._awaited:
            self._idlers.unpark_all()

    async def idle(self) -> None:
        """Wait until no request runs or waits for its turn."""
        while self._scopes:
            await self._one_less()

    async def streams_idle(self) -> None:
        """Wait until no stream is left."""
        while self._streams:
            await self._one_less()

    async def _one_less(self) -> None:
        self._awaited += 1
        try:
            await self._idlers.park()
        finally:
            self._awaited -= 1

    def let_go(self) -> None:
        """Start nothing any more, since the connection is over."""
        del self._start

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their turn."""
        return len(self._waiting)
