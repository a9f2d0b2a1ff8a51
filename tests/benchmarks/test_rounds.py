"""Which subjects are measured with which probes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.results import Samples
from benchmarks.rounds import run_suite, steps
from benchmarks.subjects import Subject
from benchmarks.suites import Suite


@contextmanager
def opened(command: list[str], scale: float) -> Iterator[str]:
    yield command[-1]


def first(_: Any) -> dict[str, float]:
    return {"first": 1.0}


def second(_: Any) -> dict[str, float]:
    return {"second": 2.0}


def test_benchmark_skips_probes_that_a_measured_program_does_not_support(monkeypatch: Any) -> None:
    monkeypatch.setattr(Subject, "command", lambda self: [self.name])
    able, lacking = Subject("able", (), ""), Subject("lacking", (), "", lacks=frozenset({"second"}))
    suite = Suite("s", (able, lacking), opened, (first, second))
    samples, told = Samples(), list[str]()
    run_suite(suite, 2, samples, told.append)
    assert samples.figures == {
        "s": {"first": {"able": [1.0, 1.0], "lacking": [1.0, 1.0]}, "second": {"able": [2.0, 2.0]}}
    }
    assert len(told) == steps(suite, 2) == 10
