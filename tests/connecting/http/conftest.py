from __future__ import annotations

import pytest

from trio_mcp.client.opening import LegacyServers
from trio_mcp.connecting.http import opening


@pytest.fixture(autouse=True)
def no_server_is_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives ports again, and a client remembers the era of a URL for as long as its process lives."""
    monkeypatch.setattr(opening, "_LEGACY", LegacyServers())
