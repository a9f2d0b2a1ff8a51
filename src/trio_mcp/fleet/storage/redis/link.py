"""Link: a connection to Redis for scripts, commands and subscriptions. Each call has a time limit, and no command is
sent twice.

A call fails in one of two ways. `StoreDown`: nothing was sent, or Redis refused the whole call, and nothing has
changed. `Uncertain`: the call may have been carried out, or may be later, when a frozen server resumes. No call is
repeated, except a script that Redis didn't know, since nothing has run then.

No call blocks a connection, because all callers share one, and no call waits for a connection longer than the limit. If
Redis doesn't answer, all connections are dropped, and new ones are made, which query Sentinel or the cluster again.
"""

from __future__ import annotations

import errno
import logging
import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import trio

from ....classes import frozen
from ....concurrency.contexts import asynccontextmanager
from ....concurrency.nurseries import open_service_nursery
from ....concurrency.time_limits import growing_delay
from ....stores.task_store import HintsLost, StoreDown, Uncertain
from .address import RedisAddress, parse_url
from .client import (
    RedisClient,
    Script,
    Value,
    check,
    check_argument_types,
    digest,
    error_text,
    failures,
    is_refusal,
    key_of,
    node_name,
    open_client,
    reason_of,
    runs_script,
    silence_coredis_logs,
)
from .subscription import ChannelMessage, ChannelSubscriptions

__all__ = ["ChannelMessage", "Link", "Script", "Value", "open_link"]

logger = logging.getLogger("trio_mcp")

_PING_EVERY: Final = 1.0
_IDLE: Final = 2.0
"""Seconds of silence after which a connection is closed. The time is longer if calls can take longer."""
_PROOF_BYTES: Final = 6
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 1.0
_LARGE_TRANSFER_BYTES: Final = 2**18
"""Size in bytes from which a command or an answer can exceed the time limit, together with everything sent after it."""
_LATE_ANSWERS_LIMIT: Final = 2
"""Number of consecutive calls without an answer within the limit, after which all connections to Redis are dropped."""


@frozen
class _PendingCommand:
    """A Redis command that was sent and has no reply yet."""

    command: Sequence[Value]
    node: Any
    request: Any
    connection: Any
    before: int
    """Bytes that the connection had received when the command was sent."""


