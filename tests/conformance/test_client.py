"""The official conformance suite finds nothing wrong with our client, scored or not, but for what `EXPECTED` lists.

One scenario is played at a time, two beside each other: only so does the suite count the exit status of the client, and
as a whole it would start all clients at once.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import attrs
import pytest
import trio
from tests.conformance.suite import (
    HERE,
    LEG_LIMIT,
    OLDEST_REVISION,
    REVISIONS,
    Suite,
    expected_failures,
    is_skip,
    judge,
)
from tests.forked import forked_command

CLIENT = str(HERE / "client.py")

pytestmark = [
    pytest.mark.filterwarnings("default::tests.conformance.test_client.PassedOnlyAlone"),
    pytest.mark.filterwarnings("default::tests.conformance.suite.Skipped"),
]


class PassedOnlyAlone(UserWarning):
    """A scenario failed beside another, and passed alone: some judge what a client does by the time of day."""


@pytest.mark.parametrize("revision", REVISIONS)
async def test_client_passes_the_conformance_suite_of_each_revision(suite: Suite, revision: str) -> None:
    with trio.fail_after(LEG_LIMIT):
        names = await suite.required(revision, "client")
        judge("client", await drive_clients(suite, names, "--spec-version", revision, "--force"))


async def test_client_passes_the_authorization_scenarios_of_the_oldest_revision(suite: Suite) -> None:
    with trio.fail_after(LEG_LIMIT):
        names = await suite.written_for(OLDEST_REVISION, "client")
        judge("client", await drive_clients(suite, names, "--spec-version", OLDEST_REVISION))


async def test_client_passes_the_conformance_suite_of_extensions(suite: Suite) -> None:
    with trio.fail_after(LEG_LIMIT):
        judge("client", await drive_clients(suite, await suite.extensions("client")))


async def drive_clients(suite: Suite, names: list[str], *selection: str) -> dict[str, list[str]]:
    """Play scenarios, two at a time. One that fails unexpectedly is played once more, alone."""
    client = forked_command([CLIENT])
    faults: dict[str, list[str]] = {}
    limiter = trio.CapacityLimiter(2)

    async def play(name: str) -> None:
        async with limiter:
            fault = await suite.drive_client(client, name, *selection)
        faults[name] = [fault] if fault else []

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(play, name)
    wrong = {name for name in names if not all(map(is_skip, faults[name]))}
    for name in sorted(wrong - expected_failures("client")):
        if again := await suite.drive_client(client, name, *selection):
            faults[name].append(f"and once more, alone:\n{again}")
        else:
            warnings.warn(f"{name} passed only alone; before: {faults.pop(name)[0]}", PassedOnlyAlone, stacklevel=2)
            faults[name] = []
    return faults


@attrs.frozen
class Scripted(Suite):
    """A suite whose scenarios come to what a test says, one after the other."""

    packages: Path = Path()
    results: list[str] = attrs.field(factory=list[str], kw_only=True)

    async def drive_client(self, *_: object) -> str:
        return self.results.pop(0)


async def test_conformance_scenario_that_passes_only_when_rerun_alone_passes_with_a_warning() -> None:
    with pytest.warns(PassedOnlyAlone, match="sse-retry passed only alone; before: too late"):
        assert await drive_clients(Scripted(results=["too late", ""]), ["sse-retry"]) == {"sse-retry": []}


async def test_conformance_scenario_that_fails_twice_is_reported_with_both_results() -> None:
    faults = await drive_clients(Scripted(results=["too late", "too early"]), ["sse-retry"])
    assert faults == {"sse-retry": ["too late", "and once more, alone:\ntoo early"]}


async def test_conformance_scenario_that_is_expected_to_fail_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conformance.test_client.expected_failures", lambda _: {"tasks"})
    assert await drive_clients(Scripted(results=["refused"]), ["tasks"]) == {"tasks": ["refused"]}
