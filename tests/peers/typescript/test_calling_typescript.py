"""trio-mcp's client drives servers written with the TypeScript SDK: 1.x and 2.x in the legacy era, 2.x in the modern.

Over stdio one child per release and era serves all tests of this file, over HTTP one per release serves both eras; each
test talks to the live connection.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tests.peers.conversations import PATIENCE, Conversation, conversation, expire, hang_until
from tests.peers.http_servers import HttpServers
from tests.peers.journals import Journal

from trio_mcp import ConnectionLost, PeerError, Progress, open_http, open_stdio
from trio_mcp.types import Change, ElicitURLParams, PromptReference, ResourceTemplateReference, SubscriptionFilter

PEERS = [
    (release, era, over)
    for release, era in (("1", "legacy"), ("2", "legacy"), ("2", "modern"))
    for over in ("stdio", "http")
]
only_legacy = pytest.mark.parametrize("peer", PEERS[:4], indirect=True, ids="-".join)
only_modern = pytest.mark.parametrize("peer", PEERS[4:], indirect=True, ids="-".join)
only_legacy_http = pytest.mark.parametrize("peer", PEERS[1:4:2], indirect=True, ids="-".join)


def server(scripts: Path, release: str) -> list[str]:
    return ["node", str(scripts / "server.mjs"), release]


@pytest.fixture(scope="module", params=PEERS, ids="-".join)
def peer(
    request: pytest.FixtureRequest, scripts: Path, over_http: HttpServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversation]:
    release, era, over = request.param
    if over == "http":
        running = over_http.get(release, server(scripts, release))
        with conversation(release, era, running.journal, partial(open_http, running.url), over) as talk:
            yield talk
        return
    journal = Journal(tmp_path_factory.mktemp("typescript") / "journal")
    opens = partial(open_stdio, server(scripts, release), env=journal.env)
    with conversation(release, era, journal, opens) as talk:
        yield talk
    # Only a process that was left to end by itself gets here: no signal was needed.
    assert journal.lines[-1] == "server ended"


# Opening


def test_opened_client_knows_protocol_revision_and_name_and_capabilities_of_the_server(peer: Conversation) -> None:
    client = peer.client
    assert client.revision.name == ("2025-11-25" if peer.is_legacy else "2026-07-28")
    assert client.server_info is not None
    assert (client.server_info.name, client.server_info.title) == ("peer", "The peer")
    assert client.instructions == "Ask nicely."
    assert client.server_capabilities.tools is not None
    assert client.server_capabilities.completions is not None


# Tools


def test_list_tools_returns_input_and_output_schemas(peer: Conversation) -> None:
    async def listed() -> dict[str, Any]:
        return {tool.name: tool async for tool in peer.client.list_tools()}

    tools = peer.run(listed)
    assert {"echo", "weather", "fail", "count", "hang"} <= tools.keys()
    assert tools["echo"].description == "Say it again."
    assert tools["count"].input_schema["properties"]["to"]["type"] == "integer"
    assert tools["weather"].output_schema["properties"].keys() == {"city", "celsius"}


@pytest.mark.parametrize("text", ["", "naïve ☕ 𝄞", "line\nbreak\u2028and\x00more", "x" * 300_000], ids=len)
def test_client_receives_the_text_of_a_tool_result_unchanged(peer: Conversation, text: str) -> None:
    assert peer.text("echo", text=text) == text


def test_structured_content_of_a_tool_result_arrives_as_an_object(peer: Conversation) -> None:
    assert peer.call("weather", city="Oslo").structured_content == {"city": "Oslo", "celsius": 21.5}


def test_tool_result_arrives_with_text_image_audio_and_resource_content(peer: Conversation) -> None:
    kinds = [content.type for content in peer.call("exhibits").content]
    assert kinds == ["text", "image", "audio", "resource_link", "resource"]


def test_tool_failure_returns_a_result_with_is_error_and_its_text(peer: Conversation) -> None:
    result = peer.call("fail")
    assert (result.is_error, result.text) == (True, "no luck today")


def test_unknown_tool_gets_an_error_result_from_typescript_1_and_a_protocol_error_from_2(peer: Conversation) -> None:
    """The specification has -32602 for it. 1.x answers with an error result instead; it is shown as it came."""
    if peer.name == "1":
        result = peer.call("nowhere")
        assert (result.is_error, result.text) == (True, "MCP error -32602: Tool nowhere not found")
        return
    with pytest.raises(PeerError, match="Tool nowhere not found") as caught:
        peer.call("nowhere")
    assert caught.value.code == -32602


def test_call_with_invalid_arguments_returns_an_error_result(peer: Conversation) -> None:
    result = peer.call("echo", text=3)
    assert result.is_error
    assert "expected string, received number" in result.text


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


# Resources, prompts, completion


def test_client_lists_resources_and_resource_templates(peer: Conversation) -> None:
    async def listed() -> tuple[set[str], set[str]]:
        resources = {resource.uri async for resource in peer.client.list_resources()}
        return resources, {template.uri_template async for template in peer.client.list_resource_templates()}

    assert peer.run(listed) == ({"note://motto", "note://dot"}, {"note://by/{author}/{title}"})


def test_client_can_read_text_and_binary_resources_and_resource_templates(peer: Conversation) -> None:
    (contents,) = peer.run(peer.client.read_resource, "note://motto").contents
    assert (contents.text, contents.mime_type) == ("never late, never lost", "text/plain")
    (contents,) = peer.run(peer.client.read_resource, "note://dot").contents
    assert (base64.b64decode(contents.blob), contents.mime_type) == (b"\x89PNG\x00", "image/png")
    (contents,) = peer.run(peer.client.read_resource, "note://by/Ada/Engines").contents
    assert contents.text == "Engines, by Ada"


def test_unknown_resource_raises_invalid_params(peer: Conversation) -> None:
    """Legacy revisions have -32002 for it. Both lines say -32602, as modern revisions do, in both eras."""
    with pytest.raises(PeerError) as caught:
        peer.run(peer.client.read_resource, "note://nowhere")
    assert caught.value.code == -32602
    assert caught.value.data == (None if peer.name == "1" else {"uri": "note://nowhere"})


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


def test_unknown_prompt_raises_invalid_params(peer: Conversation) -> None:
    with pytest.raises(PeerError, match="Prompt nowhere not found") as caught:
        peer.run(peer.client.get_prompt, "nowhere")
    assert caught.value.code == -32602


def test_completion_requests_for_prompt_and_template_arguments_return_values(peer: Conversation) -> None:
    async def complete() -> list[str]:
        ref = ResourceTemplateReference("note://by/{author}/{title}")
        return (await peer.client.complete(ref, "title", "Eng", settled={"author": "Ada"})).values

    assert peer.run(peer.client.complete, PromptReference("greet"), "name", "Ad").values == ["Ada", "Adele"]
    assert peer.run(complete) == ["Eng of Ada"]


# Progress, logs, changes


def test_progress_arrives_in_order_and_before_the_result(peer: Conversation) -> None:
    seen: list[Any] = []

    async def count() -> None:
        await peer.client.call_tool("count", {"to": 20}, on_progress=seen.append)
        seen.append("result")

    peer.run(count)
    assert seen == [*(Progress(number, 20, f"step {number}") for number in range(1, 21)), "result"]


def test_log_messages_respect_the_log_level_and_arrive_before_the_result(peer: Conversation) -> None:
    async def chatter() -> list[tuple[str, Any, str | None]]:
        peer.logs.clear()
        assert (await peer.client.call_tool("chatter")).text == "said it all"
        if peer.over == "http" and peer.name == "1":
            await peer.has_logged("shouted")  # on the stream of the session, for which no answer waits
        return [(log.level, log.data, log.logger) for log in peer.logs]

    def said() -> list[tuple[str, Any, str | None]]:
        return peer.run(chatter)

    whispered, aloud, shouted = (
        ("debug", "whispered", None),
        ("info", {"said": "aloud"}, "mouth"),
        ("error", "shouted", None),
    )
    # Before a level was named, legacy servers may send what they like, modern ones nothing.
    assert said() == ([whispered, aloud, shouted] if peer.is_legacy else [])
    peer.run(peer.client.set_log_level, "info")
    assert said() == [aloud, shouted]


@only_legacy
def test_change_notifications_arrive_in_order(peer: Conversation) -> None:
    peer.changes.clear()
    assert peer.text("change") == "changed"
    peer.run(peer.has_heard, "tools", "note://motto")
    assert peer.changes == ["tools", "note://motto"]


@only_legacy
def test_subscribe_and_unsubscribe_requests_reach_the_server(peer: Conversation) -> None:
    before = len(peer.journal.lines)
    peer.run(peer.client.subscribe, "note://motto")
    peer.run(peer.client.unsubscribe, "note://motto")
    assert peer.journal.lines[before:] == [f"resources/{what} note://motto" for what in ("subscribe", "unsubscribe")]


@only_modern
def test_listen_stream_yields_the_requested_changes(peer: Conversation) -> None:
    async def listen() -> tuple[Any, list[Change]]:
        async with peer.client.listen(tools=True, uris=["note://motto"]) as changes:
            await peer.client.call_tool("change")
            return changes.acknowledged, [await anext(changes), await anext(changes)]

    acknowledged, came = peer.run(listen)
    assert acknowledged == SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["note://motto"])
    assert came == [Change("tools"), Change("resource", "note://motto")]


@only_modern
def test_subscribe_delivers_resource_updates_until_unsubscribe(peer: Conversation) -> None:
    async def follow() -> list[list[str]]:
        await peer.client.subscribe("note://motto")
        heard = []
        for leave in (True, False):
            peer.changes.clear()
            await peer.client.call_tool("change")
            if leave:
                await peer.has_heard("note://motto")
            heard.append([told for told in peer.changes if told != "tools"])
            if leave:
                await peer.client.unsubscribe("note://motto")
        return heard

    assert peer.run(follow) == [["note://motto"], []]


def test_ping_from_the_client_gets_a_response(peer: Conversation) -> None:
    peer.run(peer.client.ping)


@only_legacy
def test_ping_from_the_server_gets_an_empty_result(peer: Conversation) -> None:
    assert peer.text("ping_back") == "{}"


# Cancelling


@pytest.mark.parametrize("leave", [trio.CancelScope.cancel, expire], ids=["cancel", "deadline"])
def test_call_that_is_cancelled_or_times_out_triggers_the_abort_signal_of_the_handler(
    peer: Conversation, leave: Callable[[trio.CancelScope], None]
) -> None:
    assert hang_until(peer, leave)


def test_handler_receives_the_cancel_reason_except_over_http_in_the_modern_revision(peer: Conversation) -> None:
    async def leave() -> None:
        with trio.CancelScope() as scope:
            await peer.client.call_tool("explain", on_progress=lambda _: scope.cancel(reason="seen enough"))

    before = len(peer.journal.lines)
    peer.run(leave)
    # Over HTTP a modern client closes the answer, which tells no reason.
    tells = peer.is_legacy or peer.over == "stdio"
    peer.journal.wait_for("told: seen enough" if tells else "told: SdkError: Connection closed", after=before)


def test_client_ignores_progress_that_arrives_for_a_cancelled_call(peer: Conversation) -> None:
    """The specification has no progress after a cancel. 1.x drops it with the answer, 2.x the answer only."""

    async def leave() -> None:
        with trio.CancelScope() as scope:
            await peer.client.call_tool("stubborn", on_progress=lambda _: scope.cancel())

    before, ignored = len(peer.journal.lines), len(peer.ignored.messages)
    peer.run(leave)
    peer.journal.wait_for("stubborn ended", after=before)
    # Messages keep their order, so what was to come for the cancelled call is here before this answer. Over HTTP that
    # holds for each stream alone, and modern streams are closed already.
    assert peer.text("echo", text="still here") == "still here"
    late = ["progress" in message for message in peer.ignored.messages[ignored:]]
    if peer.name == "1" or (peer.over == "http" and not peer.is_legacy):
        assert late == []
    else:
        assert late == [True] or (peer.over == "http" and late == [])


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
        return (await peer.client.call_tool("come_back", on_progress=lambda told: seen.append(told.progress))).text

    assert peer.run(come_back) == "welcome back"
    assert seen == [1, 2]


@only_legacy_http
def test_client_reconnects_if_the_server_closes_the_get_stream_for_change_notifications(
    peer: Conversation,
) -> None:
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
    result = peer.call("ask_model", question="rude")
    assert result.is_error
    assert "the user said no" in result.text


@only_legacy
def test_client_handler_answers_a_form_elicitation(peer: Conversation) -> None:
    assert peer.text("ask_user", message="Which colour?") == "accept green"
    params = peer.elicitations[-1]
    assert params.message == "Which colour?"
    assert params.requested_schema["properties"]["colour"]["type"] == "string"


@only_legacy
def test_client_handler_answers_a_url_elicitation(peer: Conversation) -> None:
    assert peer.text("send_user", url="https://example.com/sign-in") == "accept"
    assert peer.visits[-1] == ElicitURLParams("Sign in, please.", "https://example.com/sign-in", "sign-in-1")


@only_legacy
def test_roots_request_is_answered_and_roots_changes_are_notified(peer: Conversation) -> None:
    assert peer.text("show_roots") == "file:///home/pilot"
    peer.run(peer.client.roots_changed)
    peer.journal.wait_for("roots changed")


@only_legacy
def test_cancelled_call_cancels_the_sampling_request_of_its_handler(peer: Conversation) -> None:
    """The SDK leaves it to the handler to hand the signal of its request on; this one does."""

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.client.call_tool, "ask_model", {"question": "never"})
            await peer.never_asked.wait()
            nursery.cancel_scope.cancel()
        await peer.never_cancelled.wait()

    before = len(peer.journal.lines)
    peer.run(ask)
    peer.journal.wait_for("ask_model ended", after=before)


@only_legacy
def test_sampling_handler_of_the_client_is_cancelled_if_the_server_stops_waiting(peer: Conversation) -> None:
    async def ask() -> str:
        peer.never_cancelled = trio.Event()
        text = (await peer.client.call_tool("ask_in_haste")).text
        await peer.never_cancelled.wait()
        return text

    assert "timed out" in peer.run(ask)


@only_modern
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("ask_model", {"question": "?"}), ("ask_user", {"message": "?"}), ("show_roots", {}), ("ping_back", {})],
    ids=["sampling", "elicitation", "roots", "ping"],
)
def test_server_request_in_a_modern_revision_fails_only_the_call_whose_handler_sends_the_request(
    peer: Conversation, tool: str, arguments: dict[str, Any]
) -> None:
    """Modern servers have no way to send requests; the SDK does not let them out, and the connection goes on."""
    assert peer.call(tool, **arguments).is_error
    assert peer.text("echo", text="and on") == "and on"
    assert not peer.samplings
    assert not peer.elicitations


# Connections of their own


@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("release", ["1", "2"])
async def test_client_detects_whether_the_server_uses_a_legacy_or_modern_revision(
    scripts: Path, over_http: HttpServers, tmp_path: Path, release: str, over: str
) -> None:
    command = server(scripts, release)
    with trio.fail_after(PATIENCE):
        if over == "http":
            opened = open_http(over_http.get(release, command).url)
        else:
            opened = open_stdio(command, env=Journal(tmp_path / "journal").env)
        async with opened as client:
            assert client.revision.name == ("2025-11-25" if release == "1" else "2026-07-28")
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("release", ["1", "2"])
async def test_client_supports_older_protocol_revisions(
    scripts: Path, over_http: HttpServers, tmp_path: Path, release: str, over: str
) -> None:
    command = server(scripts, release)

    async def speak(revision: str) -> None:
        if over == "http":
            opened = open_http(over_http.get(release, command).url, era="legacy", revision=revision)
        else:
            opened = open_stdio(command, env=Journal(tmp_path / revision).env, era="legacy", revision=revision)
        async with opened as client:
            assert client.revision.name == revision
            answers[revision] = (await client.call_tool("echo", {"text": revision})).text

    revisions = ("2024-11-05", "2025-03-26", "2025-06-18")[over == "http" :]  # the first has another HTTP
    answers: dict[str, str] = {}
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for revision in revisions:
                nursery.start_soon(speak, revision)
    assert answers == {revision: revision for revision in revisions}


@pytest.mark.parametrize("release", ["1", "2"])
async def test_client_that_closes_cancels_running_calls_and_ends_the_stdio_server(
    scripts: Path, tmp_path: Path, release: str
) -> None:
    journal = Journal(tmp_path / "journal")
    with trio.fail_after(PATIENCE):
        async with open_stdio(server(scripts, release), env=journal.env) as client, trio.open_nursery() as nursery:
            hanging = trio.Event()
            nursery.start_soon(lambda: client.call_tool("hang", on_progress=lambda _: hanging.set()))
            await hanging.wait()
            nursery.cancel_scope.cancel()
    assert journal.lines == ["hang began", "hang ended", "server ended"]


@pytest.mark.parametrize(("release", "era"), [("1", "legacy"), ("2", "legacy"), ("2", "modern")])
async def test_client_that_closes_cancels_running_calls_over_http(
    scripts: Path, over_http: HttpServers, release: str, era: Literal["legacy", "modern"]
) -> None:
    running = over_http.get(release, server(scripts, release))
    before = len(running.journal.lines)
    with trio.fail_after(PATIENCE):
        async with open_http(running.url, era=era) as client, trio.open_nursery() as nursery:
            hanging = trio.Event()
            nursery.start_soon(lambda: client.call_tool("hang", on_progress=lambda _: hanging.set()))
            await hanging.wait()
            nursery.cancel_scope.cancel()
    running.journal.wait_for("hang ended", after=before)


async def test_server_shutdown_ends_listen_streams_before_the_connection(scripts: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with trio.fail_after(PATIENCE):
        async with open_stdio(server(scripts, "2"), env=journal.env) as client, client.listen(tools=True) as changes:
            assert (await client.call_tool("retire")).text == "goodbye"
            assert [change async for change in changes] == []
            with pytest.raises(ConnectionLost, match="exit status 0"):
                await client.until_lost()
    assert journal.lines == ["server ended"]


async def test_server_crash_raises_connection_lost_with_exit_status_and_stderr(scripts: Path, tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with open_stdio(server(scripts, "2"), env=Journal(tmp_path / "journal").env) as client:
            with pytest.raises(ConnectionLost) as caught:
                await client.call_tool("die")
    assert (caught.value.exit_status, caught.value.stderr) == (3, ("out of luck",))


async def test_text_printed_to_stdout_between_messages_is_skipped(scripts: Path, tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with open_stdio(server(scripts, "2"), env=Journal(tmp_path / "journal").env) as client:
            assert (await client.call_tool("babble")).text == "and on"
