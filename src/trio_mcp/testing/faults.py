"""FaultyChannel: a transport that injects faults: it drops, delays, duplicates and truncates messages, by plan.

A plan depends only on the message and on its number in its direction. One seed therefore gives the same faults in every
run, in whatever order trio runs the tasks.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import attrs
import trio

from ..classes import frozen
from ..jsonrpc.codec import decode
from ..jsonrpc.messages import Notification, Request
from ..runtime.transport import ConnectionLost, Transport


class FaultyChannel(Transport):
    """A channel that wraps ``channel``. It injects the faults that ``plan`` chooses into the messages of both
    directions.

    The channel keeps the contract of `Transport`: a cancelled `receive` loses no message that the plan lets through.
    After a `Cut` or a `Disconnect`, both directions raise `ConnectionLost`, also in tasks that are already waiting. The
    other end receives all earlier messages, and then sees the connection end, as in a real loss. A cut message arrives
    as a complete line, like the last line of any broken stream.
    """

    def __init__(self, channel: Transport, plan: FaultPlan) -> None:
        self._channel = channel
        self._plan = plan
        self._counts: dict[Literal["sent", "received"], int] = {"sent": 0, "received": 0}
        self._arrived: deque[tuple[float, bytes]] = deque()
        """The messages that arrived and weren't received yet, each with its due time, oldest first."""
        self._ends: str | None = None
        """The reason why `receive` will report a lost connection after the arrived messages. `None` while the
        connection isn't lost."""
        self._lost: str | None = None
        self._receiving = trio.CancelScope()
        self._sending = trio.CancelScope()
        self.injected: list[tuple[MessageInTransit, Fault]] = []
        """The faults injected so far, with their messages, in order."""

    def _choose_fault(self, direction: Literal["sent", "received"], message: bytes) -> Fault | None:
        passage = MessageInTransit(direction, self._counts[direction], message)
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
        """Break the connection, so that both sides notice that it is lost."""
        if self._lost is None:
            self._lost = reason
            self._receiving.cancel(reason=reason)
            self._sending.cancel(reason=reason)
            await self._channel.aclose()

    # Receiving

    async def receive(self) -> bytes:
        """Receive the next message, after injecting the faults that the channel's fault plan chooses. See
        `Transport.receive`."""
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
            await trio.sleep_until(due)  # if the sleep is cancelled, the message stays first in the queue
        self._arrived.popleft()
        return message

    async def _fill(self) -> None:
        message = bytes(await self._channel.receive())
        now = trio.current_time()
        fault = self._choose_fault("received", message)
        due = now + (fault.seconds if isinstance(fault, Delay) else 0)
        self._arrived.extend((due, each) for each in _with_fault(message, fault))
        self._ends = self._reason("received", fault)

    # Sending

    async def send(self, messages: bytes | bytearray) -> None:
        """Send messages, after injecting the faults that the channel's fault plan chooses. See `Transport.send`."""
        for line in bytes(messages).split(b"\n"):
            if line and self._lost is None:
                fault = self._choose_fault("sent", line)
                with trio.CancelScope() as self._sending:
                    await self._send_with_fault(line, fault)
                if (reason := self._reason("sent", fault)) is not None:
                    await self._lose(reason)
        if self._lost is not None:
            raise ConnectionLost(self._lost)

    async def _send_with_fault(self, line: bytes, fault: Fault | None) -> None:
        if isinstance(fault, Delay):
            await trio.sleep(fault.seconds)
        if lines := b"".join(each + b"\n" for each in _with_fault(line, fault)):
            await self._channel.send(lines)
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close the wrapped channel."""
        await self._channel.aclose()


def _with_fault(message: bytes, fault: Fault | None) -> list[bytes]:
    """Return the messages that arrive when ``fault`` is applied to ``message``: none, one or two."""
    match fault:
        case None | Delay():
            return [message]
        case Duplicate():
            return [message] * 2
        case Garble(at) | Cut(at):
            return [_prefix(message, at)]
        case Drop() | Disconnect():
            return []


def _prefix(message: bytes, at: float) -> bytes:
    """Truncate ``message`` to the fraction ``at`` of its bytes. Keep at least one byte, and remove at least one byte
    from a message of several bytes."""
    return message[: max(1, min(round(at * len(message)), len(message) - 1))]


@frozen
class Delay:
    """A fault: delay the message, and all later messages in the same direction, by ``seconds``. Messages keep their
    order."""

    seconds: float = attrs.field(validator=attrs.validators.ge(0))
    """Duration of the delay in seconds, at least 0."""


@frozen
class Drop:
    """A fault: drop the message, so that it never arrives."""


@frozen
class Duplicate:
    """A fault in which the channel delivers a message twice in direct succession."""


def _is_fraction(_: Any, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be from 0 to 1, not {value!r}")


@frozen
class Garble:
    """A fault: truncate the message, and keep the connection. ``at`` is the fraction of the bytes that arrives."""

    at: float = attrs.field(default=0.5, validator=_is_fraction)
    """Fraction of the message's bytes that arrives, from 0 to 1."""


