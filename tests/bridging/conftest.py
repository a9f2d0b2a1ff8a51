"""Fixtures of the tests of bridges."""

from __future__ import annotations

import pytest
from tests.bridging.seen import Seen


@pytest.fixture
def seen() -> Seen:
    return Seen()
