"""`RequestHost` owns the handlers of a running server or client. A handler can outlive its connection, but not its
host.

`Parking` holds requests that were answered with input requests, while their handlers wait for the client's retry.
`RequestHandler` handles the messages of the peer, for a server or a client.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import trio

from ...classes import frozen, value
from ...concurrency.fair_share import Caller, EvictionQueue
from ...concurrency.wakeups import Alarm, Alarms
from ...concurrency.workers import Workers
from ..cancellation import CancelCause
from ..limits import Limits, Load
from .scope import RequestScope

if TYPE_CHECKING:
    from ...concurrency.asyncio_thread import AsyncioThread
    from ...state.events import NotificationReceived
    from ...state.requests import InboundRequest
    from ...stores.sealing import KeyRing
    from ...stores.shared import Replica
    from ..exchange import Exchange
    from ..transport import Tracing
    from .endings import Endings
    from .rounds import Retry, Seal


class RequestHost:
    """Runs the handlers of a server, and holds the objects that all of the server's connections share.

    A handler may still need the host after its connection has ended.

    A handler runs in the host's nursery, and currently belongs to an `Exchange`. ``limits`` apply to each connection
    and, in some cases, to all connections together; ``load`` counts them. ``stateless``: nothing is kept between
    requests. ``may_log``: log messages of handlers can be sent. ``tracing`` observes the requests of all connections.
    ``replica`` is what a server shares with other processes, or `None`.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        workers: Workers | None = None,
        load: Load | None = None,
        stateless: bool = False,
        may_log: bool = False,
        tracing: Tracing | None = None,
        replica: Replica | None = None,
    ) -> None:
        self.limits = limits
        self.replica = replica
        self.load = load or Load()
        self.workers = workers or Workers(
            limits.worker_threads, limits.max_asking_threads, limits.max_abandoned_threads
        )
        """The worker threads that all connections share."""
        self.stateless = stateless
        self.may_log = may_log
        self.tracing = tracing
        if tracing is not None:
            tracing._watch_load(self.load)
        self.alarms = Alarms()
        self.parking = Parking[RequestScope](self.alarms, limits.retry_timeout, limits.max_parked, _expire)
        self.endings: Endings | None = None
        """Records of how requests end, for clients that request confirmation of their cancellations. `None` if the
        server doesn't support that."""
        self.state_keys: Callable[[], KeyRing] | None = None
        """Creates the keys that encrypt the stored state of callers. `None` if the server has no secrets."""
        self.nursery: trio.Nursery | None = None
        """The nursery in which the handlers run. `None` while the host isn't running."""
        self._asyncio: AsyncioThread | None = None

    @property
    def asyncio(self) -> AsyncioThread:
        """The asyncio event loop in which asyncio handlers run.

        The loop starts when it is first used, and again after it has failed.
        """
        if self._asyncio is None or self._asyncio.has_ended:
            # Import `AsyncioThread` only here, because few servers have asyncio handlers.
            from ...concurrency.asyncio_thread import AsyncioThread

            self._asyncio = AsyncioThread(self.limits.max_abandoned_threads)
        return self._asyncio

    async def end_asyncio(self) -> None:
        """Stop the asyncio event loop in which asyncio handlers run, if it has started."""
        if self._asyncio is not None:
            await self._asyncio.aclose()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the nursery for handlers open until this task is cancelled.

        On cancellation, the cause is recorded for parked handlers before any handler runs. All connections must end
        before the cancellation.
        """
        await self.run_while(self._asleep, task_status=task_status)

    async def run_while(
        self, serve: Callable[..., Awaitable[None]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Call ``serve`` with ``task_status``, and keep the nursery for handlers open until ``serve`` returns.

        There is no checkpoint before ``serve``, so that ``serve`` can close its resources however early a cancellation
        arrives.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.alarms.run)
            self.nursery = nursery
            try:
                await serve(task_status=task_status)
            finally:
                self.nursery = None
            nursery.cancel_scope.cancel(reason="nothing is served any more")

    async def _asleep(self, *, task_status: trio.TaskStatus[None]) -> None:
        # When this task is cancelled, trio calls `abort` before it wakes any other task.
        def abort(_: Any) -> trio.lowlevel.Abort:
            for scope in self.parking:
                scope.abort(CancelCause.SHUTDOWN, "the server has ended")
            return trio.lowlevel.Abort.SUCCEEDED

        task_status.started()
        await trio.lowlevel.wait_task_rescheduled(abort)


def _expire(scope: RequestScope, reason: str) -> None:
    scope.runner.load.expired += 1
    scope.abort(CancelCause.EXPIRED, reason)


T = TypeVar("T")


@frozen(eq=False)
class _ParkedHandler(Generic[T]):
    parked: T
    request: InboundRequest
    party: object
    caller: Caller
    alarm: Alarm


class Parking(Generic[T]):
    """Holds the parked handlers of a server or client. A parked handler waits for the retry of the request that it
    handles.

    Each handler has a handle that is valid for one retry. Only the ``party`` for which a handler was parked can find
    it: a principal from any connection or, without a principal, the same connection (ruling 19). A handler stays for up
    to ``timeout`` seconds. If one caller has more than ``most``, the oldest handler of its part with the most is
    removed. ``expire`` is called with each handler that expires or is removed, and with the reason. All methods are
    synchronous.
    """

    def __init__(self, alarms: Alarms, timeout: float, most: int, expire: Callable[[T, str], None]) -> None:
        self._alarms = alarms
        self._timeout = timeout
        self._most = most
        self._expire = expire
        self._places: dict[bytes, _ParkedHandler[T]] = {}
        """Parked handlers by handle, oldest first."""
        self._handles: dict[InboundRequest, bytes] = {}
        self._parties: dict[object, dict[bytes, None]] = {}
        """Handles of the parked handlers, oldest first, by the client that can retry."""
        self._callers = EvictionQueue[bytes]()
        """Handles of the parked handlers by caller."""
        self._emptied: trio.lowlevel.ParkingLot | None = None
        """Tasks that wait until no handler is parked. `None` until the first task waits."""

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the handlers that wait for a client's retry now, oldest first."""
        return iter([place.parked for place in self._places.values()])

    def of(self, party: object) -> list[T]:
        """Return the handlers that wait until the client ``party`` repeats its request, oldest first."""
        return [self._places[handle].parked for handle in self._parties.get(party, ())]

    def named(self, request: InboundRequest) -> T | None:
        """Return the handler of ``request``, which waits until the client retries this request with answers to the
        server's input requests.

        Return `None` if no handler waits for it any more.
        """
        handle = self._handles.get(request)
        return None if handle is None else self._places[handle].parked

    def find(self, handle: bytes, party: object) -> T | None:
        """Return the waiting handler with the id ``handle``. It waits until the client ``party``, and no other client,
        retries its request.

        Return `None` if the handle is invalid or was already used.
        """
        place = self._places.get(handle)
        return place.parked if place is not None and place.party == party else None

    def add(self, handle: bytes, parked: T, request: InboundRequest, party: object, caller: Caller) -> None:
        """Store ``parked``, the handler of ``request``, under the id ``handle``. It waits there until the client
        ``party`` retries the request with answers to the server's input requests.

        ``request`` was answered with input requests. The handler counts towards the limits of ``caller``.
        """
        due = trio.current_time() + self._timeout if self._timeout < math.inf else math.inf
        alarm = self._alarms.set(due, partial(self._ring, handle))
        self._places[handle] = _ParkedHandler(parked, request, party, caller, alarm)
        self._handles[request] = handle
        self._parties.setdefault(party, {})[handle] = None
        self._callers.add(caller, handle)
        if self._callers.count(caller) > self._most:
            oldest = self._places[self._callers.next_evicted(caller)]
            self._expire(oldest.parked, "too many handlers wait for answers")

    def remove(self, request: InboundRequest) -> bool:
        """Remove the handler of ``request`` from the handlers that wait until a client retries its request.

        Return false if this handler was already removed.
        """
        handle = self._handles.pop(request, None)
        if handle is None:
            return False
        place = self._places.pop(handle)
        place.alarm.stop()
        handles = self._parties[place.party]
        del handles[handle]
        if not handles:
            del self._parties[place.party]
        self._callers.remove(place.caller, handle)
        if self._emptied is not None and not self._places:
            self._emptied.unpark_all()
        return True

    async def emptied(self) -> None:
        """Wait until no handler waits for a client's retry."""
        while self._places:
            if self._emptied is None:
                self._emptied = trio.lowlevel.ParkingLot()
            await self._emptied.park()

    def _ring(self, handle: bytes) -> None:
        self._expire(self._places[handle].parked, f"no answers came within {self._timeout:g} seconds")


