"""Faults of messages on their way, and plans that choose the messages.

A plan depends only on the message and its place in its own direction. One seed therefore gives the same faults in every
run, in whatever order trio runs the tasks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import attrs

from ..jsonrpc.codec import decode
from ..jsonrpc.messages import Notification, Request


@attrs.frozen
class Delay:
    """The message is held for ``seconds``, and later messages wait: order is kept, as on every wire."""

    seconds: float = attrs.field(validator=attrs.validators.ge(0))


@attrs.frozen
class Drop:
    """The message never arrives."""


@attrs.frozen
class Duplicate:
    """The message arrives twice, one right after the other."""


def _is_fraction(_: Any, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be from 0 to 1, not {value!r}")


@attrs.frozen
class Garble:
    """The message is cut off: only the part before ``at`` arrives, a fraction of its bytes; the connection goes on."""

    at: float = attrs.field(default=0.5, validator=_is_fraction)


@attrs.frozen
class Cut:
    """The message is cut off as by `Garble`, and the connection is lost with its rest."""

    at: float = attrs.field(default=0.5, validator=_is_fraction)


@attrs.frozen
class Disconnect:
    """The connection is lost before the message."""


Fault: TypeAlias = Delay | Drop | Duplicate | Garble | Cut | Disconnect


@attrs.frozen
class Passage:
    """A message on its way."""

    direction: Literal["sent", "received"]
    """The direction, as seen by the side that holds the channel."""
    number: int
    """The number of earlier messages in this direction."""
    message: bytes

    @property
    def method(self) -> str | None:
        """The method of a request or a notification; `None` for replies, batches and anything that is no message."""
        message = decode(self.message)
        return message.method if isinstance(message, Request | Notification) else None


FaultPlan: TypeAlias = Callable[[Passage], Fault | None]
"""Returns the fault of a message; `None` lets the message pass. ``lambda p: Drop() if p.number == 2 else None``."""


def _probability() -> Any:
    return attrs.field(default=0.0, kw_only=True, validator=_is_fraction)


@attrs.frozen
class RandomFaults:
    """A `FaultPlan` drawn from ``seed``: the same seed, direction and number always give the same fault.

    Each fault has a probability from 0 to 1; their sum is at most 1. Raises `ValueError` otherwise.
    """

    seed: int
    delay: float = _probability()
    drop: float = _probability()
    duplicate: float = _probability()
    garble: float = _probability()
    cut: float = _probability()
    disconnect: float = _probability()
    max_delay: float = attrs.field(default=1.0, kw_only=True, validator=attrs.validators.ge(0))
    """Seconds; delays are drawn evenly from 0 to this value."""
    after: int = attrs.field(default=0, kw_only=True)
    """Messages that pass unharmed in each direction first, the handshake for example."""

    def __attrs_post_init__(self) -> None:
        total = self.delay + self.drop + self.duplicate + self.garble + self.cut + self.disconnect
        if total > 1 + 1e-9:
            raise ValueError(f"the probabilities add up to {total:g}; together they are at most 1")

    def __call__(self, passage: Passage) -> Fault | None:
        """Return the fault of this message; `None` when the message passes."""
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
