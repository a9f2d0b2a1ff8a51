"""Tests with other SDKs, which the extra `test` leaves out and the extra `dev` brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.peers.http_servers import HttpServers, http_servers
from tests.peers.installed import OTHER_SDKS_ARE_MISSING, WHY_SKIPPED


class Skipped(pytest.Module):
    """A file of tests that is never imported."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip(WHY_SKIPPED, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Skipped.from_parent(parent, path=module_path) if OTHER_SDKS_ARE_MISSING else None


@pytest.fixture(scope="module")
def over_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServers]:
    """The servers over HTTP of one file."""
    with http_servers(tmp_path_factory.mktemp("http")) as servers:
        yield servers
