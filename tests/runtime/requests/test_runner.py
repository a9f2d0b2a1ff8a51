"""How the requests of one connection are run, answered, parked, resumed and cancelled."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from tests.state.peers import accepted, cancel, meta_of, server_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.concurrency.time_limits import Graces
from trio_mcp.jsonrpc.errors import CodedError
from trio_mcp.jsonrpc.messages import Request
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.protocol.types.tools import ToolError
from trio_mcp.runtime.cancellation import REMAINING_MS, CancelCause
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.limits import Limits
from trio_mcp.runtime.outbox import Outbox
from trio_mcp.runtime.peer import UNKNOWN_PEER, Peer, PrincipalId
from trio_mcp.runtime.replies import Replies
from trio_mcp.runtime.requests.host import LATER, Now, RequestHost
from trio_mcp.runtime.requests.rounds import Retry, require_input
from trio_mcp.runtime.requests.runner import RequestRunner
from trio_mcp.runtime.requests.scope import RequestScope, current_request
from trio_mcp.runtime.transport import ConnectionLost
from trio_mcp.server.connected_clients import Observers
from trio_mcp.state.events import CancelReceived

Handle = Callable[[RequestScope], Awaitable[Any]]


class FakeHandler:
    """Decides by the name of the tool, and runs what it is told to."""

    def __init__(self) -> None:
        self.handle: Handle = self.echo
        self.begun: list[Any] = []
        self.sealed: list[bytes] = []

    def seal(self, request: Any, principal: PrincipalId | None, *, handle: bytes = b"", **_: Any) -> str:
        self.sealed.append(handle)
        return handle.hex()

    def answer_now(self, request: Any, exchange: Exchange) -> Any:
        match request.params:
            case {"name": "now"}:
                return Now({"content": []})
            case {"name": "refused"}:
                raise CodedError(3, "no")
            case {"name": "broken"}:
                raise LookupError("secret")
            case {"requestState": state, "inputResponses": responses}:
                return Retry(bytes.fromhex(state), responses)
            case _:
                return LATER

    async def answer(self, scope: RequestScope) -> Any:
        self.begun.append(scope.request.id)
        return await self.handle(scope)

    async def echo(self, scope: RequestScope) -> Any:
        await trio.lowlevel.checkpoint()
        return {"content": [], "n": scope.request.id}

    def wants(self, event: Any) -> bool:
        raise AssertionError

    async def notified(self, event: Any) -> None:
        raise AssertionError


class Tracer:
    """Notes which handlers ran, and how each ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, Any]] = []

    def close(self, role: str, revision: str | None) -> None: ...

    def handling(self, request: Any, queued: float = 0.0) -> Any:
        this, number = self, request.id

        class Span:
            def follow(self, answer: Any, _: trio.CancelScope) -> Any:
                return answer

            def end(self, result: Any, *_: Any) -> None:
                this.ends.append((number, result))

        return Span()

    def calling(self, request: Any, params: Any, present: Any) -> None:
        raise AssertionError


async def nobody(*_: Any) -> Any:
    raise AssertionError


class Connection:
    """The requests of one connection to ``host``."""

    def __init__(self, host: RequestHost, handler: FakeHandler, peer: Peer, tracer: Any = None) -> None:
        self.host = host
        self.handler = handler
        self.legacy = server_of(LATEST_LEGACY)
        self.outbox = Outbox(host.limits.high_water)
        self.exchange = Exchange(self.legacy, self.outbox, peer)
        self.runner = RequestRunner(
            host, handler, Graces(host.limits.cleanup_grace), Replies({}), nobody, tracer, peer=peer
        )

    def call(self, number: int, name: str = "x", *, modern: bool = False, size: int = 1, **params: Any) -> Any:
        """Let a request arrive."""
        if modern:
            meta = meta_of(**{CLIENT_CAPABILITIES: {"roots": {}, "sampling": {}}, **params.pop("_meta", {})})
            params["_meta"] = meta
        message = Request(number, "tools/call", {"name": name, **params}, size)
        request = accepted(self.legacy.receive(message))
        self.runner.accept(request, self.exchange)
        return request

    def cancel(self, number: int, reason: str | None = None) -> None:
        """Let a cancel arrive."""
        event = self.legacy.receive(cancel(number, reason))
        assert isinstance(event, CancelReceived), event
        self.runner.cancel_received(event, self.exchange)

    async def sent(self) -> list[Any]:
        """What was sent since this was asked last, once nothing goes on any more."""
        await wait_all_tasks_blocked()
        lines = bytes(self.outbox.take_nowait()).splitlines()
        return [json.loads(line) for line in lines]

    async def answers(self) -> dict[Any, Any]:
        """The results and errors that were sent since, by id."""
        return {each["id"]: each.get("result", each.get("error")) for each in await self.sent()}


