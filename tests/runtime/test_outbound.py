"""Requests of ours on their way: what is sent, how each ends, and what the peer is told when we leave."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import ConnectionLost, PeerError, Progress, fail_after_silence
from trio_mcp.concurrency.time_limits import fail_after_work
from trio_mcp.jsonrpc.errors import CodedError, NotSerializable, UnreadableAnswer
from trio_mcp.protocol.errors import MethodUnavailable
from trio_mcp.protocol.meta import PROGRESS_TOKEN, TRACEPARENT, TraceContext
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from trio_mcp.runtime.calls import CallOutcome
from trio_mcp.runtime.cancellation import REMAINING_MS, CancelCause, Cancellation
from trio_mcp.runtime.limits import Limits
from trio_mcp.runtime.notifications import notification_queue
from trio_mcp.runtime.outbound import CallSettings, Outbound, answering
from trio_mcp.runtime.outbox import Outbox
from trio_mcp.runtime.requests.scope import current_request
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import NotificationReceived

PARENT = f"00-{'1' * 32}-{'2' * 16}-01"


class Span:
    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.ends: list[tuple[Any, BaseException | None]] = []

    def end(self, result: Any, error: BaseException | None) -> None:
        self.ends.append((result, error))


class FakeTracer:
    """Traces calls of tools, and adds a word to their parameters."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def calling(self, request: Any, params: dict[str, Any] | None, present: Any) -> Span | None:
        if request.method.name != "tools/call":
            return None
        self.spans.append(Span({**(params or {}), "traced": True}))
        return self.spans[-1]

    def close(self, role: str, revision: str | None) -> None: ...

    def handling(self, request: Any, queued: float = 0.0) -> None:
        raise AssertionError


class Side:
    """A client whose peer is the test."""

    def __init__(
        self, notified: Callable[[NotificationReceived], Awaitable[None]], limits: Limits, **more: Any
    ) -> None:
        self.state = ConnectionState("client")
        self.outbox = Outbox(limits.high_water)
        self.told = notification_queue(limits, notified, limits.callback_grace)
        self.tracer = more.pop("tracer", None)
        self.outbound = Outbound(self.state, self.outbox, self.told, limits, self.tracer, CallSettings(**more))
        self.results: list[Any] = []
        self.failures: list[BaseException] = []

    async def call(self, *args: Any, **more: Any) -> None:
        """Make a call, and note how it ends."""
        method, params, *rest = args or ("tools/call", {"name": "x"})
        try:
            self.results.append(await self.outbound.request(method, params, LATEST_LEGACY, *rest, **more))
        except Exception as error:
            self.failures.append(error)

    async def sent(self) -> list[Any]:
        """The messages that were sent since this was asked last."""
        await wait_all_tasks_blocked()
        return [json.loads(line) for line in bytes(await self.outbox.take()).splitlines()] if self.outbox.size else []

    def settle(self, number: int, result: Any = None, error: Any = None, after: int = 0) -> None:
        """Let the answer to a request arrive."""
        (request,) = (each for each in self.state.outbound if each.id == number)
        self.state.abandon(request)
        self.outbound.call_of(request).settle(CallOutcome(result, error, after))


async def nothing(_: NotificationReceived) -> None:
    raise AssertionError


@asynccontextmanager
async def side(
    notified: Callable[[NotificationReceived], Awaitable[None]] = nothing, limits: Limits | None = None, **more: Any
) -> AsyncGenerator[tuple[Side, trio.Nursery]]:
    this = Side(notified, limits or Limits(), **more)
    async with trio.open_nursery() as nursery:
        this.told.task.start_in(nursery, copy_context())
        yield this, nursery
        nursery.cancel_scope.cancel()


def cancel_of(number: int, reason: str | None = None) -> Any:
    params = {"requestId": number} if reason is None else {"requestId": number, "reason": reason}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


