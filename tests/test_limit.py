"""A test that hangs ends by a limit, and the tests after it run: see `conftest.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent

HANGING = """
import threading
import trio
from hypothesis import given, strategies

async def test_task_that_sleeps_forever_is_interrupted():
    await trio.sleep_forever()

async def test_endless_sleep_loop_on_an_autojump_clock_is_interrupted(autojump_clock):
    while True:
        await trio.sleep(1)

async def test_task_in_a_busy_loop_is_interrupted():
    while True:
        pass

async def test_task_that_swallows_exceptions_is_interrupted(nursery):
    @nursery.start_soon
    async def hold_on():
        while True:
            try:
                await trio.sleep(0.01)
            except Exception:
                pass
    await trio.sleep_forever()

def test_blocked_thread_is_interrupted():
    threading.Event().wait()

@given(strategies.integers())
def test_hypothesis_example_that_sleeps_forever_is_interrupted(number):
    trio.run(trio.sleep_forever)

def test_that_follows_an_interrupted_test_still_runs():
    pass
"""

SHIELDED = """
import trio

async def test_shielded_task_that_swallows_every_exception_is_killed():
    with trio.CancelScope(shield=True):
        while True:
            try:
                await trio.sleep_forever()
            except BaseException:
                pass
"""


def run_of(tests: str, folder: Path, *settings: str) -> tuple[int, str]:
    """How a run of ``tests`` ends, and what it says."""
    path = folder / "test_hanging.py"
    path.write_text(tests)
    options = [option for setting in settings for option in ("-o", setting)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-c", "pyproject.toml", "-p", "tests.conftest", *options, str(path)],
        cwd=ROOT,
        timeout=PATIENCE,
        capture_output=True,
        text=True,
    )
    return run.returncode, run.stdout + run.stderr


def test_hanging_test_is_interrupted_at_the_limit_and_later_tests_run(tmp_path: Path) -> None:
    code, said = run_of(HANGING, tmp_path, "test_limit=0.3")
    assert "6 failed, 1 passed" in said, said
    assert said.count("Failed: the test was interrupted after 0.3 s") >= 6
    assert code == 1


def test_uninterruptible_test_is_killed_with_its_process(tmp_path: Path) -> None:
    code, said = run_of(SHIELDED, tmp_path, "test_limit=0.3", "faulthandler_timeout=2")
    assert code == 1
    assert "Timeout (0:00:02)" in said
    assert "test_shielded_task_that_swallows_every_exception_is_killed" in said
