"""The invariants of a connection, checked after each step, and more of them when no message is under way:

- A request that was cancelled is never answered, and a request that was not is answered once.
- A result reaches the call that it is for, once.
- A cancel meets the request that it was sent for.
- When all messages have arrived, no handler works for a call that was left, and no client for a question given up.
- When all messages have arrived, an open call has a handler that can still answer, and an open question somebody who
  answers it.
- The tables hold exactly what is in flight, and are empty at the end.
- No request takes a step that `PHASE_AFTER` does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.exhaustive.explorer import Fault

from trio_mcp.state.requests import Phase

if TYPE_CHECKING:
    from tests.exhaustive.connections import ConnectionWorld

__all__ = ["check_end", "check_step"]


def check_step(world: ConnectionWorld) -> None:
    """Check the state after a step. Raises `Fault`."""
    for number, link in enumerate(world.links):
        calls = [c.request for c in world.calls.values() if c.link == number and c.state == "open"]
        _same("calls of the client", link.client.outbound, calls)
        work = [q.entry for q in world.questions.values() if q.link == number and q.work == "runs"]
        _same("questions at the client", link.client.inbound, work)
        handlers = [h for h in world.handlers.values() if h.link == number]
        active = [h.entry for h in handlers if h.phase is not Phase.PARKED and not (h.is_answered or h.is_cancelled)]
        _same("requests at the server", link.server.inbound, active)
        questions = [q.request for q in world.questions.values() if q.link == number and q.is_open]
        _same("questions of the server", link.server.outbound, questions)
        for each in handlers:
            if each.phase is Phase.PARKED and not link.server.knows(each.entry.id):
                raise Fault("a parked request cannot be cancelled")
    if not any(link.up or link.down for link in world.links):
        _check_calm(world)


def _check_calm(world: ConnectionWorld) -> None:
    """Check a state in which no message is under way."""
    for name, call in world.calls.items():
        handler = world.handlers.get(name)
        if call.state in ("left", "lost") and handler is not None and handler.phase < Phase.MUTED:
            # A parked handler of a principal whose connection is lost has a deadline.
            may_wait = len(world.links) > 1 and world.links[call.link].is_broken and handler.phase is Phase.PARKED
            if not may_wait:
                raise Fault(f"call {name} was {call.state}, and its handler has not heard of it")
        if call.state == "open" and not any(subject[1] == name for _, subject in world.array):
            if handler is None or handler.is_cancelled or handler.is_answered:
                raise Fault(f"call {name} waits for ever")
            if handler.round != call.round or handler.phase is Phase.PARKED:
                raise Fault(f"call {name} waits for another round than its handler")
    for name, question in world.questions.items():
        if question.is_open and question.work != "runs":
            raise Fault(f"question {name} waits for ever")
        if question.work == "runs" and not question.is_open:
            raise Fault(f"question {name} was given up, and the client has not heard of it")


def check_end(world: ConnectionWorld) -> None:
    """Check a state in which nothing can happen any more. Raises `Fault`."""
    for link in world.links:
        for state in (link.client, link.server):
            if state.inbound or state.outbound or any(map(state.knows, range(100))):
                raise Fault(f"the tables of the {state.role} are not empty at the end")
    if any(each.phase is not Phase.OVER for each in world.handlers.values()):
        raise Fault("a handler has not ended")


def _same(what: str, table: Sequence[object], expected: Sequence[object]) -> None:
    if {id(each) for each in table} != {id(each) for each in expected} or len(table) != len(expected):
        raise Fault(f"{what} are {len(table)} in the table, and {len(expected)} in flight")
