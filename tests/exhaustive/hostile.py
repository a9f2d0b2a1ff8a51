"""Hostile peers: one real `ConnectionState`, and a peer that sends any message of a small alphabet at any time, with
ids that are in flight, parked, over, or were never used.

Invariants:

- A request under an id in flight is refused, and the request in flight is not touched.
- A cancel meets the request that is in flight under the id now, or the last one parked under it; no other.
- A request is answered once, or cancelled; never both. The late end of a cancelled request does not touch a newer one
  under the same id.
- A message of a server ends only a call that it names, and an answer ends its call, once. Whatever else the server
  sends, a call that is open stays open, and can be left.
- The tables hold exactly what is in flight.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import attrs
from tests.exhaustive.explorer import Action, Fault
from tests.exhaustive.tables import key_of, twin_of
from tests.state.peers import cancel, client_of, meta_of, server_of

from trio_mcp.jsonrpc.messages import Batch, ErrorResponse, Notification, Request, Response, Unreadable
from trio_mcp.protocol.revisions import Revision
from trio_mcp.state import events as e
from trio_mcp.state.requests import InboundRequest, OutboundRequest

__all__ = ["HostileClientWorld", "HostileServerWorld"]

IDS: Final = (1, 2)


@attrs.frozen
class Work:
    """A request that the server has accepted: ``runs``, ``parked``, ``cancelled`` or ``over``."""

    entry: InboundRequest
    state: str = "runs"


class HostileClientWorld:
    """A server whose client sends up to ``messages`` messages, in any order and with any of `IDS`."""

    def __init__(self, revision: Revision, messages: int) -> None:
        self.revision: Final = revision
        self.left = messages
        self.state = server_of(revision)
        self.work: list[Work] = []

    def fork(self) -> HostileClientWorld:
        world = object.__new__(HostileClientWorld)
        vars(world).update(vars(self))
        world.state, world.work = twin_of(self.state), self.work.copy()
        return world

    def key(self) -> Hashable:
        """Requests that are over are left out: nothing can happen to them, and nothing names them."""
        work = tuple((each.entry.id, each.state) for each in self.work if each.state != "over")
        return self.left, work, key_of(self.state)

    def actions(self) -> Sequence[Action]:
        return [*self._of_client(), *self._of_server()]

    def _of_client(self) -> Iterator[Action]:
        if self.left:
            for each in IDS:
                yield "request", each
                yield "cancel", each
                yield "answer to nothing", each
                if self.revision.batches:
                    yield "request twice in an array", each
            yield "cancel", "1"
            yield "cancel", None

    def _of_server(self) -> Iterator[Action]:
        for number, each in enumerate(self.work):
            match each.state:
                case "runs":
                    yield "end", number
                    if not self.revision.handshake:
                        yield "park", number
                case "parked":
                    yield "overdue", number
                case "cancelled":
                    yield "late end", number
                case _:
                    pass

    def do(self, action: Action) -> None:
        name, of = action
        getattr(self, "_" + name.replace(" ", "_"))(of)
        running = [each.entry for each in self.work if each.state == "runs"]
        if {id(each) for each in self.state.inbound} != {id(each) for each in running}:
            raise Fault("the table of requests does not hold exactly what is in flight")

    def _named(self, request_id: Any) -> tuple[int, Work] | None:
        """Return the request that a cancel with this id is for: the one in flight, else the last that was parked."""
        mine = [(number, each) for number, each in enumerate(self.work) if each.entry.id == request_id]
        running = [each for each in mine if each[1].state == "runs"]
        last = mine[-1:] if mine and mine[-1][1].state == "parked" else []
        return (running or last or [None])[0]

    def _message(self, request_id: int) -> Request:
        params = {"name": "x"} if self.revision.handshake else {"name": "x", "_meta": meta_of()}
        return Request(request_id, "tools/call", params)

    def _request(self, request_id: int) -> None:
        self.left -= 1
        self._accept(request_id, self.state.receive(self._message(request_id)))

    def _request_twice_in_an_array(self, request_id: int) -> None:
        self.left -= 1
        message = self._message(request_id)
        event = self.state.receive(Batch((message, message)))
        if not isinstance(event, e.BatchReceived):
            raise Fault(f"an array has the effect {type(event).__name__}")
        for each in event.events:
            self._accept(request_id, each)

    def _accept(self, request_id: int, event: e.Event) -> None:
        if any(each.entry.id == request_id and each.state == "runs" for each in self.work):
            if not isinstance(event, e.Refused) or event.reply.id != request_id:
                raise Fault(f"a request under an id in flight is not refused: {type(event).__name__}")
        elif isinstance(event, e.RequestReceived):
            self.work.append(Work(event.request))
        else:
            raise Fault(f"a request under a free id has no effect: {type(event).__name__}")

    def _cancel(self, request_id: Any) -> None:
        self.left -= 1
        named, event = self._named(request_id), self.state.receive(cancel(request_id))
        if named is None:
            if not isinstance(event, e.Ignored):
                raise Fault(f"a cancel for nothing has the effect {type(event).__name__}")
            return
        number, work = named
        if not isinstance(event, e.CancelReceived) or event.request is not work.entry:
            raise Fault("a cancel meets another request than the one it names")
        self.work[number] = attrs.evolve(work, state="cancelled")

    def _answer_to_nothing(self, request_id: int) -> None:
        self.left -= 1
        if not isinstance(self.state.receive(Response(request_id, {})), e.Ignored):
            raise Fault("an answer to nothing has an effect")

    def _end(self, number: int) -> None:
        if not self.state.finish(self.work[number].entry):
            raise Fault("the answer to a request in flight is withheld")
        self.work[number] = attrs.evolve(self.work[number], state="over")

    def _late_end(self, number: int) -> None:
        if self.state.finish(self.work[number].entry):
            raise Fault("a request is answered after its cancel")
        self.work[number] = attrs.evolve(self.work[number], state="over")

    def _park(self, number: int) -> None:
        self.state.park(self.work[number].entry)
        self.work[number] = attrs.evolve(self.work[number], state="parked")

    def _overdue(self, number: int) -> None:
        self._late_end(number)

    def check_end(self) -> None:
        if self.state.inbound or any(map(self.state.knows, IDS)):
            raise Fault("the tables are not empty at the end")


class HostileServerWorld:
    """A client of up to ``calls`` calls, whose server sends up to ``messages`` messages."""

    def __init__(self, revision: Revision, calls: int, messages: int) -> None:
        self.revision: Final = revision
        self.calls_left, self.left = calls, messages
        self.state = client_of(revision)
        self.open: list[OutboundRequest] = []
        self.closed: list[OutboundRequest] = []
        """Calls that have ended, and may be left all the same."""
        self.pings: list[InboundRequest] = []

    def fork(self) -> HostileServerWorld:
        world = object.__new__(HostileServerWorld)
        vars(world).update(vars(self))
        world.state = twin_of(self.state)
        world.open, world.closed, world.pings = self.open.copy(), self.closed.copy(), self.pings.copy()
        return world

    def key(self) -> Hashable:
        requests = [tuple(each.id for each in of) for of in (self.open, self.closed, self.pings)]
        return self.calls_left, self.left, *requests, key_of(self.state)

    def actions(self) -> Sequence[Action]:
        actions: list[Action] = []
        if self.calls_left:
            actions.append(("call", 0))
        actions += [("leave", each) for each in range(len(self.open))]
        actions += [("leave ended", each) for each in range(len(self.closed))]
        actions += [("pong", each) for each in range(len(self.pings))]
        if self.open:
            actions.append(("lose", 0))
        if self.left:
            actions += [("send", kind, each) for kind in _MESSAGES for each in IDS]
        return actions

    def do(self, action: Action) -> None:
        name, *of = action
        getattr(self, "_" + name.replace(" ", "_"))(*of)
        if [id(each) for each in self.state.outbound] != [id(each) for each in self.open]:
            raise Fault("the table of calls does not hold exactly what is in flight")
        if {id(each) for each in self.state.inbound} != {id(each) for each in self.pings}:
            raise Fault("the table of requests does not hold exactly what is in flight")

    def _call(self, _: int) -> None:
        self.calls_left -= 1
        call = self.state.open_request("tools/call", self.revision)
        if any(each.id == call.id for each in (*self.open, *self.pings)):
            raise Fault("a call has an id that is in flight")
        self.open.append(call)

    def _leave(self, number: int) -> None:
        if not self.state.abandon(self.open.pop(number)):
            raise Fault("a call in flight is left without a cancel")

    def _leave_ended(self, number: int) -> None:
        if self.state.abandon(self.closed.pop(number)):
            raise Fault("a call that has ended is cancelled")

    def _lose(self, _: int) -> None:
        if list(map(id, self.state.abandon_all())) != list(map(id, self.open)):
            raise Fault("the loss of the connection is not told to each call, once")
        self.closed, self.open = [*self.closed, *self.open], []

    def _pong(self, number: int) -> None:
        if not self.state.finish(self.pings.pop(number)):
            raise Fault("the answer to a ping is withheld")

    def _send(self, kind: str, request_id: int) -> None:
        self.left -= 1
        event = self.state.receive(_MESSAGES[kind](request_id))
        named = next((each for each in self.open if each.id == request_id), None)
        if isinstance(event, e.RequestReceived):
            named_twice = any(each.id == request_id for each in self.pings)
            if kind != "ping" or named_twice or not self.revision.handshake:
                raise Fault(f"{kind} under id {request_id} is accepted")
            self.pings.append(event.request)
            return
        if isinstance(event, e.CancelReceived):
            if kind != "cancel" or event.request.id != request_id:
                raise Fault(f"{kind} under id {request_id} cancels {event.request.id}")
            self.pings = [each for each in self.pings if each is not event.request]
            return
        if isinstance(event, e.Refused) and not self.revision.handshake:
            raise Fault("a modern client answers a request of its server")
        ended = [each.request for each in _ends(event)]
        if named is not None and kind in _ENDING and len(ended) != 1:
            raise Fault(f"{kind} does not end the call that it names, once: {type(event).__name__}")
        for call in ended:
            if call is not named:
                raise Fault(f"{kind} ends a call that it does not name")
            self.open.remove(call)
            self.closed.append(call)
        if kind == "progress" and isinstance(event, e.ProgressReceived) and event.request is not named:
            raise Fault("progress meets another call")

    def check_end(self) -> None:
        if self.state.outbound or self.state.inbound:
            raise Fault("the tables are not empty at the end")


def _ends(event: e.Event) -> Iterator[e.ResultReceived | e.ErrorReceived | e.ReplyUnreadable]:
    for each in event.events if isinstance(event, e.BatchReceived) else (event,):
        if isinstance(each, e.ResultReceived | e.ErrorReceived | e.ReplyUnreadable):
            yield each


_MESSAGES: Final[dict[str, Any]] = {
    "result": lambda request_id: Response(request_id, {}),
    "error": lambda request_id: ErrorResponse(request_id, -32603, "no"),
    "error that names nothing": lambda _: ErrorResponse(None, -32603, "no"),
    "result with the id as text": lambda request_id: Response(str(request_id), {}),
    "array of two results": lambda request_id: Batch((Response(request_id, {}), Response(request_id, {}))),
    "unreadable result": lambda request_id: Unreadable("bad", None, settles=request_id, is_answer=True),
    "own request sent back": lambda request_id: Request(request_id, "tools/call", {"name": "x"}),
    "ping": lambda request_id: Request(request_id, "ping"),
    "cancel": cancel,
    "progress": lambda request_id: Notification("notifications/progress", {"progressToken": request_id, "progress": 1}),
}
"""Messages that a server may send, each with an id."""

_ENDING: Final = ("result", "error", "array of two results", "unreadable result", "own request sent back")
"""The messages that end the call that they name, as a result, an error, or a violation by the server."""
