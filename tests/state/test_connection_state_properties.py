"""No message makes a connection raise, and no interleaving makes two of them lose count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import attrs
import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples
from tests.state.peers import accepted, client_of, meta_of, server_of
from tests.state.peers import initialize as initialize_request

from trio_mcp.jsonrpc.codec import decode, encode
from trio_mcp.jsonrpc.messages import (
    Batch,
    ErrorResponse,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    Unreadable,
)
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION
from trio_mcp.protocol.methods import METHODS
from trio_mcp.protocol.revisions import LATEST_MODERN, REVISIONS
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import CancelReceived, ErrorReceived, Event, Refused, RequestReceived, ResultReceived
from trio_mcp.state.requests import InboundRequest, OutboundRequest

# Anything that decodes, said to a connection in any state.

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.just(1.5) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
ids = st.sampled_from([0, 1, 2, "1", ""])
metas = junk | st.fixed_dictionaries(
    {},
    optional={
        PROTOCOL_VERSION: st.sampled_from([*REVISIONS, "x"]) | junk,
        CLIENT_CAPABILITIES: st.sampled_from([{}, {"roots": {}}]) | junk,
        CLIENT_INFO: st.just({"name": "n", "version": "1", "icons": [{"src": "i", "theme": "?"}]}) | junk,
        LOG_LEVEL: st.just("info") | junk,
        "progressToken": junk,
    },
)
params = junk | st.fixed_dictionaries(
    {},
    optional={
        "_meta": metas,
        "requestId": ids | junk,
        "progressToken": ids | junk,
        "protocolVersion": st.sampled_from([*REVISIONS, "x"]) | junk,
        "capabilities": junk,
        "clientInfo": st.just({"name": "n", "version": "1"}) | junk,
    },
)
methods = st.sampled_from([*METHODS, "x"])
singles: st.SearchStrategy[Message | Unreadable] = st.one_of(
    st.builds(Request, ids, methods, params),
    st.builds(Notification, methods, params),
    st.builds(Response, ids, junk),
    st.builds(ErrorResponse, st.none() | ids, st.integers(), texts, junk),
    st.builds(Unreadable, texts, st.just(ErrorResponse(None, -32600, "?"))),
    st.builds(Unreadable, texts, st.none(), st.none() | ids),
)
anything = singles | st.builds(Batch, st.lists(singles, min_size=1, max_size=3).map(tuple))
connections = st.one_of(
    st.builds(ConnectionState, st.sampled_from(["client", "server"]), require_initialized=st.booleans()),
    st.sampled_from(list(REVISIONS.values())).map(server_of),
    st.sampled_from(list(REVISIONS.values())).map(client_of),
)


@settings(max_examples=examples(200))
@given(connections, st.lists(anything, max_size=8))
def test_connection_state_handles_any_received_message_without_an_exception(
    state: ConnectionState, said: list[Any]
) -> None:
    for message in said:
        event = state.receive(message)
        if isinstance(event, Refused):
            assert isinstance(decode(encode(event.reply)), ErrorResponse)
    assert len({(type(request.id), request.id) for request in state.inbound}) == len(state.inbound)


# Two connections and what is under way between them.

Side = Literal["client", "server"]
sides = st.sampled_from(["client", "server"])
OTHER: dict[Side, Side] = {"client": "server", "server": "client"}


@attrs.define
class Handler:
    """What runs for an inbound request. ``serial`` numbers requests across ids, sides and eras."""

    entry: InboundRequest
    serial: int
    cancelled: bool = False


class TwoConnections(RuleBasedStateMachine):
    """A client and a server, legacy and modern requests mixed, on two ordered queues of lines.

    Every request carries a serial number, every result repeats it, and every cancel has it as its reason. So
    each event can be checked against what its sender meant. Beside either connection a hand-made peer writes
    on the same queue: it uses ids again and again, in flight or not.
    """

    @initialize(revision=st.sampled_from(["2025-03-26", "2025-06-18", "2025-11-25"]))
    def connect(self, revision: str) -> None:
        self.serial = 0
        self.open_both(revision)

    def open_both(self, revision: str) -> None:
        self.revision = REVISIONS[revision]
        self.states: dict[Side, ConnectionState] = {
            "client": ConnectionState("client"),
            "server": ConnectionState("server"),
        }
        self.lines: dict[Side, list[bytes]] = {"client": [], "server": []}  # under way to that side
        self.replies: dict[Side, list[bytes]] = {"client": [], "server": []}
        self.handlers: dict[Side, list[Handler]] = {"client": [], "server": []}
        self.calls: dict[Side, list[OutboundRequest]] = {"client": [], "server": []}  # open ones
        self.serials: dict[OutboundRequest, int] = {}
        self.ended: dict[Side, list[OutboundRequest]] = {"client": [], "server": []}
        self.by_hand: dict[Side, dict[tuple[type, RequestId], int]] = {"client": {}, "server": {}}
        self.hand_made: set[int] = set()
        self.refused: set[int] = set()
        self.answered: set[int] = set()
        server = self.states["server"]
        server.finish(accepted(server.receive(initialize_request(revision, "init", roots={}))))
        self.states["client"].revision = self.revision

    def send(self, to: Side, message: Message) -> None:
        line = encode(message)
        self.lines[to].append(line)
        if isinstance(message, Response | ErrorResponse):
            self.replies[to].append(line)

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    # What either side does

    @rule(side=sides, new=st.booleans())
    def call(self, side: Side, new: bool) -> None:
        era = LATEST_MODERN if new and side == "client" else self.revision
        request = self.states[side].open_request("tools/list" if side == "client" else "roots/list", era)
        serial = self.serials[request] = self.next_serial()
        said = {"serial": serial, **({} if era.handshake else {"_meta": meta_of()})}
        self.calls[side].append(request)
        self.send(OTHER[side], Request(request.id, request.method.name, said))

    @rule(side=sides, pick=st.integers(0), fail=st.booleans())
    def end_handler(self, side: Side, pick: int, fail: bool) -> None:
        if self.handlers[side]:
            self.answer(side, self.handlers[side].pop(pick % len(self.handlers[side])), fail)

    def answer(self, side: Side, handler: Handler, fail: bool) -> None:
        may_answer = self.states[side].finish(handler.entry)
        assert may_answer is not handler.cancelled
        assert not self.states[side].finish(handler.entry)
        if may_answer:
            assert handler.serial not in self.answered
            self.answered.add(handler.serial)
            if fail:
                self.send(OTHER[side], ErrorResponse(handler.entry.id, -1, "", {"serial": handler.serial}))
            else:
                self.send(OTHER[side], Response(handler.entry.id, {"serial": handler.serial}))

    @rule(side=sides, pick=st.integers(0))
    def give_up(self, side: Side, pick: int) -> None:
        if self.calls[side]:
            request = self.calls[side].pop(pick % len(self.calls[side]))
            assert self.states[side].abandon(request)
            self.ended[side].append(request)
            self.send(OTHER[side], cancel_of(request.id, self.serials[request]))

    @rule(side=sides, pick=st.integers(0))
    def give_up_too_late(self, side: Side, pick: int) -> None:
        if self.ended[side]:
            assert not self.states[side].abandon(self.ended[side][pick % len(self.ended[side])])

    @rule(revision=st.sampled_from(["2025-03-26", "2025-11-25"]))
    def lose_the_connection(self, revision: str) -> None:
        for side, state in self.states.items():
            assert state.abandon_all() == self.calls[side]
            assert state.outbound == ()
            for handler in self.handlers[side]:
                assert state.finish(handler.entry) is not handler.cancelled
            assert state.inbound == ()
        self.open_both(revision)

    # What a hand-made peer beside it does

    @rule(side=sides, request_id=st.sampled_from([0, "1", "", "x"]))
    def call_by_hand(self, side: Side, request_id: RequestId) -> None:
        serial = self.next_serial()
        self.by_hand[side][type(request_id), request_id] = serial
        self.hand_made.add(serial)
        self.send(OTHER[side], Request(request_id, "ping", {"serial": serial}))

    @rule(side=sides, request_id=st.sampled_from([0, "1", "", "x", "never used"]))
    def cancel_by_hand(self, side: Side, request_id: RequestId) -> None:
        serial = self.by_hand[side].get((type(request_id), request_id), 0)
        self.send(OTHER[side], cancel_of(request_id, serial))

    @rule(side=sides, pick=st.integers(0))
    def say_a_reply_again(self, side: Side, pick: int) -> None:
        if self.replies[side]:
            self.lines[side].append(self.replies[side][pick % len(self.replies[side])])

    # What arrives

    @precondition(lambda self: any(self.lines.values()))
    @rule(side=sides)
    def deliver(self, side: Side) -> None:
        if self.lines[side]:
            message = decode(self.lines[side].pop(0))
            self.heard(side, message, self.states[side].receive(message))

    def heard(self, side: Side, message: Any, event: Event) -> None:
        match event:
            case RequestReceived(entry):
                self.handlers[side].append(Handler(entry, entry.params["serial"]))
            case Refused(reply):
                assert message.params["serial"] in self.hand_made
                self.refused.add(message.params["serial"])
                self.send(OTHER[side], reply)
            case CancelReceived(entry, reason):
                (handler,) = [one for one in self.handlers[side] if one.entry is entry]
                # Meant for another one only if that one was refused for reusing this one's id.
                assert reason == str(handler.serial) or int(reason or 0) in self.refused
                handler.cancelled = True
            case ResultReceived(request, result):
                assert result["serial"] == self.serials[request]
                self.settle(side, request)
            case ErrorReceived(request, error):
                assert error.data["serial"] == self.serials[request]
                self.settle(side, request)
            case _:
                pass

    def settle(self, side: Side, request: OutboundRequest) -> None:
        self.calls[side].remove(request)
        self.ended[side].append(request)

    # What holds

    @invariant()
    def tables_hold_what_runs_and_what_waits(self) -> None:
        for side, state in self.states.items():
            assert set(state.inbound) == {one.entry for one in self.handlers[side] if not one.cancelled}
            assert set(state.outbound) == set(self.calls[side])

    def teardown(self) -> None:
        for side in self.everything_under_way():
            self.deliver(side)
        for side, state in self.states.items():
            for handler in self.handlers[side]:
                self.answer(side, handler, fail=False)
            assert state.inbound == ()
        for side in self.everything_under_way():
            self.deliver(side)
        assert [state.outbound for state in self.states.values()] == [(), ()]

    def everything_under_way(self) -> Iterator[Side]:
        while any(self.lines.values()):
            yield "client" if self.lines["client"] else "server"


def cancel_of(request_id: RequestId, serial: int) -> Notification:
    return Notification("notifications/cancelled", {"requestId": request_id, "reason": str(serial)})


TwoConnections.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=50)
TestTwoConnections = TwoConnections.TestCase