@asynccontextmanager
async def serving(
    limits: Limits | None = None, peer: Peer = UNKNOWN_PEER, tracer: Any = None, **host: Any
) -> AsyncGenerator[Connection]:
    handler = FakeHandler()
    async with trio.open_nursery() as nursery:
        running = RequestHost(limits or Limits(), **host)
        await nursery.start(running.run)
        yield Connection(running, handler, peer, tracer)
        nursery.cancel_scope.cancel()


def code_of(error: Any) -> tuple[int, str]:
    return error["code"], error["message"]


# Answers


async def test_request_runner_runs_the_handler_and_sends_the_result_with_the_request_id() -> None:
    async with serving() as this:
        request = this.call(7)
        assert (this.handler.begun, this.exchange.find(request) is not None) == ([], True)
        assert await this.answers() == {7: {"content": [], "n": 7}}
        assert (this.exchange.find(request), this.legacy.inbound) == (None, ())
        assert (this.host.load.in_flight, this.host.load.inbound_bytes) == (0, 0)


async def test_request_that_needs_no_handler_task_is_answered_directly_by_the_reader_task() -> None:
    async with serving() as this:
        for name, answer in (
            ("now", {"content": []}),
            ("refused", {"code": 3, "message": "no"}),
            ("broken", {"content": [{"type": "text", "text": "internal error in tool broken"}], "isError": True}),
        ):
            this.call(1, name)
            assert this.legacy.inbound == ()
            assert this.outbox.size > 0, "at once"
            assert await this.answers() == {1: answer}
        assert this.handler.begun == []


async def test_handlers_start_in_the_order_of_their_requests() -> None:
    async with serving() as this:
        for number in range(20):
            this.call(number)
        await this.sent()
        assert this.handler.begun == list(range(20))


async def test_handler_and_its_child_tasks_can_read_the_current_request() -> None:
    seen = list[bool]()

    async def handle(scope: RequestScope) -> Any:
        async def child() -> None:
            seen.append(current_request.get() is scope)

        assert scope.nursery is not None
        scope.nursery.start_soon(child)
        seen.append(current_request.get() is scope)

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        await this.sent()
        assert seen == [True, True]


