"""RecordingContext: records what a handler sends, and answers its requests by script."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    CancelCause,
    CapabilityMissing,
    CodedError,
    MethodUnavailable,
    NotSerializable,
    PeerError,
    Progress,
    ProtocolViolation,
    RequestContext,
    Server,
    WorkerContext,
    open_memory,
)
from trio_mcp.testing import RecordedTask, RecordingContext, SentMessage, in_turn
from trio_mcp.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    LogParams,
    Root,
    TextContent,
)

HELLO = CreateMessageResult("assistant", TextContent("hello"), "model")
MANY_ROOTS = [Root("file:///a"), Root("file:///b")]


@attrs.define
class Name:
    name: str


async def greet(ctx: RequestContext) -> str:
    ctx.progress(1, 2, "asking")
    answer = await ctx.elicit("Who are you?", Name)
    ctx.progress(2, 2)
    name = answer.as_(Name)
    await ctx.log.info({"name": None if name is None else name.name}, logger="greeter")
    await ctx.send_notification("notifications/x-greeted")
    return "Hello" if name is None else f"Hello, {name.name}"


async def test_handler_can_be_called_directly_with_a_recording_context() -> None:
    async with RecordingContext(elicitation=in_turn({"name": "Ann"})) as ctx:
        assert await greet(ctx) == "Hello, Ann"
    assert ctx.progress_reports == [Progress(1, 2, "asking"), Progress(2, 2)]
    assert ctx.logs == [LogParams("info", {"name": "Ann"}, "greeter")]
    assert ctx.notifications == [SentMessage("notifications/x-greeted", None)]
    (question,) = ctx.questions
    assert question.method == "elicitation/create"
    assert question.params is not None
    assert question.params["message"] == "Who are you?"


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_recording_context_gives_the_same_answers_as_a_client(revision: str) -> None:
    async def everything(ctx: RequestContext) -> list[Any]:
        model = await ctx.sample("hi", max_tokens=5, system_prompt="short")
        answer = await ctx.elicit("name?", Name)
        return [model.content.text, answer.action, answer.content, [root.uri for root in await ctx.list_roots()]]  # type: ignore[union-attr]

    user: Any = {"sampling": lambda _: HELLO, "elicitation": lambda _: {"name": "Ann"}, "roots": MANY_ROOTS}
    async with RecordingContext(revision=revision, **user) as ctx:
        recorded = await everything(ctx)
    server, live = Server("s"), list[Any]()

    @server.tool
    async def tool(ctx: RequestContext) -> None:
        live.append(await everything(ctx))

    legacy = "2025-11-25" if revision == "2026-07-28" else revision
    async with open_memory(server, era="legacy", revision=legacy, **user) as client:
        await client.call_tool("tool")
    assert [recorded] == live


async def test_recording_context_has_the_request_attributes_it_was_created_with() -> None:
    ctx = RecordingContext(
        request_id="7", revision="2025-06-18", session_id="s", meta={"a": 1}, headers={"host": "x"}, lifespan=[1]
    )
    assert (ctx.request_id, ctx.revision.name, ctx.session_id) == ("7", "2025-06-18", "s")
    assert (ctx.meta, ctx.headers, ctx.lifespan, ctx.auth) == ({"a": 1}, {"host": "x"}, [1], None)
    assert not ctx.stateless
    assert RecordingContext().stateless


async def test_recording_context_reads_the_trace_context_from_meta() -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    ctx = RecordingContext(meta={"traceparent": trace})
    assert ctx.trace is not None
    assert ctx.trace.traceparent == trace
    assert RecordingContext().trace is None


async def test_recording_context_supports_only_the_client_capabilities_it_has_answers_for() -> None:
    ctx = RecordingContext(sampling=in_turn(HELLO), sampling_tools=True)
    assert ctx.client_supports("sampling.tools")
    assert not ctx.client_supports("elicitation")
    with pytest.raises(CapabilityMissing):
        await ctx.elicit("?", Name)
    assert ctx.questions == []


async def test_recording_context_can_give_a_list_of_answers_and_errors_in_turn() -> None:
    ctx = RecordingContext(sampling=in_turn(HELLO, CodedError(-1, "the user said no")))
    assert await ctx.sample("one", max_tokens=1) == HELLO
    with pytest.raises(PeerError, match="the user said no"):
        await ctx.sample("two", max_tokens=1)
    with pytest.raises(AssertionError, match=r"in_turn\(\) got another request after its 2 answers"):
        await ctx.sample("three", max_tokens=1)
    assert [question.params["messages"][0]["content"]["text"] for question in ctx.questions if question.params] == [
        "one",
        "two",
        "three",
    ]


async def test_answer_function_of_a_recording_context_can_depend_on_the_request_and_be_async(
    autojump_clock: MockClock,
) -> None:
    async def sampling(params: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(5)
        return CreateMessageResult("assistant", TextContent(f"{params.max_tokens}"), "model")

    ctx = RecordingContext(sampling=sampling)
    assert (await ctx.sample("?", max_tokens=12)).content == TextContent("12")


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_recording_context_can_decline_or_cancel_an_elicitation(action: Any) -> None:
    async with RecordingContext(elicitation=in_turn(ElicitResult(action))) as ctx:
        assert await greet(ctx) == "Hello"


async def test_recording_context_answers_url_elicitations_with_a_separate_function() -> None:
    ctx = RecordingContext(elicitation_url=lambda params: ElicitResult("accept" if "pay" in params.url else "decline"))
    assert (await ctx.elicit_url("pay", "https://example.com/pay", "e")).action == "accept"
    with pytest.raises(CapabilityMissing):
        await ctx.elicit("?", Name)


async def test_invalid_answer_given_to_a_recording_context_raises_protocol_violation() -> None:
    ctx = RecordingContext(elicitation=in_turn({"nome": "Ann"}))
    with pytest.raises(ProtocolViolation, match="does not fit"):
        await ctx.elicit("?", Name)


async def test_recording_context_raises_for_an_invalid_elicitation_form() -> None:
    ctx = RecordingContext(elicitation=in_turn({}))
    with pytest.raises(CodedError, match="deep"):
        await ctx.elicit("?", {"type": "object", "properties": {"deep": {"type": "object"}}})
    assert ctx.questions == []


async def test_recording_context_answers_raw_requests_with_json_objects() -> None:
    seen = list[Any]()

    def elicitation(params: ElicitFormParams) -> ElicitResult:
        seen.append(params.message)
        return ElicitResult("accept", {"x": 1})

    ctx = RecordingContext(elicitation=elicitation, roots=MANY_ROOTS)
    form = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
    assert await ctx.elicit_raw(form) == {"action": "accept", "content": {"x": 1}}
    assert await ctx.list_roots_raw() == {"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}
    assert seen == ["m"]
    with pytest.raises(PeerError, match="Method not found"):
        await ctx.sample_raw({"messages": [], "maxTokens": 1})


async def test_log_or_notification_that_json_cannot_represent_raises_in_a_recording_context() -> None:
    ctx = RecordingContext()
    with pytest.raises(NotSerializable):
        await ctx.log.info(math.nan)
    with pytest.raises(NotSerializable):
        await ctx.send_notification("notifications/x", {"x": object()})
    assert (ctx.logs, ctx.notifications) == ([], [])


async def test_recording_context_does_not_record_logs_below_the_level() -> None:
    ctx = RecordingContext(log_level="warning")
    await ctx.log.info("quiet")
    await ctx.log.error("loud")
    assert not ctx.log.log_nowait("debug", "quiet")
    assert ctx.log.log_nowait("alert", "loud")
    assert [(log.level, log.data) for log in ctx.logs] == [("error", "loud"), ("alert", "loud")]


async def test_recording_context_does_not_record_progress_that_does_not_increase() -> None:
    ctx = RecordingContext()
    told = [ctx.progress(value) for value in (1, 1, 0, 2.5, math.nan, math.inf, "three")]  # type: ignore[arg-type]
    assert told == [True, False, False, True, False, False, False]
    assert ctx.progress_reports == [Progress(1), Progress(2.5)]


async def test_recording_context_does_not_record_invalid_progress() -> None:
    ctx = RecordingContext()
    bad: list[Any] = [(1, math.nan), (1, "10"), (1, None, 5), (1, None, "\ud800"), (10**5000,), (True,)]
    assert not any(ctx.progress(*report) for report in bad)
    assert ctx.progress(1, 10, "one")
    assert ctx.progress_reports == [Progress(1, 10, "one")]
    first = RecordingContext(revision="2024-11-05")
    assert first.progress(1, 10, "one")
    assert first.progress_reports == [Progress(1, 10)], "its revision has no messages"


async def test_recording_context_of_a_retry_has_input_responses_and_state() -> None:
    ctx = RecordingContext(
        input_responses={"who": {"action": "accept", "content": {"name": "Ann"}}}, request_state="[7]"
    )
    assert ctx.is_resubmit
    assert ctx.input_response_as(ElicitResult, "who") == ElicitResult("accept", {"name": "Ann"})
    assert ctx.request_state_as(list[int]) == [7]
    assert not RecordingContext().is_resubmit


async def test_recording_context_raises_for_a_request_that_modern_servers_cannot_send() -> None:
    ctx = RecordingContext(revision="2026-07-28")
    with pytest.raises(MethodUnavailable):
        await ctx.send_request("ping", None, dict)
    assert ctx.questions == []


# Cancellation


async def test_cancelled_recording_context_stops_the_handler_with_the_given_reason(autojump_clock: MockClock) -> None:
    cleaned_up = list[str | None]()

    async def work(ctx: RequestContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            assert ctx.cancellation is not None
            cleaned_up.append(ctx.cancellation.reason)
            ctx.progress(1)

    async with RecordingContext() as ctx:
        ctx.nursery.start_soon(work, ctx)
        await wait_all_tasks_blocked()
        ctx.cancel("enough")
        ctx.cancel("once more")
    assert cleaned_up == ["enough"]
    assert ctx.is_cancelled
    assert ctx.cancelled.is_set()
    assert ctx.cancellation is not None
    assert ctx.cancellation.cause is CancelCause.PEER
    assert ctx.progress_reports == []


async def test_recording_context_records_nothing_after_it_is_cancelled() -> None:
    ctx = RecordingContext()
    ctx.cancel()
    await ctx.log.error("late")
    await ctx.send_notification("notifications/late")
    assert not ctx.progress(1)
    assert (ctx.logs, ctx.notifications, ctx.progress_reports) == ([], [], [])


async def test_handler_with_a_cancelled_recording_context_stops_at_the_first_checkpoint() -> None:
    reached = list[str]()
    ctx = RecordingContext()
    ctx.cancel("too late")
    async with ctx:
        reached.append("start")
        await ctx.check_cancelled()
        reached.append("after the checkpoint")
    assert reached == ["start"]


async def test_recording_context_with_block_waits_for_tasks_of_the_handler(autojump_clock: MockClock) -> None:
    done = list[float]()

    async def later() -> None:
        await trio.sleep(5)
        done.append(trio.current_time())

    async with RecordingContext() as ctx:
        ctx.nursery.start_soon(later)
    assert done == [5]


async def test_exception_in_the_with_block_of_a_recording_context_propagates_unchanged(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with RecordingContext() as ctx:
            ctx.nursery.start_soon(trio.sleep_forever)
            raise LookupError("mine")


async def test_exception_in_the_with_block_of_a_recording_context_is_raised_even_during_an_outer_cancel(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(LookupError, match="mine"), trio.move_on_after(1):
        async with RecordingContext() as ctx:
            ctx.nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise LookupError("mine")


async def test_task_that_fails_does_not_hide_the_exception_in_the_with_block_of_a_recording_context(
    autojump_clock: MockClock,
) -> None:
    async def fail() -> None:
        raise OSError("its own")

    with pytest.raises(LookupError, match="mine") as caught:
        async with RecordingContext() as ctx:
            ctx.nursery.start_soon(fail)
            try:
                await trio.sleep_forever()
            finally:
                raise LookupError("mine")
    assert isinstance(caught.value.__cause__, ExceptionGroup)


async def test_nursery_of_a_recording_context_raises_runtime_error_outside_its_with_block() -> None:
    ctx = RecordingContext()
    with pytest.raises(RuntimeError, match="async with"):
        ctx.nursery  # noqa: B018
    ctx.cancel("over")
    with ctx.cancel_scope as scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_sync_handler_can_be_tested_with_a_worker_context_around_a_recording_context() -> None:
    def work(ctx: WorkerContext) -> str:
        ctx.progress(1)
        ctx.log.info("from a thread")
        return ctx.elicit("name?", Name).as_(Name).name  # type: ignore[union-attr]

    ctx = RecordingContext(elicitation=in_turn({"name": "Ann"}))
    assert await trio.to_thread.run_sync(work, WorkerContext(ctx)) == "Ann"
    assert ctx.progress_reports == [Progress(1)]
    assert [log.data for log in ctx.logs] == ["from a thread"]


async def test_subclass_of_request_context_can_replace_a_single_method_in_tests() -> None:
    class OnlyRoots(RequestContext):
        async def list_roots(self) -> list[Root]:
            return MANY_ROOTS

    ctx = OnlyRoots()
    assert await ctx.list_roots() == MANY_ROOTS
    assert not ctx.progress(1)
    await ctx.log.info("nobody reads this")
    assert not ctx.is_cancelled
    with pytest.raises(CodedError, match="no server-to-client channel"):
        await ctx.sample("hi", max_tokens=1)


async def test_recording_context_records_an_elicitation_complete_notification(autojump_clock: MockClock) -> None:
    async def visit(_: Any) -> ElicitResult:
        return ElicitResult("accept")

    async with RecordingContext(revision="2025-11-25", elicitation_url=visit) as ctx:
        ctx.cancel()
    assert await ctx.elicitation_complete("e1") is True, "it belongs to no request"
    assert ctx.notifications == [SentMessage("notifications/elicitation/complete", {"elicitationId": "e1"})]
    for other in (RecordingContext(elicitation_url=visit), RecordingContext(revision="2025-11-25")):
        assert await other.elicitation_complete("e1") is False
        assert other.notifications == []


async def test_recording_context_records_task_messages_and_checkpoints() -> None:
    async def work(ctx: RequestContext) -> int:
        assert ctx.task is not None
        row = ctx.task.restored or 0
        ctx.task.status(f"from {row}")
        await ctx.task.start()
        await ctx.task.checkpoint(row + 1)
        return row

    task = RecordedTask(restored=5, attempt=2)
    async with RecordingContext(task=task) as ctx:
        assert await work(ctx) == 5
    assert (task.messages, task.checkpoints, task.has_started) == (["from 5"], [6], True)


def test_task_of_a_recording_context_has_the_attributes_it_was_created_with() -> None:
    task = RecordedTask(id="t", ttl=5, requested_ttl=6)
    assert (task.id, task.ttl, task.requested_ttl, task.attempt, task.restored) == ("t", 5, 6, 1, None)
    assert not task.has_started


@attrs.frozen
class Position:
    row: int


def test_checkpoint_restored_in_a_recorded_task_can_be_read_as_a_class() -> None:
    assert RecordedTask(restored={"row": 5}).restored_as(Position) == Position(5)
    with pytest.raises(ValueError, match="row"):
        RecordedTask(restored={}).restored_as(Position)


async def test_task_of_a_recording_context_raises_for_a_checkpoint_that_is_not_json() -> None:
    with pytest.raises(NotSerializable):
        await RecordedTask().checkpoint(float("nan"))


async def test_task_attribute_of_a_recording_context_without_a_task_is_none() -> None:
    async with RecordingContext() as ctx:
        assert ctx.task is None
        assert ctx.caller_tasks is None


async def test_recording_context_raises_for_a_notification_that_the_revision_lacks() -> None:
    async with RecordingContext() as ctx:
        with pytest.raises(MethodUnavailable, match="notifications/tasks/status cannot be sent in revision 2026-07-28"):
            await ctx.send_notification("notifications/tasks/status", {})
    assert ctx.notifications == []
