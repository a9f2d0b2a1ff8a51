"""Scripted clients and servers, and their errors for unexpected messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import ConnectionLost, PeerError, RequestContext, Server, open_stdio
from trio_mcp.testing import (
    MissingMessage,
    ScriptedClient,
    ScriptedPeer,
    ScriptedServer,
    UnexpectedMessage,
    memory_transport_pair,
    open_scripted_client,
    open_scripted_process,
    open_scripted_server,
)

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
LEGACY, MODERN = REVISIONS[-2:]


def a_server() -> Server:
    server = Server("s")

    @server.tool
    async def shout(text: str, ctx: RequestContext) -> str:
        ctx.progress(1)
        return text.upper()

    @server.tool
    async def wait() -> None:
        await trio.sleep_forever()

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return (await ctx.list_roots())[0].uri

    return server


# A client by script


@pytest.mark.parametrize("revision", REVISIONS)
async def test_scripted_client_can_connect_to_a_server_in_every_revision(
    autojump_clock: MockClock, revision: str
) -> None:
    async with open_scripted_client(a_server(), revision) as client:
        call = await client.call_tool("shout", {"text": "hi"}, meta={"progressToken": "p"})
        await client.expect({"method": "notifications/progress", "params": {"progressToken": "p", "progress": 1}})
        await client.expect_text(call, "HI")


async def test_scripted_client_that_opens_a_connection_gets_the_initialize_result(autojump_clock: MockClock) -> None:
    async with open_scripted_client(a_server(), revision=None) as client:
        result = await client.open(LEGACY)
    assert result is not None
    assert result["serverInfo"]["name"] == "s"


async def test_cancelled_call_of_a_scripted_client_is_not_answered(autojump_clock: MockClock) -> None:
    async with open_scripted_client(a_server(), MODERN) as client:
        call = await client.call_tool("wait")
        await client.expect_silence(60)
        await client.cancel(call, "enough")
        await client.expect_silence(60)


async def test_scripted_client_can_answer_a_server_request(autojump_clock: MockClock) -> None:
    async with open_scripted_client(a_server(), LEGACY, {"roots": {}}) as client:
        call = await client.call_tool("ask")
        question = await client.expect({"id": ..., "method": "roots/list"})
        await client.answer(question, {"roots": [{"uri": "file:///x"}]})
        await client.expect_text(call, "file:///x")


async def test_scripted_client_can_expect_an_error_with_a_code_and_message(autojump_clock: MockClock) -> None:
    async with open_scripted_client(a_server(), MODERN) as client:
        call = await client.request("tools/call", {"name": "nobody"})
        error = await client.expect_error(call, -32602)
        assert "nobody" in error["message"]
        await client.send("nonsense")
        await client.expect_error(None, -32700, "Parse error: the message is not JSON in UTF-8")


async def test_expect_text_method_of_a_scripted_client_fails_if_the_tool_fails(autojump_clock: MockClock) -> None:
    ours, theirs = memory_transport_pair()
    client, server = ScriptedClient(ours), ScriptedServer(theirs)
    await server.send({"id": 1, "result": {"content": [{"type": "text", "text": "no"}], "isError": True}})
    with pytest.raises(UnexpectedMessage, match="the tool failed"):
        await client.expect_text(1, "no")


async def test_scripted_client_that_closes_cancels_running_calls(autojump_clock: MockClock) -> None:
    server = a_server()
    async with open_scripted_client(server) as client:
        await client.call_tool("wait")
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().in_flight == 1
    assert server.statistics().in_flight == 0


# A server by script


@pytest.mark.parametrize("revision", REVISIONS)
async def test_scripted_server_accepts_clients_of_every_revision(autojump_clock: MockClock, revision: str) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(revision)
        await server.answer_text(await server.expect_call("shout", {"text": "hi"}), "HI")

    async with open_scripted_server(script) as client:
        assert client.revision.name == revision
        assert (await client.call_tool("shout", {"text": "hi"})).text == "HI"


async def test_scripted_server_sees_the_cancel_of_a_call(autojump_clock: MockClock) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        call = await server.expect_call("wait")
        await server.expect_cancel(call, "the caller's deadline passed")
        await server.expect_end()

    async with open_scripted_server(script) as client:
        with trio.move_on_after(1):
            await client.call_tool("wait")


async def test_scripted_server_can_send_logs_progress_and_an_error(autojump_clock: MockClock) -> None:
    progress, logs = list[float](), list[str]()

    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY, {"logging": {}})
        call = await server.expect_request("tools/call")
        await server.log("info", "working", logger="db")
        await server.progress(call, 1, total=2)
        await server.refuse(call, 1234, "not today")

    async with open_scripted_server(script, on_log=lambda log: logs.append(log.data)) as client:
        with pytest.raises(PeerError, match="not today"):
            await client.call_tool("work", on_progress=lambda report: progress.append(report.progress))
    assert (progress, logs) == ([1], ["working"])


async def test_scripted_server_can_send_a_request_to_the_client(autojump_clock: MockClock) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY)
        await server.request("q", "roots/list")
        await server.expect({"id": "q", "result": {"roots": []}})

    async with open_scripted_server(script, roots=[]):
        await trio.sleep(1)


async def test_failure_in_a_server_script_is_raised_from_the_with_block(autojump_clock: MockClock) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        await server.expect_call("other")

    with pytest.raises(UnexpectedMessage, match="other"):
        async with open_scripted_server(script) as client:
            await client.call_tool("this")
    with pytest.raises(MissingMessage, match="the other side closed the connection"):
        async with open_scripted_server(script):
            pass


async def test_failure_in_a_server_script_while_the_client_connects_is_raised(autojump_clock: MockClock) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.expect_request("ping")

    with pytest.raises(UnexpectedMessage, match="ping"):
        async with open_scripted_server(script):
            pytest.fail("nobody answered")


async def test_failure_in_a_server_script_is_raised_in_place_of_a_later_exception_in_the_with_block(
    autojump_clock: MockClock,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        await server.expect_call("other")

    with pytest.raises(UnexpectedMessage, match="other") as caught:
        async with open_scripted_server(script) as client:
            try:
                await client.call_tool("this")
            finally:
                raise LookupError("cleanup")
    assert isinstance(caught.value.__cause__, LookupError)


async def test_exception_in_the_with_block_of_a_scripted_server_ends_a_script_that_still_waits(
    autojump_clock: MockClock,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        await server.expect_call("this")

    with pytest.raises(LookupError, match="mine"):
        async with open_scripted_server(script):
            raise LookupError("mine")


async def test_server_script_that_never_ends_raises_too_slow_error(autojump_clock: MockClock) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        await trio.sleep_forever()

    with pytest.raises(trio.TooSlowError, match="script was still running 3 seconds after the client was closed"):
        async with open_scripted_server(script, patience=3):
            pass


async def test_scripted_server_accept_fails_if_the_first_message_does_not_open_a_connection(
    autojump_clock: MockClock,
) -> None:
    ours, theirs = memory_transport_pair()
    await ScriptedClient(ours).notify("notifications/initialized")
    with pytest.raises(UnexpectedMessage, match="server/discover"):
        await ScriptedServer(theirs).accept()


# Error messages


async def test_unexpected_message_error_shows_expectation_message_and_transcript(autojump_clock: MockClock) -> None:
    async with open_scripted_client(a_server(), LEGACY) as client:
        call = await client.call_tool("shout", {"text": "hi"})
        with pytest.raises(UnexpectedMessage) as caught:
            await client.expect_result(call, {"content": [{"type": "text", "text": "HO"}]})
    lines = str(caught.value).splitlines()
    assert lines[0] == "unexpected message"
    assert '{"type": "text", "text": "HO"}' in lines[1]
    assert '"text": "HI"' in lines[2]
    assert '  $.result.content[0].text: expected "HO", got "HI"' in lines
    assert any(line.startswith("    --> ") and '"shout"' in line for line in lines)
    assert caught.value.got["id"] == call


async def test_timeout_of_a_scripted_peer_follows_the_trio_clock(autojump_clock: MockClock) -> None:
    ours, _ = memory_transport_pair()
    with pytest.raises(MissingMessage, match="nothing within 7 seconds"):
        await ScriptedPeer(ours, patience=7).expect({"id": 1})
    assert trio.current_time() == pytest.approx(7)


async def test_expect_silence_method_of_a_scripted_peer_fails_after_a_message_or_a_closed_connection(
    autojump_clock: MockClock,
) -> None:
    ours, theirs = memory_transport_pair()
    peer, other = ScriptedPeer(ours), ScriptedPeer(theirs)
    await other.notify("notifications/message")
    with pytest.raises(UnexpectedMessage, match="silence"):
        await peer.expect_silence(1)
    await other.aclose()
    with pytest.raises(MissingMessage, match="closed the connection"):
        await peer.expect_silence(1)


async def test_expect_end_method_of_a_scripted_peer_fails_after_a_timeout_or_a_message(
    autojump_clock: MockClock,
) -> None:
    ours, theirs = memory_transport_pair()
    peer, other = ScriptedPeer(ours), ScriptedPeer(theirs)
    with pytest.raises(MissingMessage, match="nothing within"):
        await peer.expect_end()
    await other.notify("notifications/message")
    with pytest.raises(UnexpectedMessage, match="the end of the connection"):
        await peer.expect_end()
    await other.aclose()
    await peer.expect_end()


async def test_messages_that_a_scripted_peer_skips_are_kept_in_the_transcript(
    autojump_clock: MockClock,
) -> None:
    ours, theirs = memory_transport_pair()
    peer, other = ScriptedPeer(ours), ScriptedPeer(theirs)
    await other.notify("one")
    await other.send([{"a": 1}])
    await other.notify("two", {"x": 1})
    assert (await peer.until({"method": "two", ...: ...}))["params"] == {"x": 1}
    assert [message for _, message in peer.transcript] == [
        {"jsonrpc": "2.0", "method": "one"},
        [{"a": 1}],
        {"jsonrpc": "2.0", "method": "two", "params": {"x": 1}},
    ]


async def test_scripted_peer_sends_messages_exactly_as_given(autojump_clock: MockClock) -> None:
    ours, theirs = memory_transport_pair()
    peer = ScriptedPeer(ours)
    for message in ({"id": 1}, {"jsonrpc": "1.0"}, b'{ "x" :1}', "text", [1]):
        await peer.send(message)
    lines = [await theirs.receive() for _ in range(5)]
    assert lines == [b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"1.0"}', b'{ "x" :1}', b"text", b"[1]"]


async def test_scripted_peer_reports_a_message_that_is_not_json_as_unexpected(autojump_clock: MockClock) -> None:
    ours, theirs = memory_transport_pair()
    await theirs.send(b"Hello!\n")
    with pytest.raises(UnexpectedMessage, match=r"(?s)Hello!.*not JSON"):
        await ScriptedPeer(ours).receive()


async def test_scripted_peer_sending_after_the_end_raises_connection_lost() -> None:
    ours, theirs = memory_transport_pair()
    await theirs.aclose()
    with pytest.raises(ConnectionLost):
        await ScriptedPeer(ours).notify("late")


# Over stdio

SERVER = """
import trio
from trio_mcp import Server, serve_stdio