@contextmanager
def after_each_step(do: Callable[[], object]) -> Generator[None]:
    """Call ``do`` after each step of a task that runs a handler."""

    class Steps(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            if task.name.endswith("_answer"):
                do()

    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(steps)


async def test_response_is_sent_in_the_step_in_which_a_handler_without_child_tasks_returns() -> None:
    async def handle(scope: RequestScope) -> Any:
        return {"content": []}

    async with serving() as this:
        this.handler.handle = handle
        sizes = list[int]()
        with after_each_step(lambda: sizes.append(this.outbox.size)):
            this.call(1)
            await wait_all_tasks_blocked()
        assert sizes[0] > 0, "before the checkpoint at the end of the handler's nursery"
        assert await this.answers() == {1: {"content": []}}
        assert this.host.load.in_flight == 0


async def test_streams_that_report_a_change_run_before_the_response_of_the_handler_that_announced_it() -> None:
    async def handle(scope: RequestScope) -> Any:
        Observers().list_changed("notifications/tools/list_changed")
        return {"content": []}

    async with serving() as this:
        this.handler.handle = handle
        sizes = list[int]()
        with after_each_step(lambda: sizes.append(this.outbox.size)):
            this.call(1)
            await wait_all_tasks_blocked()
        assert sizes[0] == 0, "the response waits for one pass of the scheduler"
        assert await this.answers() == {1: {"content": []}}


async def test_failed_child_task_is_reported_even_if_the_handler_returns_after_it() -> None:
    async def handle(scope: RequestScope) -> Any:
        async def child() -> None:
            try:
                raise ToolError("no")
            finally:
                ended.set()

        ended = trio.Event()
        assert scope.nursery is not None
        scope.nursery.start_soon(child)
        with trio.CancelScope(shield=True):
            await ended.wait()
        return {"content": []}

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        assert await this.answers() == {1: {"content": [{"type": "text", "text": "no"}], "isError": True}}


async def test_cancellation_that_follows_the_response_has_no_effect() -> None:
    async def handle(scope: RequestScope) -> Any:
        scopes.append(scope)
        return {"content": []}

    def cancel_answered() -> None:
        if this.outbox.size:
            this.runner.cancel(scopes[0], CancelCause.PEER, "too late")

    scopes = list[RequestScope]()
    async with serving() as this:
        this.handler.handle = handle
        with after_each_step(cancel_answered):
            this.call(1)
            await wait_all_tasks_blocked()
        assert await this.answers() == {1: {"content": []}}
        assert (this.host.load.in_flight, this.host.load.cancelled) == (0, 0)


async def test_response_waits_for_all_child_tasks_of_the_handler() -> None:
    release = trio.Event()

    async def handle(scope: RequestScope) -> Any:
        assert scope.nursery is not None
        scope.nursery.start_soon(release.wait)
        return {"content": []}

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        assert await this.sent() == []
        assert this.host.load.in_flight == 1
        release.set()
        assert await this.answers() == {1: {"content": []}}


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (CodedError(3, "no"), {"code": 3, "message": "no"}),
        (ToolError("no"), {"content": [{"type": "text", "text": "no"}], "isError": True}),
        (SystemExit(3), {"content": [{"type": "text", "text": "internal error in tool x"}], "isError": True}),
    ],
)
async def test_exception_in_a_handler_is_answered_with_an_error_and_cancels_its_child_tasks(
    failure: BaseException, answer: Any
) -> None:
    ended, begun = list[str | None](), trio.Event()

    async def child() -> None:
        try:
            begun.set()
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            ended.append(cancelled.reason)
            raise

    async def handle(scope: RequestScope) -> Any:
        assert scope.nursery is not None
        scope.nursery.start_soon(child)
        await begun.wait()
        raise failure

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        assert await this.answers() == {1: answer}
        assert ended == ["the handler failed"]
        assert this.host.load.in_flight == 0


async def test_exception_in_a_child_task_fails_the_handler() -> None:
    async def fail() -> None:
        raise CodedError(3, "no")

    async def handle(scope: RequestScope) -> Any:
        assert scope.nursery is not None
        scope.nursery.start_soon(fail)
        await trio.sleep_forever()

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        assert await this.answers() == {1: {"code": 3, "message": "no"}}


async def test_handler_that_cancels_its_own_scope_is_answered_with_an_error() -> None:
    async def handle(scope: RequestScope) -> Any:
        assert scope.nursery is not None
        scope.nursery.cancel_scope.cancel()
        await trio.sleep_forever()

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        [error] = (await this.answers()).values()
        assert code_of(error) == (-32603, "The request was cancelled by its own handler")


async def test_result_is_sent_even_if_the_handler_scope_is_cancelled_just_before_the_handler_returns() -> None:
    async def handle(scope: RequestScope) -> Any:
        assert scope.nursery is not None
        scope.nursery.cancel_scope.cancel()
        return {"content": []}

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        assert await this.answers() == {1: {"content": []}}


async def test_progress_is_sent_before_the_response_and_never_after_the_response() -> None:
    async def handle(scope: RequestScope) -> Any:
        for value in range(3):
            scope.progress(value)
        scopes.append(scope)
        return {"content": []}

    scopes = list[RequestScope]()
    async with serving() as this:
        this.handler.handle = handle
        this.call(1, _meta={"progressToken": "p"})
        assert [each.get("params", {}).get("progress") for each in await this.sent()] == [2, None]
        assert not scopes[0].progress(9)
        assert not scopes[0].put(b"{}\n")
        assert await this.sent() == []


async def test_request_stays_in_flight_while_its_response_waits_for_outbox_space() -> None:
    async with serving(Limits(high_water=10)) as this:
        this.outbox.put(b"x" * 40)
        this.call(1)
        await wait_all_tasks_blocked()
        assert (this.outbox.size, this.host.load.in_flight) == (40, 1)
        await this.outbox.take()
        assert list(await this.answers()) == [1]


