"""Rounds: all subjects of a suite take turns, measure by measure, so that what the machine does meets all alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from .driver.checks import within
from .driver.cores import DRIVER_CORES, on_cores
from .results import Samples
from .subjects import Subject
from .suites import Probe, Suite

__all__ = ["run_suite", "steps"]

_PATIENCE = 300
"""Seconds after which a measure has lost something."""


def steps(suite: Suite, rounds: int) -> int:
    """How many times `run_suite` tells ``progress``."""
    return rounds * sum(1 + len(_served(suite, subject)) for subject in suite.subjects)


def _served(suite: Suite, subject: Subject) -> list[Probe]:
    return [probe for probe in suite.probes if probe.__name__ not in subject.lacks]


def run_suite(suite: Suite, rounds: int, samples: Samples, progress: Callable[[str], None]) -> None:
    """Run ``rounds`` rounds of ``suite`` and add what is found to ``samples``. Raises for anything lost or wrong."""
    with on_cores(DRIVER_CORES):
        for number in range(rounds):

            def told(what: str, number: int = number) -> None:
                progress(f"{suite.name} {number + 1}/{rounds}: {what}")

            _run_round(suite, number, samples, told)


def _run_round(suite: Suite, number: int, samples: Samples, progress: Callable[[str], None]) -> None:
    with ExitStack() as stack:
        opened = []
        for subject in _turned(suite.subjects, number):
            progress(f"start {subject.name}")
            opened.append((subject, stack.enter_context(suite.open(subject.command(), subject.scale))))
        for probe in suite.probes:
            for subject, session in opened:
                if probe not in _served(suite, subject):
                    continue
                what = f"{probe.__name__}, {subject.name}"
                progress(what)
                with within(_PATIENCE, what):
                    figures = probe(session)
                for name, value in figures.items():
                    samples.add(suite.name, name, subject.name, value)


def _turned(subjects: tuple[Subject, ...], number: int) -> tuple[Subject, ...]:
    """Each is first in some round."""
    start = number % len(subjects)
    return (*subjects[start:], *subjects[:start])
