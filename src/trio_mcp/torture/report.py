"""The report of ``trio-mcp torture``: one line for each scenario, and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .scenarios import ScenarioOutcome

_MARKS = {"passed": "ok", "failed": "FAIL", "skipped": "skip"}


def line(outcome: ScenarioOutcome) -> str:
    """Return the report's line for the outcome of one scenario."""
    scenario = outcome.scenario
    return f"{_MARKS[outcome.status]:4}  {scenario.level:6}  {outcome.era}  {scenario.id}: {scenario.title}"


def details(outcome: ScenarioOutcome) -> Iterator[str]:
    """Return the lines that explain an outcome that isn't passed."""
    if outcome.status == "skipped":
        yield f"      {outcome.reason}"
    if outcome.status == "failed":
        yield f"      seen:    {outcome.reason}"
        yield f"      clause:  {outcome.scenario.clause}"
        yield f"      users:   {outcome.scenario.meaning}"


def summary(outcomes: Sequence[ScenarioOutcome]) -> str:
    """Return the number of outcomes of each status, by level (MUST, SHOULD, better)."""
    parts = [f"{level}: {_counts(each for each in outcomes if each.scenario.level == level)}" for level in _LEVELS]
    return "\n".join(parts)


_LEVELS = ("MUST", "SHOULD", "better")


def _counts(outcomes: Iterable[ScenarioOutcome]) -> str:
    counts = Counter(each.status for each in outcomes)
    return ", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "skipped"))