async def test_handler_failure_after_the_client_disconnected_is_not_logged_as_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "trio_mcp")

    async def handle(scope: RequestScope) -> Any:
        raise ConnectionLost("gone")

    for ending in (True, False):
        caplog.clear()
        async with serving() as this:
            this.handler.handle = handle
            if ending:
                this.exchange.ending.set()
            this.call(1)
            [answer] = (await this.answers()).values()
        [record] = caplog.records
        if ending:
            assert code_of(answer) == (-32603, "Internal error")
            assert record.getMessage() == "tools/call (request 1) failed, because the connection was lost: gone"
            assert (record.levelno, record.exc_info) == (logging.INFO, None)
        else:
            assert answer["isError"]
            assert record.levelno == logging.ERROR
            assert record.getMessage().startswith("tools/call (request 1) failed in 'x' after ")


async def test_tracing_span_of_a_request_ends_with_the_result_of_its_handler() -> None:
    tracer = Tracer()
    async with serving(tracer=tracer) as this:
        this.call(1)
        await this.sent()
        assert tracer.ends == [(1, {"content": [], "n": 1})]
        this.handler.handle = nobody_answers
        this.call(2)
        await wait_all_tasks_blocked()
        this.cancel(2)
        await this.sent()
        assert tracer.ends[1:] == [(2, None)]


async def nobody_answers(_: RequestScope) -> Any:
    await trio.sleep_forever()


# Bounds


async def test_requests_beyond_the_queue_limit_are_refused_without_running() -> None:
    release = trio.Event()

    async def handle(scope: RequestScope) -> Any:
        await release.wait()
        return {"content": []}

    async with serving(Limits(max_in_flight=1, max_queued=2)) as this:
        this.handler.handle = handle
        for number in range(4):
            this.call(number, size=1000)
        [(number, error)] = (await this.answers()).items()
        assert number == 3
        assert code_of(error) == (-31000, "Too busy: too many requests are in flight or waiting; try again later")
        assert (this.handler.begun, this.runner.admission.waiting, this.host.load.queued) == ([0], 2, 2)
        packed = [each.packed is not None for each in this.legacy.inbound]
        assert packed == [False, True, True], "those that wait take less"
        release.set()
        assert list(await this.answers()) == [0, 1, 2]
        assert this.handler.begun == [0, 1, 2]
        assert (this.host.load.queued, this.host.load.in_flight, this.host.load.inbound_bytes) == (0, 0, 0)


async def test_queued_request_later_runs_with_all_of_its_parameters() -> None:
    seen = list[Any]()

    async def handle(scope: RequestScope) -> Any:
        seen.append((scope.request.params, scope.request.meta))
        return {"content": []}

    async with serving(Limits(max_in_flight=1)) as this:
        this.handler.handle = handle
        this.call(1)
        this.call(2, size=1000, arguments={"a": [1]}, _meta={"b": 2})
        await this.sent()
        assert seen[1] == ({"name": "x", "arguments": {"a": [1]}, "_meta": {"b": 2}}, {"b": 2})


async def test_new_requests_during_shutdown_are_refused_with_the_reason_given_first() -> None:
    async with serving() as this:
        this.runner.refuse_new("over")
        this.runner.refuse_new("another")
        assert this.runner.refuse_reason == "over"
        this.call(1)
        this.call(2, "now")
        answers = await this.answers()
        assert code_of(answers[1]) == (-31000, "Shutting down: no new requests are taken")
        assert answers[2] == {"content": []}, "what needs no task is answered all the same"
        assert this.handler.begun == []


# Cancels


async def test_cancelled_request_is_never_answered_whatever_its_handler_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "trio_mcp")

    async def handle(scope: RequestScope) -> Any:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            scopes.append(scope)
            if scope.request.id == 1:
                return {"content": []}  # it swallows the cancel
            raise LookupError("why")  # noqa: B904 - a handler's mistake

    scopes = list[RequestScope]()
    async with serving() as this:
        this.handler.handle = handle
        for number in (1, 2):
            this.call(number)
        await wait_all_tasks_blocked()
        this.cancel(1, "enough")
        this.cancel(2)
        assert this.legacy.inbound == ()
        assert await this.sent() == []
        assert [scope.cancellation.cause for scope in scopes if scope.cancellation] == [CancelCause.PEER] * 2
        assert {scope.cancellation.reason for scope in scopes if scope.cancellation} == {"enough", None}
        assert (this.host.load.cancelled, this.host.load.in_flight) == (2, 0)
        told = [record.getMessage() for record in caplog.records]
        assert "request 1 cancelled by the peer: 'enough'" in told
        assert "request 2 failed after its cancellation: LookupError('why')" in told


