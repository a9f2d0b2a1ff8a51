"""Instruction budgets of the hot paths."""

import json
import subprocess
import sys
import tracemalloc

import attrs
import pytest
import trio
from benchmarks.budget.__main__ import faults
from benchmarks.budget.counting import counting, kept_bytes
from benchmarks.budget.places import place_of, placing

from trio_mcp.jsonrpc.codec import decode, encode
from trio_mcp.jsonrpc.messages import Request

LINE = encode(Request(1, "ping"))
WHERE_IT_COUNTS = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="instructions are counted by the tracing of CPython 3.11; later ones skip some",
)
RECORDED = {
    "python": "{}.{}".format(*sys.version_info),
    "paths": {"echo": {"instructions": 1000, "calls": 100}, "request in flight": {"bytes": 2000}},
}


def found(instructions: float = 1000, calls: float = 100, size: float = 2000) -> dict[str, dict[str, float]]:
    return {"echo": {"instructions": instructions, "calls": calls}, "request in flight": {"bytes": size}}


@WHERE_IT_COUNTS
def test_frequently_executed_code_stays_within_its_instruction_budget() -> None:
    run = subprocess.run([sys.executable, "-m", "benchmarks.budget"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@WHERE_IT_COUNTS
def test_instruction_counts_are_reproducible_and_proportional_to_the_work() -> None:
    def instructions(times: int) -> tuple[int, int]:
        with counting() as count:
            for _ in range(times):
                decode(LINE)
        return count.instructions, count.calls

    instructions(5)  # our classes compile their __init__ at an early use
    once = instructions(1)
    assert once == instructions(1)
    assert once[0] > 50
    assert instructions(3) == (3 * once[0], 3 * once[1])


def test_instruction_counter_ignores_instructions_of_other_modules() -> None:
    with counting() as count:
        sorted(range(100), key=lambda number: -number)
    assert (count.instructions, count.calls) == (0, 0)


def test_memory_count_of_the_budget_check_includes_only_allocations_by_the_package() -> None:
    tracemalloc.start()
    try:
        before = kept_bytes()
        foreign = [bytes(1000) for _ in range(100)]
        assert kept_bytes() == before
        kept = [decode(LINE) for _ in range(100)]
        assert kept_bytes() - before > 100 * 50
    finally:
        tracemalloc.stop()
    assert len(foreign) == len(kept)


def test_budget_check_accepts_a_measurement_within_five_percent_of_the_instruction_budget() -> None:
    assert faults(found(1049, 104, 2099), RECORDED) == []


@pytest.mark.parametrize(
    ("over", "line"),
    [
        ({"instructions": 1100}, "echo: 1100 instructions, budget 1000 (+10.0%)"),
        ({"calls": 120}, "echo: 120 calls, budget 100 (+20.0%)"),
        ({"size": 4000}, "request in flight: 4000 bytes, budget 2000 (+100.0%)"),
    ],
    ids=["instructions", "calls", "bytes"],
)
def test_budget_check_reports_exceeded_python_instructions_calls_and_bytes_separately(
    over: dict[str, float], line: str
) -> None:
    assert faults(found(**over), RECORDED) == [line]


def test_budget_check_on_another_python_version_checks_only_the_number_of_calls() -> None:
    elsewhere = {**RECORDED, "python": "3.99"}
    assert faults(found(5000, 100, 9000), elsewhere) == []
    assert faults(found(5000, 200, 9000), elsewhere) == ["echo: 200 calls, budget 100 (+100.0%)"]


@WHERE_IT_COUNTS
def test_instruction_profiler_attributes_code_to_the_package_or_library_that_contains_it() -> None:
    assert place_of(decode.__code__.co_filename) == "trio_mcp.jsonrpc"
    assert place_of(trio.run.__code__.co_filename) == "trio"
    assert place_of(attrs.evolve.__code__.co_filename) == "standard library and others"
    assert place_of(json.loads.__code__.co_filename) is None
    with placing() as counts:
        decode(LINE)
    assert counts["trio_mcp.jsonrpc"] > 50
