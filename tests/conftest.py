"""What holds for all tests. How long something takes says a lot of the machine, and nothing of what is tested.

A test that hangs is interrupted after `test_limit` seconds, as Ctrl+C would, and fails: trio hands that on to the main
task of the run, in which all that the test opened is closed, and neither a handler's `except Exception` nor
Hypothesis, which would try the hanging example again, keeps it. What even that does not end, such as a shield
that nothing leaves, ends with the process: see ``faulthandler_timeout`` in pyproject.toml.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests import lanes
from tests.examples import THOROUGH
from trio.testing import MockClock

# What one process has compiled the next ones need not: the tests start hundreds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell without job control starts what runs in its background deaf to Ctrl-C, and so would be what the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=THOROUGH // 4
)
settings.register_profile("thorough", settings.get_profile("any-machine"), max_examples=THOROUGH)
settings.register_profile(  # for a failure of which nobody reads the example
    "no-shrinking", settings.get_profile("thorough"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("any-machine")


# Twenty thousand tests are half a gigabyte, and nothing of that is garbage until the end. To look through it again and
# again takes long: while it grows, and in each test that looks for garbage.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Look for garbage among what tests make, and in nothing else."""
    # Hypothesis asks the collector who refers to its random numbers. From Python 3.14 on the answer would be nobody:
    # the dictionary that does exists by now, and dictionaries are tracked from their start.
    if sys.version_info < (3, 14):
        gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    lanes.add_option(parser)
    parser.addoption(
        "--wires",
        choices=["one", "pairs", "all"],
        default="one",
        help="the wires of each scenario of tests/interaction: the first of its list (stdio or memory); "
        "each wire and each era once; or all wires in all eras",
    )
    parser.addoption(
        "--sequences",
        type=int,
        default=4,
        help="length of the sequences of operations that tests/fleet/storage/redis/test_redis_sequences.py runs",
    )
    parser.addini("test_limit", "seconds after which a test that hangs is interrupted", default="150")


def pytest_report_header(config: pytest.Config) -> str:
    """Say what is left out."""
    return f"lane: {config.getoption('lane')} (--lane=all: every file); wires: {config.getoption('wires')}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of other lanes, without importing them."""
    return True if lanes.leaves_out(collection_path, config) else None


LONGEST = (
    "test_examples_typed.py",
    "test_smoke.py",
    "test_signals.py",
    "test_pattern_costs.py",
    "test_storages.py",
    "test_cost.py",
    "test_bounds.py",
    "test_guide.py",
    "test_against_h11.py",
    "test_http_random.py",
    "test_leaks.py",
)
"""Files whose tests take longest. One worker has a file: with these at the end, the others would wait for it."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other lanes, and begin with the files that take longest."""
    left_out = [item for item in items if lanes.leaves_out_test(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not lanes.leaves_out_test(item, config)]
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from interrupted(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from interrupted(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from interrupted(item))


def interrupted(item: pytest.Item) -> Generator[None, Any, Any]:
    """Interrupt one phase of a test when it hangs, and let the test fail then, whatever it makes of that."""
    limit, rung = float(item.config.getini("test_limit")), False

    def ring(*_: object) -> None:
        nonlocal rung
        rung = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit, limit / 10)
    cause: BaseException | None = None
    try:
        return (yield)
    except BaseException as error:
        cause = error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if rung:
            raise pytest.fail.Exception(f"the test was interrupted after {limit:g} s") from cause


@pytest.fixture
def jump_clock() -> MockClock:
    """The clock of trio as processes, threads and sockets need it, which a test lets jump over a limit when all has
    happened that must come before. The limit is `LONG` then, so that it never passes by itself."""
    return MockClock(rate=1.0)


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """Where a Unix socket can be: its path may have 107 bytes, and those of pytest may be long."""
    with tempfile.TemporaryDirectory(prefix="mcp-", dir="/tmp") as folder:
        yield Path(folder)