class _Later(Enum):
    LATER = "later"


LATER: Final = _Later.LATER
"""The decision to answer a request in a separate task."""


@value
class Now:
    """Result of `RequestHandler.answer_now` if the request is answered at once. ``result`` is the result in the
    response."""

    result: Any


Decision: TypeAlias = "Now | Literal[_Later.LATER] | Retry"
"""How a request is answered: at once, in a separate task, or by resuming a parked handler."""


class RequestHandler(Protocol):
    """Interface that servers and clients implement to handle the peer's requests and notifications."""

    @property
    def seal(self) -> Seal | None:
        """Function that creates the ``requestState`` of an `InputRequiredResult`.

        `None` if this side never answers requests with input requests.
        """
        ...

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        """Decide how to answer a request that arrived through ``exchange``: at once, in a new task, or, for a retry, by
        the handler that waits for it.

        The reader task calls this method, which must be quick. Raises `CodedError` to send an error reply.
        """
        ...

    def answer(self, scope: RequestScope) -> Awaitable[Any]:
        """Return the result of a request.

        Runs in the request's own nursery. Raises `CodedError` to send an error reply. Any other exception is logged,
        and the client gets an error reply without the exception's text: see `Replies.failure`.
        """
        ...

    def wants(self, event: NotificationReceived) -> bool:
        """Return true if `notified` should be called for the notification ``event``."""
        ...

    def notified(self, event: NotificationReceived) -> Awaitable[None]:
        """Handle one notification from the peer.

        This is called for one notification at a time, in the order of arrival.
        """
        ...
