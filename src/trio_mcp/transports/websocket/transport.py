"""WebSocketTransport: sends and receives one message per text frame, over trio-websocket. Pings detect a peer that
doesn't respond. WEBSOCKET.md specifies the format."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from ...concurrency.fair_share import HeldBytes
from ...runtime.transport import ConnectionLost, FramedTransport
from ..streams import AT_ONCE
from .handshake import Handshake, accept, ask, refusal, shake_hands
from .stream import CLOSE_WAIT, CoalescingStream, close_frame, text_frames

logger = logging.getLogger("trio_mcp")

_BOM: Final = b"\xef\xbb\xbf"
_LATE: Final = 0.1
_REASONS: Final = {1001: "the server is shutting down", 1011: "internal error"}


class WebSocketTransport(FramedTransport):
    """A transport that sends and receives messages as WebSocket text frames over ``stream``.

    ``received`` are the bytes that were already read. A server passes ``unread``, a counter for bytes of messages that
    `receive` hasn't returned yet.

    The creator of a transport starts `serve` or `connect` in the background. Either method owns the transport's tasks
    (trio-websocket's reader, the one writer, and the pings), and ends when the transport is closed. `aclose` closes the
    connection with ``close_code``.
    """

    network = "tcp"

    def __init__(
        self,
        stream: trio.abc.Stream,
        max_message_bytes: int,
        *,
        ping_interval: float,
        ping_timeout: float,
        close_code: int,
        received: bytes = b"",
        unread: HeldBytes | None = None,
    ) -> None:
        self._stream = CoalescingStream(stream, max_message_bytes, received, unread)
        self._max = max_message_bytes
        self._ping_interval = ping_interval
        self._ping_timeout = ping_timeout
        self._close_code = close_code
        self._socket: WebSocketConnection
        self._masked = False
        self._at_once = AT_ONCE
        self._lost: ConnectionLost | None = None
        self._closed = False
        self._over = trio.Event()

    # Life

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept a client's upgrade request that `check_upgrade` has checked, and run the connection until the
        transport is closed.

        Reports the start when messages can be sent. Raises `ConnectionLost` if the client disconnects before that.
        """
        await self._carry(partial(accept, self._stream, self._max), task_status)

    async def connect(
        self,
        host: str,
        resource: str,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Request the upgrade, and run the connection until the transport is closed.

        Calls ``task_status.started()`` when messages can be sent.

        Raises `ConnectionLost` if the server refuses, and `ProtocolViolation` if the server doesn't speak ``mcp``.
        """
        self._masked = True
        await self._carry(partial(ask, self._stream, self._max, host, resource, headers), task_status)

    async def _carry(self, handshake: Handshake, task_status: trio.TaskStatus[None]) -> None:
        started = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stream.pump)
                self._socket = await shake_hands(handshake, self._stream, nursery)
                started = True
                task_status.started()
                nursery.start_soon(self._keep_alive)
                await self._over.wait()
                nursery.cancel_scope.cancel(reason="the connection was closed")
        except BaseExceptionGroup as group:
            # Errors of trio-websocket and wsproto don't propagate, because they affect only this connection.
            if not _is_fault(group):
                raise
            if not started:
                raise refusal(_first(group)) from None
            await self._failed(_first(group))
        finally:
            await self._stream.close_now()

    async def _failed(self, error: Exception) -> None:
        logger.warning("the WebSocket connection failed: %r", error)
        self._lost = self._lost or ConnectionLost(f"the WebSocket connection failed: {error}")
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_WAIT):
            await self._stream.write_close(close_frame(1011, _REASONS[1011], masked=self._masked))

    @property
    def has_received(self) -> bool:
        """Whether any bytes have arrived from the peer."""
        return self._stream.has_received

    # Messages

    async def receive(self) -> bytes:
        """Receive the next message: see `Transport.receive`."""
        try:
            message = await self._socket.get_message()
        except ConnectionClosed as closed:
            raise self._loss(closed) from None
        # If messages arrived together, send their replies together: this saves system calls on both sides.
        self._at_once = 0 if self._stream.came_together else AT_ONCE
        if isinstance(message, bytes):
            raise self.close_with(1003, "MCP messages must be text, not binary")
        data = message.encode()
        self._stream.consume(len(data))
        return data.removeprefix(_BOM)

    def _loss(self, closed: ConnectionClosed) -> ConnectionLost:
        if self._lost is not None:
            return self._lost
        if self._stream.gauge.violation is not None:
            return self.close_with(*self._stream.gauge.violation)
        reason = closed.reason
        code, words = (1006, None) if reason is None else (int(reason.code), reason.reason)
        if code in (1002, 1007) and not self._stream.close_sent:
            # For bytes that wsproto can't parse, it reports a close by the peer. So a close frame must still be sent.
            return self.close_with(code, words or "")
        self._lost = _closed_by_peer(code, words)
        return self._lost

    def close_with(self, code: int, reason: str) -> ConnectionLost:
        """Send a close frame at once, so that the peer stops sending. Return the exception that the caller should
        raise.

        This doesn't wait for the cleanup of handlers.
        """
        self._stream.put(close_frame(code, reason, masked=self._masked))
        self._lost = ConnectionLost(f"{reason} (close code {code})")
        return self._lost

    async def send(self, messages: bytes | bytearray) -> None:
        """Send the messages. They are sent completely, even if the call is cancelled. See `Transport.send`."""
        stream = self._stream
        if stream.close_sent or stream.broken:
            raise self._lost or ConnectionLost("the peer has stopped reading")
        stream.put(text_frames(messages, masked=self._masked))
        try:
            await stream.flushed()
        except trio.BrokenResourceError:
            raise self._lost or ConnectionLost("the peer has stopped reading") from None
        self._at_once = AT_ONCE

    def send_nowait(self, message: bytes) -> int:
        """Send either the whole message or nothing, without waiting: see `FramedTransport.send_nowait`.

        If several messages were received together, nothing is sent this way, as in `LineTransport.send_nowait`.
        """
        if not self._at_once:
            return 0
        self._at_once -= 1
        return len(message) if self._stream.put_nowait(text_frames(message, masked=self._masked)) else 0

    # Keep-alive

    async def _keep_alive(self) -> None:
        """Ping the peer regularly, and end the connection if the peer doesn't respond."""
        stream = self._stream
        with suppress(ConnectionClosed):
            alive = True
            while alive:
                while (due := stream.last_received_at + self._ping_interval) > trio.current_time():  # noqa: ASYNC110 - it moves
                    await trio.sleep_until(due)
                alive = await self._is_alive()
            words = f"the peer is frozen: it sent nothing for {self._ping_timeout:g} s after a ping"
            self._lost = self._lost or ConnectionLost(words)
            await stream.close_now()

    async def _is_alive(self) -> bool:
        """Ping the peer, and return whether any bytes arrive from the peer within the timeout.

        The timeout starts when the ping is written.

        If this process's tasks couldn't run for a while, and so couldn't read the response, the timeout starts again.
        """
        stream, begun = self._stream, trio.current_time()
        deadline = begun + self._ping_timeout
        with trio.move_on_at(deadline):
            await self._socket.ping()
            return True
        now = trio.current_time()
        if stream.last_received_at >= begun or now > deadline + _LATE:
            return True
        return not stream.is_flushed and stream.moved_at > begun

    # Closing

    async def aclose(self) -> None:
        """Send a close frame, wait briefly for the peer's close frame, and close the connection.

        Cancellation doesn't skip these steps.
        """
        if self._closed:
            return
        self._closed = True
        code = 1011 if isinstance(sys.exc_info()[1], Exception) else self._close_code
        stream = self._stream
        try:
            if not stream.broken:
                stream.put(close_frame(code, _REASONS.get(code, ""), masked=self._masked))
                # Let the writing task run before the timeout starts, even on a busy machine.
                await trio.lowlevel.cancel_shielded_checkpoint()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_WAIT):
                    with suppress(trio.BrokenResourceError):
                        await stream.flushed()
                    await self._until_peer_closes()
        finally:
            self._over.set()
            await stream.close_now()

    async def _until_peer_closes(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self._socket.get_message()
        if self._masked or self._stream.gauge.violation is not None:
            await self._stream.ended.wait()
            await self._stream.discard()


def _is_fault(group: BaseExceptionGroup[Any]) -> bool:
    """Return whether ``group`` contains only connection errors, which end this connection but don't propagate.

    A cancellation, or another exception that must propagate, isn't an error of the connection.

    This is a separate function to avoid a reference cycle: the tracebacks of a split group refer to the frame in which
    its parts are variables.
    """
    return group.split(Exception)[1] is None


def _first(group: BaseExceptionGroup[Any]) -> Exception:
    error: Any = group
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[Any]", error).exceptions[0]
    return error


_MEANINGS: Final = {
    1000: "the peer closed the connection",
    1001: "the peer is going away",
    1002: "the peer reported a protocol error",
    1003: "the peer does not accept this type of data",
    1005: "the peer closed the connection without a reason",
    1006: "the connection was lost",
    1007: "the peer reported text that is not UTF-8",
    1008: "the peer reported a violation of its policy",
    1009: "the peer reported a message that is too long",
    1011: "the peer reported an internal error",
    1012: "the peer is restarting",
    1013: "the peer is too busy",
}


def _closed_by_peer(code: int, reason: str | None) -> ConnectionLost:
    """Return the error for a connection that the peer has closed with the close code ``code``. Code 1006 means that the
    peer vanished."""
    words = f"{_MEANINGS.get(code, 'the peer closed the connection')} (close code {code})"
    return ConnectionLost(f"{words}: {reason}" if reason else words)
