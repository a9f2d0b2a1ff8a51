"""Tasks of a server over HTTP, which outlive requests, connections and clients."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, discovered, result, serving
from tests.connecting.http.test_both_ends import served
from tests.serving.http.protection import issued, protected
from trio.testing import MockClock

from trio_mcp import CancelCause, Client, HTTPError, RequestContext, Server, TaskSettings, open_http
from trio_mcp.auth import Bearer
from trio_mcp.transports.http_client.origins import split_url
from trio_mcp.types import ClientCapabilities, Elicitation, ElicitFormParams, ElicitResult

TASK = {
    "taskId": "t",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttlMs": None,
    "pollIntervalMs": 100,
}
CREATED = {"resultType": "task", "status": "working", **TASK}
WORKING = {"resultType": "complete", "status": "working", **TASK}
SILENCE = "silence"
BROKEN_OFF = "broken off"  # an event stream that ends without a reply
DONE = {**WORKING, "status": "completed", "result": {"content": [{"type": "text", "text": "done"}]}}


class Worker:
    """A server with a tool that works until it is told to end."""

    def __init__(self) -> None:
        self.server = Server("worker", tasks=TaskSettings(grace=0, poll_interval=0.1))
        self.known = trio.Event()
        """The caller knows of the task."""
        self.may_end = trio.Event()
        self.ended = trio.Event()
        self.cause: CancelCause | None = None

        @self.server.tool(task="required")
        async def work(ctx: RequestContext) -> str:
            """Work."""
            assert ctx.task is not None
            ctx.task.status("at work")
            try:
                await self.may_end.wait()
            finally:
                self.cause = None if ctx.cancellation is None else ctx.cancellation.cause
                self.ended.set()
            return "worked"

        self.work = work

    async def call(self, client: Client) -> None:
        await client.call_tool("work", on_progress=lambda _: self.known.set())


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_cancelled_call_that_runs_as_a_task_runs_the_finally_block_of_its_handler(era: Any) -> None:
    worker = Worker()
    async with served(worker.server) as url, open_http(url, era=era) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.call, client)
            await worker.known.wait()
            nursery.cancel_scope.cancel()
        await worker.ended.wait()
        assert worker.cause is CancelCause.TASK


async def test_client_sends_tasks_cancel_even_if_it_closes_immediately(era: Any) -> None:
    worker = Worker()
    async with served(worker.server) as url:
        with trio.CancelScope() as everything:
            async with open_http(url, era=era) as client, trio.open_nursery() as nursery:
                nursery.start_soon(worker.call, client)
                await worker.known.wait()
                everything.cancel()
        await worker.ended.wait()
        assert worker.cause is CancelCause.TASK


async def test_task_can_be_resumed_by_a_new_client(era: Any) -> None:
    worker = Worker()
    async with served(worker.server) as url:
        async with open_http(url, era=era) as client:
            task_id = (await client.start_task("work")).id
            assert task_id is not None
        assert not worker.ended.is_set()
        async with open_http(url, era=era) as client:
            task = client.resume_task(task_id)
            assert (await task.get()).status == "working"
            worker.may_end.set()
            assert (await task.result()).text == "worked"


async def test_elicitation_of_a_task_is_answered_by_a_second_client_if_the_first_client_has_no_handler(
    era: Any,
) -> None:
    server, asking = Server("asking", tasks=TaskSettings(grace=0, poll_interval=0.1)), trio.Event()

    @server.tool(task="required")
    async def ask(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        asking.set()
        answer = await ctx.elicit("How many?", {"type": "object", "properties": {"count": {"type": "integer"}}})
        assert answer.content is not None
        return f"there are {answer.content['count']}"

    async with served(server) as url:
        later = ClientCapabilities(elicitation=Elicitation())
        async with open_http(url, era=era, answers_later=later) as client:
            task = await client.start_task("ask")
            assert task.id is not None
            await asking.wait()
            while (await task.get()).status != "input_required":
                pass
        async with open_http(url, era=era, elicitation=lambda _: {"count": 7}) as client:
            assert (await client.resume_task(task.id).result()).text == "there are 7"


async def test_client_continues_to_wait_for_a_task_in_a_new_session_after_the_session_was_deleted(
    mock_clock: MockClock,
) -> None:
    mock_clock.rate = 20
    server, asked, goes_on = Server("asking", tasks=TaskSettings(poll_interval=0.1)), trio.Event(), trio.Event()
    sessions = list[str | None]()

    @server.tool(task="required")
    async def ask(ctx: RequestContext) -> str:
        sessions.append(ctx.session_id)
        assert ctx.task is not None
        await ctx.task.start()
        answer = await ctx.elicit("How many?", {"type": "object", "properties": {"count": {"type": "integer"}}})
        assert answer.content is not None
        return f"there are {answer.content['count']}"

    async def fill_in(_: ElicitFormParams) -> ElicitResult:
        if not asked.is_set():
            asked.set()
            await trio.sleep_forever()  # until the session of the question is over
        await goes_on.wait()
        return ElicitResult("accept", {"count": 7})

    results = list[str]()
    async with (
        served(server, auth=protected(issued())) as url,
        open_http(url, era="legacy", auth=Bearer("alice-1"), elicitation=fill_in) as client,
    ):

        async def wait() -> None:
            results.append((await client.call_tool("ask")).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await asked.wait()
            [first] = sessions
            assert first is not None
            await delete(url, first, "alice-1")
            goes_on.set()
    assert results == ["there are 7"]
    assert len(sessions) == 1


async def delete(url: str, session: str, token: str) -> None:
    """End a session behind the back of its client."""
    address = split_url(url)[0]
    stream = await trio.open_tcp_stream(address.host, address.port)
    async with stream:
        head = f"DELETE /mcp HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nMcp-Session-Id: {session}\r\n"
        await stream.send_all(f"{head}Authorization: Bearer {token}\r\nConnection: close\r\n\r\n".encode())
        status = (await stream.receive_some())[:12]
    assert status == b"HTTP/1.1 204"


class Scripted:
    """A modern server over HTTP that runs one task, and answers questions for it with ``answers``, one after another;
    the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.open = 0

    async def __call__(self, got: Got, answer: Answer) -> None:
        match got.name:
            case "server/discover":
                await answer.json(discovered(got))
            case "tools/call":
                await answer.json(result(got, **CREATED))
            case "tasks/get":
                said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if isinstance(said, int):
                    await answer.whole(said)
                elif said is None:
                    await answer.cut()
                elif said is BROKEN_OFF:
                    await answer.open()
                    await answer.end()
                elif said is SILENCE:
                    await answer.gone()
                else:
                    await answer.json(result(got, **said))
            case _:
                await answer.json(result(got, resultType="complete"))

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[tuple[Client, Any]]:
        async with serving(self) as server, open_http(server.url, era="modern") as client:
            yield client, server


