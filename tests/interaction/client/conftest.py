"""What the scenarios of a client against a server in another process are run over: transport by era."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.interaction.client.raw import RawServer, Serve


@pytest.fixture(params=("stdio", "websocket"))
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=("legacy", "modern"))
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def serve_raw(transport: str, tmp_path: Path) -> Serve:
    """A raw server that runs a program, over the transport."""
    return partial(RawServer, tmp_path, transport=transport)
