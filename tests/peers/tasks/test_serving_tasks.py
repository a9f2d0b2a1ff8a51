"""Clients of other makes run tasks of 2025-11-25 at a trio-mcp server, over stdio and over HTTP.

Each client takes its steps once, in a process of its own; each test reads its part of what they all saw.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.peers.http_servers import HttpServers
from tests.peers.journals import Journal
from tests.peers.reports import Report
from tests.peers.tasks.makes import Makes

CLIENTS = [(make, over) for make in ("mcp1", "typescript") for over in ("stdio", "http")]
RELATED_TASK = "io.modelcontextprotocol/related-task"

only_stdio = pytest.mark.parametrize("report", CLIENTS[::2], indirect=True, ids="-".join)
only_http = pytest.mark.parametrize("report", CLIENTS[1::2], indirect=True, ids="-".join)
only_typescript = pytest.mark.parametrize("report", CLIENTS[2:], indirect=True, ids="-".join)


@pytest.fixture(scope="module", params=CLIENTS, ids="-".join)
def report(
    request: pytest.FixtureRequest, makes: Makes, over_http: HttpServers, tmp_path_factory: pytest.TempPathFactory
) -> Report:
    make, over = request.param
    ours = makes.server("ours")
    if over == "http":
        running = over_http.get("ours", ours)
        journal, target = running.journal, [running.url]
    else:
        journal, target = Journal(tmp_path_factory.mktemp("tasks") / "journal"), ours
    return Report(make, "legacy", journal, makes.run_client(make, over, target, journal), over)


def text(result: dict[str, Any]) -> str:
    (content,) = result["content"]
    return content["text"]


def related_task(message: dict[str, Any]) -> str:
    return message["_meta"][RELATED_TASK]["taskId"]


# What is offered


def test_server_declares_tasks_list_in_its_tasks_capability_only_over_stdio(report: Report) -> None:
    opening = report.saw("opening")
    declared = opening["capabilities"] if report.name == "mcp1" else opening
    listed = {"list": {}} if report.over == "stdio" else {}  # over HTTP nobody says here who asks
    assert declared["tasks"] == {**listed, "cancel": {}, "requests": {"tools": {"call": {}}}}


def test_tools_list_contains_the_task_support_of_each_tool(report: Report) -> None:
    assert {name: support or "forbidden" for name, support in report.saw("tools").items()} == {
        "work": "optional",
        "ask_user": "optional",
        "ask_model": "optional",
        "fail": "optional",
        "crash": "optional",
        "hang": "required",
        "plain": "forbidden",
        "elicit_as_task": "forbidden",
        "sample_as_task": "forbidden",
    }


# From the creation to the result


def test_new_task_has_status_working_and_the_requested_ttl(report: Report) -> None:
    task = report.saw("work")["created"]["task"]
    assert (task["status"], task["ttl"]) == ("working", 60_000)
    assert task["pollInterval"] > 0
    assert datetime.fromisoformat(task["createdAt"]) <= datetime.fromisoformat(task["lastUpdatedAt"])


def test_polled_task_shows_status_messages_of_its_handler_until_completed(report: Report) -> None:
    seen = report.saw("work")["seen"]
    assert {status for status, _ in seen} == {"working", "completed"}
    assert ["working", "step 1"] in seen
    assert seen[-1][0] == "completed"


def test_tasks_result_returns_the_tool_result_with_related_task_metadata(report: Report) -> None:
    step = report.saw("work")
    assert text(step["result"]) == "3 steps"
    assert related_task(step["result"]) == step["created"]["task"]["taskId"]


@only_typescript
def test_typescript_task_stream_yields_task_created_status_and_result(report: Report) -> None:
    kinds = [kind for kind, _ in report.saw("stream")]
    assert kinds == ["taskCreated", "taskStatus", "result"]
    assert text(report.saw("stream")[-1][1]["result"]) == "1 steps"


def test_progress_token_stays_valid_until_the_task_ends(report: Report) -> None:
    step = report.saw("progress")
    told = [message["params"] for message in step["heard"]]
    assert [progress["progress"] for progress in told] == [1, 2, 3]
    assert {related_task(progress) for progress in told} == {step["task"]}
    if report.name == "typescript":
        assert step["seen"] == [1, 2, 3]


def test_status_notification_is_sent_when_a_task_completes(report: Report) -> None:
    ended = report.saw("statuses")[-1]
    assert (ended["taskId"], ended["status"]) == (report.saw("progress")["task"], "completed")


def test_tool_failure_sets_task_status_failed_and_becomes_the_task_result(report: Report) -> None:
    step = report.saw("fail")
    assert step["seen"][-1][0] == "failed"
    assert (step["result"]["isError"], text(step["result"])) == (True, "no luck today")


def test_error_in_a_task_sets_status_failed_and_is_returned_by_tasks_result(report: Report) -> None:
    assert report.saw("crash seen")[-1][0] == "failed"
    _, code, message, _ = report.error("crash")
    assert (code, message.removeprefix("MCP error -32099: ")) == (-32099, "broken")


# Questions of a task


@pytest.mark.parametrize(("tool", "answer"), [("ask_user", "accept green"), ("ask_model", "deep-thought: forty-two")])
def test_client_that_waits_for_the_task_result_receives_an_elicitation_or_sampling_request_of_the_task(
    report: Report, tool: str, answer: str
) -> None:
    """mcp1 reads nothing while it answers, so that it may never see its task wait."""
    step = report.saw(tool)
    if report.name == "typescript":
        assert "input_required" in [status for status, _ in step["seen"]]
    assert step["seen"][-1][0] == "completed"
    assert text(step["result"]) == answer


@pytest.mark.parametrize("tool", ["ask_user", "ask_model"])
def test_server_sends_each_elicitation_or_sampling_request_of_a_task_once_with_the_task_id(
    report: Report, tool: str
) -> None:
    asked, task_id = report.saw(f"{tool} asked")
    assert [related_task(question) for question in asked] == [task_id]


def test_tool_with_optional_task_support_can_elicit_if_it_runs_without_a_task(report: Report) -> None:
    assert text(report.saw("ask_user without a task")) == "accept green"


@pytest.mark.parametrize(
    ("tool", "answer"), [("elicit_as_task", "accept green"), ("sample_as_task", "deep-thought: forty-two")]
)
def test_client_answers_elicitation_or_sampling_with_a_client_task(report: Report, tool: str, answer: str) -> None:
    assert text(report.saw(tool)) == answer
    (question,) = report.saw(f"{tool} asked")
    assert question["task"] == {"ttl": 60_000}


# Cancelling


def test_cancelled_task_keeps_the_status_cancelled(report: Report) -> None:
    assert report.saw("hang working")["status"] == "working"
    assert report.saw("hang cancelled")["status"] == "cancelled"
    assert report.saw("hang after")["status"] == "cancelled"


def test_task_cancelled_by_the_client_cancels_its_handler(report: Report) -> None:
    assert report.saw("hang cancelled")["status"] == "cancelled"
    report.journal.wait_for("hang ended: task")


@pytest.mark.parametrize("step", ["cancel again", "cancel completed"])
def test_cancelling_an_ended_task_returns_invalid_params(report: Report, step: str) -> None:
    assert report.error(step)[1] == -32602


def test_tasks_result_of_a_cancelled_task_returns_invalid_params(report: Report) -> None:
    assert report.error("hang result")[1] == -32602


# Which tasks there are


@only_stdio
def test_tasks_list_returns_the_tasks_of_the_client_over_stdio(report: Report) -> None:
    assert set(report.saw("listed")) >= {"work", "ask_user", "ask_model", "fail", "crash", "hang"}


@only_http
def test_tasks_list_gets_error_method_not_found_over_http_without_authentication(report: Report) -> None:
    assert report.error("listed")[1] == -32601


@pytest.mark.parametrize("method", ["get", "result", "cancel"])
def test_task_request_for_an_unknown_task_returns_invalid_params(report: Report, method: str) -> None:
    assert report.error(f"{method} unknown")[1] == -32602


def test_task_whose_ttl_has_expired_is_reported_as_unknown_or_failed(report: Report) -> None:
    """A store may forget the task then, or tell for a while that it has failed."""
    if "raised" in report.steps["expired"]:
        assert report.error("expired")[1] == -32602
    else:
        assert report.saw("expired")["status"] == "failed"


# Calls and tasks that do not go together


def test_tool_with_optional_task_support_runs_without_a_task(report: Report) -> None:
    assert text(report.saw("work without a task")) == "1 steps"


def test_tool_that_requires_a_task_returns_method_not_found_without_a_task(report: Report) -> None:
    assert report.error("hang without a task")[1] == -32601


def test_tool_without_task_support_returns_method_not_found_for_a_task_call(report: Report) -> None:
    assert report.error("plain as a task")[1] == -32601


def test_connection_shared_by_all_tests_still_serves_calls_after_the_last_test(report: Report) -> None:
    assert text(report.saw("still here")) == "plain"
