"""Each event is carried out by the one it concerns, at once, and by nobody else."""

from __future__ import annotations

import json
import logging
from typing import Any

import attrs
import pytest
from tests.state.peers import accepted, client_of, server_of

from trio_mcp.jsonrpc.codec import pack_value
from trio_mcp.jsonrpc.errors import MCPError, PeerError
from trio_mcp.jsonrpc.messages import ErrorResponse, Request
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.calls import CallOutcome, Progress
from trio_mcp.runtime.connection import Dispatch
from trio_mcp.runtime.exchange import BatchExchange, Exchange
from trio_mcp.runtime.outbox import Outbox
from trio_mcp.runtime.peer import UNKNOWN_PEER
from trio_mcp.state import events
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import Event, NotificationReceived
from trio_mcp.state.requests import InboundRequest, OutboundRequest

LINE = b"the line as it came"


@attrs.define(eq=False)
class FakeCall:
    """Of a call, only what arrives for it."""

    wants_progress: bool = True
    on_notification: Any = None
    arrived: list[Any] = attrs.field(factory=list[Any])

    def settle(self, end: CallOutcome) -> None:
        self.arrived.append(end)

    def receive_progress(self, progress: Progress, size: int) -> None:
        self.arrived.append((progress, size))


CALLS: dict[OutboundRequest, FakeCall] = {}
"""Call of each request of ours."""


class Floor:
    """A `Dispatch`, and what those it hands things to were told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.wanted = True
        self.received = 7
        this: Any = self
        self.exchange = Connection(self.told)
        self.dispatch = Dispatch(
            this, self.exchange, this, this, Changes(self.told), this, lambda *unread: self.note("read", *unread)
        )

    def note(self, *what: Any) -> None:
        self.told.append(what)

    # What is done with requests, replies and cancels

    def accept(self, request: InboundRequest, exchange: Exchange) -> None:
        self.note("accept", request, exchange)

    def cancel_received(self, event: events.CancelReceived, exchange: Exchange) -> None:
        assert exchange is self.exchange
        self.note("cancel", event)

    def call_of(self, request: OutboundRequest) -> FakeCall:
        return CALLS[request]

    def settle(self, request: OutboundRequest, result: Any, error: Any) -> None:
        CALLS[request].settle(CallOutcome(result, error, self.received))

    def unreadable_answer(self, request: OutboundRequest, reason: str) -> None:
        self.note("unreadable", request, reason)

    def answer_lost(self, requests: Any, reason: str) -> None:
        self.note("lost", requests, reason)

    # What is done with notifications

    def wants(self, event: NotificationReceived) -> bool:
        return self.wanted

    def put(self, event: NotificationReceived, size: int) -> None:
        self.note("notified", event, size)

    def act(self, event: Event, batch: BatchExchange | None = None) -> None:
        self.dispatch.handle(event, LINE, batch)


class Connection(Exchange):
    """What all belongs to, and the replies that it was given."""

    def __init__(self, told: list[Any]) -> None:
        super().__init__(ConnectionState("server"), Outbox(16384), UNKNOWN_PEER)
        self._told = told

    def reply_at_once(self, line: bytes | None) -> None:
        self._told.append(("reply", json.loads(line or b""), self))


class Changes:
    """Takes the notifications that belong to no request."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def put(self, event: NotificationReceived, size: int) -> None:
        self._told.append(("changed", event, size))


@pytest.fixture
def floor() -> Floor:
    return Floor()


def ours(**call: Any) -> tuple[OutboundRequest, FakeCall]:
    request = client_of(LATEST_LEGACY).open_request("tools/call", LATEST_LEGACY)
    CALLS[request] = FakeCall(**call)
    return request, CALLS[request]


def theirs() -> InboundRequest:
    return accepted(server_of(LATEST_LEGACY).receive(Request(5, "ping")))


def notification(method: str = "notifications/message", **params: Any) -> NotificationReceived:
    return NotificationReceived(LATEST_LEGACY._methods[method], params, LATEST_LEGACY)


