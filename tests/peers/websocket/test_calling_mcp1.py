"""Our client drives a server of ``mcp`` 1.30.0, in a process of its own: over WebSocket, HTTP+SSE and Streamable HTTP.

1.30 knows legacy revisions only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.peers.conversations import Conversation, conversation, expire, hang_until
from tests.peers.journals import Journal
from tests.peers.websocket.children import Listening, listening, peer_server

from trio_mcp import ConnectionLost, Progress, open_http, open_websocket
from trio_mcp.types import CreateMessageParams


@pytest.fixture(scope="module", params=["websocket", "sse", "http"])
def peer(
    request: pytest.FixtureRequest, peer_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversation]:
    journal = Journal(tmp_path_factory.mktemp("mcp1") / "journal")
    scheme, open_client = ("ws", open_websocket) if request.param == "websocket" else ("http", open_http)
    with (
        listening(peer_server(peer_python, request.param), journal, scheme) as child,
        conversation("mcp1", "legacy", journal, partial(open_client, child.url), request.param) as talk,
    ):
        yield talk


@pytest.fixture(scope="module")
def server(peer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """Another one, so that connections of the tests' own leave nothing in the journal of the first."""
    with listening(peer_server(peer_python), Journal(tmp_path_factory.mktemp("mcp1") / "journal")) as child:
        yield child


# Opening


def test_opened_client_knows_protocol_revision_and_name_and_capabilities_of_the_server(peer: Conversation) -> None:
    client = peer.client
    assert client.revision.name == "2025-11-25"
    assert client.server_info is not None
    assert client.server_info.name == "peer"
    assert client.instructions == "Ask nicely."
    assert client.server_capabilities.tools is not None


async def test_client_without_a_revision_option_detects_a_legacy_server(server: Listening) -> None:
    with trio.fail_after(PATIENCE):
        async with open_websocket(server.url) as client:
            assert client.revision.name == "2025-11-25"
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_client_supports_older_protocol_revisions(server: Listening) -> None:
    with trio.fail_after(PATIENCE):
        for revision in ("2024-11-05", "2025-03-26", "2025-06-18"):
            async with open_websocket(server.url, era="legacy", revision=revision) as client:
                assert client.revision.name == revision
                assert (await client.call_tool("echo", {"text": revision})).text == revision


# Tools and resources


def test_list_tools_returns_input_and_output_schemas(peer: Conversation) -> None:
    async def listed() -> dict[str, Any]:
        return {tool.name: tool async for tool in peer.client.list_tools()}

    tools = peer.run(listed)
    assert {"echo", "add", "weather", "fail", "count", "hang"} <= tools.keys()
    assert tools["add"].input_schema["properties"]["a"]["type"] == "integer"
    assert tools["weather"].output_schema["properties"].keys() == {"city", "celsius"}


@pytest.mark.parametrize("text", ["", "naïve ☕ 𝄞", "line\nbreak\u2028and\x00more", "x" * 300_000], ids=len)
def test_client_receives_the_text_of_a_tool_result_unchanged(peer: Conversation, text: str) -> None:
    assert peer.text("echo", text=text) == text


def test_structured_content_of_a_tool_that_returns_an_object_or_a_number_is_an_object(peer: Conversation) -> None:
    assert peer.call("weather", city="Oslo").structured_content == {"city": "Oslo", "celsius": 21.5}
    assert peer.call("add", a=2, b=3).structured_content == {"result": 5}


def test_tool_failure_returns_a_result_with_is_error_and_its_text(peer: Conversation) -> None:
    result = peer.call("fail")
    assert result.is_error
    assert "no luck today" in result.text


def test_fifty_concurrent_calls_each_get_their_own_result(peer: Conversation) -> None:
    async def many() -> dict[int, str]:
        answers: dict[int, str] = {}

        async def one(number: int) -> None:
            answers[number] = (await peer.client.call_tool("echo", {"text": f"call {number}"})).text

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(one, number)
        return answers

    assert peer.run(many) == {number: f"call {number}" for number in range(50)}


def test_read_resource_returns_text_and_mime_type(peer: Conversation) -> None:
    (contents,) = peer.run(peer.client.read_resource, "note://motto").contents
    assert (contents.text, contents.mime_type) == ("never late, never lost", "text/plain")


def test_ping_from_the_client_gets_a_response(peer: Conversation) -> None:
    peer.run(peer.client.ping)


# Progress, logs, changes


def test_progress_arrives_in_order_and_before_the_result(peer: Conversation) -> None:
    seen: list[Any] = []

    async def count() -> None:
        await peer.client.call_tool("count", {"to": 20}, on_progress=seen.append)
        seen.append("result")

    peer.run(count)
    assert seen == [*(Progress(number, 20, f"step {number}") for number in range(1, 21)), "result"]


