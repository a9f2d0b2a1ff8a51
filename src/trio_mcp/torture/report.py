"""The report of ``trio-mcp torture``: a line for each outcome, and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .scenarios import ScenarioOutcome

_MARKS = {"passed": "ok", "failed": "FAIL", "skipped": "skip"}


def line(outcome: ScenarioOutcome) -> str:
    """Return the line of an outcome."""
    scenario = outcome.scenario
    return f"{_MARKS[outcome.status]:4}  {scenario.level:6}  {outcome.era}  {scenario.id}: {scenario.title}"


def details(outcome: ScenarioOutcome) -> Iterator[str]:
    """Return the lines below the line of an outcome that isn't passed."""
    if outcome.status == "skipped":
        yield f"      {outcome.reason}"
    if outcome.status == "failed":
        yield f"      seen:    {outcome.reason}"
        yield f"      clause:  {outcome.scenario.clause}"
        yield f"      users:   {outcome.scenario.meaning}"


def summary(outcomes: Sequence[ScenarioOutcome]) -> str:
    """Return how many outcomes there are of each kind, by level."""
    parts = [f"{level}: {_counts(each for each in outcomes if each.scenario.level == level)}" for level in _LEVELS]
    return "\n".join(parts)


_LEVELS = ("MUST", "SHOULD", "better")


def _counts(outcomes: Iterable[ScenarioOutcome]) -> str:
    counts = Counter(each.status for each in outcomes)
    return ", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "skipped"))
