"""Scenario: one black-box check of a server or a client. `run_scenarios` plays scenarios and yields their outcomes."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

import attrs
import trio

from ..classes import frozen
from ..jsonrpc.errors import MCPError
from ..protocol.fields import JSONObject

Level: TypeAlias = Literal["MUST", "SHOULD", "better"]
"""How strictly a scenario's behavior is required. MUST and SHOULD are the specification's words. ``better`` isn't
required by any clause, but users notice if it's missing."""
Era: TypeAlias = Literal["legacy", "modern"]
ERAS: Final[Sequence[Era]] = ("legacy", "modern")
Status: TypeAlias = Literal["passed", "failed", "skipped"]

T = TypeVar("T")

_TIME_LIMIT: Final = 90.0
"""Seconds after which a scenario fails, with a patience of 1. Each scenario has shorter limits of its own."""


class Failed(AssertionError):
    """The error of a scenario that has failed. The message says what the side under test did wrong."""


class Skipped(Exception):
    """The error of a scenario that can't be played with this server or client. The message says why."""


@frozen
class Scenario(Generic[T]):
    """One scenario. ``play`` takes the server or client under test, and raises `Failed` or `Skipped`."""

    id: str
    title: str
    """The behavior that the scenario requires, as one sentence."""
    level: Level
    clause: str
    """The clause of the specification, or the other reason for the requirement."""
    meaning: str
    """The consequence that a user notices if the scenario fails."""
    play: Callable[[T], Awaitable[None]] = attrs.field(repr=False)
    eras: Sequence[Era] = ("legacy", "modern")


def scenario_of(play: Callable[[T], Awaitable[None]], level: Level, clause: str, eras: Sequence[Era]) -> Scenario[T]:
    """Return the scenario for the function ``play``. The function's name is the id. The first paragraph of its
    docstring is the title, and the second one is the meaning."""
    title, _, meaning = inspect.cleandoc(play.__doc__ or "").partition("\n\n")
    id = play.__name__.replace("_", "-")
    return Scenario(id, " ".join(title.split()), level, clause, " ".join(meaning.split()), play, eras)


@frozen
class ScenarioOutcome:
    """The outcome of one scenario."""

    scenario: Scenario[Any]
    era: Era
    status: Status
    reason: str = ""

    def as_json(self) -> JSONObject:
        """Return the outcome as a JSON object, for programs."""
        scenario = self.scenario
        return {
            "id": scenario.id,
            "era": self.era,
            "status": self.status,
            "level": scenario.level,
            "title": scenario.title,
            "clause": scenario.clause,
            "meaning": scenario.meaning,
            "reason": self.reason,
        }


async def run_scenarios(
    scenarios: Iterable[Scenario[T]], era: Era, under_test: T, patience: float = 1.0
) -> AsyncGenerator[ScenarioOutcome]:
    """Play the ``scenarios`` of ``era`` one after another, and yield the outcome of each."""
    for scenario in scenarios:
        if era in scenario.eras:
            status, reason = await _played(scenario, under_test, _TIME_LIMIT * patience)
            yield ScenarioOutcome(scenario, era, status, reason)


async def _played(scenario: Scenario[T], under_test: T, time_limit: float) -> tuple[Status, str]:
    try:
        with trio.fail_after(time_limit):
            await scenario.play(under_test)
    except trio.TooSlowError:
        return "failed", f"no end within {time_limit:g} seconds"
    except (AssertionError, Skipped, MCPError, OSError, EOFError, ValueError, ExceptionGroup) as error:
        leaf = _leaf(error)
        lines = [line.strip() for line in str(leaf).splitlines() if line.strip()]
        reason = ", ".join(lines[:3])[:300] or type(leaf).__name__
        return "skipped" if isinstance(leaf, Skipped) else "failed", reason
    return "passed", ""


def _leaf(error: Any) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("Any", error).exceptions[0]
    return error