@frozen
class Cut:
    """A fault: truncate the message like `Garble`, then lose the connection."""

    at: float = attrs.field(default=0.5, validator=_is_fraction)
    """Fraction of the message's bytes that arrives, from 0 to 1."""


@frozen
class Disconnect:
    """A fault: lose the connection just before the message is delivered. The message doesn't arrive."""


Fault: TypeAlias = Delay | Drop | Duplicate | Garble | Cut | Disconnect
"""A fault that can be injected into a message in transit."""


@frozen
class MessageInTransit:
    """A message that passes through a `FaultyChannel`: the argument of a `FaultPlan`."""

    direction: Literal["sent", "received"]
    """The direction, as seen by the side that uses the `FaultyChannel`."""
    number: int
    """The number of earlier messages in the same direction."""
    message: bytes
    """The bytes of the message, normally JSON."""

    @property
    def method(self) -> str | None:
        """The method if the message is a request or a notification; `None` for replies, batches and invalid
        messages."""
        message = decode(self.message)
        return message.method if isinstance(message, Request | Notification) else None


FaultPlan: TypeAlias = Callable[[MessageInTransit], Fault | None]
"""A function that returns the fault for a message, or `None` to let it pass.

Example: ``lambda message: Drop() if message.number == 2 else None``.
"""


def _probability() -> Any:
    return attrs.field(default=0.0, kw_only=True, validator=_is_fraction)


@frozen
class RandomFaults:
    """A `FaultPlan` that injects random faults. The same seed, direction and message number always give the same fault.

    Each fault has a probability from 0 to 1. Raises `ValueError` for other probabilities, and if their sum exceeds 1.
    """

    seed: int
    """Seed of the random numbers."""
    delay: float = _probability()
    """Probability of `Delay`, from 0 to 1."""
    drop: float = _probability()
    """Probability of `Drop`, from 0 to 1."""
    duplicate: float = _probability()
    """Probability of `Duplicate`, from 0 to 1."""
    garble: float = _probability()
    """Probability of `Garble`, from 0 to 1."""
    cut: float = _probability()
    """Probability of `Cut`, from 0 to 1."""
    disconnect: float = _probability()
    """Probability of `Disconnect`, from 0 to 1."""
    max_delay: float = attrs.field(default=1.0, kw_only=True, validator=attrs.validators.ge(0))
    """The longest delay, in seconds. Delays are drawn evenly from 0 to this value."""
    after: int = attrs.field(default=0, kw_only=True)
    """Number of messages at the beginning of each direction that get no faults, such as the messages of the
    handshake."""

    def __attrs_post_init__(self) -> None:
        total = self.delay + self.drop + self.duplicate + self.garble + self.cut + self.disconnect
        if total > 1 + 1e-9:
            raise ValueError(f"the probabilities must add up to at most 1, not {total:g}")

    def __call__(self, passage: MessageInTransit) -> Fault | None:
        """Return the fault to inject into the message ``message``, or `None` for no fault."""
        if passage.number < self.after:
            return None
        draw = random.Random(f"{self.seed} {passage.direction} {passage.number}")  # noqa: S311 - no secret
        chance, amount = draw.random(), draw.random()
        faults: tuple[tuple[float, Fault], ...] = (
            (self.delay, Delay(amount * self.max_delay)),
            (self.drop, Drop()),
            (self.duplicate, Duplicate()),
            (self.garble, Garble(amount)),
            (self.cut, Cut(amount)),
            (self.disconnect, Disconnect()),
        )
        for probability, fault in faults:
            if chance < probability:
                return fault
            chance -= probability
        return None
