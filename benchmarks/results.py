"""Results: the raw figures of one run, and what they say together."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from .measures import Measure
from .subjects import FLOOR

__all__ = ["Results", "Samples", "Spread"]


@dataclass(frozen=True)
class Spread:
    """The median of some figures, the least and the most of them."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: list[float]) -> Spread:
        """Raises `ValueError` for none."""
        if not figures:
            raise ValueError("no figures")
        return cls(median(figures), min(figures), max(figures))

    def overlaps(self, other: Spread) -> bool:
        """Whether the two may well be the same."""
        return self.least <= other.most and other.least <= self.most


@dataclass
class Samples:
    """One figure per round, by suite, measure and subject."""

    figures: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, suite: str, measure: str, subject: str, value: float) -> None:
        """Note the figure of one more round."""
        self.figures.setdefault(suite, {}).setdefault(measure, {}).setdefault(subject, []).append(value)

    def of(self, measure: Measure) -> dict[str, list[float]]:
        """The figures of each subject; empty when it was not measured."""
        return self.figures.get(measure.suite, {}).get(measure.name, {})

    def rounds(self, suite: str) -> int:
        """How many rounds of ``suite`` were measured."""
        measured = self.figures.get(suite, {}).values()
        return max((len(figures) for by_subject in measured for figures in by_subject.values()), default=0)

    def spread(self, measure: Measure, subject: str) -> Spread | None:
        """`None` when it was not measured."""
        figures = self.of(measure).get(subject)
        return Spread.of(figures) if figures else None

    def ratio(self, measure: Measure, subject: str) -> Spread | None:
        """What ``subject`` takes or reaches of what the floor does in the same round; `None` without a floor."""
        by_subject = self.of(measure)
        figures, floor = by_subject.get(subject), by_subject.get(FLOOR)
        if not figures or not floor or not all(floor):
            return None
        return Spread.of([value / least for value, least in zip(figures, floor, strict=True)])


@dataclass
class Results:
    """One run: its `Samples`, and when and where it was made."""

    taken: str
    machine: dict[str, str]
    versions: dict[str, dict[str, str]]
    samples: Samples = field(default_factory=Samples)

    def of(self, wanted: Callable[[str], bool]) -> Results:
        """The part of it that belongs to some suites."""
        figures = {suite: measures for suite, measures in self.samples.figures.items() if wanted(suite)}
        subjects = {name for measures in figures.values() for by_subject in measures.values() for name in by_subject}
        versions = {name: packages for name, packages in self.versions.items() if name in subjects}
        return Results(self.taken, self.machine, versions, Samples(figures))

    def save(self, path: Path) -> None:
        """Keep it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` has written."""
        data: dict[str, Any] = json.loads(path.read_text())
        return cls(data["taken"], data["machine"], data["versions"], Samples(data["samples"]["figures"]))
