"""The authorization server, installed once, and started by each test as the test wants it."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.authorization.provider import CannotInstall, install, version
from tests.peers.installed import installed_once


@pytest.fixture(scope="session")
def provider(request: pytest.FixtureRequest) -> Path:
    """The folder of the server, kept in pytest's cache. It needs npm and a package registry; else tests skip."""

    def make(folder: Path) -> None:
        try:
            install(folder)
        except CannotInstall as error:
            pytest.skip(f"the authorization server could not be installed: {error}")

    return installed_once(request.config, version(), make)
