"""TimedRequest is a request with its times, as one recording has them, or both sides of a connection together."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

from ..classes import define
from ..jsonrpc.messages import RequestId
from .entries import Reference

Origin: TypeAlias = Literal["client", "server"]
OPPOSITE: Final[dict[str, Origin]] = {"client": "server", "server": "client"}
TIMES: Final = (
    *("sent", "answered", "left", "cancel_sent"),
    *("received", "began", "cancel_read", "finally_began", "returned", "replied", "done"),
)
"""The fields that are times."""


@define(eq=False)
class Tick:
    """Progress, a log message or a question of a round, at a time on the common axis."""

    at: float
    kind: Literal["progress", "log", "asks"]
    text: str = ""


@define(eq=False)
class TimedRequest:
    """A request with its times in seconds on the common axis; `None`: not recorded. The times of the caller's recording
    come first, then the times of the other side's."""

    id: RequestId
    origin: Origin
    """The side of the connection that has sent the request."""
    method: str
    name: str = ""
    """Name of the tool or prompt, or the URI."""
    sent: float | None = None
    answered: float | None = None
    """The answer was received."""
    left: float | None = None
    """The caller left the call."""
    cancel_sent: float | None = None
    received: float | None = None
    began: float | None = None
    cancel_read: float | None = None
    cause: str | None = None
    finally_began: float | None = None
    """The handler was resumed by its cancel."""
    returned: float | None = None
    replied: float | None = None
    """The answer was sent."""
    done: float | None = None
    """The handler and its tasks have ended."""
    failed: bool = False
    ticks: list[Tick] = attrs.field(factory=list[Tick])
    more_ticks: int = 0
    parent: TimedRequest | None = None
    """The request that this one was made for, or the round before."""
    depth: int = 0
    asked: Reference | None = None
    """The name of the parent."""
    state_brought: str | None = None
    """The `requestState` that a retry brings, masked."""
    state_given: str | None = None
    """The `requestState` of the answer, which a retry brings back."""
    token: RequestId | None = None
    """The progress token of the call."""
    post: int = 0
    """See `Entry.post`."""

    @property
    def started_at(self) -> float:
        """The first time."""
        return min(self._times())

    @property
    def ended_at(self) -> float:
        """The last time."""
        return max(self._times())

    def _times(self) -> list[float]:
        times = (self.sent, self.answered, self.left, self.cancel_sent, self.received, self.began, self.cancel_read)
        more = (self.finally_began, self.returned, self.replied, self.done)
        return [each for each in (*times, *more) if each is not None] + [tick.at for tick in self.ticks]

    def shift(self, seconds: float) -> None:
        """Move all times by ``seconds``."""
        for field in TIMES:
            at = getattr(self, field)
            if at is not None:
                setattr(self, field, at + seconds)
        for tick in self.ticks:
            tick.at += seconds

    def complete(self, other: TimedRequest) -> None:
        """Take the times of the ``other`` side of the same request."""
        for field in TIMES:
            if getattr(self, field) is None:
                setattr(self, field, getattr(other, field))
        self.cause = self.cause or other.cause
        self.asked = self.asked or other.asked
        self.failed |= other.failed
        if not self.ticks or (other.ticks and other.received is not None):  # the side that sent them knows when
            self.ticks, self.more_ticks = other.ticks, other.more_ticks
