"""A server of 2025-11-25 has a client answer its questions as tasks, and asks for the answers later."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, CodedError, TaskSettings, fail_after_work
from trio_mcp.client.opening import open_client
from trio_mcp.testing import ScriptedServer
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import CreateMessageResult, ElicitResult, Root, TextContent

LEGACY = "2025-11-25"
RELATED = "io.modelcontextprotocol/related-task"
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 1}
FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


class User:
    """Handlers that wait until told what to answer."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.may_answer = trio.Event()
        self.failure: Exception | None = None
        self.cancelled = 0

    async def _wait(self) -> None:
        self.asked.set()
        try:
            await self.may_answer.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure

    async def sampling(self, _: Any) -> CreateMessageResult:
        await self._wait()
        return CreateMessageResult("assistant", TextContent("yes"), "model")

    async def elicitation(self, _: Any) -> ElicitResult:
        await self._wait()
        return ElicitResult("accept", {"name": "Bob"})


class Server(ScriptedServer):
    """The server's end, which asks."""

    _last = 0

    async def ask(self, method: str, **params: Any) -> Any:
        """Send a request, and return what it is answered with, as a result or an error."""
        self._last += 1
        await self.request(self._last, method, params or None)
        return await self.until({"id": self._last, ...: ...})

    async def create(self, method: str = "sampling/createMessage", **task: Any) -> str:
        params = SAMPLE if method == "sampling/createMessage" else FORM
        reply = await self.ask(method, **params, task=task)
        return reply["result"]["task"]["taskId"]


@asynccontextmanager
async def opened(user: User, **options: Any) -> AsyncGenerator[tuple[Server, Client, dict[str, Any]]]:
    ours, theirs = memory_transport_pair()
    server, revision = Server(theirs, patience=30), options.pop("revision", LEGACY)
    given = {"sampling": user.sampling, "elicitation": user.elicitation, "question_tasks": TaskSettings()}
    opening: dict[str, Any] = {}
    accepted = trio.Event()

    async def accept() -> None:
        opening.update(await server.accept(revision))
        accepted.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        async with open_client(ours, era="legacy", revision=revision, **{**given, **options}) as client:
            await accepted.wait()
            yield server, client, opening["params"]["capabilities"]


async def test_client_declares_that_sampling_and_elicitation_can_run_as_tasks_if_they_have_handlers(
    autojump_clock: MockClock,
) -> None:
    user = User()
    both = {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}
    async with opened(user) as (_, _, declared):
        assert declared["tasks"] == {"list": {}, "cancel": {}, "requests": both}
    async with opened(user, sampling=None) as (_, _, declared):
        assert declared["tasks"]["requests"] == {"elicitation": {"create": {}}}
    async with opened(user, elicitation=None) as (_, _, declared):
        assert declared["tasks"]["requests"] == {"sampling": {"createMessage": {}}}
    async with opened(user, sampling=None, elicitation=None) as (_, _, declared):
        assert "tasks" not in declared
    async with opened(user, revision="2025-06-18") as (_, _, declared):
        assert "tasks" not in declared


async def test_client_does_not_declare_by_default_that_server_requests_can_run_as_tasks(
    autojump_clock: MockClock,
) -> None:
    user = User()
    user.may_answer.set()
    async with opened(user, question_tasks=None) as (server, _, declared):
        assert "tasks" not in declared
        assert (await server.ask("sampling/createMessage", **SAMPLE, task={}))["result"]["model"] == "model"
        assert (await server.ask("tasks/get", taskId="x"))["error"]["code"] == -32601


