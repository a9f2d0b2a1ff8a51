"""The pytest plugin of trio-mcp: fixtures for tests of MCP servers. See `trio_mcp.testing`.

pytest loads this module in every run, of whatever project. So it stands outside of the package and imports nothing of
it until a fixture is used.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from trio_mcp import Client, Server
    from trio_mcp.testing import RecordingContext, ScriptedClient


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--mcp-seed``."""
    group = parser.getgroup("trio-mcp")
    group.addoption("--mcp-seed", type=int, metavar="N", help="what the fixture mcp_seed gives; random by default")


@pytest.fixture
def mcp_server() -> Server:
    """The server to be tested. Define a fixture of this name that returns yours."""
    pytest.fail(
        "mcp_client and mcp_scripted_client need to know your server. Define it in the test file or in conftest.py:\n"
        "    @pytest.fixture\n"
        "    def mcp_server():\n"
        "        return server",
        pytrace=False,
    )


@pytest.fixture(params=["legacy", "modern"])
def mcp_era(request: pytest.FixtureRequest) -> Literal["legacy", "modern"]:
    """The era that client and server speak: tests that need a connection run once in each. Define a fixture of this
    name to choose one."""
    return request.param


@pytest.fixture
def mcp_client_options() -> dict[str, Any]:
    """The options of `mcp_client` besides the era: ``{"sampling": ...}``, see `trio_mcp.types.ClientSettings`."""
    return {}


@pytest.fixture
async def mcp_client(
    mcp_server: Server, mcp_era: Literal["legacy", "modern"], mcp_client_options: dict[str, Any]
) -> AsyncGenerator[Client]:
    """A client of ``mcp_server``, in memory. It needs pytest-trio."""
    from trio_mcp import open_memory

    async with open_memory(mcp_server, era=mcp_era, **mcp_client_options) as client:
        yield client


@pytest.fixture
async def mcp_scripted_client(
    mcp_server: Server, mcp_era: Literal["legacy", "modern"]
) -> AsyncGenerator[ScriptedClient]:
    """A `trio_mcp.testing.ScriptedClient` of ``mcp_server``, in memory, that declares nothing. It needs pytest-trio."""
    from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN
    from trio_mcp.testing import open_scripted_client

    revision = LATEST_LEGACY if mcp_era == "legacy" else LATEST_MODERN
    async with open_scripted_client(mcp_server, revision.name) as client:
        yield client


@pytest.fixture
def mcp_context() -> RecordingContext:
    """A `trio_mcp.testing.RecordingContext` whose client can answer nothing."""
    from trio_mcp.testing import RecordingContext

    return RecordingContext()


@pytest.fixture
def mcp_seed(request: pytest.FixtureRequest) -> int:
    """A seed for `trio_mcp.testing.RandomFaults`, reported when the test fails, so that ``--mcp-seed`` can repeat
    it."""
    seed: int | None = request.config.getoption("--mcp-seed")
    if seed is None:
        seed = random.randrange(2**32)  # noqa: S311 - no secret
    request.node.add_report_section("setup", "mcp_seed", f"repeat it with --mcp-seed={seed}")
    return seed
