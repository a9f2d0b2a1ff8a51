"""Subscriptions: being told of changes by a modern server, on streams of ``subscriptions/listen``."""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from ..jsonrpc.errors import MCPError, PeerError, ProtocolViolation
from ..runtime.calls import OnNotification
from ..runtime.channel import ConnectionLost
from ..runtime.duplex import DuplexChannel
from ..runtime.limits import Limits
from ..runtime.nurseries import ServiceNursery, open_service_nursery
from ..spec.capabilities import ServerCapabilities
from ..spec.converters import structure
from ..spec.revisions import LATEST_MODERN
from ..spec.subscriptions import SubscriptionFilter, SubscriptionsAcknowledgedParams
from ..state.events import NotificationReceived
from .call_limits import CallLimits
from .callbacks import Callbacks
from .changes import Change, change_in
from .results import check_result_type

__all__ = ["Changes", "Subscriptions"]

logger = logging.getLogger("trio_mcp")

Ask: TypeAlias = Callable[[SubscriptionFilter, OnNotification], Awaitable[Any]]
"""Sends the request that opens a stream and returns at its end."""

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_LEFT: Final = "the client listens no more"


class Stream:
    """One ``subscriptions/listen`` of ours."""

    def __init__(self, asked: SubscriptionFilter) -> None:
        self._asked = asked
        self.acknowledged: SubscriptionFilter | None = None
        """What the server agreed to tell of; `None` before."""
        self._settled = trio.Event()
        self._scope = trio.CancelScope()
        self.failure: MCPError | None = None
        """Why it ended, when it did not end in good order."""
        self.over = trio.Event()

    async def run(self, ask: Ask, tell: OnNotification) -> None:
        """Hold it open until the server ends it, the connection does, or `leave`. ``tell`` gets what comes on it, but
        for the acknowledgement."""
        try:
            with self._scope:
                result = await ask(self._asked, partial(self._received, tell))
                if result is not None:  # it was not cancelled by the server
                    check_result_type("subscriptions/listen", result)
        except MCPError as error:
            # Its traceback knows this frame and so this stream, which is not to wait for the garbage collector.
            self.failure = error.with_traceback(None)
        finally:
            self._settled.set()
            self.over.set()

    def leave(self) -> None:
        """End it from our side: the server gets one cancel, unless it has ended it already."""
        self._scope.cancel(reason=_LEFT)

    @property
    def was_left(self) -> bool:
        """Whether it was we who ended it."""
        return self._scope.cancelled_caught

    def _received(self, tell: OnNotification, event: NotificationReceived, size: int) -> None:
        if event.method.name != _ACKNOWLEDGED:
            tell(event, size)
        elif not self._settled.is_set():
            try:
                self.acknowledged = structure(event.params, SubscriptionsAcknowledgedParams).notifications
            except ValueError as error:
                self.failure = ProtocolViolation(f"the server's acknowledgement makes no sense: {error}")
            self._settled.set()

    async def acknowledgement(self) -> SubscriptionFilter:
        """Wait for what the server agreed to tell of. Raises what ended it instead."""
        await self._settled.wait()
        if self.acknowledged is None:
            raise self.failure or ProtocolViolation("the server ended a subscription that it never acknowledged")
        return self.acknowledged


class Changes(AsyncIterator[Change]):
    """Changes of the server in the order in which they came: see `Client.listen`.

    Those that nobody took yet are kept, equal ones once. So nothing that was asked for is lost but repetition,
    and the connection waits for nobody. Each step is a checkpoint; a cancelled one loses nothing. Several tasks
    may take turns. The iteration ends when the server ends the stream in good order, and after the block;
    it raises `ConnectionLost` when the connection is gone, and `PeerError` when the server fails the stream.
    """

    def __init__(self, asked: SubscriptionFilter, seen: Callable[[Change], None], limits: Limits) -> None:
        self.stream = Stream(asked)
        self.acknowledged = SubscriptionFilter()
        """What the server agreed to tell of: less than was asked for, where it cannot."""
        self.dropped = 0
        """How many changes of resources that were not asked for by name, parts of one perhaps, had no room."""
        self.taker: Callable[[Change], bool] | None = None
        """Is offered each change the moment it was read, where none waits before it; says whether it took it."""
        self._uris = frozenset(asked.resource_subscriptions or ())
        self._kinds = {
            "tools": asked.tools_list_changed,
            "prompts": asked.prompts_list_changed,
            "resources": asked.resources_list_changed,
            "resource": bool(self._uris),
        }
        self._seen = seen
        self._limits = limits
        self._waiting: dict[Change, int] = {}
        self._bytes = 0
        self._parked = trio.lowlevel.ParkingLot()

    def _told(self, event: NotificationReceived, size: int) -> None:
        change = change_in(event)
        # 2026-07-28 subscriptions: the server MUST NOT send what was not asked for.
        if change is None or not self._kinds[change.kind]:
            return
        self._seen(change)
        if change in self._waiting or (not self._waiting and self.taker is not None and self.taker(change)):
            return
        if change.uri is not None and change.uri not in self._uris and not self._has_room(size):
            self.dropped += 1
            return
        self._waiting[change] = size
        self._bytes += size
        self._parked.unpark()

    def _has_room(self, size: int) -> bool:
        limits = self._limits
        return len(self._waiting) < limits.max_pending_notifications and self._bytes + size <= limits.max_inbound_bytes

    async def run(self, ask: Ask) -> None:
        """Hold the stream open until its end."""
        try:
            await self.stream.run(ask, self._told)
        finally:
            self._parked.unpark_all()

    async def __anext__(self) -> Change:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self.stream.over.is_set():
                raise StopAsyncIteration if self.stream.failure is None else copy.copy(self.stream.failure)
            await self._parked.park()
        change = next(iter(self._waiting))
        self._bytes -= self._waiting.pop(change)
        return change

    def take_all(self) -> list[Change]:
        """Those that nobody took yet, for who waits no longer."""
        taken = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return taken