async def test_client_runs_a_sampling_request_as_a_task_if_the_server_requests_one(autojump_clock: MockClock) -> None:
    user = User()
    async with opened(user) as (server, _, _):
        reply = await server.ask("sampling/createMessage", **SAMPLE, task={"ttl": 60_000})
        task = reply["result"]["task"]
        assert (task["status"], task["ttl"]) == ("working", 60_000)
        await user.asked.wait()
        assert (await server.ask("tasks/get", taskId=task["taskId"]))["result"]["status"] == "working"
        user.may_answer.set()
        result = (await server.ask("tasks/result", taskId=task["taskId"]))["result"]
        assert result == {
            "role": "assistant",
            "content": {"type": "text", "text": "yes"},
            "model": "model",
            "_meta": {RELATED: {"taskId": task["taskId"]}},
        }
        assert (await server.ask("tasks/get", taskId=task["taskId"]))["result"]["status"] == "completed"


async def test_client_can_run_an_elicitation_request_as_a_task(autojump_clock: MockClock) -> None:
    user = User()
    async with opened(user) as (server, _, _):
        task = await server.create("elicitation/create")
        assert [each["taskId"] for each in (await server.ask("tasks/list"))["result"]["tasks"]] == [task]
        user.may_answer.set()
        result = (await server.ask("tasks/result", taskId=task))["result"]
        assert (result["action"], result["content"]) == ("accept", {"name": "Bob"})


async def test_client_answers_an_elicitation_request_without_task_params_directly(autojump_clock: MockClock) -> None:
    user = User()
    user.may_answer.set()
    async with opened(user) as (server, _, _):
        assert (await server.ask("elicitation/create", **FORM))["result"]["action"] == "accept"
        assert (await server.ask("tasks/list"))["result"]["tasks"] == []


async def test_client_answers_a_roots_request_directly_even_if_the_server_requests_a_task(
    autojump_clock: MockClock,
) -> None:
    async with opened(User(), roots=[Root("file:///a")]) as (server, _, _):
        assert (await server.ask("roots/list", task={}))["result"] == {"roots": [{"uri": "file:///a"}]}


async def test_cancelled_client_task_cancels_its_sampling_handler(autojump_clock: MockClock) -> None:
    user = User()
    async with opened(user) as (server, _, _):
        task = await server.create()
        await user.asked.wait()
        assert (await server.ask("tasks/cancel", taskId=task))["result"]["status"] == "cancelled"
        await wait_all_tasks_blocked()
        assert user.cancelled == 1
        assert (await server.ask("tasks/cancel", taskId=task))["error"]["code"] == -32602


async def test_cancelled_tasks_result_request_does_not_cancel_the_sampling_handler(autojump_clock: MockClock) -> None:
    user = User()
    async with opened(user) as (server, _, _):
        task = await server.create()
        await server.request("wait", "tasks/result", {"taskId": task})
        await server.notify("notifications/cancelled", {"requestId": "wait"})
        await wait_all_tasks_blocked()
        assert user.cancelled == 0
        user.may_answer.set()
        assert (await server.ask("tasks/result", taskId=task))["result"]["model"] == "model"


async def test_coded_error_of_a_sampling_handler_fails_its_client_task(autojump_clock: MockClock) -> None:
    user = User()
    user.failure = CodedError(-1, "the user says no")
    user.may_answer.set()
    async with opened(user) as (server, _, _):
        task = await server.create()
        reply = await server.ask("tasks/result", taskId=task)
        assert reply["error"] == {"code": -1, "message": "the user says no"}
        state = (await server.ask("tasks/get", taskId=task))["result"]
        assert (state["status"], state["statusMessage"]) == ("failed", "the user says no")


async def test_unexpected_exception_in_a_client_task_is_sent_as_internal_error(autojump_clock: MockClock) -> None:
    user = User()
    user.failure = RuntimeError("secret")
    user.may_answer.set()
    async with opened(user) as (server, _, _):
        reply = await server.ask("tasks/result", taskId=await server.create())
        assert reply["error"] == {"code": -32603, "message": "Internal error"}


