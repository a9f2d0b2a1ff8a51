"""A trio-mcp server is driven by the client of the TypeScript SDK: 1.x and 2.x in the legacy era, 2.x in the modern.

Each client runs once in a process of its own, with the server `servers/trio_mcp_server.py` as its child, and tells
what it saw step by step; each test reads its part of that report. 1.x still has a transport for WebSocket, and takes
the same steps over it.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.peers.journals import Journal
from tests.peers.reports import Report, steps_in
from tests.peers.websocket.children import listening, our_server

SERVER = Path(__file__).parent.parent / "servers" / "trio_mcp_server.py"
PATIENCE = 60.0
"""Seconds after which something hangs; no measure of speed."""

CLIENTS = [
    ("1", "legacy", "stdio"),
    ("1", "legacy", "websocket"),
    ("1", "legacy", "http"),
    ("2", "legacy", "stdio"),
    ("2", "legacy", "http"),
    ("2", "modern", "stdio"),
    ("2", "modern", "http"),
]
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2026-07-28"]
only_legacy = pytest.mark.parametrize("report", CLIENTS[:5], indirect=True, ids="-".join)
only_modern = pytest.mark.parametrize("report", CLIENTS[5:], indirect=True, ids="-".join)

LIFE = ["lifespan entered", "lifespan left", "server ended"]
LIFE_OF_PROBED = LIFE
"""The client starts a process for nothing but the question for its era, and ends that with SIGTERM at once."""


@attrs.frozen
class Clients:
    """Processes of clients. They mostly wait, so they run beside each other."""

    scripts: Path
    reports: dict[tuple[str, str, str], Future[Report]]
    short: dict[str, Future[tuple[list[Any], Journal]]]

    def run(self, script: str, *arguments: str | Path) -> list[str]:
        # Node 20 hides its WebSocket behind a switch.
        command = ["node", "--experimental-websocket", self.scripts / script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n").split("\n")  # and not at U+2028, which they leave as it is

    def run_long(self, release: str, era: str, over: str, path: Path) -> Report:
        """Take all steps."""
        journal = Journal(path)
        if over == "stdio":
            lines = self.run("client.mjs", release, era, path, sys.executable, SERVER)
        else:
            with listening(our_server(over), journal, "ws" if over == "websocket" else over) as server:
                lines = self.run("client.mjs", release, era, path, server.url)
        return Report(release, era, journal, steps_in(lines), over)

    def run_short(self, how: str, path: Path) -> tuple[list[Any], Journal]:
        """Call one tool; return what the client made of it."""
        journal = Journal(path)
        (line,) = self.run("short_client.mjs", how, path, sys.executable, SERVER)
        return json.loads(line), journal


@pytest.fixture(scope="module")
def clients(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    journals = tmp_path_factory.mktemp("journals")
    with ThreadPoolExecutor(max_workers=4) as pool:
        clients = Clients(scripts, {}, {})
        for how in [*REVISIONS, "hanging", "listening"]:
            clients.short[how] = pool.submit(clients.run_short, how, journals / how)
        for client in CLIENTS:
            clients.reports[client] = pool.submit(clients.run_long, *client, journals / "-".join(client))
        yield clients


@pytest.fixture(params=CLIENTS, ids="-".join)
def report(request: pytest.FixtureRequest, clients: Clients) -> Report:
    return clients.reports[request.param].result()


def error(report: Report, step: str) -> tuple[str, int | str | None]:
    """The words and the code of what a step raised. 1.x puts the code into the words, too."""
    _, code, message, _ = report.error(step)
    return message.removeprefix(f"MCP error {code}: "), code


# Opening and closing


def test_client_of_another_sdk_reads_protocol_revision_and_name_of_a_trio_mcp_server(report: Report) -> None:
    assert report.saw("opening") == {
        "revision": "2025-11-25" if report.is_legacy else "2026-07-28",
        "server": {"name": "ours", "title": "Our server", "version": "1.2.3"},
        "instructions": "Ask away.",
        "capabilities": ["completions", "logging", "prompts", "resources", "tools"],
    }


def test_server_closes_its_lifespan_and_exits_when_the_client_closes(report: Report) -> None:
    assert report.saw("closed")
    is_probed = not report.is_legacy and report.over == "stdio"
    assert report.journal.lines == ([*LIFE_OF_PROBED, *LIFE] if is_probed else LIFE)


@pytest.mark.parametrize("revision", REVISIONS)
def test_client_that_supports_only_one_protocol_revision_is_served_in_that_revision(
    clients: Clients, revision: str
) -> None:
    answer, _ = clients.short[revision].result()
    assert answer == [revision, "hi"]


def test_handler_ends_when_the_client_closes_and_signals_the_server_process(clients: Clients) -> None:
    """After the end of input a server finishes what it accepted. This client waits 2 s for that, then signals."""
    told, journal = clients.short["hanging"].result()
    assert told == ["CONNECTION_CLOSED", "Connection closed"]
    assert journal.lines == [*LIFE_OF_PROBED, *LIFE]


def test_open_listen_stream_ends_before_the_connection_at_shutdown(clients: Clients) -> None:
    """With a cancel, which is a must, and with a result, which should come. The client goes by the first of them,
    for which it has no other word than for a lost connection."""
    told, _ = clients.short["listening"].result()
    assert told == ["remote"]


def test_typescript_client_reports_no_protocol_errors(report: Report) -> None:
    """Except that it forgets a call at its answer, before it has looked at progress that came with it."""
    faults = [fault for fault in report.saw("errors") if "progress notification for an unknown token" not in fault]
    assert faults == []


# Tools


def test_tool_list_of_the_client_contains_the_tools_of_all_pages_with_their_schemas(report: Report) -> None:
    tools = report.saw("tools")
    assert len(tools) == 19  # of which a page has four
    assert tools["echo"]["description"] == "Say it again."
    assert tools["add"]["inputSchema"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert tools["weather"]["outputSchema"]["properties"].keys() == {"city", "celsius"}


@pytest.mark.parametrize("text", ["", "naïve ☕ 𝄞", "line\nbreak\u2028and\x00more", "x" * 300_000], ids=len)
def test_client_receives_the_text_of_a_tool_result_unchanged(report: Report, text: str) -> None:
    assert report.text(f"echo {len(text)}") == text


def test_structured_output_passes_the_schema_validation_of_the_client(report: Report) -> None:
    """Of tools it has listed it checks the output against the schema."""
    assert report.saw("weather")["structuredContent"] == {"city": "Oslo", "celsius": 21.5}
    assert json.loads(report.text("weather")) == {"city": "Oslo", "celsius": 21.5}
    assert report.saw("add")["structuredContent"] == {"result": 5}


def test_tool_result_arrives_with_text_image_audio_and_resource_content(report: Report) -> None:
    kinds = [content["type"] for content in report.saw("exhibits")["content"]]
    assert kinds == ["text", "image", "audio", "resource_link", "resource"]


def test_tool_failure_arrives_as_an_error_result_with_its_text(report: Report) -> None:
    assert report.saw("fail")["isError"]
    assert report.text("fail") == "no luck today"


def test_unexpected_exception_in_a_tool_is_reported_without_details(report: Report) -> None:
    assert report.saw("crash")["isError"]
    assert report.text("crash") == "internal error in tool crash"


def test_call_of_an_unknown_tool_gets_a_protocol_error(report: Report) -> None:
    assert error(report, "unknown tool") == ("Unknown tool: nowhere", -32602)


def test_call_with_invalid_arguments_gets_an_error_result_that_names_the_argument(report: Report) -> None:
    assert report.saw("bad arguments")["isError"]
    assert "$.a" in report.text("bad arguments")


def test_fifty_concurrent_calls_each_get_their_own_result(report: Report) -> None:
    assert report.saw("many") == [str(number) for number in range(50)]


# Resources, prompts, completion


def test_client_lists_resources_resource_templates_and_prompts(report: Report) -> None:
    lists = report.saw("lists")
    assert lists["resources"] == [
        {"uri": "note://motto", "name": "motto", "mimeType": "text/plain"},
        {"uri": "note://dot", "name": "dot", "mimeType": "image/png"},
    ]
    assert lists["templates"] == [{"uriTemplate": "note://by/{author}/{title}", "name": "note_by"}]
    arguments = [{"name": "name", "required": True}, {"name": "tone", "required": False}]
    assert lists["prompts"] == [{"name": "greet", "description": "Words of welcome.", "arguments": arguments}]


def test_client_can_read_text_and_binary_resources_and_resource_templates(report: Report) -> None:
    assert report.saw("text resource") == [
        {"uri": "note://motto", "mimeType": "text/plain", "text": "never late, never lost"}
    ]
    (contents,) = report.saw("bytes resource")
    assert (base64.b64decode(contents["blob"]), contents["mimeType"]) == (b"\x89PNG\x00", "image/png")
    (contents,) = report.saw("template resource")
    assert contents["text"] == "Engines, by Ada"


def test_reading_an_unknown_resource_gets_an_error_with_its_uri(report: Report) -> None:
    """Legacy revisions have -32002 for it, which 2.x shows as the code of the modern one."""
    assert error(report, "unknown resource") == ("Resource not found", -32002 if report.name == "1" else -32602)
    assert report.error("unknown resource")[3] == {"uri": "note://nowhere"}


def test_prompt_messages_have_the_arguments_filled_in(report: Report) -> None:
    assert report.saw("prompt") == [["user", "Greet Bo in a dry tone."]]


def test_request_for_an_unknown_prompt_gets_a_protocol_error(report: Report) -> None:
    assert error(report, "unknown prompt") == ("Unknown prompt: nowhere", -32602)


def test_completion_requests_for_prompt_and_template_arguments_return_values(report: Report) -> None:
    assert report.saw("prompt completion") == ["Ada", "Adele"]
    assert report.saw("template completion") == ["Eng of Ada"]  # with an argument that was settled before


# Progress, logs, changes


def test_progress_values_that_arrive_increase_and_include_the_last_value(report: Report) -> None:
    """Some values are held back by the interval. The last one comes with the answer, and this client forgets the
    call at once when it reads that: its callback may miss what came in the same piece."""
    came, seen = (report.saw("progress")[which] for which in ("came", "seen"))
    numbers = [notification["progress"] for notification in came]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (1, 6)
    assert all(told["total"] == 6 and told["message"] == f"step {told['progress']}" for told in came)
    assert seen in (numbers, numbers[:-1])


ALOUD = ["info", {"said": "aloud"}, "mouth"]
SHOUTED = ["emergency", "shouted", None]


def test_client_receives_log_messages_at_or_above_the_requested_or_default_level(report: Report) -> None:
    """Modern: ``_meta`` of the call says ``info``. Legacy: nothing was said yet, and ``info`` is our default."""
    assert report.saw("logs") == [ALOUD, SHOUTED]


@only_legacy
def test_log_level_set_by_the_client_applies_to_its_connection_in_legacy_revisions(report: Report) -> None:
    assert report.saw("set level") == {}
    assert report.saw("logs above level") == [SHOUTED]


@only_legacy
def test_client_is_notified_of_a_subscribed_resource_and_a_changed_tool_list(report: Report) -> None:
    """At a changed list the client asks for the new one. 1.x asks for its first page only."""
    updated, tools = report.saw("change")
    assert updated == "note://motto"
    assert len(tools) == 4 if report.name == "1" else tools[-1] == "grown"


@only_legacy
def test_unsubscribed_resource_sends_no_more_update_notifications(report: Report) -> None:
    assert report.saw("unsubscribed") == ["an answer"]


@only_modern
def test_server_acknowledges_a_listen_stream_and_sends_the_requested_changes(report: Report) -> None:
    listened = report.saw("listen")
    assert listened["honoured"] == {"toolsListChanged": True, "resourceSubscriptions": ["note://motto"]}
    updated, tools = listened["came"]
    assert (updated, tools[-1]) == ("note://motto", "grown")


@only_modern
def test_listen_stream_closed_by_the_client_sends_no_further_notifications(report: Report) -> None:
    """Neither of a change nor, as it is cancelled, of its own end."""
    assert report.saw("listen")["ended"] == "local"
    assert report.saw("listen")["after"] == []


@only_legacy
def test_ping_from_the_client_gets_a_response(report: Report) -> None:
    assert report.saw("ping") == {}


# Cancelling


@pytest.mark.parametrize("tool", ["hang", "family", "in_thread"])
def test_abort_signal_of_the_client_cancels_the_handler_with_the_abort_reason(report: Report, tool: str) -> None:
    """An async handler, a child task of one that has returned already, and a plain function in a thread. The
    client has no error of its own for an abort: it takes that of a timeout."""
    (code, message), ending = report.saw(tool)
    assert code == (-32001 if report.name == "1" else "REQUEST_TIMEOUT")
    assert message.endswith("enough")
    assert ending == report.ending("enough")


def test_handler_that_swallows_its_cancellation_sends_no_further_messages(report: Report) -> None:
    assert report.saw("stubborn")[1] == report.ending("enough")
    about_it, logs = report.saw("after stubborn")
    assert about_it == ["notifications/progress"]  # the first sign of life, at which the client left
    assert logs == []


def test_client_timeout_cancels_the_handler_with_the_timeout_as_reason(report: Report) -> None:
    assert error(report, "timeout")[0] == "Request timed out"
    cause, _, reason = report.ending("Request timed out").partition(" ")
    assert report.saw("timeout ending").startswith(cause)
    assert report.saw("timeout ending").endswith(reason)


def test_client_receives_no_response_to_a_cancelled_call(report: Report) -> None:
    assert report.saw("late") == []


def test_connection_shared_by_all_tests_still_serves_calls_after_the_last_test(report: Report) -> None:
    assert report.text("still here") == "still here"


# What the server asks


def test_server_gets_a_sampling_result_from_the_client(report: Report) -> None:
    assert report.saw("sampling") == "deep-thought: forty-two"
    assert report.saw("asked")["sampling"] == ["user", "What is it?", 10, "Be brief."]
    assert report.saw("sampling ending") == "not cancelled"


def test_server_gets_a_form_elicitation_result_from_the_client(report: Report) -> None:
    assert report.saw("elicitation") == "accept green"
    form = report.saw("asked")["form"]
    assert form["message"] == "Which colour?"
    assert form["requestedSchema"]["properties"] == {"colour": {"type": "string"}}


def test_server_gets_a_url_elicitation_result_from_the_client(report: Report) -> None:
    assert report.saw("url elicitation") == "accept"
    assert report.saw("asked")["url"] == {
        "mode": "url",
        "message": "Sign in, please.",
        "url": "https://example.com/sign-in",
        **({"elicitationId": "sign-in-1"} if report.is_legacy else {}),
    }


def test_server_gets_the_roots_of_the_client(report: Report) -> None:
    assert report.saw("roots")["structuredContent"] == {"result": ["home: file:///home/pilot"]}


@only_legacy
def test_call_aborted_by_the_client_cancels_its_sampling_request_with_the_reason(report: Report) -> None:
    """The client's own sampling handler was told, and why, before this step returned."""
    assert report.saw("leave asking") == ["enough", "peer: enough"]
