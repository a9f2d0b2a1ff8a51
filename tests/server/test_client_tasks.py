"""Questions that the client runs as tasks of its own (TK-10), which revision 2025-11-25 alone has."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.interaction.memory_peer import MemoryPeer, connected
from trio.testing import wait_all_tasks_blocked

from trio_mcp import (
    CapabilityMissing,
    MCPError,
    PeerError,
    ProtocolViolation,
    RequestContext,
    Server,
    TaskCancelled,
    TaskSettings,
    WorkerContext,
    open_memory,
)
from trio_mcp.testing import RecordingContext
from trio_mcp.types import CreateMessageParams, CreateMessageResult, TextContent

RUNS_TASKS: dict[str, Any] = {
    "sampling": {},
    "elicitation": {},
    "tasks": {"cancel": {}, "requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}},
}
TASK = {"taskId": "t", "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": 60000}
WORKING = {**TASK, "status": "working"}
SAID = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}


class Bench:
    """A server whose tools ask the client, and how the questions ended."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.server = server = Server("asks")

        @server.tool
        async def sample(ctx: RequestContext, ttl: float | None = 60.0) -> str:
            """Ask the model."""
            try:
                answer = await ctx.sample("hello", max_tokens=5, task_ttl=ttl)
            except BaseException as error:
                self.errors.append(error)
                raise
            assert isinstance(answer.content, TextContent)
            return answer.content.text

        @server.tool(timeout=5)
        async def elicit(ctx: RequestContext) -> str:
            """Ask the user."""
            return str((await ctx.elicit("who?", {"type": "object", "properties": {}}, task_ttl=math.inf)).content)

        @server.tool
        def wait(ctx: WorkerContext) -> str:
            """Ask the model from a thread."""
            return ctx.sample("hello", max_tokens=5, task_ttl=60).model

        @server.tool
        async def send(ctx: RequestContext) -> str:
            """Ask the model, with all parameters made by hand."""
            params = {"messages": [], "maxTokens": 5}
            return (await ctx.send_request("sampling/createMessage", params, CreateMessageResult, task_ttl=60)).model

        self.tools = (sample, elicit, wait, send)

    @asynccontextmanager
    async def asked(
        self, tool: str = "sample", capabilities: Any = RUNS_TASKS, **arguments: Any
    ) -> AsyncIterator[tuple[MemoryPeer, Any]]:
        """The client, and the id of its call of ``tool``."""
        async with connected(self.server, "2025-11-25", capabilities) as peer:
            yield peer, await peer.start(tool, arguments)


async def told(peer: MemoryPeer, method: str, result: Any) -> dict[str, Any]:
    """Answer the next request of ``method``, and return its parameters."""
    question = await peer.question(method)
    await peer.answer(question, result)
    return question["params"]


async def text(peer: MemoryPeer, call: Any) -> Any:
    return (await peer.reply(call))["result"]["content"][0]["text"]


async def test_sampling_request_can_run_as_a_client_task(autojump_clock: object) -> None:
    async with Bench().asked() as (peer, call):
        before = trio.current_time()
        question = await told(peer, "sampling/createMessage", {"task": {**WORKING, "pollInterval": 3000}})
        assert question["task"] == {"ttl": 60_000}
        assert (question["maxTokens"], question["messages"][0]["content"]["text"]) == (5, "hello")
        assert await told(peer, "tasks/get", WORKING) == {"taskId": "t"}
        assert trio.current_time() - before == pytest.approx(3)
        await told(peer, "tasks/get", {**TASK, "status": "completed"})
        await told(peer, "tasks/result", SAID)
        assert await text(peer, call) == "hi"


@pytest.mark.parametrize("tool", ["wait", "send"])
async def test_every_kind_of_sampling_and_elicitation_can_run_as_a_client_task(tool: str) -> None:
    async with Bench().asked(tool) as (peer, call):
        await told(peer, "sampling/createMessage", {"task": {**TASK, "status": "completed"}})
        await told(peer, "tasks/result", SAID)
        assert await text(peer, call) == "m"


async def test_tool_timeout_does_not_include_the_time_of_an_elicitation_that_runs_as_a_client_task(
    autojump_clock: object,
) -> None:
    async with Bench().asked("elicit") as (peer, call):
        question = await told(peer, "elicitation/create", {"task": WORKING})
        assert question["task"] == {}
        for _ in range(20):
            await told(peer, "tasks/get", WORKING)
        await told(peer, "tasks/get", {**TASK, "status": "completed"})
        await told(peer, "tasks/result", {"action": "accept", "content": {}})
        assert await text(peer, call) == "{}"


@pytest.mark.parametrize(
    "capabilities",
    [
        {"sampling": {}},
        {"sampling": {}, "tasks": {}},
        {"sampling": {}, "tasks": {"requests": {"elicitation": {"create": {}}}}},
        {"sampling": {}, "tasks": {"requests": {"sampling": {}}}},
    ],
)
async def test_sampling_as_client_task_raises_if_the_client_lacks_the_capability(
    autojump_clock: object, capabilities: Any
) -> None:
    bench = Bench()
    async with bench.asked(capabilities=capabilities) as (peer, call):
        assert (await peer.reply(call))["error"]["code"] == -32600
        assert not [message for message in peer.messages if "method" in message]
    [error] = bench.errors
    assert isinstance(error, CapabilityMissing)
    assert error.capability == "tasks.requests.sampling.createMessage"


