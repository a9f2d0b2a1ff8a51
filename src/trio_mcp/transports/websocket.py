"""WebSocketChannel: one message per text frame, over trio-websocket. WEBSOCKET.md specifies the binding."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    wrap_client_stream,
    wrap_server_stream,
)

from ..jsonrpc.errors import ProtocolViolation
from ..runtime.channel import ConnectionLost, MessageChannel
from .close_codes import closed_by_peer, closed_by_us
from .coalescing import CoalescingStream
from .frames import close_frame, text_frames

__all__ = ["SUBPROTOCOL", "WebSocketChannel"]

logger = logging.getLogger("trio_mcp")

SUBPROTOCOL: Final = "mcp"

_CLOSE_WAIT: Final = 0.5
_LATE: Final = 0.1
_BOM: Final = "\ufeff"
_REASONS: Final = {1001: "the server is shutting down", 1011: "internal error"}


class WebSocketChannel(MessageChannel):
    """Messages as text frames over ``transport``, of which ``received`` was read already.

    Whoever makes it starts `serve` or `connect` in the background, which own its tasks: trio-websocket's reader,
    the one writer, and the pings. It ends when the channel was closed. ``close_code`` is what `aclose` says.
    """

    network = "tcp"

    def __init__(
        self,
        transport: trio.abc.Stream,
        max_message_bytes: int,
        *,
        ping_interval: float,
        ping_timeout: float,
        close_code: int,
        received: bytes = b"",
    ) -> None:
        self._stream = CoalescingStream(transport, max_message_bytes, received)
        self._max = max_message_bytes
        self._ping_interval = ping_interval
        self._ping_timeout = ping_timeout
        self._close_code = close_code
        self._socket: WebSocketConnection
        self._masked = False
        self._lost: ConnectionLost | None = None
        self._closed = False
        self._over = trio.Event()

    # Life

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept the upgrade, which was checked already, and carry the connection until it is closed.

        Has started when messages can be sent. Raises `ConnectionLost` when the client does not wait for that.
        """

        async def accept(nursery: trio.Nursery) -> WebSocketConnection:
            request = await wrap_server_stream(
                nursery, self._stream, max_message_size=self._max, receive_buffer_size=None
            )
            return await request.accept(subprotocol=SUBPROTOCOL)

        await self._carry(accept, task_status)

    async def connect(
        self,
        host: str,
        resource: str,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Ask for the upgrade and carry the connection until it is closed. Has started when messages can be sent.

        Raises `ConnectionLost` when the server refuses, and `ProtocolViolation` when it does not speak ``mcp``.
        """
        self._masked = True

        async def ask(nursery: trio.Nursery) -> WebSocketConnection:
            socket = await wrap_client_stream(
                nursery,
                cast("Any", self._stream),  # any stream will do
                host,
                resource,
                subprotocols=[SUBPROTOCOL],
                extra_headers=list(headers),
                max_message_size=self._max,
                receive_buffer_size=None,
            )
            if socket.subprotocol != SUBPROTOCOL:
                self._stream.put(close_frame(1002, "the subprotocol mcp was not selected", masked=True))
                with trio.move_on_after(_CLOSE_WAIT), suppress(trio.BrokenResourceError):
                    await self._stream.flushed()
                raise ProtocolViolation(
                    f"the server speaks WebSocket, but not MCP: it selected no subprotocol {SUBPROTOCOL!r}"
                )
            return socket

        await self._carry(ask, task_status)

    async def _carry(self, handshake: Any, task_status: trio.TaskStatus[None]) -> None:
        started = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stream.pump)
                self._socket = await self._shake_hands(handshake, nursery)
                started = True
                task_status.started()
                nursery.start_soon(self._keep_alive)
                await self._over.wait()
                nursery.cancel_scope.cancel(reason="the connection was closed")
        except BaseExceptionGroup as group:
            # Faults of trio-websocket and wsproto end here: they are this connection's alone.
            faults, rest = group.split(Exception)
            if rest is not None:
                raise
            error = _first(faults)
            if not started:
                raise _refusal(error) from None
            logger.warning("the WebSocket connection failed: %r", error)
            self._lost = self._lost or ConnectionLost(f"the WebSocket connection failed: {error}")
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_WAIT):
                await self._stream.say_last(close_frame(1011, _REASONS[1011], masked=self._masked))
        finally:
            await self._stream.end()

    async def _shake_hands(self, handshake: Any, nursery: trio.Nursery) -> WebSocketConnection:
        """trio-websocket waits for ever when the stream ends in the handshake, so that is watched here."""
        done: list[WebSocketConnection] = []
        async with trio.open_nursery() as watch:

            async def give_up() -> None:
                # All that was read before the end has been looked at when trio-websocket reads the end.
                await self._stream.ended.wait()
                watch.cancel_scope.cancel(reason="the peer closed the connection in the handshake")

            watch.start_soon(give_up)
            done.append(await handshake(nursery))
            watch.cancel_scope.cancel(reason="the handshake is done")
        if not done:
            raise ConnectionLost("the peer closed the connection in the handshake")
        return done[0]

    @property
    def was_answered(self) -> bool:
        """Whether the peer has sent anything."""
        return not self._stream.heard_nothing

    # Messages

    async def receive(self) -> bytes:
        """See `MessageChannel.receive`."""
        try:
            message = await self._socket.get_message()
        except ConnectionClosed as closed:
            raise self._loss(closed) from None
        if isinstance(message, bytes):
            raise self._close_with(1003, "messages are text, not binary")
        if message.startswith(_BOM):
            message = message[1:]
        return message.encode()

    def _loss(self, closed: ConnectionClosed) -> ConnectionLost:
        if self._lost is not None:
            return self._lost
        if self._stream.violation is not None:
            return self._close_with(*self._stream.violation)
        reason = closed.reason
        code, words = (1006, None) if reason is None else (int(reason.code), reason.reason)
        if code in (1002, 1007) and not self._stream.close_sent:
            # wsproto reports what it cannot read as if the peer had closed; the peer has still to be told.
            return self._close_with(code, words or "")
        self._lost = closed_by_peer(code, words)
        return self._lost

    def _close_with(self, code: int, reason: str) -> ConnectionLost:
        """The peer has done what ends the connection: tell it now, before any handler's cleanup."""
        self._stream.put(close_frame(code, reason, masked=self._masked))
        self._lost = closed_by_us(code, reason)
        return self._lost

    async def send(self, messages: bytes | bytearray) -> None:
        """See `MessageChannel.send`. Cancelled, it leaves whole frames only: they are written all the same."""
        stream = self._stream
        if stream.close_sent or stream.broken:
            raise self._lost or ConnectionLost("the peer reads no more")
        stream.put(text_frames(messages, masked=self._masked))
        try:
            await stream.flushed()
        except trio.BrokenResourceError:
            raise self._lost or ConnectionLost("the peer reads no more") from None

    # Keep-alive

    async def _keep_alive(self) -> None:
        """Ping a peer that has been silent, and drop it when it stays so."""
        stream = self._stream
        with suppress(ConnectionClosed):
            while True:
                while (due := stream.heard_at + self._ping_interval) > trio.current_time():  # noqa: ASYNC110 - it moves
                    await trio.sleep_until(due)
                if not await self._answers_ping():
                    break
            words = f"the peer is frozen: it sent nothing for {self._ping_timeout:g} s after a ping"
            self._lost = self._lost or ConnectionLost(words)
            await stream.end()

    async def _answers_ping(self) -> bool:
        """Whether anything at all arrives within the timeout. The time starts when the ping is on its way, and
        anew when our own tasks were kept from running: then nobody has looked for the answer."""
        stream, asked = self._stream, trio.current_time()
        deadline = asked + self._ping_timeout
        with trio.move_on_at(deadline):
            await self._socket.ping()
            return True
        now = trio.current_time()
        if stream.heard_at >= asked or now > deadline + _LATE:
            return True
        return not stream.is_flushed and stream.moved_at > deadline - self._ping_timeout

    # Closing

    async def aclose(self) -> None:
        """Say why, wait a moment for the peer's own close frame, and close. When cancelled, it still does."""
        if self._closed:
            return
        self._closed = True
        code = 1011 if isinstance(sys.exc_info()[1], Exception) else self._close_code
        stream = self._stream
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_WAIT):
                if not stream.broken:
                    stream.put(close_frame(code, _REASONS.get(code, ""), masked=self._masked))
                    with suppress(trio.BrokenResourceError):
                        await stream.flushed()
                    await self._until_peer_closes()
        finally:
            self._over.set()
            await stream.end()

    async def _until_peer_closes(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self._socket.get_message()
        if self._masked or self._stream.violation is not None:
            await self._stream.ended.wait()
            await self._stream.discard()


def _first(group: BaseExceptionGroup[Any] | None) -> Exception:
    error: Any = group
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[Any]", error).exceptions[0]
    return error


def _refusal(error: Exception) -> Exception:
    match error:
        case ConnectionRejected():
            body = (error.body or b"").decode("utf-8", "replace").strip()[:500]
            words = f"the server refused the connection with HTTP status {error.status_code}"
            return ConnectionLost(f"{words}: {body}" if body else words)
        case ConnectionLost() | ProtocolViolation():
            return error
        case _:
            return ConnectionLost(f"the WebSocket handshake failed: {error!r}")
