"""trio-mcp's client drives servers of people's real software, each in a child process of its own, in both eras.

Over stdio one child per peer and era serves all tests of this file, over HTTP one per peer serves both eras; each test
talks to the live connection.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tests.patience import PATIENCE
from tests.peers.conversations import Conversation, conversation, expire, hang_until
from tests.peers.http_servers import HttpServers
from tests.peers.journals import Journal

from trio_mcp import PeerError, Progress, open_http, open_stdio
from trio_mcp.types import Change, PromptReference, ResourceTemplateReference, SubscriptionFilter

SERVERS = Path(__file__).parent / "servers"


def server(name: str) -> list[str]:
    return [sys.executable, str(SERVERS / f"{name}_server.py")]


PEERS = [
    pytest.param((name, era, over), id=f"{name}-{era}-{over}")
    for over in ("stdio", "http")
    for name in ("official", "fastmcp")
    for era in ("legacy", "modern")
]
only_legacy = pytest.mark.parametrize("peer", PEERS[0::2], indirect=True)
only_modern = pytest.mark.parametrize("peer", PEERS[1::2], indirect=True)
only_official_modern = pytest.mark.parametrize("peer", [PEERS[1], PEERS[5]], indirect=True)
only_legacy_http = pytest.mark.parametrize("peer", PEERS[4::2], indirect=True)


@pytest.fixture(scope="module", params=PEERS)
def peer(
    request: pytest.FixtureRequest, over_http: HttpServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversation]:
    name, era, over = request.param
    if over == "http":
        running = over_http.get(name, server(name))
        with conversation(name, era, running.journal, partial(open_http, running.url), over) as talk:
            yield talk
        return
    journal = Journal(tmp_path_factory.mktemp(name) / era)
    with conversation(name, era, journal, partial(open_stdio, server(name), env=journal.env)) as talk:
        yield talk
    # Only a process that was left to end by itself gets here: no signal was needed.
    assert journal.lines[-1] == "server ended"


# Opening


def test_opened_client_knows_protocol_revision_and_name_and_capabilities_of_the_server(peer: Conversation) -> None:
    client = peer.client
    assert client.revision.name == ("2025-11-25" if peer.is_legacy else "2026-07-28")
    assert client.server_info is not None
    assert (client.server_info.name, client.server_info.version) == ("peer", "7.0")
    assert client.instructions == "Ask nicely."
    assert client.server_capabilities.tools is not None
    assert client.server_capabilities.completions is not None


# Tools


def test_list_tools_returns_input_and_output_schemas(peer: Conversation) -> None:
    async def listed() -> dict[str, Any]:
        return {tool.name: tool async for tool in peer.client.list_tools()}

    tools = peer.run(listed)
    assert {"echo", "add", "weather", "fail", "count", "hang"} <= tools.keys()
    assert tools["echo"].description == "Say it again."
    assert tools["add"].input_schema["properties"]["a"]["type"] == "integer"
    assert tools["weather"].output_schema["properties"].keys() == {"city", "celsius"}


@pytest.mark.parametrize("text", ["", "naïve ☕ 𝄞", "line\nbreak\u2028and\x00more", "x" * 300_000], ids=len)
def test_client_receives_the_text_of_a_tool_result_unchanged(peer: Conversation, text: str) -> None:
    assert peer.text("echo", text=text) == text


def test_tool_that_returns_a_class_instance_has_an_object_as_structured_content(peer: Conversation) -> None:
    assert peer.call("weather", city="Oslo").structured_content == {"city": "Oslo", "celsius": 21.5}


def test_tool_that_returns_a_number_has_an_object_with_key_result_as_structured_content(peer: Conversation) -> None:
    assert peer.call("add", a=2, b=3).structured_content == {"result": 5}


def test_tool_failure_returns_a_result_with_is_error_and_its_text(peer: Conversation) -> None:
    result = peer.call("fail")
    assert result.is_error
    assert "no luck today" in result.content[0].text


def test_call_of_an_unknown_tool_returns_an_error_result(peer: Conversation) -> None:
    """The specification has -32602 for it. Both peers answer with an error result instead; it is shown as it
    came."""
    result = peer.call("nowhere")
    assert result.is_error
    assert "Unknown tool" in result.content[0].text


def test_call_with_invalid_arguments_returns_an_error_result(peer: Conversation) -> None:
    assert peer.call("add", a="two").is_error


def test_fifty_concurrent_calls_each_get_their_own_result(peer: Conversation) -> None:
    async def many() -> dict[int, str]:
        answers: dict[int, str] = {}

        async def one(number: int) -> None:
            result = await peer.client.call_tool("echo", {"text": f"call {number}"})
            answers[number] = result.content[0].text

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(one, number)
        return answers

    assert peer.run(many) == {number: f"call {number}" for number in range(50)}


# Resources, prompts, completion


def test_client_lists_resources_and_resource_templates(peer: Conversation) -> None:
    async def listed() -> tuple[set[str], set[str]]:
        resources = {resource.uri async for resource in peer.client.list_resources()}
        return resources, {template.uri_template async for template in peer.client.list_resource_templates()}

    assert peer.run(listed) == ({"note://motto", "note://dot"}, {"note://by/{author}/{title}"})


def test_read_resource_returns_text_and_mime_type(peer: Conversation) -> None:
    (contents,) = peer.run(peer.client.read_resource, "note://motto").contents
    assert (contents.text, contents.mime_type) == ("never late, never lost", "text/plain")


def test_read_resource_returns_binary_data_unchanged(peer: Conversation) -> None:
    (contents,) = peer.run(peer.client.read_resource, "note://dot").contents
    assert (base64.b64decode(contents.blob), contents.mime_type) == (b"\x89PNG\x00", "image/png")


def test_read_resource_fills_in_a_uri_template(peer: Conversation) -> None:
    (contents,) = peer.run(peer.client.read_resource, "note://by/Ada/Engines").contents
    assert contents.text == "Engines, by Ada"


def test_unknown_resource_raises_invalid_params_with_its_uri(peer: Conversation) -> None:
    """Legacy revisions have -32002 for it. Both peers say -32602, as modern ones do, in both eras."""
    with pytest.raises(PeerError) as caught:
        peer.run(peer.client.read_resource, "note://nowhere")
    assert caught.value.code == -32602
    assert caught.value.data == {"uri": "note://nowhere"}


def test_list_prompts_returns_arguments_and_which_are_required(peer: Conversation) -> None:
    async def listed() -> list[Any]:
        return [prompt async for prompt in peer.client.list_prompts()]

    (prompt,) = peer.run(listed)
    assert (prompt.name, prompt.description) == ("greet", "Words of welcome.")
    assert [(argument.name, argument.required) for argument in prompt.arguments] == [("name", True), ("tone", False)]


def test_get_prompt_returns_messages_with_arguments_filled_in(peer: Conversation) -> None:
    result = peer.run(peer.client.get_prompt, "greet", {"name": "Bo", "tone": "dry"})
    assert [(message.role, message.content.text) for message in result.messages] == [
        ("user", "Greet Bo in a dry tone.")
    ]


def test_unknown_prompt_raises_peer_error(peer: Conversation) -> None:
    """The specification has -32602 for it. ``fastmcp`` says so; the official package says 0 in the legacy era
    and -32603 in the modern one."""
    with pytest.raises(PeerError) as caught:
        peer.run(peer.client.get_prompt, "nowhere")
    official = 0 if peer.is_legacy else -32603
    assert caught.value.code == (official if peer.name == "official" else -32602)


def test_completion_of_a_prompt_argument_returns_matching_values(peer: Conversation) -> None:
    completion = peer.run(peer.client.complete, PromptReference("greet"), "name", "Ad")
    assert (completion.values, completion.total, completion.has_more) == (["Ada", "Adele"], 2, False)


def test_completion_handler_receives_previously_resolved_arguments(peer: Conversation) -> None:
    async def complete() -> list[str]:
        ref = ResourceTemplateReference("note://by/{author}/{title}")
        return (await peer.client.complete(ref, "title", "Eng", settled={"author": "Ada"})).values

    assert peer.run(complete) == ["Eng of Ada"]


# Progress, logs, changes


def test_progress_arrives_in_order_and_before_the_result(peer: Conversation) -> None:
    seen: list[Any] = []

    async def count() -> None:
        await peer.client.call_tool("count", {"to": 20}, on_progress=seen.append)
        seen.append("result")

    peer.run(count)
    assert seen == [*(Progress(number, 20, f"step {number}") for number in range(1, 21)), "result"]


def said(peer: Conversation) -> list[tuple[str, Any, str | None]]:
    """Run a tool that logs, and return what it logged. ``fastmcp`` wraps the text in an object."""
    peer.logs.clear()
    assert peer.text("chatter") == "said it all"
    wraps = peer.name == "fastmcp"
    return [(log.level, log.data["msg"] if wraps else log.data, log.logger) for log in peer.logs]


WHISPERED = ("debug", "whispered", None)
ALOUD = ("info", "aloud", "mouth")
SHOUTED = ("error", "shouted", None)


def test_log_messages_respect_the_log_level_and_arrive_before_the_result(peer: Conversation) -> None:
    """A legacy server of the official package has no ``logging/setLevel`` and sends everything."""
    if peer.name == "official" and peer.is_legacy:
        with pytest.raises(PeerError) as caught:
            peer.run(peer.client.set_log_level, "info")
        assert caught.value.code == -32601
        assert said(peer) == [WHISPERED, ALOUD, SHOUTED]
        return
    # Before a level was named, legacy servers may send what they like, modern ones nothing.
    assert said(peer) == ([WHISPERED, ALOUD, SHOUTED] if peer.is_legacy else [])
    peer.run(peer.client.set_log_level, "info")
    assert said(peer) == [ALOUD, SHOUTED]


@only_legacy
def test_change_notifications_arrive_in_order(peer: Conversation) -> None:
    peer.changes.clear()
    assert peer.text("change") == "changed"
    peer.run(peer.has_heard, "tools", "note://motto")
    assert peer.changes == ["tools", "note://motto"]


@only_official_modern
def test_listen_stream_yields_the_requested_changes(peer: Conversation) -> None:
    async def listen() -> tuple[Any, list[Change]]:
        async with peer.client.listen(tools=True, uris=["note://motto"]) as changes:
            await peer.client.call_tool("publish")
            return changes.acknowledged, [await anext(changes), await anext(changes)]

    acknowledged, came = peer.run(listen)
    assert acknowledged == SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["note://motto"])
    assert came == [Change("tools"), Change("resource", "note://motto")]


@only_official_modern
def test_subscribe_delivers_resource_updates_to_the_change_callback(peer: Conversation) -> None:
    async def follow() -> list[str]:
        await peer.client.subscribe("note://motto")
        peer.changes.clear()
        await peer.client.call_tool("publish")
        await peer.has_heard("note://motto")
        await peer.client.unsubscribe("note://motto")
        await peer.client.ping()
        return [told for told in peer.changes if told not in ("tools", "prompts", "resources")]

    assert peer.run(follow) == ["note://motto"]


def test_ping_from_the_client_gets_a_response(peer: Conversation) -> None:
    peer.run(peer.client.ping)


# Cancelling


@pytest.mark.parametrize("leave", [trio.CancelScope.cancel, expire], ids=["cancel", "deadline"])
def test_call_that_is_cancelled_or_times_out_cancels_the_server_handler(
    peer: Conversation, leave: Callable[[trio.CancelScope], None]
) -> None:
    assert hang_until(peer, leave)


def late(peer: Conversation, before: int) -> list[str]:
    """What came after it was of use. Over HTTP a legacy server ends the answer to a cancelled call with an error,
    since an answer without a reply would be a broken one to the package; the client reads on for a moment."""
    ended = "ignored: an error for no request in flight: 'Request cancelled'"
    is_ended = peer.is_legacy and peer.over == "http"
    return [message for message in peer.ignored.messages[before:] if not (is_ended and message == ended)]


def test_client_receives_no_late_message_for_a_cancelled_call(peer: Conversation) -> None:
    ignored = len(peer.ignored.messages)
    hang_until(peer, trio.CancelScope.cancel)
    # Messages keep their order, so what were to come for the cancelled call would be here before this answer.
    assert peer.text("echo", text="still here") == "still here"
    assert late(peer, ignored) == []


def test_cancelled_call_returns_immediately_even_if_the_handler_cannot_be_interrupted(peer: Conversation) -> None:
    """The peers run plain functions in threads, which they do not interrupt. They send nothing when those end."""

    async def leave() -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.client.call_tool, "block", {"until": signal})
            await trio.to_thread.run_sync(partial(peer.journal.wait_for, "block began", after=before))
            nursery.cancel_scope.cancel()
        # Its thread still runs, and the connection serves others.
        await peer.client.call_tool("echo", {"text": ""})
        return "block ended" not in peer.journal.lines[before:]

    signal, before = f"let go of {peer.era}", len(peer.journal.lines)
    ignored = len(peer.ignored.messages)
    assert peer.run(leave)
    peer.journal.note(signal)
    peer.journal.wait_for("block ended", after=before)
    peer.run(peer.client.ping)
    assert late(peer, ignored) == []


def test_exception_in_a_progress_callback_is_raised_and_cancels_the_handler(peer: Conversation) -> None:
    def spill(_: Progress) -> None:
        raise ZeroDivisionError

    before = len(peer.journal.lines)

    async def hang() -> None:
        await peer.client.call_tool("hang", on_progress=spill)

    with pytest.raises(ZeroDivisionError):
        peer.run(hang)
    peer.journal.wait_for("hang ended", after=before)


def test_cancelled_call_leaves_concurrent_calls_running(peer: Conversation) -> None:
    async def neighbours() -> None:
        hanging = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: peer.client.call_tool("hang", on_progress=lambda _: hanging.set()))
            await hanging.wait()
            with trio.CancelScope() as scope:
                await peer.client.call_tool("hang", on_progress=lambda _: scope.cancel())
            await peer.client.ping()
            if peer.over == "http":  # where an answer may overtake the end of another exchange
                await trio.to_thread.run_sync(partial(peer.journal.wait_for, "hang ended", after=before))
            ended.append(peer.journal.lines[before:].count("hang ended"))
            nursery.cancel_scope.cancel()

    before, ended = len(peer.journal.lines), list[int]()
    peer.run(neighbours)
    assert ended == [1]
    peer.journal.wait_for("hang ended", after=before + 3)


# Coming back


@only_legacy_http
def test_client_reconnects_if_the_server_closes_a_response_stream_before_the_result(peer: Conversation) -> None:
    seen: list[float] = []

    async def come_back() -> str:
        result = await peer.client.call_tool("come_back", on_progress=lambda told: seen.append(told.progress))
        return result.text

    assert peer.run(come_back) == "welcome back"
    assert seen == [1, 2]


@pytest.mark.parametrize("peer", PEERS[4:5], indirect=True)
def test_client_reconnects_if_the_server_closes_the_get_stream_for_change_notifications(
    peer: Conversation,
) -> None:
    """Tools of ``fastmcp`` have no such means."""
    peer.changes.clear()
    assert peer.text("hush") == "changed"
    peer.run(peer.has_heard, "tools")
    assert peer.changes == ["tools"]


# What the server asks


@only_legacy
def test_client_handler_answers_a_sampling_request(peer: Conversation) -> None:
    assert peer.text("ask_model", question="What is it?") == "deep-thought: forty-two"
    params = peer.samplings[-1]
    assert (params.max_tokens, params.system_prompt) == (10, "Be brief.")
    assert [message.content.text for message in params.messages] == ["What is it?"]


@only_legacy
def test_sampling_request_that_the_client_refuses_raises_in_the_server_handler(peer: Conversation) -> None:
    """The official package passes the client's error on as the answer, ``fastmcp`` makes it an error result."""
    if peer.name == "official":
        with pytest.raises(PeerError, match="the user said no") as caught:
            peer.call("ask_model", question="rude")
        assert caught.value.code == -1
    else:
        assert "the user said no" in peer.text("ask_model", question="rude")


