"""What counts as a failure when the conformance suite is played."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.conformance import suite as suites
from tests.conformance.suite import Skipped, Suite, judge, known_skips

WITHOUT_DEMANDS = "sep-2640-client-no-prefetch"
"""A scenario that finds nothing wrong with a client that does nothing."""


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "expected_failures", lambda _: {"tasks", "auth"})
    monkeypatch.setattr(suites, "known_skips", lambda _: {"skills"})


async def test_conformance_client_that_exits_with_an_error_fails_the_scenario(suite: Suite) -> None:
    assert (await suite.drive_client(["true"], WITHOUT_DEMANDS)).startswith("SKIPPED sep-2640-host-no-prefetch")
    assert "code 1" in await suite.drive_client(["false"], WITHOUT_DEMANDS)


def test_known_limitations_page_lists_exactly_the_skipped_scenarios() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees" / "known-limitations.md").read_text()
    told = re.search(r"although it doesn't fully run them(.*?)(?:\n- |\n## )", page, re.DOTALL)
    assert told is not None
    named = re.findall(r"`(\S+)`\s\((\w+)\)", told[1])
    assert sorted(named) == sorted((name, role) for role in ("server", "client") for name in known_skips(role))


@pytest.mark.usefixtures("expected")
def test_expected_failure_of_a_conformance_scenario_is_accepted() -> None:
    judge("server", {"tools": [], "tasks": ["FAILURE"]})


@pytest.mark.usefixtures("expected")
def test_unexpected_failure_of_a_conformance_scenario_is_reported_with_its_message() -> None:
    with pytest.raises(AssertionError, match="tools\nWARNING of something"):
        judge("server", {"tools": ["WARNING of something"], "tasks": ["FAILURE"]})


@pytest.mark.usefixtures("expected")
def test_conformance_scenario_that_passes_although_expected_to_fail_is_reported() -> None:
    with pytest.raises(AssertionError, match="auth"):
        judge("client", {"auth": [], "tasks": ["FAILURE"]})


@pytest.mark.usefixtures("expected")
def test_known_skipped_conformance_scenario_is_reported_as_a_warning() -> None:
    with pytest.warns(Skipped, match=r"client: 1 of 2 skipped: \['skills'\]"):
        judge("client", {"skills": ["SKIPPED all of it"], "tools": []})


@pytest.mark.usefixtures("expected")
def test_unlisted_skipped_conformance_scenario_is_reported_as_a_failure() -> None:
    with pytest.raises(AssertionError, match=r"not listed \['tools'\], not skipped \['skills'\]"):
        judge("client", {"skills": [], "tools": ["SKIPPED a part"]})