def test_log_messages_arrive_before_the_result(peer: Conversation) -> None:
    peer.logs.clear()
    assert peer.text("chatter") == "said it all"
    said = [(log.level, log.data, log.logger) for log in peer.logs]
    assert said == [("debug", "whispered", None), ("info", "aloud", "mouth"), ("error", "shouted", None)]


def test_change_notifications_arrive_in_order(peer: Conversation) -> None:
    peer.changes.clear()
    assert peer.text("change") == "changed"
    peer.run(peer.has_heard, "tools", "note://motto")
    assert peer.changes == ["tools", "note://motto"]


# Cancelling


@pytest.mark.parametrize("leave", [trio.CancelScope.cancel, expire], ids=["cancel", "deadline"])
def test_call_that_is_cancelled_or_times_out_cancels_the_server_handler(
    peer: Conversation, leave: Callable[[trio.CancelScope], None]
) -> None:
    assert hang_until(peer, leave)


def test_response_to_a_cancelled_call_is_ignored(peer: Conversation) -> None:
    """The specification has none. 1.30 answers with an error, before it reads on."""
    assert peer.text("echo", text="first") == "first"  # so that no answer of an earlier test is on its way
    ignored = len(peer.ignored.messages)
    hang_until(peer, trio.CancelScope.cancel)
    assert peer.text("echo", text="still here") == "still here"
    assert len(peer.ignored.messages) == ignored + 1


def test_cancelled_call_leaves_concurrent_calls_running(peer: Conversation) -> None:
    async def neighbours() -> int:
        hanging = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: peer.client.call_tool("hang", on_progress=lambda _: hanging.set()))
            await hanging.wait()
            with trio.CancelScope() as scope:
                await peer.client.call_tool("hang", on_progress=lambda _: scope.cancel())
            await trio.to_thread.run_sync(partial(peer.journal.wait_for, "hang ended", after=before))
            await peer.client.ping()
            ended = peer.journal.lines[before:].count("hang ended")
            nursery.cancel_scope.cancel()
        return ended

    before = len(peer.journal.lines)
    assert peer.run(neighbours) == 1
    peer.journal.wait_for("hang ended", after=before + 3)


# What the server asks


def test_client_handler_answers_a_sampling_request(peer: Conversation) -> None:
    assert peer.text("ask_model", question="What is it?") == "deep-thought: forty-two"
    params = peer.samplings[-1]
    assert (params.max_tokens, params.system_prompt) == (10, "Be brief.")


def test_sampling_request_that_the_client_refuses_raises_in_the_server_handler(peer: Conversation) -> None:
    result = peer.call("ask_model", question="rude")
    assert result.is_error
    assert "the user said no" in result.text


def test_client_handler_answers_an_elicitation_request(peer: Conversation) -> None:
    assert peer.text("ask_user", message="Which colour?") == "accept green"
    assert peer.elicitations[-1].message == "Which colour?"


def test_client_answers_a_roots_request_with_its_roots(peer: Conversation) -> None:
    assert peer.call("show_roots").structured_content == {"result": ["file:///home/pilot"]}


# The end


async def test_client_that_closes_the_websocket_cancels_handlers_of_client_and_server(
    server: Listening,
) -> None:
    hanging, asked, asked_no_more = trio.Event(), trio.Event(), trio.Event()

    async def sample(_: CreateMessageParams) -> Any:
        asked.set()
        try:
            await trio.sleep_forever()
        finally:
            asked_no_more.set()

    before = len(server.journal.lines)
    with trio.fail_after(PATIENCE):
        async with open_websocket(server.url, sampling=sample) as client, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.call_tool("hang", on_progress=lambda _: hanging.set()))
            nursery.start_soon(client.call_tool, "ask_model", {"question": "never"})
            await hanging.wait()
            await asked.wait()
            nursery.cancel_scope.cancel()
    assert asked_no_more.is_set()
    for line in ("hang ended", "closed with 1000"):
        await trio.to_thread.run_sync(partial(server.journal.wait_for, line, after=before))


async def test_running_calls_raise_connection_lost_with_the_close_code_when_the_server_shuts_down(
    peer_python: Path, tmp_path: Path
) -> None:
    hanging, lost = trio.Event(), list[str]()

    async def hang() -> None:
        with pytest.raises(ConnectionLost) as caught:
            await client.call_tool("hang", on_progress=lambda _: hanging.set())
        lost.append(str(caught.value))

    with listening(peer_server(peer_python), Journal(tmp_path / "journal")) as child, trio.fail_after(PATIENCE):
        async with open_websocket(child.url) as client, trio.open_nursery() as nursery:
            nursery.start_soon(hang)
            await hanging.wait()
            child.process.terminate()
    assert lost == ["the peer is restarting (close code 1012)"]
    assert child.journal.lines == ["hang began", "closed with 1012", "hang ended"]