server = Server("child")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

trio.run(serve_stdio, server)
"""

SCRIPT = """
import trio
from trio_mcp.testing import ScriptedServer, serve_scripted_stdio

async def script(server: ScriptedServer) -> None:
    await server.accept("2025-06-18")
    print("a stray line on standard output")
    await server.answer_text(await server.expect_call("add", {"a": 1, "b": 2}), "scripted")

trio.run(serve_scripted_stdio, script)
"""


async def test_scripted_client_can_connect_to_a_server_process(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    async with open_scripted_process([sys.executable, tmp_path / "server.py"], LEGACY) as client:
        result = await client.expect_result(await client.call_tool("add", {"a": 1, "b": 2}))
    assert result["content"] == [{"type": "text", "text": "3"}]


async def test_scripted_client_with_revision_none_does_not_initialize_the_server_process(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    async with open_scripted_process([sys.executable, tmp_path / "server.py"], revision=None) as client:
        await client.expect_result(await client.request("ping"), {})


async def test_scripted_client_reports_the_exit_of_its_server_process_with_stderr() -> None:
    command = [sys.executable, "-c", "input(); raise SystemExit('out of cheese')"]
    with pytest.raises(MissingMessage, match=r"(?s)exit status 1.*out of cheese"):
        async with open_scripted_process(command, LEGACY):
            pass


async def test_scripted_server_can_run_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    async with open_stdio([sys.executable, tmp_path / "script.py"]) as client:
        assert client.revision.name == "2025-06-18"
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "scripted"
