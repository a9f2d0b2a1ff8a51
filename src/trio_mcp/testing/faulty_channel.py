"""FaultyChannel: a channel that loses, delays, repeats and cuts off messages, by plan."""

from __future__ import annotations

from collections import deque
from typing import Literal

import trio

from ..runtime.channel import ConnectionLost, MessageChannel
from .faults import Cut, Delay, Disconnect, Drop, Duplicate, Fault, FaultPlan, Garble, Passage


class FaultyChannel(MessageChannel):
    """A channel with the faults of ``plan`` in both directions, over ``channel``.

    The contract of `MessageChannel` is kept: a cancelled `receive` loses no message that the plan lets through, and
    after a `Cut` or a `Disconnect` both directions raise `ConnectionLost`, in waiting tasks, too. The other end sees a
    real loss: the end, after all earlier messages. A cut message ends with a newline there, as the last line of a
    broken stream reads.
    """

    def __init__(self, channel: MessageChannel, plan: FaultPlan) -> None:
        self._channel = channel
        self._plan = plan
        self._counts: dict[Literal["sent", "received"], int] = {"sent": 0, "received": 0}
        self._arrived: deque[tuple[float, bytes]] = deque()
        """Due time and message, oldest first, of the messages that the plan let through and nobody has received yet."""
        self._ends: str | None = None
        """The reason of the connection's loss, after the messages that arrived were received; `None` until then."""
        self._lost: str | None = None
        self._receiving = trio.CancelScope()
        self._sending = trio.CancelScope()
        self.injected: list[tuple[Passage, Fault]] = []
        """The faults so far, with their messages, in order."""

    def _judge(self, direction: Literal["sent", "received"], message: bytes) -> Fault | None:
        passage = Passage(direction, self._counts[direction], message)
        self._counts[direction] += 1
        fault = self._plan(passage)
        if fault is not None:
            self.injected.append((passage, fault))
        return fault

    def _reason(self, direction: Literal["sent", "received"], fault: Fault | None) -> str | None:
        if not isinstance(fault, Cut | Disconnect):
            return None
        return f"injected fault: {type(fault).__name__} at message {self._counts[direction] - 1} {direction}"

    async def _lose(self, reason: str) -> None:
        """Lose the connection in both directions, for us and for the other end."""
        if self._lost is None:
            self._lost = reason
            self._receiving.cancel(reason=reason)
            self._sending.cancel(reason=reason)
            await self._channel.aclose()

    # Receiving

    async def receive(self) -> bytes:
        """Receive the next message that the plan lets through: see `MessageChannel.receive`."""
        while self._lost is None:
            with trio.CancelScope() as self._receiving:
                if self._arrived:
                    return await self._next()
                if self._ends is None:
                    await self._fill()
            if self._ends is not None and not self._arrived:
                await self._lose(self._ends)
        raise ConnectionLost(self._lost)

    async def _next(self) -> bytes:
        due, message = self._arrived[0]
        if due > trio.current_time():
            await trio.sleep_until(due)  # cancelled here, the message is still the first
        self._arrived.popleft()
        return message

    async def _fill(self) -> None:
        message = bytes(await self._channel.receive())
        now = trio.current_time()
        match fault := self._judge("received", message):
            case None:
                self._arrived.append((now, message))
            case Delay(seconds):
                self._arrived.append((now + seconds, message))
            case Duplicate():
                self._arrived.extend([(now, message)] * 2)
            case Garble(at) | Cut(at):
                self._arrived.append((now, _front(message, at)))
            case Drop() | Disconnect():
                pass
        self._ends = self._reason("received", fault)

    # Sending

    async def send(self, messages: bytes | bytearray) -> None:
        """Send the messages with the faults of the plan: see `MessageChannel.send`."""
        for line in bytes(messages).split(b"\n"):
            if line and self._lost is None:
                fault = self._judge("sent", line)
                with trio.CancelScope() as self._sending:
                    await self._carry(line, fault)
                if (reason := self._reason("sent", fault)) is not None:
                    await self._lose(reason)
        if self._lost is not None:
            raise ConnectionLost(self._lost)

    async def _carry(self, line: bytes, fault: Fault | None) -> None:
        match fault:
            case None:
                await self._channel.send(line + b"\n")
            case Delay(seconds):
                await trio.sleep(seconds)
                await self._channel.send(line + b"\n")
            case Duplicate():
                await self._channel.send((line + b"\n") * 2)
            case Garble(at) | Cut(at):
                await self._channel.send(_front(line, at) + b"\n")
            case Drop() | Disconnect():
                await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close the inner channel."""
        await self._channel.aclose()


def _front(message: bytes, at: float) -> bytes:
    """Return the front of ``message``: at least a byte, and not all of it unless it is a single byte."""
    return message[: max(1, min(round(at * len(message)), len(message) - 1))]
