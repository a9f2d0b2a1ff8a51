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


def test_capability_of_tasks_is_declared(report: Report) -> None:
    opening = report.saw("opening")
    declared = opening["capabilities"] if report.name == "mcp1" else opening
    listed = {"list": {}} if report.over == "stdio" else {}  # over HTTP nobody says here who asks
    assert declared["tasks"] == {**listed, "cancel": {}, "requests": {"tools": {"call": {}}}}


def test_tools_say_whether_they_run_as_tasks(report: Report) -> None:
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


def test_task_is_created_at_work_with_the_time_to_live_that_was_asked_for(report: Report) -> None:
    task = report.saw("work")["created"]["task"]
    assert (task["status"], task["ttl"]) == ("working", 60_000)
    assert task["pollInterval"] > 0
    assert datetime.fromisoformat(task["createdAt"]) <= datetime.fromisoformat(task["lastUpdatedAt"])


def test_polling_shows_the_words_of_the_handler_and_the_end(report: Report) -> None:
    seen = report.saw("work")["seen"]
    assert {status for status, _ in seen} == {"working", "completed"}
    assert ["working", "step 1"] in seen
    assert seen[-1][0] == "completed"


def test_result_is_that_of_the_call_with_the_task_it_is_of(report: Report) -> None:
    step = report.saw("work")
    assert text(step["result"]) == "3 steps"
    assert related_task(step["result"]) == step["created"]["task"]["taskId"]


@only_typescript
def test_stream_of_the_sdk_goes_from_the_task_over_its_statuses_to_the_result(report: Report) -> None:
    kinds = [kind for kind, _ in report.saw("stream")]
    assert kinds == ["taskCreated", "taskStatus", "result"]
    assert text(report.saw("stream")[-1][1]["result"]) == "1 steps"


def test_progress_token_of_the_call_is_good_until_the_task_ends(report: Report) -> None:
    step = report.saw("progress")
    told = [message["params"] for message in step["heard"]]
    assert [progress["progress"] for progress in told] == [1, 2, 3]
    assert {related_task(progress) for progress in told} == {step["task"]}
    if report.name == "typescript":
        assert step["seen"] == [1, 2, 3]


def test_end_of_a_task_is_told_without_being_asked_for(report: Report) -> None:
    ended = report.saw("statuses")[-1]
    assert (ended["taskId"], ended["status"]) == (report.saw("progress")["task"], "completed")


def test_failure_of_a_tool_is_a_failed_task_with_the_result_of_the_tool(report: Report) -> None:
    step = report.saw("fail")
    assert step["seen"][-1][0] == "failed"
    assert (step["result"]["isError"], text(step["result"])) == (True, "no luck today")


def test_error_of_the_call_is_a_failed_task_whose_result_is_the_error(report: Report) -> None:
    assert report.saw("crash seen")[-1][0] == "failed"
    _, code, message, _ = report.error("crash")
    assert (code, message.removeprefix("MCP error -32099: ")) == (-32099, "broken")


# Questions of a task


@pytest.mark.parametrize(("tool", "answer"), [("ask_user", "accept green"), ("ask_model", "deep-thought: forty-two")])
def test_question_of_a_task_comes_to_who_waits_for_the_result(report: Report, tool: str, answer: str) -> None:
    """mcp1 reads nothing while it answers, so that it may never see its task wait."""
    step = report.saw(tool)
    if report.name == "typescript":
        assert "input_required" in [status for status, _ in step["seen"]]
    assert step["seen"][-1][0] == "completed"
    assert text(step["result"]) == answer


@pytest.mark.parametrize("tool", ["ask_user", "ask_model"])
def test_question_says_which_task_asks_and_is_asked_once(report: Report, tool: str) -> None:
    asked, task_id = report.saw(f"{tool} asked")
    assert [related_task(question) for question in asked] == [task_id]


def test_call_of_the_same_tool_without_a_task_asks_as_any_call(report: Report) -> None:
    assert text(report.saw("ask_user without a task")) == "accept green"


@pytest.mark.parametrize(
    ("tool", "answer"), [("elicit_as_task", "accept green"), ("sample_as_task", "deep-thought: forty-two")]
)
def test_question_is_answered_by_a_task_of_the_client(report: Report, tool: str, answer: str) -> None:
    assert text(report.saw(tool)) == answer
    (question,) = report.saw(f"{tool} asked")
    assert question["task"] == {"ttl": 60_000}


# Cancelling


def test_cancelled_task_is_cancelled_when_the_answer_comes_and_stays_so(report: Report) -> None:
    assert report.saw("hang working")["status"] == "working"
    assert report.saw("hang cancelled")["status"] == "cancelled"
    assert report.saw("hang after")["status"] == "cancelled"


def test_cancel_of_a_task_ends_its_handler(report: Report) -> None:
    assert report.saw("hang cancelled")["status"] == "cancelled"
    report.journal.wait_for("hang ended: task")


@pytest.mark.parametrize("step", ["cancel again", "cancel completed"])
def test_cancel_of_a_task_that_has_ended_is_refused(report: Report, step: str) -> None:
    assert report.error(step)[1] == -32602


def test_cancelled_task_has_no_result(report: Report) -> None:
    assert report.error("hang result")[1] == -32602


# Which tasks there are


@only_stdio
def test_tasks_of_the_client_are_listed(report: Report) -> None:
    assert set(report.saw("listed")) >= {"work", "ask_user", "ask_model", "fail", "crash", "hang"}


@only_http
def test_tasks_of_clients_that_share_a_server_are_listed_to_none(report: Report) -> None:
    assert report.error("listed")[1] == -32601


@pytest.mark.parametrize("method", ["get", "result", "cancel"])
def test_unknown_task_is_told(report: Report, method: str) -> None:
    assert report.error(f"{method} unknown")[1] == -32602


def test_task_ends_with_its_time_to_live(report: Report) -> None:
    """A store may forget the task then, or tell for a while that it has failed."""
    if "raised" in report.steps["expired"]:
        assert report.error("expired")[1] == -32602
    else:
        assert report.saw("expired")["status"] == "failed"


# Calls and tasks that do not go together


def test_tool_that_may_be_a_task_is_called_without_one(report: Report) -> None:
    assert text(report.saw("work without a task")) == "1 steps"


def test_tool_that_must_be_a_task_is_not_called_without_one(report: Report) -> None:
    assert report.error("hang without a task")[1] == -32601


def test_tool_that_is_no_task_is_not_called_as_one(report: Report) -> None:
    assert report.error("plain as a task")[1] == -32601


def test_connection_is_usable_after_all_of_it(report: Report) -> None:
    assert text(report.saw("still here")) == "plain"
