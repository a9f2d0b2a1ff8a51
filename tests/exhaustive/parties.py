"""Who takes part in a connection that is explored, and how much may happen: the plan, the messages under way, and
calls, handlers and questions as their side sees them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import attrs
from tests.exhaustive.tables import key_of, twin_of

from trio_mcp.jsonrpc.messages import Batch, Message
from trio_mcp.protocol.revisions import Revision
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.requests import InboundRequest, OutboundRequest, Phase

__all__ = ["Call", "Handler", "Link", "Plan", "Question", "Sent", "Subject"]

Subject: TypeAlias = tuple[str, int, int]
"""What a message is about, as nobody but the checker knows: its kind, the call or question, and the round."""


@attrs.frozen
class Plan:
    """How much may happen in a world."""

    revision: Revision
    calls: int
    questions: int = 0
    """Questions of the server, by its own requests (legacy)."""
    rounds: int = 0
    """Times that a handler is parked (modern)."""
    links: int = 1
    """Connections of the client. With more than one, a principal may come back on any of them."""
    losses: int = 0
    batched: bool = False
    """The client sends all of its calls in one array."""


@attrs.frozen
class Sent:
    """A message on a wire."""

    message: Message | Batch
    subjects: tuple[Subject, ...]

    @property
    def key(self) -> Hashable:
        return type(self.message).__name__, getattr(self.message, "id", None), self.subjects


@attrs.define
class Link:
    """One connection: both states, and the wires. `None` as the last message is the end of a stream."""

    client: ConnectionState
    server: ConnectionState
    up: tuple[Sent | None, ...] = ()
    down: tuple[Sent | None, ...] = ()
    is_broken: bool = False
    client_knows: bool = False
    """The client has read the end of the stream."""

    def fork(self) -> Link:
        return attrs.evolve(self, client=twin_of(self.client), server=twin_of(self.server))

    @property
    def key(self) -> Hashable:
        wires = [tuple(sent and sent.key for sent in wire) for wire in (self.up, self.down)]
        return *wires, self.is_broken, self.client_knows, key_of(self.client), key_of(self.server)


@attrs.frozen
class Call:
    """A call, as the client sees it."""

    link: int
    request: OutboundRequest
    state: str = "open"
    """``open``, ``asked`` between two rounds, ``left``, ``done`` or ``lost``."""
    round: int = 0


@attrs.frozen
class Handler:
    """A handler, as the server sees it."""

    link: int
    entry: InboundRequest
    round: int = 0
    phase: Phase = Phase.WAITING
    question: int | None = None
    is_answered: bool = False
    """The request has its reply, or gets none."""
    is_cancelled: bool = False


@attrs.frozen
class Question:
    """A question of a handler, and the work of the client on it."""

    link: int
    request: OutboundRequest
    is_open: bool = True
    entry: InboundRequest | None = None
    work: str = "none"
    """``none``, ``runs``, ``cancelled`` or ``over``."""
