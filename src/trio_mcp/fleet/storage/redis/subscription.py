"""Subscriptions to Redis channels, on a separate connection that is reopened automatically.

Each reader has a bounded queue. A reader that may have lost messages gets `HINTS_LOST`: after each loss of the
connection, once messages arrive again, and if its queue was full. Every five seconds, the replica sends a message to
itself, to check the connection: a connection that broke silently looks like one without messages.
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
"""Seconds of silence after which the connection counts as lost. By then, two check messages are missing."""
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 2.0
_GOOD: Final = 0.1
"""Minimum seconds between the starts of two connections, if the first one was good."""
_PROOF_BYTES: Final = 8


@frozen
class ChannelMessage:
    """A message that was published on a Redis channel."""

    channel: str
    data: bytes = attrs.field(repr=False)


class _SubscriptionReader(HintQueue[ChannelMessage]):
    def __init__(self, channels: Sequence[str], subscriptions: ChannelSubscriptions) -> None:
        super().__init__()
        self.channels = frozenset(channels)
        self.confirmed: trio.Event | None = trio.Event()
        """Set when Redis has confirmed all channels for the first time.

        `None` once no caller waits for that; the reader then gets `HINTS_LOST` with each confirmation.
        """
        self._subscriptions = subscriptions

    async def __anext__(self) -> ChannelMessage | HintsLost:
        item = await super().__anext__()
        if item is HINTS_LOST:
            self._subscriptions.gaps += 1
        return item


class ChannelSubscriptions:
    """Subscribes to Redis channels over a connection of its own, and passes their messages to readers. Each `Link` to
    Redis has one such object.

    This object checks its connection by sending messages to the channel ``own_channel`` with the function ``publish``.
    """

    def __init__(
        self, address: RedisAddress, limit: float, own_channel: str, publish: Callable[[str, bytes], Awaitable[None]]
    ) -> None:
        self._address = address
        self._limit = limit
        self._own = own_channel
        self._publish = publish
        self._readers: defaultdict[str, list[_SubscriptionReader]] = defaultdict(list)
        """The readers of each channel."""
        self._wanted = trio.Event()
        """Set by the first reader. Before that, no connection is opened."""
        self._connection: Any = None
        self._unconfirmed: Counter[str] = Counter()
        """The number of unconfirmed subscriptions that were sent on the connection, for each channel."""
        self._live: set[str] = set()
        """The channels whose subscription is confirmed."""
        self._was_confirmed = False
        """True once Redis has confirmed a subscription on the latest connection."""
        self._proof = b""
        self._proof_received = trio.Event()
        """Set when the check message ``_proof`` has arrived, or Redis has confirmed the own channel."""
        self._refusal = ""
        """Text of the last refusal, which is logged already."""
        self.gaps = 0
        """The number of times that readers got `HINTS_LOST`."""

    @asynccontextmanager
    async def subscribe(self, channels: Sequence[str]) -> AsyncGenerator[AsyncIterator[ChannelMessage | HintsLost]]:
        """Subscribe to ``channels``, and open a stream of their messages. See `Link.subscribe`."""
        reader = _SubscriptionReader(channels, self)
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

    def _send(self, command: str, *channels: str) -> None:
        """Send a SUBSCRIBE or UNSUBSCRIBE command, if there is a connection.

        Without a connection, no command is needed: each new connection subscribes to all channels.
        """
        if self._connection is not None and channels:
            if command == "SUBSCRIBE":
                self._unconfirmed.update(channels)
            # Ignore a lost connection here, because the task that reads the connection notices the loss.
            with suppress(*failures()):
                self._connection.send_command(command.encode(), *channels)

    async def serve(self) -> None:
        """Wait for the first reader, then maintain a connection for the subscriptions until cancelled."""
        await self._wanted.wait()
        failed = 0
        while True:
            began, self._was_confirmed = trio.current_time(), False
            try:
                async with open_client(self._address, limit=self._limit, max_idle=_IDLE) as client:
                    why = await self._use_new_connection(client)
            except Exception as error:  # after any error, the connection can't be used
                why = reason_of(error)
            logger.info("reopening the subscription to Redis at %s: %s", self._address, why)
            # If the connection worked for a while, use the shortest delay before the next connection.
            if self._was_confirmed:
                failed = 0
                await trio.sleep_until(began + _GOOD)
            else:
                failed += 1
                await trio.sleep(growing_delay(failed, first=_FIRST_DELAY, longest=_LONGEST_DELAY))

    async def _use_new_connection(self, client: RedisClient) -> str:
        """Subscribe to all channels on a new connection, and receive messages until the connection is lost.

        Returns the reason for the loss.
        """
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
            """Wait for replies from Redis, and end the subscription when one arrives. An error reply means that Redis
            has refused a SUBSCRIBE command. Any other reply is unexpected."""
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
            except Exception as error:  # the connection was lost, or Redis sent an unreadable message
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
        """Check the connection at intervals with a message to the link's own channel. Call ``close`` if the message
        doesn't arrive."""
        while True:
            with trio.move_on_after(self._limit) as waiting:
                await self._proof_received.wait()
            if waiting.cancelled_caught:
                close("a check message did not arrive")
                return
            await trio.sleep(_LIVENESS_INTERVAL)
            self._proof, self._proof_received = secrets.token_bytes(_PROOF_BYTES), trio.Event()
            try:
                await self._publish(self._own, self._proof)
            except (StoreDown, Uncertain):
                # The check message couldn't be published, but it uses another connection than the subscriptions.
                # The error says nothing about the connection of the subscriptions, so keep that connection.
                self._proof_received.set()

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
        """Handle Redis's confirmation that the subscription to ``channel`` is active."""
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
