"""What holds for all tests. How long something takes says a lot of the machine, and nothing of what is tested."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from trio.testing import MockClock

settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


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