class Link:
    """A connection to Redis that reconnects automatically, and that many tasks can use at once. Open it with
    `open_link`."""

    def __init__(self, address: RedisAddress, limit: float, own_channel: str, *, is_quiet: bool = False) -> None:
        self._address = address
        self._level = logging.DEBUG if is_quiet else logging.WARNING
        self._limit = limit
        self._client: RedisClient | None = None
        """The connections; `None` while Redis is unavailable."""
        self._up = trio.Event()
        """Set while there are connections to Redis."""
        self._dropped = trio.Event()
        """Set when the current connections can no longer be used."""
        self._late: dict[Any, int] = {}
        """The number of consecutive calls without an answer within the time limit, for each node."""
        self._large: list[tuple[str, Any]] = []
        """The large commands that are being sent, by node."""
        self._answers = 0
        self._down_error = f"Redis at {address} cannot be used: "
        self._down_reason = "it was not reached yet"
        self._is_loss_logged = False
        self._subscriptions = ChannelSubscriptions(address, limit, own_channel, self._publish)
        self.round_trips = 0
        """The number of round trips of calls. A pipeline counts as one round trip. With subscriptions, the link itself
        makes one every five seconds."""
        self.reconnects = 0
        """How often Redis became available again after an outage."""
        self.uncertain = 0
        """Number of calls that ended with `Uncertain`, including those of the link itself."""

    @property
    def is_up(self) -> bool:
        """True while Redis seems to be available. This object checks its availability every second."""
        return self._client is not None

    @property
    def is_lost(self) -> bool:
        """True from the time when an outage of Redis is logged until Redis is available again."""
        return self._is_loss_logged

    async def wait_until_up(self) -> None:
        """Wait until Redis is available."""
        await self._up.wait()

    @property
    def gaps(self) -> int:
        """The number of times that the readers of a subscription got `HINTS_LOST`, because messages may have been
        lost."""
        return self._subscriptions.gaps

    async def script(self, script: Script, keys: Sequence[Value], args: Sequence[Value] = ()) -> Any:
        """Run the Lua script ``script`` in Redis, and return its result: numbers, bytes, `None`, or lists of these.

        In a cluster, all ``keys`` must be in one slot.

        Raises:
            StoreDown: Nothing has changed. If Redis refused the script, the text has its reason.
            Uncertain: The script may have run, or it failed; the changes before its error stay.
        """
        rest = (len(keys), *keys, *args)
        check_argument_types(rest)
        deadline = trio.current_time() + self._limit
        (answer,) = await self._exchange([("EVALSHA", digest(script.text), *rest)], deadline)
        if isinstance(answer, Exception) and (error_text(answer) or "").startswith("NOSCRIPT"):
            (answer,) = await self._exchange([("EVAL", script.text, *rest)], deadline)
        if isinstance(answer, Exception):
            raise self._failure(f"the script {script.name!r}", answer, is_script=True)
        return answer

    async def pipeline(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """Send several Redis commands together, and return their results in order.

        Results are as in RESP3: a map is a `dict`.

        A pipeline isn't a transaction: other commands can run in between. In a cluster, the first argument of a
        command, or the first key of a script, determines the node.

        Raises:
            StoreDown: No command has changed anything.
            Uncertain: At least one command may have changed something.
            ValueError: A command blocks, or changes the state of the connection, which all callers share.
        """
        for command in commands:
            check(command)
        answers = await self._exchange(commands, trio.current_time() + self._limit) if commands else []
        failed = [
            self._failure(f"the command {command[0]!r}", answer, is_script=runs_script(command))
            for command, answer in zip(commands, answers, strict=True)
            if isinstance(answer, Exception)
        ]
        if not failed:
            return answers
        worst = next((each for each in failed if isinstance(each, Uncertain)), failed[0])
        if len(failed) < len(answers) and isinstance(worst, StoreDown):
            worst = self._uncertain_error(f"{worst.strerror}; other commands of the pipeline were carried out")
        raise worst

    def subscribe(
        self, channels: Sequence[str]
    ) -> AbstractAsyncContextManager[AsyncIterator[ChannelMessage | HintsLost]]:
        """Subscribe to ``channels``, and return a stream of their messages for one reader.

        `HINTS_LOST` in the stream means that messages may have been lost: Redis was unavailable, or the reader was more
        than 1,000 messages behind. Entering waits until Redis has confirmed the subscription, at most for the limit. If
        it confirms later, the stream has `HINTS_LOST` at that point. The stream never ends and never raises.
        """
        return self._subscriptions.subscribe(channels)

    async def _publish(self, channel: str, message: bytes) -> None:
        await self.pipeline([("PUBLISH", channel, message)])

    async def serve_subscriptions(self) -> None:
        """Maintain the connection for channel subscriptions until cancelled."""
        silence_coredis_logs()
        await self._subscriptions.serve()

    async def _exchange(self, commands: Sequence[Sequence[Value]], deadline: float) -> list[Any]:
        """Send the Redis commands, and return their replies in order. The reply to a failed command is an exception.

        Raises `StoreDown` if none was sent, and `Uncertain` if one has no answer by the deadline.
        """
        client = self._client
        if client is None:
            await trio.lowlevel.checkpoint()
            raise StoreDown(errno.ENOTCONN, self._down_error + self._down_reason)
        sent = await self._send(client, commands, deadline)
        self.round_trips += 1
        answers = [await self._answer(client, each, deadline) for each in sent]
        for place, (each, answer) in enumerate(zip(sent, answers, strict=True)):
            if isinstance(answer, Exception):
                if (node := client.redirect_node(each.node, answer)) is not None:
                    answers[place] = await self._follow_redirect(client, node, each.command, answer, deadline)
                elif (error_text(answer) or "").startswith("READONLY"):
                    # READONLY means that the server has become a replica in a failover, so connect again
                    client.renew_connections()
        return answers

    async def _follow_redirect(
        self, client: RedisClient, node: Any, command: Sequence[Value], answer: Exception, deadline: float
    ) -> Any:
        """Send a Redis command again, to the cluster node that the first node has named in its error. Return the reply
        or an exception.

        The first cluster node hasn't run the command.
        """
        is_asking = (error_text(answer) or "").startswith("ASK ")
        try:
            (again,) = await self._send(client, [command], deadline, node=node, is_asking=is_asking)
        except StoreDown as error:
            return error
        return await self._answer(client, again, deadline)

    async def _send(
        self,
        client: RedisClient,
        commands: Sequence[Sequence[Value]],
        deadline: float,
        *,
        node: Any = None,
        is_asking: bool = False,
    ) -> list[_PendingCommand]:
        """Write the commands to their connections. If this raises `StoreDown`, no command was sent."""
        connections = dict[str, Any]()
        try:
            nodes = await self._connect(client, commands, deadline, node, connections)
            if is_asking:
                connections[node_name(node)].create_request(b"ASKING", raise_exceptions=False)
            sent = [
                _send_command(command, at, connections[node_name(at)])
                for command, at in zip(commands, nodes, strict=True)
            ]
        except StoreDown:
            raise
        except failures() as error:
            self._drop(client, why := reason_of(error))
            raise StoreDown(errno.ECONNREFUSED, self._down_error + why) from error
        finally:
            for connection in connections.values():
                client.release(connection)
        large = [(node_name(each.node), each.request) for each in sent if _size(each.command) >= _LARGE_TRANSFER_BYTES]
        if large:
            self._large = [*self._large_ones(), *large]
        return sent

    def _large_ones(self) -> list[tuple[str, Any]]:
        return [(name, request) for name, request in self._large if not request.complete]

    async def _connect(
        self,
        client: RedisClient,
        commands: Sequence[Sequence[Value]],
        deadline: float,
        node: Any,
        found: dict[str, Any],
    ) -> Sequence[Any]:
        """Return the cluster node to which each command must be sent. If ``node`` is given, it gets all commands.

        Adds a usable connection to each of these nodes to ``found``.
        """
        nodes = [client.node_of(key_of(command)) if node is None else node for command in commands]
        # Shield the wait from cancellation, because coredis might lose a connection slot. The deadline limits the wait.
        with trio.CancelScope(deadline=deadline, shield=True) as scope:
            for each in nodes:
                if (name := node_name(each)) not in found:
                    found[name] = await client.connection(each)
        if scope.cancelled_caught:
            self._record_late_answer(client, next(each for each in nodes if node_name(each) not in found))
            raise StoreDown(errno.ETIMEDOUT, f"no connection to Redis at {self._address} within {self._limit} s")
        await trio.lowlevel.checkpoint_if_cancelled()
        if not all(connection.usable for connection in found.values()):
            raise StoreDown(errno.ECONNRESET, f"the connection to Redis at {self._address} was lost")
        return nodes

    async def _answer(self, client: RedisClient, sent: _PendingCommand, deadline: float) -> Any:
        """Wait for the reply to a command that was sent, and return the reply or an exception.

        The wait can't be cancelled, since the command may have changed something.
        """
        answer: Any = None
        with trio.CancelScope(deadline=deadline, shield=True) as scope:
            answer = await sent.request
        if scope.cancelled_caught:
            # Run the event loop once, because the reply may have arrived while this process was suspended.
            await trio.lowlevel.cancel_shielded_checkpoint()
            if not sent.request.complete:
                if not self._is_moving(sent):
                    self._record_late_answer(client, sent.node)
                raise self._uncertain_error(f"Redis at {self._address} did not answer within {self._limit} s")
            answer = await sent.request
        if not isinstance(answer, Exception) or error_text(answer) is not None:
            self._late.pop(node_name(sent.node), None)
            self._answers += 1
        return answer

    def _failure(self, what: str, answer: Exception, *, is_script: bool) -> StoreDown | Uncertain:
        """Return the `StoreDown` or `Uncertain` to raise for a command that failed with the exception ``answer``."""
        if isinstance(answer, StoreDown):
            return answer
        words = error_text(answer)
        if words is None:
            return self._uncertain_error(
                f"{what}: the connection to Redis at {self._address} was lost before the answer"
            )
        refusal = f"Redis at {self._address} refused {what}: {words}"
        if not is_script or is_refusal(words):
            return StoreDown(errno.EIO, refusal)
        return self._uncertain_error(f"{refusal}; what was changed before that stays")

    def _uncertain_error(self, words: str) -> Uncertain:
        self.uncertain += 1
        return Uncertain(errno.EIO, words)

    def _is_moving(self, sent: _PendingCommand) -> bool:
        """Return whether a reply can be late because Redis is transferring much data, although Redis works normally.

        If no data moves, the connection ends after a while, and its commands with it.
        """
        self._large = self._large_ones()
        if sent.connection.statistics.bytes_read - sent.before >= _LARGE_TRANSFER_BYTES:
            return True
        return any(name == node_name(sent.node) for name, _ in self._large)

    def _record_late_answer(self, client: RedisClient, node: Any) -> None:
        name = node_name(node)
        self._late[name] = self._late.get(name, 0) + 1
        if self._late[name] >= _LATE_ANSWERS_LIMIT:
            self._drop(client, f"it does not answer within {self._limit} s")

    def _drop(self, client: RedisClient, why: str) -> None:
        """Drop the connections of ``client`` to Redis, so that new connections are opened."""
        if self._client is client:
            self._client, self._up = None, trio.Event()
            self._log_loss(why)
            self._dropped.set()

    def _log_loss(self, why: str) -> None:
        self._down_reason = why = why.removeprefix(self._down_error)
        if not self._is_loss_logged:
            self._is_loss_logged = True
            logger.log(self._level, "Redis at %s cannot be used: %s", self._address, why)

    def _log_recovery(self) -> None:
        if self._is_loss_logged:
            self._is_loss_logged = False
            self.reconnects += 1
            logger.log(self._level, "Redis at %s can be used again", self._address)

    async def serve(self) -> None:
        """Until cancelled, keep connections to Redis open, on which Redis scripts and commands are sent. Replace
        connections that are lost."""
        silence_coredis_logs()
        attempt = 1
        while True:
            attempt = 1 if await self._use_new_client() else attempt + 1
            await trio.sleep(growing_delay(attempt, first=_FIRST_DELAY, longest=_LONGEST_DELAY))

    async def _use_new_client(self) -> bool:
        """Open new connections, use them for all calls, and return when they are lost. Return false if opening them
        fails."""
        try:
            async with open_client(self._address, limit=self._limit, max_idle=max(_IDLE, self._limit + 1)) as client:
                try:
                    await self._ping(client)
                except (StoreDown, Uncertain) as error:
                    self._log_loss(error.strerror or "")
                    return False
                self._client, self._dropped, self._late = client, trio.Event(), {}
                self._up.set()
                self._log_recovery()
                try:
                    await self._watch(client)
                finally:
                    if self._client is client:
                        self._client, self._up, self._down_reason = None, trio.Event(), "the link was closed"
                return True
        except Exception as error:  # whatever the error of the Redis client is, its connections can't be used
            self._log_loss(reason_of(error))
            return False

    async def _watch(self, client: RedisClient) -> None:
        """Send a PING to Redis whenever no reply has arrived for a second, until the connections are dropped."""
        while not self._dropped.is_set():
            answers = self._answers
            with trio.move_on_after(_PING_EVERY):
                await self._dropped.wait()
                break
            if self._answers == answers or len(client.nodes()) > 1:
                try:
                    await self._ping(client)
                except Uncertain:
                    # `_answer` has already handled the missing reply to PING.
                    # The next PING shows whether the connection works.
                    continue
                except StoreDown as error:
                    self._drop(client, error.strerror or "")

    async def _ping(self, client: RedisClient) -> None:
        for node in client.nodes():
            deadline = trio.current_time() + self._limit
            (sent,) = await self._send(client, [("PING",)], deadline, node=node)
            answer = await self._answer(client, sent, deadline)
            if isinstance(answer, Exception):
                raise self._failure("PING", answer, is_script=False)


@asynccontextmanager
async def open_link(
    url: str,
    *,
    limit: float = 1.0,
    prefix: str = "trio-mcp",
    ssl_context: ssl.SSLContext | None = None,
    is_quiet: bool = False,
) -> AsyncGenerator[Link]:
    """Open a `Link` to the Redis at ``url``. The link is closed at the end of the ``with`` block.

    Entering doesn't wait for Redis: until it answers, calls raise `StoreDown`.

    Args:
        url: The address, see `parse_url`.
        limit: Maximum seconds that a call can take.
        prefix: Prefix of the channel on which the link sends messages to itself.
        ssl_context: Used for TLS, see `parse_url`.
        is_quiet: Log outages with level ``DEBUG``, because another link to the same Redis logs them.
    """
    if not limit > 0:
        raise ValueError(f"limit must be a number of seconds greater than 0, not {limit!r}")
    own_channel = f"{prefix}:proof:{secrets.token_urlsafe(_PROOF_BYTES)}"
    link = Link(parse_url(url, ssl_context), limit, own_channel, is_quiet=is_quiet)
    async with open_service_nursery("the link to Redis was closed") as nursery:
        nursery.start_soon(link.serve)
        nursery.start_soon(link.serve_subscriptions)
        yield link


def _send_command(command: Sequence[Value], node: Any, connection: Any) -> _PendingCommand:
    """Write a Redis command to a connection, and return the pending command."""
    name, *words = command
    request = connection.create_request(
        name.encode() if isinstance(name, str) else name, *words, decode=False, raise_exceptions=False
    )
    return _PendingCommand(command, node, request, connection, connection.statistics.bytes_read)


def _size(command: Sequence[Value]) -> int:
    return sum(len(word) for word in command if isinstance(word, bytes))