class Subscriptions:
    """The streams of one client. Those for its callbacks run in ``services``, which its opener sets."""

    services: ServiceNursery

    def __init__(self, duplex: DuplexChannel, callbacks: Callbacks, limits: CallLimits, ask: Ask) -> None:
        self._duplex = duplex
        self._limits = limits
        self._callbacks = callbacks
        self._ask = ask
        self._streams: dict[str, Stream] = {}

    @asynccontextmanager
    async def listen(self, asked: SubscriptionFilter) -> AsyncGenerator[Changes]:
        """See `Client.listen`."""
        changes = Changes(asked, self._callbacks.seen, self._duplex.limits)
        async with open_service_nursery(_LEFT) as nursery:
            nursery.start_soon(changes.run, self._ask)
            with self._limits.around_call():
                changes.acknowledged = await changes.stream.acknowledgement()
            yield changes

    async def follow_lists(self, declared: ServerCapabilities, patience: float) -> None:
        """Have the callbacks told when a list changes, of those whose changes are ``declared``.

        Waits up to ``patience`` seconds for the acknowledgement, so that what is called afterwards can change
        nothing unseen. A server that does not keep what it declared is reported and no obstacle.
        """
        asked = SubscriptionFilter(
            (declared.tools and declared.tools.list_changed) or None,
            (declared.prompts and declared.prompts.list_changed) or None,
            (declared.resources and declared.resources.list_changed) or None,
        )
        if asked == SubscriptionFilter():
            return
        stream = Stream(asked)
        self.services.start_soon(self._follow, stream, "its lists")
        with trio.move_on_after(patience):
            try:
                await stream.acknowledgement()
            except (PeerError, ProtocolViolation) as error:
                logger.warning("the server declares that it tells of changed lists, but does not: %s", error)

    async def subscribe(self, uri: str) -> None:
        """See `Client.subscribe`."""
        if uri in self._streams:
            return
        stream = Stream(SubscriptionFilter(resource_subscriptions=[uri]))
        self.services.start_soon(self._follow, stream, uri)
        try:
            with self._limits.around_call():
                honoured = await stream.acknowledgement()
        except BaseException:
            stream.leave()
            raise
        is_honoured = uri in (honoured.resource_subscriptions or ())
        if is_honoured and uri not in self._streams and not stream.over.is_set():
            self._streams[uri] = stream
            return
        stream.leave()
        if not is_honoured:
            raise PeerError(LATEST_MODERN.resource_not_found, "Resource not found", {"uri": uri})

    async def _follow(self, stream: Stream, what: str) -> None:
        """Hold a stream for the callbacks open. They cannot be told of its end, so that is logged."""
        await stream.run(self._ask, self._duplex.notified)
        if self._streams.get(what) is stream:
            del self._streams[what]
        if stream.acknowledged is None or stream.was_left or isinstance(stream.failure, ConnectionLost):
            return
        level = logging.INFO if stream.failure is None else logging.WARNING
        logger.log(
            level, "the server tells no more of changes of %s: %s", what, stream.failure or "it ended the stream"
        )

    async def unsubscribe(self, uri: str) -> None:
        """See `Client.unsubscribe`. It waits until the cancel is on its way."""
        stream = self._streams.pop(uri, None)
        if stream is not None:
            stream.leave()
            await stream.over.wait()
