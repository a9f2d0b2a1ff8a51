"""What the scenarios of a server in another process are run over: transport by era. ``bridged`` is stdio through
``trio-mcp bridge``, which starts the server itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.interaction.raw_client import ERAS, RawClient, Start, serving


@pytest.fixture(params=("stdio", "websocket", "bridged"))
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def start(transport: str, tmp_path: Path) -> Start:
    """Start the fixture server and connect to it over the transport."""
    return partial(serving, tmp_path, transport, forked=True)


@pytest.fixture
def client(start: Start, era: str) -> Iterator[RawClient]:
    """The client of a fixture server, in every era over every transport."""
    with start(revision=era) as client:
        yield client