@only_legacy
def test_client_handler_answers_an_elicitation_request(peer: Conversation) -> None:
    assert peer.text("ask_user", message="Which colour?") == "accept green"
    params = peer.elicitations[-1]
    assert params.message == "Which colour?"
    assert params.requested_schema["properties"]["colour"]["type"] == "string"


@only_legacy
def test_client_answers_a_roots_request_with_its_roots(peer: Conversation) -> None:
    assert peer.call("show_roots").structured_content == {"result": ["file:///home/pilot"]}


@only_legacy
def test_cancelled_call_cancels_the_sampling_request_of_its_handler(peer: Conversation) -> None:
    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.client.call_tool, "ask_model", {"question": "never"})
            await peer.never_asked.wait()
            nursery.cancel_scope.cancel()
        # The peer ends its handler and takes its question back.
        await peer.never_cancelled.wait()

    before = len(peer.journal.lines)
    peer.run(ask)
    peer.journal.wait_for("ask_model ended", after=before)


@only_modern
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("ask_model", {"question": "?"}), ("ask_user", {"message": "?"}), ("show_roots", {})],
    ids=["sampling", "elicitation", "roots"],
)
def test_server_request_in_a_modern_revision_fails_only_the_call_whose_handler_sends_the_request(
    peer: Conversation, tool: str, arguments: dict[str, Any]
) -> None:
    """Modern servers have no way to send requests. The official package answers an error, ``fastmcp`` an error
    result; neither asks us anything, and the connection goes on."""
    if peer.name == "official":
        with pytest.raises(PeerError, match="no back-channel"):
            peer.call(tool, **arguments)
    else:
        assert peer.call(tool, **arguments).is_error
    assert peer.text("echo", text="and on") == "and on"
    assert not peer.samplings
    assert not peer.elicitations


