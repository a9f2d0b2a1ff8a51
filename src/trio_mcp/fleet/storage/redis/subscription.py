"""Subscriptions keep the messages coming: on a connection of their own, which starts anew by itself.

Each reader has a queue with a bound. Who may have lost messages is told a gap: after each loss of the connection, once
messages come again, and where the queue was full. A message to itself, each five seconds, proves that the connection
is good: a connection that is cut without a word looks like one on which nothing happens.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

import attrs
import trio

from ....classes import frozen
from ....concurrency.contexts import asynccontextmanager
from ....concurrency.time_limits import growing_delay
from ....stores.task_store import HINTS_LOST, HintQueue, HintsLost, StoreDown, Uncertain
from .address import RedisAddress
from .client import RedisClient, failures, open_client, reason_of

logger = logging.getLogger("trio_mcp")

_LIVENESS_INTERVAL: Final = 5.0
_IDLE: Final = 12.0
"""Seconds of silence after which the connection is lost: two proofs are missing, and Redis takes none from us."""
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 2.0
_GOOD: Final = 0.1
"""Minimum seconds between the starts of two connections, if the first one was good."""
_PROOF_BYTES: Final = 8


@frozen
class ChannelMessage:
    """A message on a channel."""

    channel: str
    data: bytes = attrs.field(repr=False)


class _SubscriptionReader(HintQueue[ChannelMessage]):
    def __init__(self, channels: Sequence[str], on_gap: Callable[[], None]) -> None:
        super().__init__()
        self.channels = frozenset(channels)
        self.confirmed: trio.Event | None = trio.Event()
        """Set with the first confirmation of all channels; `None` once nobody waits for that: then a gap is told."""
        self._on_gap = on_gap

    async def __anext__(self) -> ChannelMessage | HintsLost:
        item = await super().__anext__()
        if item is HINTS_LOST:
            self._on_gap()
        return item


class ChannelSubscriptions:
    """The subscriptions of one link. ``publish`` sends a message, to be heard on ``own_channel``."""

    def __init__(
        self, address: RedisAddress, limit: float, own_channel: str, publish: Callable[[str, bytes], Awaitable[None]]
    ) -> None:
        self._address = address
        self._limit = limit
        self._own = own_channel
        self._publish = publish
        self._readers: defaultdict[str, list[_SubscriptionReader]] = defaultdict(list)
        """By channel."""
        self._wanted = trio.Event()
        """Set with the first reader: without one, there is no connection."""
        self._connection: Any = None
        self._unconfirmed: Counter[str] = Counter()
        """By channel, how many subscriptions were sent on the connection and not confirmed yet."""
        self._live: set[str] = set()
        """The channels of which messages come."""
        self._was_confirmed = False
        """True once Redis has confirmed a subscription on the last connection."""
        self._proof = b""
        self._proof_received = trio.Event()
        """Set when ``_proof`` has come back, or the own channel was confirmed."""
        self._refusal = ""
        """Words of the last refusal, which were told in the log."""
        self.gaps = 0
        """Number of gaps that readers were told."""

    @asynccontextmanager
    async def subscribe(self, channels: Sequence[str]) -> AsyncGenerator[AsyncIterator[ChannelMessage | HintsLost]]:
        """Open a stream of messages. See `Link.subscribe`."""
        reader = _SubscriptionReader(channels, self._notify_messages_lost)
        self._wanted.set()
        try:
            for channel in reader.channels:
                self._readers[channel].append(reader)
            self._send("SUBSCRIBE", *(each for each in reader.channels if len(self._readers[each]) == 1))
            if not self._live.issuperset(reader.channels):
                confirmed = reader.confirmed
                assert confirmed is not None
                with trio.move_on_after(self._limit):
                    await confirmed.wait()
            reader.confirmed = None
            yield reader
        finally:
            for channel in reader.channels:
                self._readers[channel].remove(reader)
                if not self._readers[channel]:
                    del self._readers[channel]
                    self._live.discard(channel)
                    self._send("UNSUBSCRIBE", channel)

    def _notify_messages_lost(self) -> None:
        self.gaps += 1

    def _send(self, command: str, *channels: str) -> None:
        """Put a command on the connection, if there is one: a new connection subscribes to all."""
        if self._connection is not None and channels:
            if command == "SUBSCRIBE":
                self._unconfirmed.update(channels)
            with suppress(*failures()):  # lost; the task that reads from it sees that, too
                self._connection.send_command(command.encode(), *channels)

    async def serve(self) -> None:
        """Keep a connection, from the first reader on, until cancelled."""
        await self._wanted.wait()
        failed = 0
        while True:
            began, self._was_confirmed = trio.current_time(), False
            try:
                async with open_client(self._address, limit=self._limit, max_idle=_IDLE) as client:
                    why = await self._use_new_connection(client)
            except Exception as error:  # after any error, the connection is useless
                why = reason_of(error)
            logger.info("the subscription at Redis at %s ended and is made again: %s", self._address, why)
            if self._was_confirmed:  # a client that keeps losing good connections still receives in between
                failed = 0
                await trio.sleep_until(began + _GOOD)
            else:
                failed += 1
                await trio.sleep(growing_delay(failed, first=_FIRST_DELAY, longest=_LONGEST_DELAY))

    async def _use_new_connection(self, client: RedisClient) -> str:
        """Subscribe to all channels, and hear messages until the connection is lost. Return the reason of the loss."""
        connection: Any = None
        with trio.move_on_after(self._limit) as connecting:
            connection = await client.connection(client.node_of(None))
        if connecting.cancelled_caught:
            return "no connection was made in time"
        self._connection, self._proof_received = connection, trio.Event()
        self._unconfirmed.clear()
        try:
            self._send("SUBSCRIBE", self._own, *self._readers)
            return await self._receive_all(connection)
        finally:
            self._connection = None
            self._live.clear()

    async def _receive_all(self, connection: Any) -> str:
        why = ["the connection was lost"]

        def end(reason: str) -> None:
            why[:] = [reason]
            nursery.cancel_scope.cancel(reason=reason)

        async def read_messages() -> None:
            async with aclosing(connection.push_messages) as pushes:
                async for push in pushes:
                    self._receive(push)

        async def read_refusal() -> None:
            """A message that is no push is the answer to a SUBSCRIBE that Redis refuses."""
            async with aclosing(connection.streamed_messages) as answers:
                async for answer in answers:
                    if isinstance(answer, Exception):
                        self._log_refusal(reason_of(answer))
                        end("Redis refused the subscription")
                    else:
                        end("Redis sent an answer to no command")

        async def until_lost(read: Callable[[], Awaitable[None]]) -> None:
            try:
                await read()
            except Exception as error:  # the connection ended, or a message was unreadable
                end(reason_of(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_lost, read_messages)
            nursery.start_soon(until_lost, read_refusal)
            nursery.start_soon(until_lost, partial(self._check_liveness, end))
        return why[0]

    def _log_refusal(self, words: str) -> None:
        if self._refusal != words:
            self._refusal = words
            logger.warning("Redis at %s refused a subscription: %s", self._address, words)

    async def _check_liveness(self, close: Callable[[str], None]) -> None:
        """Send messages to ourselves, and call ``close`` when one does not come back."""
        while True:
            with trio.move_on_after(self._limit) as waiting:
                await self._proof_received.wait()
            if waiting.cancelled_caught:
                close("no message comes back")
                return
            await trio.sleep(_LIVENESS_INTERVAL)
            self._proof, self._proof_received = secrets.token_bytes(_PROOF_BYTES), trio.Event()
            try:
                await self._publish(self._own, self._proof)
            except (StoreDown, Uncertain):
                self._proof_received.set()  # that says nothing of the subscription

    def _receive(self, push: Sequence[Any]) -> None:
        kind, channel = push[0], push[1].decode()
        if kind == b"message":
            if channel == self._own:
                if push[2] == self._proof:
                    self._proof_received.set()
            else:
                message = ChannelMessage(channel, push[2])
                for reader in self._readers.get(channel, ()):
                    reader.put(message)
        elif kind == b"subscribe":
            self._unconfirmed[channel] -= 1
            if self._unconfirmed[channel] <= 0:
                self._confirm(channel)

    def _confirm(self, channel: str) -> None:
        """Note that the messages on ``channel`` come from now on."""
        self._live.add(channel)
        if channel == self._own:
            self._was_confirmed = True
            self._proof_received.set()
        for reader in self._readers.get(channel, ()):
            if not self._live.issuperset(reader.channels):
                continue
            if reader.confirmed is None:
                reader.put(HINTS_LOST)
            else:
                reader.confirmed.set()
