"""The programs of each other make get on with each other, so that what fails with ours is about ours."""

from __future__ import annotations

import pytest
from tests.peers.journals import Journal
from tests.peers.reports import Report
from tests.peers.tasks.makes import Makes


@pytest.fixture(scope="module", params=["mcp1", "typescript", "fastmcp"])
def report(request: pytest.FixtureRequest, makes: Makes, tmp_path_factory: pytest.TempPathFactory) -> Report:
    journal = Journal(tmp_path_factory.mktemp("tasks") / "journal")
    make: str = request.param
    return Report(make, "any", journal, makes.run_client(make, "stdio", makes.server(make), journal))


def test_task_on_a_server_of_another_sdk_returns_its_result(report: Report) -> None:
    assert "3 steps" in str(report.saw("work"))


def test_task_on_a_server_of_another_sdk_receives_an_elicitation_answer(report: Report) -> None:
    assert "accept green" in str(report.saw("ask_user"))


def test_task_on_a_server_of_another_sdk_can_be_cancelled(report: Report) -> None:
    assert report.saw("hang cancelled")["status"] == "cancelled"
