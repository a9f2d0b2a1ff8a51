"""`Admission` decides which requests run now, which wait, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ...classes import define
from ...concurrency.fair_share import Caller, leaves_enough

if TYPE_CHECKING:
    from ...state.requests import InboundRequest
    from ..limits import Limits, Load

T = TypeVar("T")

_NOBODY: Final = ()
_REQUESTS, _STREAMS, _BYTES = (attrgetter(name) for name in ("requests", "streams", "bytes"))


def _count(caller: Caller, requests: int = 0, streams: int = 0, size: int = 0) -> None:
    """Add ``requests``, ``streams`` and ``size`` (in bytes) to the counters of ``caller``.

    They are also added to every `Caller` that contains ``caller``.
    """
    party: Caller | None = caller
    while party is not None:
        party.requests += requests
        party.streams += streams
        party.bytes += size
        party = party.within


def leaves_memory(limits: Limits, load: Load, caller: Caller, size: int) -> bool:
    """Return true if the server has enough memory left for a request of ``size`` bytes from ``caller``.

    Otherwise, the request is refused. If true, the limits of the connection can still make `Admission` refuse the
    request.
    """
    taken = load.inbound_bytes
    return not taken or leaves_enough(caller.held(_BYTES), limits.max_server_bytes - taken, size)


@define(eq=False)
class Ticket:
    """Records how much one request uses of the server's limits. A ticket exists from the request's admission until its
    end.

    Only `Admission` sets the attributes.
    """

    caller: Caller
    """The caller, or part of a caller, whose limits the request counts towards."""
    size: int
    """Number of bytes that are counted for the request."""
    streams: bool
    """True if the request is a subscription stream. A stream uses no slot. Streams are counted separately."""
    ahead: bool = False
    """True if the request waits for the end of another request. Such a request uses no slot. It is counted
    separately."""
    runs: bool = False
    """True if the request currently uses a slot, or is counted among the streams or the waits for other requests."""
    waiting_since: float | None = None
    """Time at which the request began to wait for a slot. `None` if the request didn't wait, or if the wait isn't
    measured."""

    def waited(self, now: float) -> float:
        """Return for how many seconds the request has been waiting in the queue. ``now`` is the current time."""
        return 0.0 if self.waiting_since is None else now - self.waiting_since


class Admission(Generic[T]):
    """Decides which incoming requests of one connection may run within ``limits``. All other requests are queued or
    refused.

    Requests are also counted in ``load``, and for the callers that sent them.

    A request releases its slot when it ends, or when its cleanup takes longer than the grace. Then the oldest waiting
    request can run. A stream uses no slot, because it only waits, for as long as the client likes, and would block
    other requests. Streams have separate limits. A caller can use at most as much of a server-wide limit, over all its
    connections, as it leaves free (`Caller.may_take`). ``T`` is the type of the entries that wait with a ticket.
    """

    def __init__(self, limits: Limits, load: Load) -> None:
        self._limits = limits
        self._load = load
        self._waiting: dict[Ticket, T] = {}
        """Requests that wait for a slot, oldest first."""
        self._slots = 0
        self._streams = 0
        self._ahead = 0
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """Number of queued requests, which wait until they may run."""
        return len(self._waiting)

    def admit(self, request: InboundRequest, caller: Caller) -> Ticket | None:
        """Return a ticket for a request of ``caller``, or `None` if a limit is reached.

        If the ticket's ``runs`` is false, the request may not run yet: pass the ticket to `wait`.
        """
        method = request.method
        if method.streams:
            return self._admit_stream(request, caller)
        if method.ahead:
            return self._admit_ahead(request, caller)
        return self.reserve(request, caller) if self.has_room(request.size, caller) else None

    def has_room(self, size: int, caller: Caller, parked: Ticket | None = None) -> bool:
        """Return true if a new request of ``caller`` with ``size`` bytes is within all limits.

        The request must not be a stream. If the request resumes a parked handler that this object counts, pass the
        handler's ticket as ``parked``.
        """
        limits, load = self._limits, self._load
        if self._slots >= limits.max_in_flight and len(self._waiting) >= limits.max_queued:
            return False
        if parked is None or parked.caller is not caller:
            # Same statements as in `Caller.may_take`, inlined to save a function call per request.
            held = 0 if caller.alone else caller.requests
            whole = caller.within
            while whole is not None:
                if not whole.alone:
                    held += whole.requests
                whole = whole.within
            if held >= limits.max_server_requests - load.in_flight - load.queued - load.parked:
                return False
        return not load.inbound_bytes or self._has_bytes(size, caller, parked)

    def _has_bytes(self, size: int, caller: Caller, parked: Ticket | None = None) -> bool:
        limits, mine, all_others = self._limits, self._bytes, self._load.inbound_bytes
        if parked is not None:
            kept = parked.size
            mine, all_others = mine - kept, all_others - kept
        if mine and mine + size > limits.max_inbound_bytes:
            return False
        if not all_others:
            return True
        held = caller.held(_BYTES)
        if parked is not None and parked.caller is caller:
            held -= caller.held(lambda _: parked.size)
        return leaves_enough(held, limits.max_server_bytes - all_others, size)

    def reserve(self, request: InboundRequest, caller: Caller) -> Ticket:
        """Return a ticket for a request of ``caller`` without checking any limit.

        Call this method only after `has_room` has returned true.
        """
        size, load = request.size, self._load
        ticket = Ticket(caller, size, request.method.streams)
        self._bytes += size
        load.inbound_bytes += size
        runs = 0
        if self._slots < self._limits.max_in_flight:
            ticket.runs = True
            self._slots += 1
            load.in_flight += 1
            runs = 1
        # Same statements as in `_count`, inlined to save a function call per request.
        caller.requests += runs
        caller.bytes += size
        if caller.within is not None:
            _count(caller.within, runs, 0, size)
        return ticket

    def _admit_stream(self, request: InboundRequest, caller: Caller) -> Ticket | None:
        limits, load, size = self._limits, self._load, request.size
        if not self._has_bytes(size, caller):
            return None
        if self._streams >= limits.max_subscriptions or not caller.may_take(
            _STREAMS, limits.max_server_streams - load.listening
        ):
            return None
        ticket = Ticket(caller, size, True)
        ticket.runs = True
        self._streams += 1
        load.listening += 1
        self._bytes += size
        load.inbound_bytes += size
        _count(caller, 0, 1, size)
        return ticket

    def _admit_ahead(self, request: InboundRequest, caller: Caller) -> Ticket | None:
        limits, load, size = self._limits, self._load, request.size
        free = limits.max_server_requests - load.in_flight - load.queued - load.parked
        if self._ahead >= limits.max_cancel_waits or not caller.may_take(_REQUESTS, free):
            return None
        if not self._has_bytes(size, caller):
            return None
        ticket = Ticket(caller, size, streams=False, ahead=True, runs=True)
        self._ahead += 1
        load.in_flight += 1
        self._bytes += size
        load.inbound_bytes += size
        _count(caller, 1, 0, size)
        return ticket

    def _take_slot(self, ticket: Ticket) -> None:
        ticket.runs = True
        self._slots += 1
        self._load.in_flight += 1
        _count(ticket.caller, 1)

    def wait(self, ticket: Ticket, waiting: T, now: float | None = None) -> None:
        """Queue the request of ``ticket`` until it may run.

        ``waiting`` is its entry in the queue, and ``now`` the current time.
        """
        ticket.waiting_since = now
        self._waiting[ticket] = waiting
        self._count_waiting(ticket, 1)

    def _count_waiting(self, ticket: Ticket, number: int) -> None:
        self._load.queued += number
        _count(ticket.caller, number)

    def drop_waiting(self, ticket: Ticket) -> bool:
        """Remove a request that has never run from the queue of waiting requests.

        Return false if the request isn't in the queue.
        """
        if self._waiting.pop(ticket, None) is None:
            return False
        self._count_waiting(ticket, -1)
        self.release(ticket)
        return True

    def clean_up(self, ticket: Ticket) -> None:
        """Let the handler of a cancelled request run, so that it can clean up. Until now, the request waited for the
        client's retry or for a free slot.

        The request needs the slot to clean up, and the slot may exceed the limit. Without counting the slot, a client
        could have any number of requests cleaning up.
        """
        if self._waiting.pop(ticket, None) is not None:
            self._count_waiting(ticket, -1)
        self._take_slot(ticket)

    def park(self, ticket: Ticket) -> Sequence[T]:
        """Let other requests run in place of a request whose handler waits for the client's retry.

        Return the queued entries that can run now. The request's bytes still count.
        """
        self._load.parked += 1
        _count(ticket.caller, 1)
        return self.release_slot(ticket)

    def unpark(self, ticket: Ticket) -> None:
        """Stop counting the request as one whose handler waits for the client's retry.

        Either the client has retried, or the handler must clean up (`clean_up`).
        """
        self._load.parked -= 1
        _count(ticket.caller, -1)

    def release_slot(self, ticket: Ticket) -> Sequence[T]:
        """Let other requests run in place of the request of ``ticket``, although this request hasn't ended.

        Return the queued entries that can run now. Idempotent.
        """
        if not ticket.runs or ticket.streams:
            return _NOBODY
        ticket.runs = False
        self._load.in_flight -= 1
        _count(ticket.caller, -1)
        if ticket.ahead:
            self._ahead -= 1
            return _NOBODY
        self._slots -= 1
        return self._next() if self._waiting else _NOBODY

    def _next(self) -> Sequence[T]:
        turns: list[T] = []
        while self._waiting and self._slots < self._limits.max_in_flight:
            ticket = next(iter(self._waiting))
            turns.append(self._waiting.pop(ticket))
            self._count_waiting(ticket, -1)
            self._take_slot(ticket)
        return turns

    def release(self, ticket: Ticket) -> Sequence[T]:
        """Stop counting the request of ``ticket`` towards the limits, because it has ended.

        Return the queued entries that can run now. Idempotent.
        """
        load, caller, size = self._load, ticket.caller, ticket.size
        self._bytes -= size
        load.inbound_bytes -= size
        ticket.size = 0
        if not ticket.runs:
            _count(caller, 0, 0, -size)
            return _NOBODY
        ticket.runs = False
        if ticket.streams:
            self._streams -= 1
            load.listening -= 1
            _count(caller, 0, -1, -size)
            return _NOBODY
        load.in_flight -= 1
        caller.requests -= 1
        caller.bytes -= size
        if caller.within is not None:
            _count(caller.within, -1, 0, -size)
        if ticket.ahead:
            self._ahead -= 1
            return _NOBODY
        self._slots -= 1
        return self._next() if self._waiting else _NOBODY
