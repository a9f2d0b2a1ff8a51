"""Requests and events of the web inspector."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from tests.hosting.members import Scripted
from tests.inspecting.opened import Opened, inspected
from tests.interaction.client.raw import RawPeer
from tests.patience import LONG
from tests.proxying.test_odd_results import UNKNOWN, odd_server
from trio.testing import MockClock

from trio_mcp import CancelCause, Command, ConnectionLost, Image, RequestContext, Server, TaskSettings
from trio_mcp.inspecting import inspection as inspections
from trio_mcp.inspecting import runs as runs_module
from trio_mcp.inspecting.inspection import Inspection
from trio_mcp.inspecting.runs import InvalidPageRequest
from trio_mcp.recording.masking import Masking
from trio_mcp.types import TextContent

eras = pytest.mark.parametrize("era", ["modern", "legacy"])


@dataclass
class Who:
    name: str
    age: int = 3


def server() -> Server:
    made = Server("shop", "1.5", instructions="Be kind.", tasks=TaskSettings(poll_interval=0.01))

    @made.tool
    async def greet(name: str, ctx: RequestContext) -> str:
        ctx.progress(1, total=2, message="half")
        await ctx.log.warning({"of": name})
        return f"hello {name}"

    @made.tool
    async def fail() -> None:
        raise ValueError("no")

    @made.tool
    async def ask(ctx: RequestContext) -> str:
        answer = await ctx.elicit("Who are you?", Who)
        return f"{answer.action} {answer.content}"

    @made.tool
    async def visit(ctx: RequestContext) -> str:
        return (await ctx.elicit_url("Pay.", "https://example.com/pay", "e1")).action

    @made.tool
    async def think(ctx: RequestContext) -> str:
        made = await ctx.sample("Think.", max_tokens=10)
        assert isinstance(made.content, TextContent)
        return made.content.text

    @made.tool
    async def look(ctx: RequestContext) -> str:
        return ", ".join(root.uri for root in await ctx.list_roots())

    @made.tool
    async def picture() -> Image:
        return Image(b"\x89PNG", "image/png")

    @made.tool(task="optional")
    async def dig(holes: int, ctx: RequestContext) -> str:
        if ctx.task is not None:
            await ctx.task.start()
        return f"dug {holes}"

    @made.resource("shop://plan")
    async def plan() -> str:
        return "roses"

    @made.prompt
    async def praise(plant: str) -> str:
        return f"praise the {plant}"

    return made


@eras
async def test_inspector_shows_progress_logs_and_result_of_a_call(era: str) -> None:
    async with inspected(server(), era) as opened:
        told = await opened.heard("server", state="connected")
        assert (told["era"], told["info"]["name"], told["instructions"]) == (era, "shop", "Be kind.")
        assert {"tools", "resources", "prompts"} <= set(told["has"])
        run = await opened.start("call", "greet", {"name": "Ann"})
        ended = await opened.ended(run)
        assert (ended["status"], ended["isError"], ended["reports"]) == ("done", False, 1)
        assert ended["progress"] == {"progress": 1, "total": 2, "message": "half"}
        assert opened.result(run)["content"] == [{"type": "text", "text": "hello Ann"}]
        log = await opened.heard("log")
        assert (log["level"], log["text"]) == ("warning", '{"of":"Ann"}')


@eras
async def test_inspector_shows_a_tool_failure_as_result_and_an_unknown_tool_as_error(era: str) -> None:
    async with inspected(server(), era) as opened:
        ended = await opened.ended(await opened.start("call", "fail"))
        assert (ended["status"], ended["isError"]) == ("done", True)
        ended = await opened.ended(await opened.start("call", "greet", {"name": 3}))
        assert ended["isError"] or ended["status"] == "failed"
        ended = await opened.ended(await opened.start("call", "nobody"))
        assert (ended["status"], "nobody" in ended["error"]) == ("failed", True)


@eras
async def test_inspector_reads_a_resource_and_gets_a_prompt(era: str) -> None:
    async with inspected(server(), era) as opened:
        run = await opened.start("read", "shop://plan")
        await opened.ended(run)
        assert opened.result(run)["contents"][0]["text"] == "roses"
        run = await opened.start("prompt", "praise", {"plant": "rose"})
        await opened.ended(run)
        assert opened.result(run)["messages"][0]["content"]["text"] == "praise the rose"


@eras
async def test_call_cancelled_in_the_inspector_cancels_the_handler_in_the_server(era: str) -> None:
    made, begun, causes = Server("shop"), trio.Event(), list[Any]()
    ended = trio.Event()

    @made.tool
    async def hang(ctx: RequestContext) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            causes.append(ctx.cancellation)
            ended.set()

    async with inspected(made, era) as opened:
        run = await opened.start("call", "hang")
        await begun.wait()
        await opened.do("cancel", run=run)
        told = await opened.ended(run)
        assert (told["status"], told["bytes"]) == ("cancelled", None)
        await ended.wait()
        assert (causes[0].cause, causes[0].reason) == (CancelCause.PEER, "cancelled in the page")
        with pytest.raises(InvalidPageRequest, match="no longer"):
            await opened.do("cancel", run=run + 1)


@eras
async def test_inspector_refuses_an_invalid_form_answer_and_sends_a_valid_one(era: str) -> None:
    async with inspected(server(), era) as opened:
        run = await opened.start("call", "ask")
        question = await opened.heard("question")
        assert (question["kind"], question["data"]["message"]) == ("form", "Who are you?")
        answer = {"action": "accept", "content": {"name": 3}}
        with pytest.raises(InvalidPageRequest, match="name"):
            await opened.do("answer", question=question["id"], answer=answer)
        await opened.do("answer", question=question["id"], answer={"action": "accept", "content": {"name": "Ann"}})
        await opened.heard("question.over", id=question["id"])
        await opened.ended(run)
        assert opened.result(run)["content"][0]["text"] == "accept {'name': 'Ann', 'age': 3}"
        with pytest.raises(InvalidPageRequest, match="no longer open"):
            await opened.do("answer", question=question["id"], answer={"action": "decline"})


@eras
@pytest.mark.parametrize(
    ("tool", "answer", "kind", "text"),
    [
        ("ask", {"action": "decline"}, "form", "decline None"),
        ("visit", {"action": "accept"}, "url", "accept"),
        ("think", {"text": "42"}, "sampling", "42"),
        ("look", {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]}, "roots", "file:///a, file:///b"),
    ],
)
async def test_inspector_answers_each_kind_of_server_request(
    era: str, tool: str, answer: Any, kind: str, text: str
) -> None:
    async with inspected(server(), era) as opened:
        run = await opened.start("call", tool)
        question = await opened.heard("question")
        assert question["kind"] == kind
        await opened.do("answer", question=question["id"], answer=answer)
        await opened.ended(run)
        assert opened.result(run)["content"][0]["text"] == text


@eras
async def test_elicitation_shown_by_the_inspector_closes_when_the_user_cancels_the_call(era: str) -> None:
    async with inspected(server(), era) as opened:
        run = await opened.start("call", "ask")
        question = await opened.heard("question")
        await opened.do("cancel", run=run)
        await opened.heard("question.over", id=question["id"])
        assert (await opened.ended(run))["status"] == "cancelled"


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("think", {"text": 3}),
        ("look", {"roots": [{"uri": "https://example.com"}]}),
        ("look", {"roots": "file:///a"}),
        ("look", {"roots": [{"uri": "file:///a"}] * 101}),
        ("ask", {"action": "maybe"}),
        ("ask", {"action": "accept", "content": []}),
        ("ask", []),
    ],
)
async def test_inspector_refuses_a_malformed_answer_and_the_server_request_stays_open(kind: str, answer: Any) -> None:
    async with inspected(server()) as opened:
        run = await opened.start("call", kind)
        question = await opened.heard("question")
        with pytest.raises(ValueError, match=r".+"):
            await opened.do("answer", question=question["id"], answer=answer)
        await opened.do("cancel", run=run)
        await opened.ended(run)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"do": 3},
        {"do": "run"},
        {"do": "list"},
        {"do": "list", "kind": ["tools"]},
        {"do": "start", "kind": "call"},
        {"do": "start", "kind": "call", "name": "greet", "arguments": [1]},
        {"do": "start", "kind": "dance", "name": "greet"},
        {"do": "cancel"},
        {"do": "cancel", "run": []},
        {"do": "answer", "question": "1", "answer": {}},
        {"do": "frame", "frame": 0},
        {"do": "task"},
        {"do": "complete", "kind": "tool", "name": "x", "argument": "y", "value": ""},
        {"do": "logLevel", "level": "loud"},
    ],
)
async def test_malformed_inspector_requests_raise_value_error(asked: dict[str, Any]) -> None:
    async with inspected(server()) as opened:
        with pytest.raises(ValueError, match=r".+"):
            await opened.inspection.do(asked)


def _tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


async def test_inspector_truncates_a_list_at_a_maximum_number_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspections, "MOST_LISTED", 20)
    made = Server("many")
    for number in range(21):
        made.resource(f"many://{number}", name=f"r{number}")(_text)
    async with inspected(made) as opened:
        found = await opened.do("list", kind="resources")
        assert (len(found["items"]), found["more"]) == (20, True)
    async with inspected(server()) as opened:
        found = await opened.do("list", kind="tools")
        assert found["more"] is False
        assert "greet" in {tool["name"] for tool in found["items"]}


async def _text() -> str:
    return "text"


async def test_inspector_starts_a_task_and_returns_its_result() -> None:
    async with inspected(server(), "modern") as opened:
        run = await opened.start("task", "dig", {"holes": 3})
        task = (await opened.ended(run))["task"]
        assert opened.result(run) == {"task": task}
        assert (await opened.do("tasks"))["seen"] == [task]
        run = await opened.start("result", task)
        await opened.ended(run)
        assert opened.result(run)["content"][0]["text"] == "dug 3"
        assert (await opened.do("task", task=task))["status"] == "completed"


async def test_inspector_that_reconnects_ends_running_calls_and_can_call_again() -> None:
    async with inspected(server(), "modern") as opened:
        run = await opened.start("call", "ask")
        await opened.heard("question")
        opened.told.clear()
        await opened.do("reconnect")
        assert (await opened.ended(run))["status"] == "lost"
        await opened.heard("server", state="connected")
        assert (await opened.ended(await opened.start("call", "greet", {"name": "Bob"})))["status"] == "done"


@pytest.mark.parametrize(
    ("declared", "tools", "names", "problem"),
    [
        ({"tools": {}}, {"tools": [_tool("a")], "nextCursor": "x"}, ["a"], "repeats a cursor"),
        ({}, {"tools": [_tool("a")]}, ["a"], "without declaring"),
        ({}, None, [], None),
        ({"tools": {}}, {"tools": [_tool("a")]}, ["a"], None),
    ],
)
async def test_inspector_shows_an_invalid_tool_list_with_its_problem(
    declared: Any, tools: Any, names: list[str], problem: str | None
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(**declared)
        while True:
            message = await peer.until("tools/list")
            if tools is None:
                await peer.error(message, -32601, "Method not found")
            else:
                await peer.result(message, tools)

    async with inspected(Scripted(script), "legacy") as opened:
        told = await opened.heard("server", state="connected")
        assert told["has"] == ["tools"]
        found = await opened.do("list", kind="tools")
        assert [tool["name"] for tool in found["items"]] == names
        assert (problem or "") in (found["problem"] or "")
        assert (found["problem"] is None) is (problem is None)


async def test_inspector_shows_a_warning_for_a_result_that_does_not_fit_its_output_schema() -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={})
        tool = {**_tool("a"), "outputSchema": {"type": "object", "required": ["n"]}}
        await peer.result(await peer.until("tools/list"), {"tools": [tool]})
        await peer.result(await peer.until("tools/call"), {"content": [], "structuredContent": {}})

    async with inspected(Scripted(script), "legacy") as opened:
        await opened.do("list", kind="tools")
        ended = await opened.ended(await opened.start("call", "a"))
        assert (ended["status"], ended["warning"]) == ("done", '"n" is a required property')


async def test_inspector_limits_the_numbers_of_running_calls_and_of_stored_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs_module, "MOST_RUNNING", 3)
    monkeypatch.setattr(runs_module, "MOST_KEPT", 5)
    made = Server("shop")

    @made.tool
    async def hang() -> None:
        await trio.sleep_forever()

    @made.tool
    async def quick() -> str:
        return "done"

    async with inspected(made) as opened:
        runs = [await opened.start("call", "hang") for _ in range(3)]
        with pytest.raises(InvalidPageRequest, match="requests are running already"):
            await opened.start("call", "quick")
        for run in runs:
            await opened.do("cancel", run=run)
        for run in runs:
            await opened.ended(run)
        last = [await opened.ended(await opened.start("call", "quick")) for _ in range(5)][-1]["id"]
        await opened.heard("run.forgotten", id=runs[0])
        with pytest.raises(InvalidPageRequest, match="no longer"):
            opened.inspection.result(runs[0])
        assert opened.result(last)["content"][0]["text"] == "done"


async def test_inspector_user_can_answer_a_server_request_during_connecting_without_a_timeout(
    autojump_clock: MockClock,
) -> None:
    async def script(peer: RawPeer) -> None:
        begun = await peer.until("initialize")
        said = {"role": "user", "content": {"type": "text", "text": "Ready?"}}
        await peer.request("s", "sampling/createMessage", {"messages": [said], "maxTokens": 1})
        while (await peer.read()).get("id") != "s":
            pass
        info = {"name": "asks", "version": "1"}
        await peer.result(begun, {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info})

    target = Scripted(script)
    opened = Opened(Inspection(target, era="legacy", timeout=5))

    async def answer() -> None:
        with opened.inspection.feed.opened() as stream:
            while not (asked := [thing for thing in opened.told if thing["what"] == "question"]):
                opened.hear(await stream.next_events())
            await trio.sleep(LONG)
            await opened.do("answer", question=asked[0]["id"], answer={"text": "yes"})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await nursery.start(opened.inspection.run)
        (answered,) = [message for message in target.peers[0].wire if message.get("id") == "s"]
        assert answered["result"]["content"] == {"type": "text", "text": "yes"}
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_server_log_in_the_inspector_is_truncated() -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for more in ("", "x"):
            log = {"level": "l" * 20 + more, "data": "t" * 4000 + more, "logger": "g" * 100 + more}
            await peer.notify("notifications/message", log)

    async with inspected(Scripted(script), "legacy") as opened:
        whole, cut = await opened.heard("log", n=1), await opened.heard("log", n=2)
        assert (whole["level"], whole["text"], whole["logger"]) == ("l" * 20, "t" * 4000, "g" * 100)
        assert (cut["level"], cut["text"], cut["logger"]) == ("l" * 19 + "…", "t" * 3999 + "…", "g" * 99 + "…")


async def test_inspector_masks_secrets_in_messages_and_draws_a_timeline() -> None:
    made = Server("shop")

    @made.tool
    async def sign(password: str) -> str:
        return "signed"

    async with inspected(made) as opened:
        run = await opened.start("call", "sign", {"password": "hunter2"})
        await opened.ended(run)
        frame = await opened.heard("frame", words="tools/call", dir="out")
        message = await opened.do("frame", frame=frame["n"])
        assert message["params"]["arguments"]["password"].startswith("masked:")
        assert ">sign #" in await opened.inspection.picture(run)
        assert "server/discover" in await opened.inspection.picture(None)
        assert "server/discover" not in await opened.inspection.picture(run)


async def test_inspector_summary_of_a_response_contains_the_method_of_its_request() -> None:
    made = Server("shop")
    started = trio.Event()

    @made.tool
    async def wait() -> None:
        started.set()
        await trio.sleep_forever()

    async with inspected(made, "legacy") as opened:
        run = await opened.start("call", "wait")
        await started.wait()
        asked = await opened.heard("frame", words="tools/call", dir="out")
        await opened.do("cancel", run=run)
        cancelled = await opened.heard("frame", words="notifications/cancelled", dir="out")
        assert cancelled["id"] == asked["id"], "the request that it cancels"
        answered = await opened.heard("frame", words="initialize", dir="in")
        assert answered["kind"] == "result"


@eras
async def test_elicitation_shown_by_the_inspector_names_the_call_that_elicits(era: str) -> None:
    made = Server("shop")

    @made.tool
    async def order(ctx: RequestContext) -> str:
        return (await ctx.elicit("Sure?", {"type": "object", "properties": {}})).action

    async with inspected(made, era) as opened:
        run = await opened.start("call", "order")
        question = await opened.heard("question", kind="form")
        assert question["run"] == run
        await opened.do("answer", question=question["id"], answer={"action": "decline"})
        await opened.ended(run)


async def test_malicious_names_are_escaped_in_inspector_timelines() -> None:
    made = Server("shop")
    name = "<script>alert(1)</script>"

    async with inspected(made) as opened:
        run = await opened.start("call", name)
        assert (await opened.ended(run))["status"] == "failed"
        assert "<script" not in await opened.inspection.picture(run)
        assert "&lt;script&gt;" in await opened.inspection.picture(run)


async def test_inspector_raises_the_connection_error_if_the_first_connection_fails() -> None:
    inspection = Inspection(Command(["/no/such/program"]))
    with pytest.raises(ConnectionLost):
        await inspection.run()


async def test_inspector_keeps_only_size_and_summary_of_a_long_message() -> None:
    made = Server("shop")

    @made.tool
    async def repeat(text: str) -> int:
        return len(text)

    async with inspected(made) as opened:
        await opened.ended(await opened.start("call", "repeat", {"text": "x" * 2_000_000}))
        frame = await opened.heard("frame", words="tools/call", dir="out")
        assert frame["bytes"] > 2_000_000
        message = await opened.do("frame", frame=frame["n"])
        assert message == {"jsonrpc": "2.0", "id": message["id"], "method": "tools/call"}


async def test_inspector_masks_messages_in_a_worker_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Server("shop")
    here = threading.get_ident()
    threads = list[int]()

    @made.tool
    async def repeat(text: str) -> str:
        return text

    masked = Masking.masked

    def seen(self: Masking, data: Any) -> Any:
        threads.append(threading.get_ident() if isinstance(data, dict) else 0)
        return masked(self, data)

    monkeypatch.setattr(Masking, "masked", seen)
    async with inspected(made) as opened:
        for unit in ("eyJ-", "eyJ.", "://a:b/", "token=a "):
            await opened.ended(await opened.start("call", "repeat", {"text": unit * 60_000}))
        frames = [thing for thing in opened.told if thing["what"] == "frame" and thing["bytes"] > 200_000]
        assert {thing["words"] for thing in frames} == {"tools/call"}
        for thing in frames:
            await opened.do("frame", frame=thing["n"])
        assert ">repeat #" in await opened.inspection.picture(None)
    assert here not in threads
    assert len(set(threads)) > 1


async def test_inspector_shows_readable_parts_of_a_nonconforming_server() -> None:
    async with inspected(Scripted(odd_server), era="legacy") as opened:
        listed = await opened.do("list", kind="tools")
        assert [tool["name"] for tool in listed["items"]] == ["good", "bare"]
        run = await opened.start("call", "good", {})
        await opened.ended(run)
        assert opened.result(run)["content"][1] == UNKNOWN