class Counting(BatchExchange):
    """A batch, and what was settled."""

    def __init__(self) -> None:
        super().__init__(Connection([]), 99)
        self.settled: list[bytes | None] = []

    def reply(self, line: bytes | None, owner: object = None) -> None:
        self.settled.append(line)


# Replies


def test_response_with_a_result_ends_its_call_with_the_number_of_earlier_notifications(floor: Floor) -> None:
    request, call = ours()
    floor.act(events.ResultReceived(request, {"a": 1}))
    assert call.arrived == [CallOutcome({"a": 1}, None, 7)]
    assert floor.told == []


def test_response_with_an_error_ends_its_call_with_an_exception(floor: Floor) -> None:
    request, call = ours()
    floor.act(events.ErrorReceived(request, ErrorResponse(1, 3, "no", {"a": 1})))
    [end] = call.arrived
    assert isinstance(end.error, PeerError)
    assert (end.error.code, end.error.message, end.error.data) == (3, "no", {"a": 1})
    assert (end.result, end.notifications_before) == (None, 7)


def test_listen_stream_cancelled_by_the_server_ends_its_call_without_a_result(floor: Floor) -> None:
    request, call = ours()
    floor.act(events.StreamCancelled(request, "over"))
    assert call.arrived == [CallOutcome(None, None, 7)]


def test_call_whose_response_is_lost_ends_with_an_error_that_contains_the_reason(floor: Floor) -> None:
    request, call = ours()
    error = MCPError("gone")
    floor.act(events.RequestFailed(request, error))
    assert call.arrived == [CallOutcome(None, error, 7)]


