"""A trio-mcp server is driven over WebSocket by the client of ``mcp`` 1.30.0 with its `websocket_client`.

The client takes its steps once, in a process of its own, against `servers/trio_mcp_server.py` in another; each test
reads its part of what it saw. 1.30 knows legacy revisions only.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE
from tests.peers.journals import Journal
from tests.peers.reports import Report, steps_in
from tests.peers.websocket.children import HERE, Listening, environment, listening, our_server

from trio_mcp import open_websocket


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(our_server(), Journal(tmp_path_factory.mktemp("mcp1") / "journal")) as child:
        yield child


def client(python: Path, what: str, server: Listening) -> list[str]:
    return [str(python), "-W", "ignore", str(HERE / "mcp1_client.py"), what, server.url]


@pytest.fixture(scope="module")
def report(peer_python: Path, server: Listening) -> Report:
    done = subprocess.run(
        client(peer_python, "all", server),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment(server.journal),
    )
    assert done.returncode == 0, done.stderr
    return Report("mcp1", "legacy", server.journal, steps_in(done.stdout.splitlines()))


# Opening


def test_client_of_another_sdk_reads_protocol_revision_and_name_of_a_trio_mcp_server(report: Report) -> None:
    opening = report.saw("opening")
    assert opening["protocolVersion"] == "2025-11-25"
    assert opening["serverInfo"] == {"name": "ours", "title": "Our server", "version": "1.2.3"}
    assert opening["instructions"] == "Ask away."
    assert sorted(opening["capabilities"]) == ["completions", "logging", "prompts", "resources", "tools"]


# Tools, resources, prompts


def test_tool_list_of_the_client_contains_the_tools_of_all_pages_with_their_schemas(report: Report) -> None:
    tools = report.saw("tools")
    assert len(tools) == 19  # of which a page has four
    assert tools["add"]["inputSchema"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert tools["weather"]["outputSchema"]["properties"].keys() == {"city", "celsius"}


@pytest.mark.parametrize("text", ["", "naïve ☕ 𝄞", "line\nbreak\u2028and\x00more", "x" * 300_000], ids=len)
def test_client_receives_the_text_of_a_tool_result_unchanged(report: Report, text: str) -> None:
    assert report.text(f"echo {len(text)}") == text


def test_structured_output_passes_the_schema_validation_of_the_client(report: Report) -> None:
    assert report.saw("weather")["structuredContent"] == {"city": "Oslo", "celsius": 21.5}
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
    assert report.error("unknown tool")[2] == "Unknown tool: nowhere"


def test_call_with_invalid_arguments_gets_an_error_result_that_names_the_argument(report: Report) -> None:
    assert report.saw("bad arguments")["isError"]
    assert "$.a" in report.text("bad arguments")


def test_fifty_concurrent_calls_each_get_their_own_result(report: Report) -> None:
    assert report.saw("many") == [str(number) for number in range(50)]


def test_client_can_read_a_resource_and_a_prompt_and_gets_an_error_for_an_unknown_resource(report: Report) -> None:
    assert report.saw("resource") == [
        {"uri": "note://motto", "mimeType": "text/plain", "text": "never late, never lost"}
    ]
    assert report.error("unknown resource")[2] == "Resource not found"
    assert report.saw("prompt") == [["user", "Greet Bo in a dry tone."]]


# Progress, logs, changes


def test_progress_values_that_arrive_increase_and_include_the_last_value(report: Report) -> None:
    """Some values are held back by the interval."""
    seen = report.saw("progress")
    numbers = [number for number, _, _ in seen]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], seen[-1]) == (1, [6, 6, "step 6"])


def test_client_receives_log_messages_at_the_default_level_and_then_at_the_requested_level(report: Report) -> None:
    shouted = ["emergency", "shouted", None]
    assert report.saw("logs") == [["info", {"said": "aloud"}, "mouth"], shouted]
    assert report.saw("set level") is None
    assert report.saw("logs above level") == [shouted]


def test_client_is_notified_of_a_subscribed_resource_and_a_changed_tool_list(report: Report) -> None:
    assert report.saw("change") == ["notifications/resources/updated", "notifications/tools/list_changed", "grown"]


def test_ping_from_the_client_gets_a_response(report: Report) -> None:
    assert report.saw("ping") is None


# Cancelling


@pytest.mark.parametrize("tool", ["hang", "family", "in_thread"])
def test_handler_of_a_cancelled_call_knows_that_the_client_cancelled_the_call(report: Report, tool: str) -> None:
    """An async handler, a child task of one that has returned already, and a plain function in a thread."""
    assert report.saw(tool) == [True, "peer: caller cancelled"]


def test_handler_that_swallows_its_cancellation_sends_no_further_messages(report: Report) -> None:
    first_sign_of_life = ["notifications/progress"]  # at which the client left
    assert report.saw("stubborn") == [True, "peer: caller cancelled", first_sign_of_life]


def test_handler_ends_after_the_client_times_out_and_sends_a_cancel(report: Report) -> None:
    assert report.error("timeout")[2].startswith("Timed out while waiting for response")
    assert report.saw("timeout ending") == "peer: caller cancelled"


def test_client_receives_no_response_to_a_cancelled_call(report: Report) -> None:
    assert report.saw("late") == []


def test_connection_shared_by_all_tests_still_serves_calls_after_the_last_test(report: Report) -> None:
    assert report.text("still here") == "still here"


# What the server asks


def test_server_gets_a_sampling_result_from_the_client(report: Report) -> None:
    assert report.text("sampling") == "deep-thought: forty-two"
    assert report.saw("asked")["sampling"] == ["user", "What is it?", 10, "Be brief."]
    assert report.saw("sampling ending") == "not cancelled"


def test_server_gets_a_form_elicitation_result_from_the_client(report: Report) -> None:
    assert report.text("elicitation") == "accept green"
    question = report.saw("asked")["elicitation"]
    assert (question["mode"], question["message"]) == ("form", "Which colour?")


def test_server_gets_a_url_elicitation_result_from_the_client(report: Report) -> None:
    assert report.text("url elicitation") == "accept"
    assert report.saw("url asked")["url"] == "https://example.com/sign-in"


def test_server_gets_the_roots_of_the_client(report: Report) -> None:
    assert report.saw("roots")["structuredContent"] == {"result": ["home: file:///home/pilot"]}


def test_handler_of_a_call_that_is_cancelled_during_a_sampling_request_ends(report: Report) -> None:
    assert report.saw("leave asking") == [True, "peer: caller cancelled"]


# The end


async def test_handlers_have_cancel_cause_disconnect_if_the_client_closes_the_websocket_during_calls(
    report: Report, server: Listening
) -> None:
    assert report.saw("closed") == [1000, ""]
    with trio.fail_after(PATIENCE):
        async with open_websocket(server.url) as bystander:
            ended = (await bystander.call_tool("ending_of", {"tool": "hang"})).text
    assert ended == "disconnect: the peer closed the connection (close code 1000)"


def test_websocket_server_that_shuts_down_finishes_accepted_calls_and_closes_with_1001(
    peer_python: Path, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    with (
        listening(our_server(), journal) as server,
        subprocess.Popen(
            client(peer_python, "farewell", server),
            stdout=subprocess.PIPE,
            text=True,
            env=environment(journal),
        ) as process,
    ):
        try:
            lines = [next(process.stdout), next(process.stdout)]
            assert json.loads(lines[-1])["step"] == "under way"
            assert server.end() == 0
            lines += process.communicate(timeout=PATIENCE)[0].splitlines()
        finally:
            process.kill()
    report = Report("mcp1", "legacy", journal, steps_in(lines))
    assert report.text("count") == "6"
    assert report.saw("closed by the server") == [1001, "the server is shutting down"]
    assert process.returncode == 0
    assert journal.lines == ["lifespan entered", "lifespan left", "server ended"]