async def test_client_continues_to_poll_a_task_after_temporary_failures_of_the_server(mock_clock: MockClock) -> None:
    mock_clock.rate = 20
    async with Scripted(WORKING, None, 503, BROKEN_OFF, WORKING, DONE).client() as (client, server):
        assert (await client.call_tool("work")).text == "done"
        assert len(server.named("tasks/get")) == 6
        assert not server.named("tasks/cancel")


async def test_task_polling_fails_after_repeated_503_and_cancels_the_task(mock_clock: MockClock) -> None:
    mock_clock.rate = 100
    async with Scripted(WORKING, 503).client() as (client, server):
        with pytest.raises(HTTPError) as caught:
            await client.call_tool("work")
        assert caught.value.status == 503
        assert len(server.named("tasks/get")) == 7
        await server.until("tasks/cancel")


async def test_client_sends_tasks_cancel_even_while_the_server_leaves_a_poll_unanswered() -> None:
    scripted = Scripted(SILENCE)
    async with serving(scripted) as server:
        with trio.CancelScope() as everything:
            async with open_http(server.url, era="modern") as client, trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "work")
                await server.until("tasks/get")
                everything.cancel()
        await server.until("tasks/cancel")


async def test_call_fails_immediately_if_the_server_permanently_refuses_to_report_its_task() -> None:
    async with Scripted(403).client() as (client, server):
        with pytest.raises(HTTPError):
            await client.call_tool("work")
        assert len(server.named("tasks/get")) == 1


@pytest.mark.parametrize("task_id", ["täsk", "a\nb", "=?base64?x?=", " t", "🧵"])
async def test_mcp_name_header_encodes_any_task_id(task_id: str) -> None:
    scripted = Scripted({**DONE, "taskId": task_id})
    async with scripted.client() as (client, server):
        assert (await client.resume_task(task_id).result()).text == "done"
        header = server.named("tasks/get")[0].headers["mcp-name"]
    assert header.startswith("=?base64?")
    assert base64.b64decode(header[9:-2]).decode() == task_id
