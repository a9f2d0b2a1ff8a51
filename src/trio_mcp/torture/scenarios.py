"""Scenario: one black-box check of a server or a client. `run_scenarios` plays scenarios and yields their outcomes."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs
import trio

from ..classes import frozen
from ..concurrency.nurseries import sole_exception
from ..jsonrpc.errors import MCPError
from ..protocol.fields import JSONObject
from ..protocol.revisions import LATEST_LEGACY, LATEST_MODERN

Level: TypeAlias = Literal["MUST", "SHOULD", "better"]
"""How strictly a scenario's behavior is required. MUST and SHOULD are words of the specification. ``better`` isn't
required by any clause, but users notice if the behavior is missing."""
Era: TypeAlias = Literal["legacy", "modern"]
ERAS: Final[Sequence[Era]] = ("legacy", "modern")
Need: TypeAlias = Literal["lines", "process", "http"]
"""What a scenario needs: a transport of lines, a server that is started over stdio, or a server over HTTP."""
Status: TypeAlias = Literal["passed", "failed", "skipped"]

_TIME_LIMIT: Final = 90.0
"""Seconds after which a scenario fails, with a patience of 1. Each scenario has shorter limits of its own."""


class Failed(AssertionError):
    """Raised if the server or client under test fails a scenario. The message says what it did wrong."""


class Skipped(Exception):
    """Raised if a scenario can't be run against this server or client. The message says why."""


@frozen
class Scenario:
    """A scripted test of one required behavior of a server or client."""

    id: str
    play: Callable[[Any], Awaitable[None]] = attrs.field(repr=False)
    """The function that plays the scenario. It takes a scripted peer that is connected to the server or client under
    test, and raises `Failed` or `Skipped`."""
    title: str
    """The behavior that the scenario requires, as one sentence."""
    level: Level
    clause: str
    """The clause of the specification, or the other reason for the requirement."""
    meaning: str
    """The consequence that a user notices if the scenario fails."""
    eras: Sequence[Era] = ERAS
    capabilities: JSONObject = attrs.field(factory=dict[str, Any])
    """The capabilities that a scripted client declares."""
    needs: Need | None = None


def read_texts() -> dict[str, Any]:
    """Return the content of ``scenarios.toml``: the texts of all scenarios, and the tools that servers under test
    need."""
    return tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text("utf-8"))


def load_scenarios(side: Literal["server", "client"], plays: Mapping[str, Any]) -> list[Scenario]:
    """Return all scenarios for one ``side``: those that test a server, or those that test a client.

    ``plays`` contains the functions that play the scenarios, keyed by name.
    """
    return [Scenario(id, plays[id.replace("-", "_")], **texts) for id, texts in read_texts()[side].items()]


@frozen
class UnderTest(ABC):
    """The server or client that the scenarios test, and whether it speaks a legacy or a modern protocol revision."""

    era: Era
    patience: float = attrs.field(default=1.0, kw_only=True)
    """Factor for the time limits within which the server or client must react."""

    @property
    def revision(self) -> str:
        """The protocol revision that the scripted peer speaks with the server or client under test."""
        return (LATEST_LEGACY if self.era == "legacy" else LATEST_MODERN).name

    def missing(self, need: Need) -> str | None:
        """Return why this server or client can't run a scenario that requires the transport ``need``. Return `None` if
        it can."""
        return None

    @abstractmethod
    def opened(self, capabilities: JSONObject | None = None) -> AbstractAsyncContextManager[Any]:
        """Open a new connection to the program under test, and yield the scripted peer at its other end.

        The handshake is already done.
        """


@frozen
class ScenarioOutcome:
    """The outcome of one scenario: passed, failed or skipped, and the reason."""

    scenario: Scenario
    era: Era
    status: Status
    reason: str = ""

    def as_json(self) -> JSONObject:
        """Return the outcome as a JSON object, which programs can read."""
        texts = {name: getattr(self.scenario, name) for name in ("id", "level", "title", "clause", "meaning")}
        return {**texts, "era": self.era, "status": self.status, "reason": self.reason}


async def run_scenarios(scenarios: list[Scenario], under_test: UnderTest) -> AsyncGenerator[ScenarioOutcome]:
    """Run the scenarios for the protocol revision that ``under_test`` speaks, one after another, and yield each
    outcome."""
    for scenario in scenarios:
        if under_test.era in scenario.eras:
            status, reason = await _played(scenario, under_test)
            yield ScenarioOutcome(scenario, under_test.era, status, reason)


async def _played(scenario: Scenario, under_test: UnderTest) -> tuple[Status, str]:
    if scenario.needs is not None and (missing := under_test.missing(scenario.needs)):
        return "skipped", missing
    time_limit = _TIME_LIMIT * under_test.patience
    try:
        with trio.fail_after(time_limit):
            async with under_test.opened(scenario.capabilities) as peer:
                await scenario.play(peer)
    except trio.TooSlowError:
        return "failed", f"the scenario didn't end within {time_limit:g} seconds"
    except (AssertionError, Skipped, MCPError, OSError, EOFError, ValueError, ExceptionGroup) as error:
        cause = sole_exception(error)
        reason = " ".join(str(cause).split())[:300] or type(cause).__name__
        return "skipped" if isinstance(cause, Skipped) else "failed", reason
    return "passed", ""