async def test_sampling_as_client_task_raises_in_revisions_without_core_tasks(autojump_clock: object) -> None:
    for revision in ("2025-06-18", "2026-07-28"):
        bench = Bench()
        async with connected(bench.server, revision, RUNS_TASKS) as peer:
            await peer.error("sample")
        assert isinstance(bench.errors[0], CapabilityMissing)


async def test_cancelled_tool_call_sends_tasks_cancel_once_for_its_client_task(autojump_clock: object) -> None:
    async with Bench().asked() as (peer, call):
        await told(peer, "sampling/createMessage", {"task": WORKING})
        await told(peer, "tasks/get", WORKING)
        await peer.cancel(call)
        left = await peer.everything()
        assert [(each["method"], each["params"]) for each in left] == [("tasks/cancel", {"taskId": "t"})]


async def test_cancelled_tool_call_cancels_its_sampling_request_if_the_client_task_is_not_yet_known(
    autojump_clock: object,
) -> None:
    async with Bench().asked() as (peer, call):
        question = await peer.question("sampling/createMessage")
        await peer.cancel(call)
        left = await peer.everything()
        assert [(each["method"], each["params"]["requestId"]) for each in left] == [
            ("notifications/cancelled", question["id"])
        ]


async def test_cancelled_tool_call_sends_tasks_cancel_for_a_client_task_whose_response_is_unread(
    autojump_clock: object,
) -> None:
    async with Bench().asked() as (peer, call):
        question = await peer.question("sampling/createMessage")
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}
        async with trio.open_nursery() as nursery:  # both are read before the handler runs again
            nursery.start_soon(peer.answer, question, {"task": WORKING})
            nursery.start_soon(peer.send, cancel)
        await wait_all_tasks_blocked()
        left = await peer.everything()
        assert [each["params"] for each in left if each["method"] == "tasks/cancel"] == [{"taskId": "t"}]


@pytest.mark.parametrize(
    ("states", "kind"),
    [
        ([{**TASK, "status": "cancelled", "statusMessage": "no"}], TaskCancelled),
        ([{**TASK, "status": "sleeping"}], ProtocolViolation),
        ([{**WORKING, "taskId": "another"}], ProtocolViolation),
    ],
)
async def test_sampling_raises_if_its_client_task_fails_is_cancelled_or_unknown(
    autojump_clock: object, states: list[Any], kind: type[MCPError]
) -> None:
    bench = Bench()
    async with bench.asked() as (peer, call):
        await told(peer, "sampling/createMessage", {"task": WORKING})
        for state in states:
            await told(peer, "tasks/get", state)
        await peer.reply(call)
    assert type(bench.errors[0]) is kind


async def test_sampling_raises_the_error_of_its_client_task(autojump_clock: object) -> None:
    bench = Bench()
    async with bench.asked() as (peer, call):
        await told(peer, "sampling/createMessage", {"task": {**TASK, "status": "failed"}})
        await peer.refuse(await peer.question("tasks/result"), -1, "the user said no")
        await peer.reply(call)
    assert isinstance(bench.errors[0], PeerError)
    assert bench.errors[0].code == -1


async def test_client_task_ttl_that_is_not_positive_raises(autojump_clock: object) -> None:
    for ttl in (0, -1):
        bench = Bench()
        async with bench.asked(ttl=ttl) as (peer, call):
            await peer.reply(call)
        assert isinstance(bench.errors[0], ValueError)


async def test_trio_mcp_client_can_run_sampling_as_a_client_task(autojump_clock: object) -> None:
    bench, ended = Bench(), trio.Event()

    async def think(_: CreateMessageParams) -> CreateMessageResult:
        try:
            await trio.sleep(30)
        finally:
            ended.set()
        return CreateMessageResult("assistant", TextContent("hi"), "m")

    options: Any = {"era": "legacy", "sampling": think, "question_tasks": TaskSettings()}
    async with open_memory(bench.server, **options) as client:
        assert (await client.call_tool("sample")).text == "hi"
        ended = trio.Event()
        with trio.move_on_after(10):
            await client.call_tool("sample")
        before = trio.current_time()
        await ended.wait()
        assert trio.current_time() == before


async def test_recording_context_answers_sampling_as_a_client_task_if_client_tasks_are_enabled() -> None:
    def say(params: CreateMessageParams) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent("hi"), "m")

    async with RecordingContext(revision="2025-11-25", sampling=say, question_tasks=TaskSettings()) as ctx:
        assert (await ctx.sample("hello", max_tokens=5, task_ttl=60)).model == "m"
    async with RecordingContext(revision="2025-11-25", sampling=say) as ctx:
        with pytest.raises(CapabilityMissing):
            await ctx.sample("hello", max_tokens=5, task_ttl=60)
