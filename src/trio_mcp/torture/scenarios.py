"""Scenario is one black-box check of a server or a client. `run_scenarios` runs scenarios and yields their outcomes."""

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
"""MUST and SHOULD are the specification's words. ``better``: no clause asks for it, but users notice its absence."""
Era: TypeAlias = Literal["legacy", "modern"]
ERAS: Final[Sequence[Era]] = ("legacy", "modern")
Status: TypeAlias = Literal["passed", "failed", "skipped"]

T = TypeVar("T")

_TIME_LIMIT: Final = 90.0
"""Seconds after which a scenario has failed, with a patience of 1. Each scenario has shorter limits of its own."""


class Failed(AssertionError):
    """A scenario has failed. The message says what the other side did."""


class Skipped(Exception):
    """A scenario can't be played here. The message says why."""


@frozen
class Scenario(Generic[T]):
    """One scenario. ``play`` raises `Failed` or `Skipped`; it gets the side under test."""

    id: str
    title: str
    """What must hold, as one sentence."""
    level: Level
    clause: str
    """The clause of the specification, or what the title rests on."""
    meaning: str
    """What a user notices if the scenario fails."""
    play: Callable[[T], Awaitable[None]] = attrs.field(repr=False)
    eras: Sequence[Era] = ("legacy", "modern")


def scenario_of(play: Callable[[T], Awaitable[None]], level: Level, clause: str, eras: Sequence[Era]) -> Scenario[T]:
    """Return the scenario that ``play`` plays. The name of the function is the id; the first paragraph of its docstring
    is the title, and the second one the meaning."""
    title, _, meaning = inspect.cleandoc(play.__doc__ or "").partition("\n\n")
    id = play.__name__.replace("_", "-")
    return Scenario(id, " ".join(title.split()), level, clause, " ".join(meaning.split()), play, eras)


@frozen
class ScenarioOutcome:
    """How one scenario ended."""

    scenario: Scenario[Any]
    era: Era
    status: Status
    reason: str = ""

    def as_json(self) -> JSONObject:
        """Return the form for machines."""
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
    """Play the ``scenarios`` of ``era``, one after the other, and yield how each ended."""
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