@pytest.mark.parametrize("task", [{"ttl": 0}, {"ttl": "x"}, 5])
async def test_sampling_request_with_invalid_task_params_gets_error_invalid_params(
    autojump_clock: MockClock, task: Any
) -> None:
    user = User()
    async with opened(user) as (server, _, _):
        assert (await server.ask("sampling/createMessage", **SAMPLE, task=task))["error"]["code"] == -32602
        assert not user.asked.is_set()


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_request_for_an_unknown_client_task_gets_error_invalid_params(
    autojump_clock: MockClock, method: str
) -> None:
    async with opened(User()) as (server, _, _):
        assert (await server.ask(method, taskId="unknown"))["error"]["code"] == -32602


async def test_client_task_fails_when_its_ttl_expires(autojump_clock: MockClock) -> None:
    user = User()
    async with opened(user) as (server, _, _):
        task = await server.create(ttl=5000)
        await trio.sleep(10)
        assert user.cancelled == 1
        assert (await server.ask("tasks/get", taskId=task))["result"]["status"] == "failed"


async def test_call_timeouts_are_paused_while_a_client_task_elicits(autojump_clock: MockClock) -> None:
    user = User()
    async with opened(user) as (server, client, _), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def call() -> None:
            with fail_after_work(5):
                await client.call_tool("slow")

        asked = await server.expect_call("slow")
        task = await server.create("elicitation/create")
        await trio.sleep(60)
        user.may_answer.set()
        await server.ask("tasks/result", taskId=task)
        await server.answer_text(asked, "done")


async def test_number_of_tasks_that_a_client_runs_for_the_server_is_limited(autojump_clock: MockClock) -> None:
    user = User()
    async with opened(user, question_tasks=TaskSettings(max_running=2)) as (server, _, _):
        await server.create()
        await server.create()
        assert (await server.ask("sampling/createMessage", **SAMPLE, task={}))["error"]["code"] == -31000


async def test_tasks_that_a_client_runs_for_the_server_are_cancelled_when_the_client_closes(
    autojump_clock: MockClock,
) -> None:
    user = User()
    async with opened(user) as (server, _, _):
        await server.create()
        await user.asked.wait()
    assert user.cancelled == 1


async def test_client_that_closes_immediately_cancels_the_handlers_of_all_server_requests(
    autojump_clock: MockClock,
) -> None:
    cancelled = dict[str, float]()

    async def sampling(_: Any) -> CreateMessageResult:
        return await ask("task", 0.0)

    async def elicitation(_: Any) -> ElicitResult:
        return await ask("other", 0.5)

    async def ask(name: str, cleanup: float) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            cancelled[name] = trio.current_time()
            with trio.CancelScope(shield=True):
                await trio.sleep(cleanup)

    async with opened(User(), sampling=sampling, elicitation=elicitation) as (server, _, _):
        await server.request(99, "elicitation/create", FORM)
        await server.create()
        await wait_all_tasks_blocked()
        left = trio.current_time()
    assert cancelled == {"task": left, "other": left}
    assert trio.current_time() - left == pytest.approx(0.5)


async def test_client_notifies_the_server_when_a_task_that_the_client_runs_completes(autojump_clock: MockClock) -> None:
    user = User()
    async with opened(user) as (server, _, _):
        task = await server.create()
        user.may_answer.set()
        told = await server.until({"method": "notifications/tasks/status", "params": ...})
        assert (told["params"]["taskId"], told["params"]["status"]) == (task, "completed")


async def test_client_reply_to_a_server_request_from_a_task_contains_the_related_task(
    autojump_clock: MockClock,
) -> None:
    user = User()
    user.may_answer.set()
    related = {RELATED: {"taskId": "theirs"}}
    async with opened(user, roots=[Root("file:///a")]) as (server, _, _):
        for method, params in (("sampling/createMessage", SAMPLE), ("elicitation/create", FORM), ("roots/list", {})):
            reply = await server.ask(method, **params, _meta=related)
            assert reply["result"]["_meta"] == related
            assert "_meta" not in (await server.ask(method, **params))["result"]