def test_dispatcher_reports_which_calls_an_unreadable_response_may_have_answered(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    request, call = ours()
    floor.act(events.ReplyUnreadable(request, "why"))
    assert floor.told == [("unreadable", request, "why")]
    assert (call.arrived, caplog.records) == ([], [])
    floor.told.clear()
    floor.act(events.AnswerLost((request,), "why"))
    assert floor.told == [("read", "why", LINE), ("lost", (request,), "why")]
    assert [record.getMessage() for record in caplog.records] == [
        f"received a line that isn't a message (why): {LINE!r}"
    ]


# Requests and cancels


def test_dispatcher_runs_an_accepted_request_and_answers_a_refused_request(floor: Floor) -> None:
    request, batch = theirs(), Counting()
    for replies in (None, batch):
        floor.act(events.RequestReceived(request), replies)
        floor.act(events.Refused(ErrorResponse(5, -32600, "no")), replies)
    error = {"jsonrpc": "2.0", "id": 5, "error": {"code": -32600, "message": "no"}}
    assert floor.told == [
        ("accept", request, floor.exchange),
        ("reply", error, floor.exchange),
        ("accept", request, batch),
    ]
    [settled] = batch.settled
    assert json.loads(settled or b"") == error, "requests settle it themselves"


def test_dispatcher_passes_a_received_cancel_to_the_request_runner(floor: Floor) -> None:
    event = events.CancelReceived(theirs(), "enough")
    floor.act(event)
    assert floor.told == [("cancel", event)]


# Notifications


def test_dispatcher_queues_list_changes_separately_from_other_notifications(floor: Floor) -> None:
    message, change = notification(), notification("notifications/tools/list_changed")
    floor.act(message)
    floor.act(change)
    assert floor.told == [("notified", message, len(LINE)), ("changed", change, len(LINE))]


def test_notification_without_a_handler_is_dropped(floor: Floor) -> None:
    floor.wanted = False
    floor.act(notification())
    assert floor.told == []


def test_notification_with_a_subscription_id_is_delivered_only_to_its_listen_stream(floor: Floor) -> None:
    arrived = list[Any]()
    request, call = ours(on_notification=lambda *told: arrived.append(told))
    event = notification("notifications/tools/list_changed")
    floor.act(events.StreamReceived(request, event))
    assert arrived == [(event, len(LINE))]
    floor.act(events.StreamReceived(ours()[0], event))
    assert (floor.told, call.arrived) == ([], [])


def test_progress_notification_is_dispatched_to_its_call(floor: Floor) -> None:
    request, call = ours()
    floor.act(events.ProgressReceived(request, {"progressToken": 1, "progress": 2, "total": 3, "message": "m"}))
    floor.act(events.ProgressReceived(request, {"progressToken": 1, "progress": 2.5}))
    assert call.arrived == [(Progress(2, 3, "m"), len(LINE)), (Progress(2.5), len(LINE))]


def test_progress_without_a_callback_is_not_decoded(floor: Floor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "trio_mcp")
    request, call = ours(wants_progress=False)
    floor.act(events.ProgressReceived(request, {"progressToken": 1, "progress": "broken"}))
    floor.act(events.ProgressReceived(request, {"progressToken": 1, "progress": 1}))
    assert (call.arrived, caplog.records) == ([], [])


def test_invalid_progress_is_dropped_and_logged(floor: Floor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "trio_mcp")
    request, call = ours()
    floor.act(events.ProgressReceived(request, {"progressToken": 1, "progress": "broken"}))
    assert call.arrived == []
    [record] = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage().startswith("ignored an invalid progress notification: ")


# What is no message, and what has no effect


def test_line_that_is_not_a_message_is_logged_truncated_and_reported(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    line = bytearray(b"x" * 1000)
    floor.dispatch.handle(events.Unread("why"), line)
    assert floor.told == [("read", "why", line)]
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (
        logging.WARNING,
        f"received a line that isn't a message (why): {b'x' * 200!r}",
    )


def test_line_that_is_not_a_message_is_logged_even_if_no_callback_is_set(caplog: pytest.LogCaptureFixture) -> None:
    this: Any = Floor()
    Dispatch(this, this, this, this, this, this, None).handle(events.Unread("why"), LINE)
    assert len(caplog.records) == 1
    assert this.told == []


@pytest.mark.parametrize(("noteworthy", "level"), [(True, logging.WARNING), (False, logging.DEBUG)])
def test_ignored_message_is_logged_as_a_warning_only_if_its_event_is_noteworthy(
    floor: Floor, caplog: pytest.LogCaptureFixture, noteworthy: bool, level: int
) -> None:
    caplog.set_level(logging.DEBUG, "trio_mcp")
    floor.act(events.Ignored("late", noteworthy))
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (level, "ignored: late")
    assert floor.told == []


def test_end_of_a_listen_stream_is_logged_with_a_truncated_reason(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trio_mcp")
    floor.act(events.StreamCancelled(ours()[0], "x" * 1000))
    [record] = caplog.records
    assert record.getMessage() == f"the peer ended stream 1: '{'x' * 199}"


# Batches


def test_batch_is_handled_in_order_and_answered_by_one_array(floor: Floor) -> None:
    one, two = theirs(), theirs()
    floor.act(events.BatchReceived((events.RequestReceived(one), events.RequestReceived(two))))
    [(_, first, replies), (_, second, same)] = floor.told
    assert (first, second) == (one, two)
    assert same is replies
    floor.told.clear()
    replies.reply(b"1\n")
    assert floor.told == []
    replies.reply(b"2\n")
    assert floor.told == [("reply", [1, 2], floor.exchange)]


def test_batch_does_not_wait_for_responses_to_messages_that_need_no_response(floor: Floor) -> None:
    request, _ = ours()
    for event in (
        events.ResultReceived(request, {}),
        notification(),
        events.CancelReceived(theirs(), None),
        events.Ignored("late"),
        events.ProgressReceived(ours(wants_progress=False)[0], {}),
    ):
        batch = Counting()
        floor.act(event, batch)
        assert batch.settled == [None]


def test_each_notification_in_a_batch_is_counted_with_its_own_size(floor: Floor) -> None:
    event = notification(data="x")
    request, call = ours(on_notification=lambda _, size: call.arrived.append(size))
    progress = {"progressToken": 1, "progress": 2}
    size = len(pack_value(event.params))
    assert size != len(LINE)
    floor.act(event, Counting())
    assert floor.told == [("notified", event, size)]
    floor.act(events.StreamReceived(request, event), Counting())
    floor.act(events.ProgressReceived(request, progress), Counting())
    assert call.arrived == [size, (Progress(2), len(pack_value(progress)))]
