"""``trio-mcp call --task`` and ``trio-mcp tasks``: calls that continue in the server without their caller."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, written
from tests.cli.terminals import answer, in_terminal, plain

from trio_mcp import RequestContext, Server, ToolError, serve_tcp
from trio_mcp.testing import MissingMessage, ScriptedServer
from trio_mcp.transports.sockets import SocketLineTransport
from trio_mcp.types import CallToolResult, TextContent

CALL, TASKS = [*TRIO_MCP, "call"], [*TRIO_MCP, "tasks"]


@dataclass
class Taste:
    spice: Annotated[str, msgspec.Meta(description="with")]

    def __str__(self) -> str:
        return self.spice


class Kitchen:
    """A server whose roast is done when a test says so."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.done = trio.Event()
        self.ended: list[str] = []
        self.server = server = Server("kitchen")

        @server.tool(task="required")
        async def roast(kilos: int, ctx: RequestContext) -> str:
            assert ctx.task is not None
            ctx.task.status("ho\x1bt")
            await ctx.task.start()
            self.begun.set()
            try:
                await self.done.wait()
            finally:
                self.ended.append("cancelled" if ctx.cancellation else "done")
            return f"roasted {kilos}"

        @server.tool(task="required")
        async def season(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            answer = await ctx.elicit("What do you like?", Taste)
            return f"seasoned with {answer.as_(Taste)}"

        @server.tool(task="required")
        async def burn() -> CallToolResult:
            raise ToolError("smoke")

        @server.tool
        async def pour() -> CallToolResult:
            return CallToolResult([TextContent("poured")])


@pytest.fixture
def kitchen() -> Kitchen:
    return Kitchen()


@pytest.fixture
async def address(nursery, kitchen: Kitchen) -> str:
    listeners = await nursery.start(serve_tcp, kitchen.server, "127.0.0.1", 0)
    return f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"


INSTEAD = "keep the ids that `trio-mcp call --task` prints, and use `trio-mcp tasks get TARGET ID`"
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


async def started(address: str, era: str) -> str:
    ended = await run([*CALL, address, "roast", "kilos=20", "--task", "--era", era])
    assert (ended.status, ended.stderr) == (0, "")
    (line,) = ended.stdout.splitlines()
    return line


async def test_task_started_by_the_call_command_can_be_inspected_and_awaited_by_its_id(kitchen: Kitchen, address: str):
    task = await started(address, "modern")
    shown = await run([*TASKS, "get", address, task])
    lines = shown.stdout.splitlines()
    assert lines[:2] == ["status   working", "message  ho\ufffdt"]
    assert lines[-1] == "kept     3600 s from its creation"
    kitchen.done.set()
    ended = await run([*TASKS, "result", address, task])
    assert (ended.status, ended.stdout) == (0, "roasted 20\n")


async def test_tasks_command_shows_a_task_of_a_legacy_server_as_json(address: str):
    task = await started(address, "legacy")
    told = json.loads((await run([*TASKS, "get", address, task, "--json", "--era", "legacy"])).stdout)
    assert (told["id"], told["status"], told["ttlSeconds"]) == (task, "working", 3600)
    assert told["createdAt"].startswith("20")


@ERAS
async def test_call_command_without_task_option_waits_and_shows_task_messages_as_progress(
    kitchen: Kitchen, address: str, nursery, era: str
):
    async def finish() -> None:
        await kitchen.begun.wait()
        kitchen.done.set()

    nursery.start_soon(finish)
    ended = await run([*CALL, address, "roast", "kilos=20", "--era", era])
    assert (ended.status, ended.stdout) == (0, "roasted 20\n")
    assert "progress 1: ho\ufffdt" in ended.stderr


async def test_tasks_cancel_command_cancels_a_task(kitchen: Kitchen, address: str):
    task = await started(address, "modern")
    ended = await run([*TASKS, "cancel", address, task])
    assert (ended.status, ended.stdout, ended.stderr) == (0, "", "trio-mcp: the server was asked to cancel the task\n")
    assert kitchen.ended == ["cancelled"]
    ended = await run([*TASKS, "result", address, task])
    assert ended.status == 4
    assert "trio-mcp: the task was cancelled" in ended.stderr


async def test_tasks_list_command_shows_the_tasks_of_the_caller(nursery):
    async def serve(stream: trio.SocketStream) -> None:
        server = ScriptedServer(SocketLineTransport(stream, 100_000))
        await server.accept("2025-11-25", {"tasks": {"list": {}}})
        state = {"taskId": "t1", "status": "completed", "createdAt": "2026-01-01T00:00:00Z", "ttl": None}
        state["lastUpdatedAt"] = "2026-01-02T00:00:00Z"
        await server.answer(await server.expect_request("tasks/list"), {"tasks": [state]})
        with pytest.raises(MissingMessage):
            await server.expect({...: ...})

    listeners = await nursery.start(trio.serve_tcp, serve, 0)
    address = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    listed = await run([*TASKS, "list", address])
    assert (listed.stdout, listed.stderr) == ("t1  completed  2026-01-02T00:00:00Z\n", "")
    told = json.loads((await run([*TASKS, "list", "--json", address])).stdout)
    assert [each["id"] for each in told] == ["t1"]


async def test_tasks_list_command_without_a_token_omits_a_task_that_can_be_found_by_its_id(
    tmp_path: Path,
):
    file = written(
        tmp_path / "slow.py",
        """
        from trio_mcp import RequestContext, Server
        server = Server("slow")

        @server.tool(task="required")
        async def roast(ctx: RequestContext) -> str:
            return "roasted"
        """,
    )
    command = ["--", *TRIO_MCP, "run", file, "--tasks", str(tmp_path / "tasks.db")]
    task = (await run([*CALL, "roast", "--task", *command])).stdout.strip()
    listed = await run([*TASKS, "list", *command])
    assert (listed.status, listed.stdout) == (0, "")
    assert listed.stderr.endswith(f"no tasks; without a token, only tasks of this connection are listed: {INSTEAD}\n")
    assert (await run([*TASKS, "get", task, *command])).stdout.startswith("status")


async def test_tasks_list_command_suggests_another_command_if_the_server_cannot_list_tasks(address: str):
    modern = await run([*TASKS, "list", address, "--era", "modern"])
    assert (modern.status, modern.stdout) == (2, "")
    assert modern.stderr.endswith(f"servers of revision 2026-07-28 cannot list tasks: {INSTEAD}\n")
    stranger = await run([*TASKS, "list", address])  # of whom the server knows nothing
    assert (stranger.status, stranger.stdout) == (2, "")
    assert stranger.stderr.endswith(f"the server cannot list tasks: {INSTEAD}\n")


async def test_tasks_list_command_suggests_an_alternative_if_the_server_has_no_legacy_revision(nursery):
    async def serve(stream: trio.SocketStream) -> None:
        server = ScriptedServer(SocketLineTransport(stream, 100_000))
        await server.refuse(await server.expect_request("initialize"), -32022, "Unsupported protocol version")

    listeners = await nursery.start(trio.serve_tcp, serve, 0)
    ended = await run([*TASKS, "list", f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"])
    assert (ended.status, ended.stdout) == (4, "")
    assert ended.stderr.endswith(f"trio-mcp: some servers cannot list tasks: {INSTEAD}\n")


async def test_tasks_result_command_exits_with_1_if_the_tool_that_ran_as_a_task_failed(kitchen: Kitchen, address: str):
    task = (await run([*CALL, address, "burn", "--task"])).stdout.strip()
    ended = await run([*TASKS, "result", address, task])
    assert (ended.status, ended.stdout) == (1, "")
    assert ended.stderr.endswith("smoke\ntrio-mcp: the tool failed\n")


async def test_call_command_with_task_option_prints_a_result_that_the_server_returns_without_a_task(address: str):
    ended = await run([*CALL, address, "pour", "--task"])
    assert (ended.status, ended.stdout) == (0, "poured\n")
    assert ended.stderr == "trio-mcp: the server responded without a task\n"


async def test_tasks_command_reports_an_unknown_task_id_as_a_server_error(address: str):
    ended = await run([*TASKS, "get", address, "-nothing"])  # ids of other servers may begin like this
    assert ended.status == 4
    assert "unknown task" in ended.stderr


async def test_tasks_command_reports_that_the_server_has_no_tasks(tmp_path: Path):
    bare = written(tmp_path / "bare.py", "from trio_mcp import Server\nserver = Server('bare')")
    ended = await run([*TASKS, "list", bare])
    assert ended.status == 2
    assert "the server does not support tasks" in ended.stderr


@ERAS
async def test_tasks_result_command_prompts_for_elicitations_of_the_task(kitchen: Kitchen, address: str, era: str):
    kitchen.done.set()
    async with in_terminal([*CALL, address, "season", "--task", "--era", era]) as terminal:
        assert await terminal.read_to_end() == 0
        task = plain(terminal.shown).strip()
    async with in_terminal([*TASKS, "result", address, task, "--era", era]) as terminal:
        await answer(terminal, ("with: ", "salt\n"), ("edit [yes]: ", "\n"))
        assert await terminal.read_to_end() == 0
    assert plain(terminal.shown).endswith("seasoned with salt\n")


async def test_call_command_that_only_starts_a_task_does_not_prompt_for_elicitations_of_the_task(nursery):
    """The question reaches the command before the task does, which is the earliest that it can come."""
    heard: list[object] = []

    async def serve(stream: trio.SocketStream) -> None:
        server = ScriptedServer(SocketLineTransport(stream, 100_000))
        tasks = {"requests": {"tools": {"call": {}}}}
        await server.accept("2025-11-25", {"tools": {}, "tasks": tasks})
        tool = {"name": "season", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
        await server.answer(await server.expect_request("tools/list"), {"tools": [tool]})
        call = await server.expect_call("season")
        related = {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}
        schema = {"type": "object", "properties": {"spice": {"type": "string"}}}
        asked = {"message": "What do you like?", "requestedSchema": schema, "_meta": related}
        await server.request("q-1", "elicitation/create", asked)
        times = dict.fromkeys(("createdAt", "lastUpdatedAt"), "2025-11-25T10:30:00Z")
        await server.answer(call, {"task": {"taskId": "t-1", "status": "working", "ttl": None, **times}})
        with pytest.raises(MissingMessage) as missing:
            heard.append(await server.receive())
        assert missing.value.ended

    listeners = await nursery.start(trio.serve_tcp, serve, 0)
    port = listeners[0].socket.getsockname()[1]
    command = [*CALL, f"tcp://127.0.0.1:{port}", "season", "--task", "--era", "legacy"]
    async with in_terminal(command) as terminal:
        assert await terminal.read_to_end() == 0
    assert plain(terminal.shown).strip() == "t-1"
    assert heard == []


async def test_ctrl_c_in_the_tasks_result_command_leaves_the_task_running(kitchen: Kitchen, address: str):
    task = await started(address, "modern")
    async with in_terminal([*TASKS, "result", address, task]) as terminal:
        await terminal.read_until("ho\ufffdt")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    assert kitchen.ended == []
    assert "cancelling the call" not in plain(terminal.shown)


async def test_ctrl_c_in_a_call_command_that_waits_for_a_task_cancels_the_task(kitchen: Kitchen, address: str):
    async with in_terminal([*CALL, address, "roast", "kilos=20"]) as terminal:
        await terminal.read_until("ho\ufffdt")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    assert kitchen.ended == ["cancelled"]