# Connections of their own


@pytest.mark.parametrize("name", ["official", "fastmcp"])
async def test_client_with_probe_timeout_zero_still_detects_a_slow_modern_server(name: str, tmp_path: Path) -> None:
    """With no patience at all ``initialize`` follows ``server/discover`` at once; the peers then refuse it."""
    with trio.fail_after(PATIENCE):
        journal = Journal(tmp_path / "journal")
        async with open_stdio(server(name), env=journal.env, probe_timeout=0.0) as client:
            assert client.revision.name == "2026-07-28"
            assert (await client.call_tool("echo", {"text": "hi"})).content[0].text == "hi"


@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_client_supports_older_protocol_revisions(over: str, over_http: HttpServers, tmp_path: Path) -> None:
    async def speak(revision: str) -> None:
        if over == "http":
            opened = open_http(over_http.get("official", server("official")).url, era="legacy", revision=revision)
        else:
            env = Journal(tmp_path / revision).env
            opened = open_stdio(server("official"), env=env, era="legacy", revision=revision)
        async with opened as client:
            assert client.revision.name == revision
            answers[revision] = (await client.call_tool("echo", {"text": revision})).content[0].text

    revisions = ("2024-11-05", "2025-03-26", "2025-06-18")[over == "http" :]  # the first has another HTTP
    answers: dict[str, str] = {}
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for revision in revisions:
                nursery.start_soon(speak, revision)
    assert answers == {revision: revision for revision in revisions}


async def test_client_that_closes_cancels_running_calls_and_ends_the_stdio_server(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with trio.fail_after(PATIENCE):
        async with open_stdio(server("official"), env=journal.env) as client, trio.open_nursery() as nursery:
            hanging = trio.Event()
            nursery.start_soon(lambda: client.call_tool("hang", on_progress=lambda _: hanging.set()))
            await hanging.wait()
            nursery.cancel_scope.cancel()
    assert journal.lines == ["hang began", "hang ended", "server ended"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("name", ["official", "fastmcp"])
async def test_client_that_closes_cancels_running_calls_over_http(
    name: str, era: Literal["legacy", "modern"], over_http: HttpServers
) -> None:
    running = over_http.get(name, server(name))
    before = len(running.journal.lines)
    with trio.fail_after(PATIENCE):
        async with open_http(running.url, era=era) as client, trio.open_nursery() as nursery:
            hanging = trio.Event()
            nursery.start_soon(lambda: client.call_tool("hang", on_progress=lambda _: hanging.set()))
            await hanging.wait()
            nursery.cancel_scope.cancel()
    running.journal.wait_for("hang ended", after=before)
