"""A trio-mcp server is driven by the clients of people's real software, in both eras.

Each client runs once per era, in a process of its own, and the server as its child in turn. It tells what it saw
step by step; each test reads its part of that report. Both clients take the same steps against the server
`servers/trio_mcp_server.py`.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.peers.journals import Journal
from tests.peers.reports import Report, steps_in
from tests.peers.websocket.children import listening, our_server

HERE = Path(__file__).parent
CONVERSATION = 3 * PATIENCE
"""Seconds that all steps of a client may take together."""


CLIENTS = [
    pytest.param((name, era, over), id=f"{name}-{era}-{over}")
    for over in ("stdio", "http")
    for name in ("official", "fastmcp")
    for era in ("legacy", "modern")
]
only_legacy = pytest.mark.parametrize("report", CLIENTS[0::2], indirect=True)
only_fastmcp = pytest.mark.parametrize("report", [*CLIENTS[2:4], *CLIENTS[6:8]], indirect=True)


@pytest.fixture(scope="module", params=CLIENTS)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    name, era, over = request.param
    return report_of(name, era, tmp_path_factory.mktemp(name) / era, over)


def report_of(name: str, era: str, path: Path, over: str = "stdio") -> Report:
    client = [sys.executable, "-W", "ignore", HERE / "clients" / f"{name}_client.py", era, path]
    if over == "stdio":
        lines = lines_of([*client, sys.executable, HERE / "servers" / "trio_mcp_server.py"])
    else:
        with listening(our_server(over), Journal(path), "http") as server:
            lines = lines_of([*client, server.url])
            server.end()
    return Report(name, era, Journal(path), steps_in(lines), over)


def lines_of(command: list[str | Path]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=CONVERSATION, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# Opening and closing


def test_client_of_another_sdk_reads_protocol_revision_and_name_of_a_trio_mcp_server(report: Report) -> None:
    assert report.saw("opening") == {
        "revision": "2025-11-25" if report.is_legacy else "2026-07-28",
        "server": {"name": "ours", "title": "Our server", "version": "1.2.3"},
        "instructions": "Ask away.",
        "capabilities": ["completions", "logging", "prompts", "resources", "tools"],
    }


def test_server_leaves_its_lifespan_when_the_client_closes_or_a_signal_ends_the_http_server(report: Report) -> None:
    assert report.saw("closed")
    assert report.journal.lines == ["lifespan entered", "lifespan left", "server ended"]


@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("name", ["official", "fastmcp"])
def test_server_serves_a_client_that_supports_only_the_modern_revision_without_a_handshake(
    name: str, over: str, tmp_path: Path
) -> None:
    report = report_of(name, "pinned", tmp_path / "journal", over)
    assert report.saw("opening")["revision"] == "2026-07-28"
    assert report.saw("weather")["structuredContent"] == {"city": "Oslo", "celsius": 21.5}
    assert report.saw("hang") == [True, report.ending("caller cancelled")]
    assert report.saw("late") == []


# Tools


def test_tool_list_of_the_client_contains_the_tools_of_all_pages_with_their_schemas(report: Report) -> None:
    tools = report.saw("tools")
    assert len(tools) == 19  # of which a page has four
    assert tools["echo"]["description"] == "Say it again."
    assert tools["add"]["inputSchema"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert tools["add"]["inputSchema"]["required"] == ["a", "b"]
    assert tools["weather"]["outputSchema"]["properties"].keys() == {"city", "celsius"}


@pytest.mark.parametrize("text", ["", "naïve ☕ 𝄞", "line\nbreak\u2028and\x00more", "x" * 300_000], ids=len)
def test_client_receives_the_text_of_a_tool_result_unchanged(report: Report, text: str) -> None:
    assert report.text(f"echo {len(text)}") == text


def test_tool_that_returns_a_class_instance_has_an_object_as_structured_content(report: Report) -> None:
    result = report.saw("weather")
    assert result["structuredContent"] == {"city": "Oslo", "celsius": 21.5}
    assert json.loads(report.text("weather")) == result["structuredContent"]


def test_tool_that_returns_a_number_has_an_object_with_key_result_as_structured_content(report: Report) -> None:
    assert report.saw("add")["structuredContent"] == {"result": 5}
    assert report.text("add") == "5"


@only_fastmcp
def test_fastmcp_client_creates_result_objects_from_the_output_schema(report: Report) -> None:
    assert report.saw("weather data") == {"city": "Oslo", "celsius": 21.5}


def test_tool_result_arrives_with_text_image_audio_and_resource_content(report: Report) -> None:
    kinds = [content["type"] for content in report.saw("exhibits")["content"]]
    assert kinds == ["text", "image", "audio", "resource_link", "resource"]


def test_tool_failure_arrives_as_an_error_result_with_its_text(report: Report) -> None:
    assert report.saw("fail")["isError"]
    assert report.text("fail") == "no luck today"


@only_fastmcp
def test_fastmcp_client_raises_tool_error_with_the_text_of_the_failure(report: Report) -> None:
    assert report.error("fail raised") == ("ToolError", None, "no luck today", None)


def test_unexpected_exception_in_a_tool_is_reported_without_details(report: Report) -> None:
    assert report.saw("crash")["isError"]
    assert report.text("crash") == "internal error in tool crash"


def test_call_of_an_unknown_tool_gets_a_protocol_error(report: Report) -> None:
    assert report.error("unknown tool") == ("MCPError", -32602, "Unknown tool: nowhere", None)


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


def test_read_resource_returns_text_and_mime_type(report: Report) -> None:
    (contents,) = report.saw("text resource")
    assert contents == {"uri": "note://motto", "mimeType": "text/plain", "text": "never late, never lost"}


def test_read_resource_returns_binary_data_unchanged(report: Report) -> None:
    (contents,) = report.saw("bytes resource")
    assert (base64.b64decode(contents["blob"]), contents["mimeType"]) == (b"\x89PNG\x00", "image/png")


def test_read_resource_fills_in_a_uri_template(report: Report) -> None:
    (contents,) = report.saw("template resource")
    assert contents["text"] == "Engines, by Ada"


def test_unknown_resource_error_code_depends_on_the_protocol_revision(report: Report) -> None:
    code = -32002 if report.is_legacy else -32602
    assert report.error("unknown resource") == ("MCPError", code, "Resource not found", {"uri": "note://nowhere"})


def test_prompt_messages_have_the_arguments_filled_in(report: Report) -> None:
    assert report.saw("prompt") == [["user", "Greet Bo in a dry tone."]]


def test_request_for_an_unknown_prompt_gets_a_protocol_error(report: Report) -> None:
    assert report.error("unknown prompt") == ("MCPError", -32602, "Unknown prompt: nowhere", None)


def test_completion_of_a_prompt_argument_returns_matching_values(report: Report) -> None:
    assert report.saw("prompt completion") == ["Ada", "Adele"]


def test_completion_handler_receives_previously_resolved_arguments(report: Report) -> None:
    assert report.saw("template completion") == ["Eng of Ada"]


# Progress, logs, changes


def test_progress_values_that_arrive_increase_and_include_the_last_value(report: Report) -> None:
    """Some values are held back by the interval. The clients start a task for each notification and keep their
    order all the same."""
    seen = report.saw("progress")
    numbers = [number for number, _, _ in seen]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], seen[-1]) == (1, [6, 6, "step 6"])
    assert all(total == 6 and message == f"step {number:g}" for number, total, message in seen)


WHISPERED = ["debug", "whispered", None]
ALOUD = ["info", {"said": "aloud"}, "mouth"]
SHOUTED = ["emergency", "shouted", None]


def test_client_receives_log_messages_at_or_above_the_requested_or_default_level(report: Report) -> None:
    """Modern: the official client was opened with ``info``, ``fastmcp`` always asks for ``debug``. Legacy:
    neither has said anything yet, and ``info`` is our default."""
    asks_for_all = report.name == "fastmcp" and not report.is_legacy
    assert report.saw("logs") == ([WHISPERED, ALOUD, SHOUTED] if asks_for_all else [ALOUD, SHOUTED])


@only_legacy
def test_log_level_set_by_the_client_applies_to_its_connection_in_legacy_revisions(report: Report) -> None:
    assert report.saw("set level") is None
    assert report.saw("logs above level") == [SHOUTED]


@only_legacy
def test_client_is_notified_of_a_subscribed_resource_and_a_changed_tool_list(report: Report) -> None:
    changes = ["notifications/resources/updated", "notifications/tools/list_changed"]
    assert report.saw("change") == [*changes, "grown"]


@pytest.mark.parametrize("report", [CLIENTS[1], CLIENTS[5]], indirect=True)
def test_server_acknowledges_a_listen_stream_and_sends_the_requested_changes(report: Report) -> None:
    acknowledged, came = report.saw("listen")
    assert acknowledged == {"toolsListChanged": True, "resourceSubscriptions": ["note://motto"]}
    assert came == [["ResourceUpdated", "note://motto"], ["ToolsListChanged", None]]


@only_legacy
def test_ping_from_the_client_gets_a_response(report: Report) -> None:
    assert report.saw("ping") is None


# Cancelling


@pytest.mark.parametrize("tool", ["hang", "family", "in_thread"])
def test_cancelled_call_cancels_the_handler_with_the_reason(report: Report, tool: str) -> None:
    """An async handler, a child task of one that has returned already, and a plain function in a thread."""
    assert report.saw(tool) == [True, report.ending("caller cancelled")]


def test_handler_that_swallows_its_cancellation_sends_no_further_messages(report: Report) -> None:
    left, how, notified, late = report.saw("stubborn")
    assert (left, how) == (True, report.ending("caller cancelled"))
    assert notified == ["notifications/progress"]  # the first sign of life, at which the client left
    assert late == []


def test_client_timeout_cancels_the_handler_with_the_timeout_as_reason(report: Report) -> None:
    assert report.error("timeout")[1] == -32001
    assert report.text("timeout ending") == report.ending("timed out after 1.0s")


def test_client_receives_no_response_to_a_cancelled_call(report: Report) -> None:
    assert report.saw("late") == []


def test_connection_shared_by_all_tests_still_serves_calls_after_the_last_test(report: Report) -> None:
    assert report.text("still here") == "still here"


# What the server asks


def test_server_gets_a_sampling_result_from_the_client(report: Report) -> None:
    model = "deep-thought" if report.name == "official" else "fastmcp-slim"
    assert report.text("sampling") == f"{model}: forty-two"
    assert report.saw("asked")["sampling"] == ["user", "What is it?", 10, "Be brief."]
    assert report.text("sampling ending") == "not cancelled"


def test_server_gets_a_form_elicitation_result_from_the_client(report: Report) -> None:
    assert report.text("elicitation") == "accept green"
    question = report.saw("asked")["elicitation"]
    assert (question["mode"], question["message"]) == ("form", "Which colour?")
    assert question["requestedSchema"]["properties"] == {"colour": {"type": "string"}}


def test_server_gets_a_url_elicitation_result_from_the_client(report: Report) -> None:
    assert report.text("url elicitation") == "accept"
    assert report.saw("url asked") == {
        "mode": "url",
        "message": "Sign in, please.",
        "url": "https://example.com/sign-in",
        **({"elicitationId": "sign-in-1"} if report.is_legacy else {}),
    }


def test_server_gets_the_roots_of_the_client(report: Report) -> None:
    assert report.saw("roots")["structuredContent"] == {"result": ["home: file:///home/pilot"]}


@only_legacy
def test_cancelled_call_cancels_the_sampling_request_to_the_client(report: Report) -> None:
    """The client's own sampling callback was cancelled before this step returned."""
    assert report.saw("leave asking") == "peer: caller cancelled"
