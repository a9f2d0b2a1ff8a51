"""Tables of results, as Markdown: for people who read them in a terminal, too."""

from __future__ import annotations

from collections.abc import Iterable

from .measures import MEASURES, Measure
from .results import Results, Samples, Spread
from .subjects import FLOOR, OURS_NAME
from .suites import ENOUGH_ROUNDS

__all__ = ["comparison", "goals", "number", "report", "table"]

_HEADINGS = {"http": "Streamable HTTP, modern era", "http-legacy": "Streamable HTTP, legacy era"}


def number(value: float) -> str:
    """Three digits that count, and thousands in short."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    if value >= 1e4:
        return f"{value / 1e3:.3g}k"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _aligned(rows: Iterable[tuple[str, ...]]) -> str:
    head, *body = rows
    widths = [max(len(row[column]) for row in (head, *body)) for column in range(len(head))]

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(head), rule, *map(line, body)])


def _with_spread(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{number(spread.middle)} ({number(spread.least)}–{number(spread.most)})"


def _subjects(samples: Samples, suite: str) -> list[str]:
    """Those that were measured, the floor and ours first."""
    names = {name for by_subject in samples.figures.get(suite, {}).values() for name in by_subject}
    own = [name for name in (FLOOR, OURS_NAME) if name in names]
    return own + sorted(names - {FLOOR, OURS_NAME})


def table(samples: Samples, suite: str) -> str:
    """Medians of all subjects, and our ratio to the floor with its spread."""
    subjects = _subjects(samples, suite)
    rows = [("measure", *subjects, f"{OURS_NAME} : floor")]
    for measure in MEASURES:
        if measure.suite == suite and samples.of(measure):
            middles = [samples.spread(measure, subject) for subject in subjects]
            cells = ["" if spread is None else number(spread.middle) for spread in middles]
            rows.append((f"{measure.title}, {measure.unit}", *cells, _with_spread(samples.ratio(measure, OURS_NAME))))
    return _aligned(rows)


def goals(samples: Samples) -> str:
    """What was to be reached, and what was; empty when nothing of it was measured."""
    rows = [("measure", "found", "at least", "", "aim", "")]
    for measure in MEASURES:
        found = _found(samples, measure)
        if measure.goal is None or found is None:
            continue
        sign = "≥" if measure.better == "more" else "≤"
        mark = f" {measure.unit}" if measure.goal.absolute else " ×"
        rows.append(
            (
                f"{measure.suite}: {measure.title}",
                _with_spread(found) + mark,
                f"{sign} {measure.goal.least:g}",
                "yes" if measure.reached(measure.goal.least, found.middle) else "NO",
                f"{sign} {measure.goal.aim:g}",
                "yes" if measure.reached(measure.goal.aim, found.middle) else "no",
            )
        )
    return _aligned(rows) if len(rows) > 1 else ""


def _found(samples: Samples, measure: Measure) -> Spread | None:
    if measure.goal is not None and measure.goal.absolute:
        return samples.spread(measure, OURS_NAME)
    return samples.ratio(measure, OURS_NAME)


def comparison(old: Samples, new: Samples, subject: str = OURS_NAME) -> str:
    """What changed between two runs: the medians, and whether their spreads lie apart. Ratios to the floor are
    compared where there are any, since a machine is not always as fast."""
    rows = [("measure", "old", "new", "change", "")]
    for measure in MEASURES:
        before, after = old.ratio(measure, subject), new.ratio(measure, subject)
        if before is None or after is None:
            before, after = old.spread(measure, subject), new.spread(measure, subject)
        if before is None or after is None or not before.middle:
            continue
        change = after.middle / before.middle - 1
        verdict = "" if before.overlaps(after) else _verdict(measure, change)
        rows.append(
            (f"{measure.suite}: {measure.title}", _with_spread(before), _with_spread(after), f"{change:+.1%}", verdict)
        )
    return _aligned(rows)


def _verdict(measure: Measure, change: float) -> str:
    return "better" if (change > 0) == (measure.better == "more") else "WORSE"


def _rounds(count: int) -> str:
    words = f"Rounds: {count}."
    return (
        words
        if count >= ENOUGH_ROUNDS
        else f"{words} Medians of fewer than {ENOUGH_ROUNDS} may differ by more than 3 % from run to run."
    )


def report(results: Results) -> str:
    """All of it."""
    samples = results.samples
    parts = [f"Taken {results.taken}."]
    parts += [f"- {name}: {value}" for name, value in results.machine.items()]
    for name, versions in results.versions.items():
        parts.append(f"- {name}: " + ", ".join(f"{package} {version}" for package, version in versions.items()))
    text = "\n".join(parts)
    for suite in samples.figures:
        text += f"\n\n### {_HEADINGS.get(suite, suite.capitalize())}\n\n"
        text += f"{_rounds(samples.rounds(suite))}\n\n{table(samples, suite)}"
    reached = goals(samples)
    return f"{text}\n\n### Targets\n\n{reached}\n" if reached else f"{text}\n"
