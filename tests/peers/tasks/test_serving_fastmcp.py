"""fastmcp's client runs tasks of the extension at a trio-mcp server, over stdio and over HTTP.

The client takes its steps once, in a process of its own; each test reads its part of what it saw.
"""

from __future__ import annotations

import pytest
from tests.peers.http_servers import HttpServers
from tests.peers.journals import Journal
from tests.peers.reports import Report
from tests.peers.tasks.makes import Makes

FORM = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


@pytest.fixture(scope="module", params=["stdio", "http"])
def report(
    request: pytest.FixtureRequest, makes: Makes, over_http: HttpServers, tmp_path_factory: pytest.TempPathFactory
) -> Report:
    over, ours = request.param, makes.server("ours")
    if over == "http":
        running = over_http.get("ours", ours)
        journal, target = running.journal, [running.url]
    else:
        journal, target = Journal(tmp_path_factory.mktemp("tasks") / "journal"), ours
    return Report("fastmcp", "modern", journal, makes.run_client("fastmcp", over, target, journal), over)


# Calls, of which the client does not say that they are tasks


def test_fastmcp_client_gets_the_result_of_a_call_that_runs_as_a_task(report: Report) -> None:
    assert report.text("work") == "3 steps"


def test_elicitation_from_a_task_calls_the_handler_of_the_fastmcp_client(report: Report) -> None:
    assert report.text("ask_user") == "accept green"
    assert report.saw("asked") == [{"mode": "form", "message": "Which colour?", "requestedSchema": FORM}]


def test_fastmcp_client_gets_a_tool_failure_as_the_task_result(report: Report) -> None:
    assert (report.saw("fail")["isError"], report.text("fail")) == (True, "no luck today")


def test_fastmcp_client_gets_an_error_in_a_task_as_a_tool_failure(report: Report) -> None:
    """The client makes a failure of a tool of it."""
    assert (report.saw("crash")["isError"], report.text("crash")) == (True, "broken")


def test_tool_without_task_support_returns_its_result_instead_of_a_task(report: Report) -> None:
    assert report.text("plain") == "plain"
    assert report.error("plain as a task")[0] == "ToolError"


# Tasks in the hands of the caller


def test_new_task_has_status_working_with_ttl_and_poll_interval(report: Report) -> None:
    task = report.saw("work started")
    assert (task["resultType"], task["status"]) == ("task", "working")
    assert task["ttlMs"] > 0
    assert task["pollIntervalMs"] > 0


def test_task_reports_the_last_status_message_and_the_result_when_completed(report: Report) -> None:
    assert report.saw("work under way")["status"] == "working"
    assert "result" not in report.saw("work under way")
    ended = report.saw("work ended")
    assert (ended["status"], ended["statusMessage"]) == ("completed", "step 5")
    assert ended["result"]["content"] == [{"type": "text", "text": "5 steps"}]
    assert report.saw("work result") == "5 steps"


def test_task_that_waits_for_an_elicitation_continues_with_the_answer(report: Report) -> None:
    asks = report.saw("ask_user asks")
    assert asks["status"] == "input_required"
    (question,) = asks["inputRequests"].values()
    assert (question["method"], question["params"]["requestedSchema"]) == ("elicitation/create", FORM)
    assert report.saw("ask_user result") == "accept green"


def test_failed_task_contains_code_message_and_data_of_the_error(report: Report) -> None:
    ended = report.saw("crash ended")
    assert ended["status"] == "failed"
    assert ended["error"] == {"code": -32099, "message": "broken", "data": {"part": "spring"}}


def test_handler_of_a_cancelled_task_is_cancelled(report: Report) -> None:
    assert report.saw("hang cancel") is None
    assert report.saw("hang cancelled")["status"] == "cancelled"
    report.journal.wait_for("hang ended: task")


def test_cancelled_task_can_be_cancelled_again_without_an_error(report: Report) -> None:
    assert report.saw("hang cancel again") is None
    assert report.error("hang result")[2].endswith("was cancelled")


def test_fastmcp_client_gets_invalid_params_for_an_unknown_task(report: Report) -> None:
    assert report.error("unknown")[1] == -32602


def test_connection_shared_by_all_tests_still_serves_calls_after_the_last_test(report: Report) -> None:
    assert report.text("still here") == "plain"