async def test_request_cancelled_before_its_handler_started_never_runs() -> None:
    async with serving(Limits(max_in_flight=1)) as this:
        this.call(1)
        this.call(2)
        this.cancel(1)
        this.cancel(2)
        assert this.host.load.queued == 0
        assert await this.sent() == []
        assert this.handler.begun == []
        assert (this.host.load.in_flight, this.host.load.inbound_bytes, this.host.load.cancelled) == (0, 0, 2)
        this.call(1)
        assert list(await this.answers()) == [1]


@pytest.mark.parametrize("size", [1, 1000])
async def test_deadline_timer_of_a_queued_request_is_stopped_when_the_request_is_cancelled(size: int) -> None:
    async with serving(Limits(max_in_flight=1)) as this:
        this.handler.handle = nobody_answers
        this.call(1)
        this.call(2, size=size, _meta={REMAINING_MS: 3_600_000})
        alarms = [alarm for *_, alarm in this.host.alarms._heap]
        assert [alarm.is_set for alarm in alarms] == [True]
        this.cancel(2)
        assert [alarm.is_set for alarm in alarms] == [False]


async def test_unsent_messages_of_a_cancelled_request_are_removed_from_the_outbox() -> None:
    async def handle(scope: RequestScope) -> Any:
        assert scope.put(b'{"id":null}\n')
        await trio.sleep_forever()

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        await wait_all_tasks_blocked()
        assert this.outbox.size > 0
        this.cancel(1)
        assert await this.sent() == []


async def test_cancel_drops_a_response_that_waits_for_outbox_space() -> None:
    async with serving(Limits(high_water=10)) as this:
        this.outbox.put(b"x" * 40)
        this.call(1)
        await wait_all_tasks_blocked()
        this.cancel(1)
        await wait_all_tasks_blocked()
        assert this.host.load.in_flight == 0
        assert this.outbox.size == 40


async def test_cancelled_request_that_needs_no_response_does_not_wait_for_outbox_space() -> None:
    async with serving(Limits(high_water=10)) as this:
        this.handler.handle = nobody_answers
        this.call(1)
        await wait_all_tasks_blocked()
        this.outbox.put(b"x" * 40)
        this.cancel(1)
        await wait_all_tasks_blocked()
        assert (this.host.load.in_flight, this.outbox.size) == (0, 40)


async def test_request_is_cancelled_at_most_once_and_not_after_its_end() -> None:
    async with serving() as this:
        scopes = list[RequestScope]()

        async def handle(scope: RequestScope) -> Any:
            scopes.append(scope)
            await trio.sleep_forever()

        this.handler.handle = handle
        this.call(1)
        await wait_all_tasks_blocked()
        for cause in (CancelCause.SHUTDOWN, CancelCause.DISCONNECT):
            this.exchange.cancel_all(cause, "over")
        await wait_all_tasks_blocked()
        this.runner.cancel(scopes[0], CancelCause.PEER, None)
        assert this.host.load.cancelled == 1
        assert scopes[0].cancellation is not None
        assert scopes[0].cancellation.cause is CancelCause.SHUTDOWN