async def left(this: Side, *args: Any, cancel: str | None = "enough") -> Any:
    """Make a call, leave it once it was sent, and return what the peer is told then."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(this.call, *args)
            (request,) = await this.sent()
            scope.cancel(reason=cancel)
    assert this.state.outbound == ()
    assert request["method"] != "notifications/cancelled"
    return [json.loads(line) for line in bytes(this.outbox.take_nowait()).splitlines()]


# A request and its answer


async def test_call_sends_a_request_and_returns_its_result() -> None:
    async with side() as (this, nursery):
        nursery.start_soon(this.call)
        params = {"name": "x"}
        assert await this.sent() == [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}]
        (request,) = this.state.outbound
        this.settle(1, {"content": []})
        await wait_all_tasks_blocked()
        assert (this.results, this.failures) == ([{"content": []}], [])
        with pytest.raises(KeyError):
            this.outbound.call_of(request)  # it is kept no more
        assert await this.sent() == []


async def test_concurrent_requests_each_get_their_own_answer() -> None:
    async with side() as (this, nursery):
        for _ in range(3):
            nursery.start_soon(this.call, "ping", None)
        assert sorted(each["id"] for each in await this.sent()) == [1, 2, 3]
        for number in (3, 1, 2):
            this.settle(number, number)
            await wait_all_tasks_blocked()
        assert this.results == [3, 1, 2]


async def test_outcome_of_a_call_contains_the_number_of_notifications_received_before_its_reply(
    autojump_clock: MockClock,
) -> None:
    async with side() as (this, nursery):
        nursery.start_soon(this.call)
        await this.sent()
        (request,) = this.state.outbound
        call = this.outbound.call_of(request)
        this.told.received = 7
        this.outbound.settle(request, {"a": 1}, None)
        assert call.end == CallOutcome({"a": 1}, None, 7)
        nursery.cancel_scope.cancel()


async def test_error_reply_is_raised_as_a_new_exception_with_code_message_and_data() -> None:
    async with side() as (this, nursery):
        nursery.start_soon(this.call)
        await this.sent()
        error = PeerError(3, "no", {"a": 1})
        this.settle(1, None, error)
        await wait_all_tasks_blocked()
        [failure] = this.failures
        assert isinstance(failure, PeerError)
        assert failure is not error, "tracebacks do not pile up on one"
        assert (failure.code, failure.message, failure.data, failure.args) == (3, "no", {"a": 1}, error.args)
        assert await this.sent() == [], "no cancel"


async def test_request_that_the_revision_lacks_is_not_sent() -> None:
    async with side() as (this, _):
        with pytest.raises(MethodUnavailable):
            await this.outbound.request("roots/list", {}, LATEST_MODERN)
        assert (await this.sent(), this.state.outbound) == ([], ())


async def test_request_that_cannot_be_encoded_is_forgotten_and_sends_no_cancel() -> None:
    async with side(tracer=FakeTracer()) as (this, _):
        with pytest.raises(NotSerializable):
            await this.outbound.request("tools/call", {"name": float("nan")}, LATEST_LEGACY)
        assert (await this.sent(), this.state.outbound) == ([], ())
        [span] = this.tracer.spans
        [(result, error)] = span.ends
        assert result is None
        assert isinstance(error, NotSerializable)


async def test_call_in_a_cancelled_scope_sends_nothing() -> None:
    async with side() as (this, _):
        with trio.CancelScope() as scope:
            scope.cancel()
            await this.outbound.request("ping", None, LATEST_LEGACY)
        assert scope.cancelled_caught
        assert (await this.sent(), this.state.open_request("ping", LATEST_LEGACY).id) == ([], 1)


# Leaving


async def test_cancelled_call_sends_a_cancel_with_its_reason() -> None:
    async with side() as (this, _):
        assert await left(this) == [cancel_of(1, "enough")]
        assert await left(this, cancel=None) == [cancel_of(2, "cancelled by the caller")]


async def test_call_cancelled_by_a_deadline_sends_the_deadline_as_reason(autojump_clock: MockClock) -> None:
    async with side() as (this, nursery):

        async def call() -> None:
            with trio.move_on_after(5):
                await this.call()

        nursery.start_soon(call)
        assert [each["id"] for each in await this.sent()] == [1]
        await trio.sleep(6)
        assert await this.sent() == [cancel_of(1, "the caller's deadline passed")]


async def test_request_of_a_cancelled_call_is_removed_from_the_outbox_if_it_was_not_written() -> None:
    async with side() as (this, nursery):
        this.outbox.put(b'{"method":"before"}\n')
        with trio.CancelScope() as scope:
            nursery.start_soon(wait_and_cancel, scope)
            await this.call()
        assert [each["method"] for each in await this.sent()] == ["before"]
        assert this.state.outbound == ()


async def wait_and_cancel(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_cancelled_initialize_sends_no_cancel() -> None:
    async with side() as (this, _):
        assert await left(this, "initialize", {}) == []


async def test_cancelled_call_sends_no_cancel_if_cancels_are_disabled() -> None:
    async with side(send_cancels=False) as (this, _):
        assert await left(this) == []


async def test_cancel_is_written_before_all_messages_that_wait_in_the_outbox() -> None:
    async with side(limits=Limits(high_water=10)) as (this, _), trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as calls:
                calls.start_soon(this.call)
                await this.sent()
                this.outbox.put(b'{"method":"waits"}\n' * 100)
                scope.cancel(reason="enough")
        line = bytes(this.outbox.take_nowait()).splitlines()[0]
        assert json.loads(line) == cancel_of(1, "enough")
        nursery.cancel_scope.cancel()


async def test_cancel_is_sent_without_a_reason_that_cannot_be_encoded() -> None:
    async with side() as (this, _):
        assert await left(this, cancel="\ud800") == [cancel_of(1)]


async def test_call_that_is_answered_while_it_is_cancelled_sends_no_cancel() -> None:
    async with side() as (this, _):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(this.call)
                await this.sent()
                this.settle(1, {})
                scope.cancel()
        assert this.outbox.size == 0


@attrs.define(eq=False)
class FakeScope:
    """Of a request of the peer, only what its own calls look at."""

    cancellation: Cancellation | None
    trace: TraceContext | None = None

    @property
    def request(self) -> FakeScope:
        return self


@pytest.mark.parametrize(
    ("cancellation", "reason"),
    [
        (Cancellation(CancelCause.PEER, "theirs", 0), "theirs"),
        (Cancellation(CancelCause.PEER, None, 0), None),
        (Cancellation(CancelCause.SHUTDOWN, "theirs", 0), "theirs"),
        (Cancellation(CancelCause.SHUTDOWN, None, 0), "enough"),
        (None, "enough"),
    ],
)
async def test_calls_of_a_cancelled_handler_are_cancelled_with_its_reason(
    cancellation: Cancellation | None, reason: str | None
) -> None:
    async with side() as (this, _):
        scope: Any = FakeScope(cancellation)
        token = current_request.set(scope)
        assert await left(this) == [cancel_of(1, reason)]
        current_request.reset(token)


# What is said in _meta


async def test_call_with_an_on_progress_callback_sends_a_progress_token_and_gets_progress(
    autojump_clock: MockClock,
) -> None:
    told = list[Progress]()
    async with side() as (this, nursery):
        nursery.start_soon(this.call, "tools/call", {"name": "x", "_meta": {"a": 1}}, told.append)
        (request,) = await this.sent()
        assert request["params"] == {"name": "x", "_meta": {"a": 1, PROGRESS_TOKEN: 1}}
        nursery.start_soon(this.call, "tools/call", None, told.append)
        (request,) = await this.sent()
        assert request["params"] == {"_meta": {PROGRESS_TOKEN: 2}}
        call = this.outbound.call_of(this.state.outbound[0])
        call.receive_progress(Progress(1), 10)
        await wait_all_tasks_blocked()
        assert told == [Progress(1)]


async def test_queued_progress_for_a_slow_callback_is_limited() -> None:
    for limits in (Limits(max_pending_notifications=2), Limits(max_inbound_bytes=20)):
        told = list[Progress]()
        async with side(limits=limits) as (this, nursery):
            nursery.start_soon(this.call, "ping", None, told.append)
            await this.sent()
            call = this.outbound.call_of(this.state.outbound[0])
            for value in range(5):
                call.receive_progress(Progress(value), 10)
            await wait_all_tasks_blocked()
            assert told == [Progress(3), Progress(4)]


async def test_call_inside_fail_after_silence_sends_a_progress_token_and_the_longest_possible_wait(
    autojump_clock: MockClock,
) -> None:
    async with side() as (this, nursery):

        async def call() -> None:
            with fail_after_silence(5, maximum=10):
                await this.call()

        nursery.start_soon(call)
        (request,) = await this.sent()
        assert request["params"]["_meta"] == {REMAINING_MS: 10_000, PROGRESS_TOKEN: 1}
        this.settle(1, {})


@pytest.mark.parametrize("tell", [True, False])
async def test_call_sends_its_remaining_time_if_sending_deadlines_is_enabled(
    autojump_clock: MockClock, tell: bool
) -> None:
    async with side(tell_deadlines=tell) as (this, nursery):

        async def call() -> None:
            with trio.move_on_after(5):
                await trio.lowlevel.checkpoint()
                await this.call()

        nursery.start_soon(call)
        (request,) = await this.sent()
        assert request["params"] == ({"name": "x", "_meta": {REMAINING_MS: 5000}} if tell else {"name": "x"})


async def test_outgoing_request_contains_the_trace_context_and_the_given_meta() -> None:
    async with side() as (this, nursery):
        for params in (None, {"_meta": {"a": 1}}):
            with answering({TRACEPARENT: PARENT}):
                nursery.start_soon(this.call, "tools/call", params)
            (request,) = await this.sent()
            assert request["params"]["_meta"] == {TRACEPARENT: PARENT, **({"a": 1} if params else {})}


async def test_traced_request_contains_the_parameters_of_its_span_and_ends_the_span() -> None:
    tracer = FakeTracer()
    async with side(tracer=tracer) as (this, nursery):
        for _ in range(2):
            nursery.start_soon(this.call)
        nursery.start_soon(this.call, "ping", None)
        sent = {each["method"]: each for each in await this.sent()}
        assert sent["tools/call"]["params"] == {"name": "x", "traced": True}
        assert "params" not in sent["ping"]
        assert [span.ends for span in tracer.spans] == [[], []]
        error = PeerError(3, "no")
        calls = [each.id for each in this.state.outbound if each.method.name == "tools/call"]
        this.settle(calls[0], {})
        this.settle(calls[1], None, error)
        await wait_all_tasks_blocked()
        assert sorted(map(repr, (span.ends for span in tracer.spans))) == sorted(
            map(repr, ([({}, None)], [(None, error)]))
        )


async def test_span_ends_when_its_call_is_cancelled() -> None:
    async with side(tracer=FakeTracer()) as (this, _):
        await left(this)
        [span] = this.tracer.spans
        [(result, error)] = span.ends
        assert (result, type(error)) == (None, trio.Cancelled)


# Waiting for room, and for callbacks


async def test_request_waits_for_space_in_the_outbox(autojump_clock: MockClock) -> None:
    async with side(limits=Limits(high_water=10)) as (this, nursery):
        this.outbox.put(b"x" * 39 + b"\n")
        nursery.start_soon(this.call)
        await wait_all_tasks_blocked()
        assert this.state.outbound == ()
        await this.outbox.take()
        assert [each["method"] for each in await this.sent()] == ["tools/call"]
        this.outbox.put(b"x" * 38 + b"\n")
        nursery.start_soon(this.call)
        await wait_all_tasks_blocked()
        assert len(this.state.outbound) == 2


async def test_request_that_waits_for_outbox_space_fails_when_the_connection_is_lost() -> None:
    async with side(limits=Limits(high_water=10)) as (this, nursery):
        this.outbox.put(b"x" * 100 + b"\n")
        nursery.start_soon(this.call)
        await wait_all_tasks_blocked()
        this.outbound.fail_all(ConnectionLost("gone"))
        await wait_all_tasks_blocked()
        assert [str(failure) for failure in this.failures] == ["gone"]


async def test_call_returns_only_after_callbacks_of_notifications_received_before_its_response(
    autojump_clock: MockClock,
) -> None:
    async def slow(_: NotificationReceived) -> None:
        await trio.sleep(3)

    async with side(slow) as (this, nursery):
        nursery.start_soon(this.call)
        await this.sent()
        method = LATEST_LEGACY._methods["notifications/message"]
        for _ in range(2):
            this.told.put(NotificationReceived(method, {}, LATEST_LEGACY), 10)
        this.settle(1, {}, after=1)
        await wait_all_tasks_blocked()
        assert this.results == []
        await trio.sleep(3)
        await wait_all_tasks_blocked()
        assert this.results == [{}]
        assert this.told.handled == 1


async def test_call_does_not_wait_for_callbacks_of_notifications_received_before_its_request(
    autojump_clock: MockClock,
) -> None:
    async def stuck(_: NotificationReceived) -> None:
        await trio.sleep_forever()

    async with side(stuck) as (this, nursery):
        this.told.put(NotificationReceived(LATEST_LEGACY._methods["notifications/message"], {}, LATEST_LEGACY), 10)
        nursery.start_soon(this.call)
        await this.sent()
        this.settle(1, {}, after=1)
        await wait_all_tasks_blocked()
        assert this.results == [{}]


# The loss of the connection


async def test_each_call_on_a_lost_connection_fails_with_a_separate_error_object() -> None:
    async with side() as (this, nursery):
        for _ in range(2):
            nursery.start_soon(this.call)
        await this.sent()
        lost = ConnectionLost("gone", exit_status=3, stderr=("a",))
        this.outbound.fail_all(lost)
        this.outbound.fail_all(ConnectionLost("another reason"))
        await wait_all_tasks_blocked()
        await this.call()
        assert this.outbound.closed_error is lost
        assert len({id(failure) for failure in (lost, *this.failures)}) == 4
        for failure in this.failures:
            assert isinstance(failure, ConnectionLost)
            assert (failure.reason, failure.exit_status, failure.stderr) == ("gone", 3, ("a",))
        assert await this.sent() == []


async def test_block_inside_while_connected_is_cancelled_when_the_connection_is_lost() -> None:
    async with side() as (this, nursery):
        ends = list[str]()

        async def work() -> None:
            with pytest.raises(ConnectionLost, match="gone"), this.outbound.while_connected():
                try:
                    await trio.sleep_forever()
                except trio.Cancelled as cancelled:
                    ends.append(str(cancelled.reason))
                    raise

        nursery.start_soon(work)
        await wait_all_tasks_blocked()
        this.outbound.fail_all(ConnectionLost("gone"))
        await wait_all_tasks_blocked()
        assert ends == ["gone"]
        with pytest.raises(ConnectionLost, match="gone"), this.outbound.while_connected():
            pytest.fail("there is no connection")


async def test_connection_forgets_a_while_connected_block_when_the_block_ends() -> None:
    async with side() as (this, _):
        with this.outbound.while_connected():
            assert len(this.outbound._waiting) == 1
        assert not this.outbound._waiting
        with pytest.raises(LookupError), this.outbound.while_connected():
            raise LookupError
        assert not this.outbound._waiting


# Answers that cannot be read


async def test_unreadable_response_fails_its_call_without_a_cancel() -> None:
    async with side() as (this, nursery):
        nursery.start_soon(this.call)
        await this.sent()
        (request,) = this.state.outbound
        this.state.abandon(request)
        this.outbound.unreadable_answer(request, "no JSON")
        await wait_all_tasks_blocked()
        [failure] = this.failures
        assert (type(failure), str(failure)) == (UnreadableAnswer, "tools/call: the answer cannot be read: no JSON")
        assert await this.sent() == []


async def test_unreadable_response_fails_the_only_call_whose_request_was_already_sent() -> None:
    async with side() as (this, nursery):
        nursery.start_soon(this.call)
        await this.sent()
        nursery.start_soon(this.call)
        await wait_all_tasks_blocked()
        this.outbound.answer_lost(this.state.outbound, "no JSON")
        await wait_all_tasks_blocked()
        [failure] = this.failures
        assert str(failure) == "tools/call: the answer cannot be read: no JSON"
        assert [request.id for request in this.state.outbound] == [2]
        assert [each["method"] for each in await this.sent()] == ["tools/call"], "no cancel"


async def test_unreadable_response_that_may_belong_to_several_calls_fails_the_calls_without_a_timeout(
    autojump_clock: MockClock,
) -> None:
    async with side() as (this, nursery):

        async def limited() -> None:
            with fail_after_work(60):
                await this.call("ping", None)

        nursery.start_soon(this.call)
        await wait_all_tasks_blocked()
        nursery.start_soon(limited)
        await wait_all_tasks_blocked()
        nursery.start_soon(this.call, "initialize", {})
        await this.sent()
        this.outbound.answer_lost(this.state.outbound, "no JSON")
        await wait_all_tasks_blocked()
        assert sorted(map(str, this.failures)) == [
            "initialize: an answer, maybe to this, cannot be read: no JSON",
            "tools/call: an answer, maybe to this, cannot be read: no JSON",
        ]
        assert [request.method.name for request in this.state.outbound] == ["ping"]
        assert await this.sent() == [cancel_of(1, "the answer makes no sense")]


async def test_unreadable_response_is_raised_after_callbacks_of_earlier_notifications(
    autojump_clock: MockClock,
) -> None:
    async def slow(_: NotificationReceived) -> None:
        await trio.sleep(3)

    async with side(slow) as (this, nursery):
        nursery.start_soon(this.call)
        await this.sent()
        this.told.put(NotificationReceived(LATEST_LEGACY._methods["notifications/message"], {}, LATEST_LEGACY), 10)
        this.outbound.unreadable_answer(this.state.outbound[0], "no JSON")
        await wait_all_tasks_blocked()
        assert this.failures == []
        await trio.sleep(3)
        await wait_all_tasks_blocked()
        assert len(this.failures) == 1


# Calls of several requests

QUESTIONS = {"resultType": "input_required", "inputRequests": {}, "requestState": "s"}


async def test_call_abandoned_after_an_input_required_result_sends_one_cancel_for_its_last_request() -> None:
    async with side() as (this, nursery):

        async def play() -> None:
            for result in (QUESTIONS, QUESTIONS):
                (request,) = await this.sent()
                this.settle(request["id"], result)

        nursery.start_soon(play)
        with pytest.raises(CodedError), this.outbound.round_trips() as trips:
            for number in (1, 2):
                await this.outbound.request("tools/call", {"name": "x"}, LATEST_MODERN, trips=trips)
                assert trips.asked == number
            raise CodedError(1, "enough")
        assert await this.sent() == [cancel_of(2, "enough")]


async def test_call_abandoned_after_its_final_result_sends_no_cancel(autojump_clock: MockClock) -> None:
    async with side() as (this, nursery):

        async def play() -> None:
            for result in (QUESTIONS, {"tools": []}):
                (request,) = await this.sent()
                await trio.sleep(5)
                this.settle(request["id"], result)

        nursery.start_soon(play)
        with pytest.raises(LookupError), this.outbound.round_trips() as trips:
            await this.outbound.request("tools/call", {}, LATEST_MODERN, trips=trips)
            assert (trips.asked, trips.received) == (1, -math.inf)
            await this.outbound.request("tools/list", {}, LATEST_MODERN, trips=trips)
            assert (trips.asked, trips.received) == (None, 10)
            raise LookupError
        assert await this.sent() == []


async def test_call_cancelled_during_a_retry_cancels_the_retry() -> None:
    async with side() as (this, nursery):
        with trio.CancelScope() as scope:

            async def play() -> None:
                (request,) = await this.sent()
                this.settle(request["id"], QUESTIONS)
                await this.sent()
                scope.cancel(reason="enough")

            nursery.start_soon(play)
            with this.outbound.round_trips() as trips:
                await this.outbound.request("tools/call", {}, LATEST_MODERN, trips=trips)
                await this.outbound.request("tools/call", {}, LATEST_MODERN, trips=trips)
        assert await this.sent() == [cancel_of(2, "enough")]


async def test_call_whose_retry_was_not_sent_sends_a_cancel_for_the_previous_request() -> None:
    async with side() as (this, nursery):

        async def play() -> None:
            (request,) = await this.sent()
            this.settle(request["id"], QUESTIONS)

        nursery.start_soon(play)
        with pytest.raises(NotSerializable), this.outbound.round_trips() as trips:
            await this.outbound.request("tools/call", {}, LATEST_MODERN, trips=trips)
            await this.outbound.request("tools/call", {"a": float("nan")}, LATEST_MODERN, trips=trips)
        (cancel,) = await this.sent()
        assert cancel["params"]["requestId"] == 1


async def test_call_of_a_method_that_cannot_request_input_needs_no_cancel_after_its_result() -> None:
    async with side() as (this, nursery):

        async def play() -> None:
            (request,) = await this.sent()
            this.settle(request["id"], QUESTIONS)

        nursery.start_soon(play)
        with this.outbound.round_trips() as trips:
            await this.outbound.request("tools/list", {}, LATEST_MODERN, trips=trips)
            assert trips.asked is None, "a list may not ask"


async def test_request_sent_by_a_handler_and_its_cancel_use_the_outbox_of_the_handler() -> None:
    async with side() as (this, nursery):
        own = Outbox(16384)
        with trio.CancelScope() as scope:
            nursery.start_soon(partial(this.call, outbox=own))
            await wait_all_tasks_blocked()
            line = json.loads(bytes(await own.take()))
            assert (line["method"], await this.sent()) == ("tools/call", [])
            this.settle(line["id"], {"a": 1})
            await wait_all_tasks_blocked()
            assert this.results == [{"a": 1}]

            async def wait_and_leave() -> None:
                await wait_all_tasks_blocked()
                await own.take()
                scope.cancel(reason="enough")

            nursery.start_soon(wait_and_leave)
            await this.call(outbox=own)
        assert scope.cancelled_caught
        assert (json.loads(bytes(await own.take())), await this.sent()) == (cancel_of(line["id"] + 1, "enough"), [])
