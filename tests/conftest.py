"""What holds for all tests. How long something takes says a lot of the machine, and nothing of what is tested."""

from __future__ import annotations

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