async def test_handler_whose_cleanup_exceeds_cleanup_grace_is_logged_and_frees_its_request_slot(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(scope: RequestScope) -> Any:
        if scope.request.id == 2:
            return {"content": []}
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(60)

    async with serving(Limits(max_in_flight=1, cleanup_grace=5)) as this:
        this.handler.handle = handle
        this.call(1)
        this.call(2)
        await wait_all_tasks_blocked()
        this.cancel(1)
        await trio.sleep(4.9)
        assert (this.handler.begun, caplog.records) == ([1], [])
        await trio.sleep(0.2)
        assert list(await this.answers()) == [2]
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        begin = "tools/call (request 1) still runs 5 s after its cancel; it no longer counts as in flight. It is at:\n"
        assert record.getMessage().startswith(begin)
        assert "in handle" in record.getMessage()
        assert (this.host.load.overrun, this.host.load.in_flight) == (1, 0)
        await trio.sleep(100)
        assert (this.host.load.in_flight, this.host.load.overrun, len(caplog.records)) == (0, 1, 1)


async def test_log_record_about_slow_handler_cleanup_is_written_in_the_context_of_the_handler(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    variable, seen = ContextVar[str]("variable", default="none"), list[str]()

    def note(_: logging.LogRecord) -> bool:
        seen.append(variable.get())
        return True

    async def handle(scope: RequestScope) -> Any:
        variable.set("handler")
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    async with serving(Limits(cleanup_grace=5)) as this:
        this.handler.handle = handle
        this.call(1)
        await wait_all_tasks_blocked()
        caplog.handler.addFilter(note)
        this.cancel(1)
        await trio.sleep(10)
        caplog.handler.removeFilter(note)
        assert seen == ["handler"]
        await trio.sleep(100)


async def test_handler_that_cleans_up_within_cleanup_grace_is_not_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(scope: RequestScope) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(4)

    async with serving(Limits(cleanup_grace=5)) as this:
        this.handler.handle = handle
        this.call(1)
        await wait_all_tasks_blocked()
        this.cancel(1)
        await trio.sleep(100)
        assert (this.host.load.overrun, caplog.records) == (0, [])


async def test_request_is_cancelled_after_the_deadline_of_its_caller_plus_a_grace_period(
    autojump_clock: MockClock,
) -> None:
    seen = list[tuple[float, Any]]()

    async def handle(scope: RequestScope) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            assert scope.cancellation is not None
            seen.append((trio.current_time(), scope.cancellation.cause))

    async with serving(Limits(deadline_grace=1)) as this:
        this.handler.handle = handle
        this.call(1, _meta={REMAINING_MS: 3000})
        await trio.sleep(100)
        assert seen == [(4, CancelCause.DEADLINE)]
        assert await this.sent() == []
        assert (this.host.load.cancelled, this.host.load.in_flight) == (1, 0)


# Rounds

ROOTS: dict[str, Any] = {"roots": []}


async def ask_once(scope: RequestScope) -> Any:
    answer = await require_input(scope, "roots/list", None)
    return {"content": [], "answer": answer}


def questions_of(answer: Any) -> tuple[str, Sequence[str]]:
    """The state and the keys of an answer with questions."""
    assert answer["resultType"] == "input_required"
    return answer["requestState"], list(answer["inputRequests"])


def retry(this: Connection, number: int, state: str, *keys: str, **more: Any) -> None:
    this.call(number, modern=True, requestState=state, inputResponses=dict.fromkeys(keys, ROOTS), **more)


async def test_handler_that_awaited_input_continues_with_the_id_of_the_retry() -> None:
    async with serving() as this:
        this.handler.handle = ask_once
        request = this.call(1, modern=True)
        state, keys = questions_of((await this.answers())[1])
        load = this.host.load
        assert (load.in_flight, load.parked, this.exchange.find(request)) == (0, 1, None)
        assert this.host.parking.named(request) is not None
        retry(this, 2, state, *keys)
        assert (load.in_flight, load.parked) == (1, 0)
        assert (await this.answers())[2]["answer"] == ROOTS
        assert (load.in_flight, load.parked, load.inbound_bytes, len(this.host.parking)) == (0, 0, 0, 0)
        assert this.handler.begun == [1], "it never ran again"


async def test_request_state_can_be_used_once_and_only_by_its_caller() -> None:
    async with serving() as this:
        this.handler.handle = ask_once
        other = Connection(this.host, this.handler, UNKNOWN_PEER)
        this.call(1, modern=True)
        state, keys = questions_of((await this.answers())[1])
        retry(other, 2, state, *keys)
        [error] = (await other.answers()).values()
        assert (error["code"], error["message"].startswith("Invalid params: this requestState")) == (-32602, True)
        retry(this, 2, state, *keys)
        retry(this, 3, state, *keys)
        answers = await this.answers()
        assert answers[2]["answer"] == ROOTS
        assert answers[3]["code"] == -32602


async def test_principal_can_retry_on_another_connection() -> None:
    async with serving(peer=Peer(principal=PrincipalId(None, "ann"))) as this:
        this.handler.handle = ask_once
        other = Connection(this.host, this.handler, Peer(principal=PrincipalId(None, "ann")))
        this.call(1, modern=True)
        state, keys = questions_of((await this.answers())[1])
        this.runner.cancel_parked(this.exchange, CancelCause.DISCONNECT, "gone")
        retry(other, 1, state, *keys)
        assert (await other.answers())[1]["answer"] == ROOTS
        assert await this.sent() == []


async def test_retry_beyond_the_request_limit_is_refused_and_its_handler_keeps_waiting() -> None:
    async with serving(Limits(max_in_flight=1, max_queued=0)) as this:
        this.handler.handle = ask_once
        this.call(1, modern=True)
        state, keys = questions_of((await this.answers())[1])
        this.handler.handle = nobody_answers
        this.call(2)
        await wait_all_tasks_blocked()
        retry(this, 3, state, *keys)
        assert code_of((await this.answers())[3])[0] == -31000
        assert this.host.load.parked == 1
        this.cancel(2)
        await wait_all_tasks_blocked()
        retry(this, 4, state, *keys)
        assert (await this.answers())[4]["answer"] == ROOTS


async def test_retry_waits_in_the_request_queue_if_no_request_slot_is_free() -> None:
    async with serving(Limits(max_in_flight=1)) as this:
        this.handler.handle = ask_once
        this.call(1, modern=True)
        state, keys = questions_of((await this.answers())[1])
        this.handler.handle = nobody_answers
        this.call(2)
        await wait_all_tasks_blocked()
        retry(this, 3, state, *keys)
        assert await this.sent() == []
        assert (this.host.load.queued, this.host.load.parked) == (1, 0)
        this.cancel(2)
        assert (await this.answers())[3]["answer"] == ROOTS


async def test_request_that_awaits_input_does_not_occupy_a_request_slot() -> None:
    async with serving(Limits(max_in_flight=1)) as this:
        this.handler.handle = ask_once
        this.call(1, modern=True)
        this.call(2, modern=True)
        answers = await this.answers()
        assert [answers[number]["resultType"] for number in (1, 2)] == ["input_required"] * 2


async def test_input_requests_of_a_handler_that_expires_while_awaiting_input_are_still_sent(
    autojump_clock: MockClock,
) -> None:
    async with serving(Limits(retry_timeout=10)) as this:
        seen = list[Any]()

        async def handle(scope: RequestScope) -> Any:
            try:
                await require_input(scope, "roots/list", None)
            finally:
                seen.append(scope.cancellation)

        this.handler.handle = handle
        this.call(1, modern=True)
        await trio.sleep(100)
        [cancellation] = seen
        assert (cancellation.cause, cancellation.at) == (CancelCause.EXPIRED, 10)
        load = this.host.load
        assert (load.expired, load.cancelled, load.parked, load.in_flight, load.inbound_bytes) == (1, 1, 0, 0, 0)
        assert list(await this.answers()) == [1]


async def test_cancel_with_the_latest_request_id_cancels_a_handler_that_awaits_input() -> None:
    async with serving() as this:
        this.handler.handle = ask_once
        this.call(1, modern=True)
        await this.sent()
        this.cancel(1, "enough")
        assert await this.sent() == []
        load = this.host.load
        assert (load.parked, load.in_flight, load.cancelled, len(this.host.parking)) == (0, 0, 1, 0)


async def test_handlers_that_await_input_are_cancelled_when_their_connection_closes() -> None:
    async with serving() as this:
        this.handler.handle = ask_once
        this.call(1, modern=True)
        await this.sent()
        this.runner.cancel_parked(this.exchange, CancelCause.DISCONNECT, "gone")
        await wait_all_tasks_blocked()
        assert (this.host.load.parked, this.host.load.cancelled, len(this.host.parking)) == (0, 1, 0)


async def test_cancelled_handler_that_awaited_input_occupies_a_request_slot_during_cleanup() -> None:
    release = trio.Event()

    async def handle(scope: RequestScope) -> Any:
        try:
            await require_input(scope, "roots/list", None)
        finally:
            with trio.CancelScope(shield=True):
                await release.wait()

    async with serving() as this:
        this.handler.handle = handle
        this.call(1, modern=True)
        await this.sent()
        this.cancel(1)
        await wait_all_tasks_blocked()
        assert (this.host.load.in_flight, this.host.load.parked) == (1, 0)
        release.set()
        await wait_all_tasks_blocked()
        assert this.host.load.in_flight == 0


async def test_retry_that_is_cancelled_while_queued_cancels_the_handler() -> None:
    async with serving(Limits(max_in_flight=1)) as this:
        this.handler.handle = ask_once
        this.call(1, modern=True)
        state, keys = questions_of((await this.answers())[1])
        this.handler.handle = nobody_answers
        this.call(2)
        await wait_all_tasks_blocked()
        retry(this, 3, state, *keys)
        this.cancel(3)
        assert await this.sent() == []
        assert (this.host.load.queued, this.host.load.in_flight) == (0, 1)
        this.cancel(2)
        await wait_all_tasks_blocked()
        assert (this.host.load.in_flight, this.host.load.inbound_bytes) == (0, 0)


async def test_result_returned_before_the_retry_arrives_is_sent_to_the_retry(autojump_clock: MockClock) -> None:
    async def handle(scope: RequestScope) -> Any:
        with trio.move_on_after(5):
            await require_input(scope, "roots/list", None)
        return {"content": []}

    async with serving() as this:
        this.handler.handle = handle
        this.call(1, modern=True)
        state, _ = questions_of((await this.answers())[1])
        await trio.sleep(50)
        assert await this.sent() == []
        retry(this, 2, state)
        assert list(await this.answers()) == [2]


async def test_each_retry_has_its_own_deadline_set_by_the_caller(autojump_clock: MockClock) -> None:
    async with serving(Limits(deadline_grace=0)) as this:
        this.handler.handle = ask_once
        this.call(1, modern=True, _meta={REMAINING_MS: 5000})
        state, keys = questions_of((await this.answers())[1])
        await trio.sleep(3)
        retry(this, 2, state, _meta={REMAINING_MS: 5000})
        state, _ = questions_of((await this.answers())[2])
        await trio.sleep(4)
        retry(this, 3, state, *keys, _meta={REMAINING_MS: 5000})
        assert (await this.answers())[3]["answer"] == ROOTS


async def test_request_state_is_invalid_after_the_deadline_set_by_the_caller(autojump_clock: MockClock) -> None:
    async with serving(Limits(deadline_grace=0)) as this:
        this.handler.handle = ask_once
        this.call(1, modern=True, _meta={REMAINING_MS: 5000})
        state, keys = questions_of((await this.answers())[1])
        await trio.sleep(6)
        retry(this, 2, state, *keys)
        assert (await this.answers())[2]["code"] == -32602
        assert (this.host.load.parked, this.host.load.cancelled) == (0, 1)


async def test_request_is_answered_with_the_result_of_the_second_run_of_a_replayed_handler() -> None:
    async def handle(scope: RequestScope) -> Any:
        scope.run_again({"content": [], "instead": True}, "it will run again")
        await trio.sleep_forever()

    async with serving() as this:
        this.handler.handle = handle
        this.call(1)
        assert await this.answers() == {1: {"content": [], "instead": True}}
        assert this.host.load.cancelled == 0


# The end


async def test_handlers_that_await_input_are_cancelled_at_shutdown_with_the_shutdown_reason() -> None:
    seen = list[Any]()

    async def handle(scope: RequestScope) -> Any:
        try:
            await require_input(scope, "roots/list", None)
        finally:
            seen.append(scope.cancellation)

    async with serving() as this:
        this.handler.handle = handle
        this.call(1, modern=True)
        await this.sent()
    [cancellation] = seen
    assert (cancellation.cause, cancellation.reason) == (CancelCause.SHUTDOWN, "the server has ended")


async def test_request_runner_drops_the_reference_to_its_handler_when_it_is_detached() -> None:
    async with serving() as this:
        this.runner.detach()
        assert this.handler not in vars(this.runner).values()


async def test_handlers_run_in_the_nursery_of_the_request_host() -> None:
    host = RequestHost(Limits())
    assert host.nursery is None
    async with serving() as this:
        this.handler.handle = nobody_answers
        this.call(1)
        await wait_all_tasks_blocked()
        assert this.host.nursery is not None
        assert len(this.host.nursery.child_tasks) >= 1
        this.cancel(1)
    assert this.host.nursery is None
