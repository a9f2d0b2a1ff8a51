"""The pytest plugin of trio-mcp: fixtures for tests of MCP servers. See `trio_mcp.testing`.

pytest loads this module in every run of every project. So the module is outside the package, and imports nothing from
it until a fixture is used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Generator
from inspect import isasyncgen
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from trio_mcp import Client, Server, aio
    from trio_mcp.testing import RecordingContext, ScriptedClient

_NOBODY = "no plugin or hook that handled it"
"""Text of pytest's message about an async fixture that no plugin runs. Before pytest 9, the fixture's value is a
generator instead."""
_ADVICE = """The fixture {name} is async, and no plugin runs it for this test. One of these does:
- pytest-trio: mark the test with @pytest.mark.trio, or set trio_mode = true in pytest's configuration.
- pytest-asyncio: set asyncio_mode = auto. Then mcp_client is a trio_mcp.aio.Client. In strict mode, define your own
  fixture:
    @pytest_asyncio.fixture
    async def client():
        async with trio_mcp.aio.open_memory(server) as client:
            yield client
- anyio: mark the test with @pytest.mark.anyio."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command line option ``--mcp-seed`` to pytest."""
    group = parser.getgroup("trio-mcp")
    group.addoption("--mcp-seed", type=int, metavar="N", help="seed returned by the fixture mcp_seed (default: random)")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Fail with advice if no installed plugin runs the async fixtures of this plugin."""
    is_ours = fixturedef.argname in ("mcp_client", "mcp_scripted_client")
    try:
        value = yield
    except pytest.fail.Exception as failure:
        if is_ours and _NOBODY in str(failure):
            pytest.fail(_ADVICE.format(name=fixturedef.argname), pytrace=False)
        raise
    if is_ours and isasyncgen(value):
        pytest.fail(_ADVICE.format(name=fixturedef.argname), pytrace=False)
    return value


def _runs_on_asyncio(request: pytest.FixtureRequest) -> bool:
    """Return whether a plugin runs the fixture on asyncio.

    Fail if the test itself runs on trio.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    if request.node.get_closest_marker("trio") is not None:
        pytest.fail(
            f"pytest-asyncio runs {request.fixturename} for a test on trio: with asyncio_mode = auto it runs all async "
            "fixtures. Set asyncio_mode = strict, and mark the tests that run on asyncio with @pytest.mark.asyncio",
            pytrace=False,
        )
    return True


@pytest.fixture
def mcp_server() -> Server:
    """The server under test.

    Define a fixture of this name that returns your server.
    """
    pytest.fail(
        "mcp_client and mcp_scripted_client need to know your server. Define it in the test file or in conftest.py:\n"
        "    @pytest.fixture\n"
        "    def mcp_server():\n"
        "        return server",
        pytrace=False,
    )


@pytest.fixture(params=["legacy", "modern"])
def mcp_era(request: pytest.FixtureRequest) -> Literal["legacy", "modern"]:
    """The protocol era of client and server: ``"legacy"`` or ``"modern"``.

    Tests that need a connection run once for each era. To choose an era, define a fixture of this name.
    """
    return request.param


@pytest.fixture
def mcp_client_options() -> dict[str, Any]:
    """Options for the fixture `mcp_client`, such as ``{"sampling": ...}``. They can't contain the option ``era``, which
    the fixture `mcp_era` sets.

    See `trio_mcp.types.ClientSettings`.
    """
    return {}


@pytest.fixture
async def mcp_client(
    request: pytest.FixtureRequest,
    mcp_server: Server,
    mcp_era: Literal["legacy", "modern"],
    mcp_client_options: dict[str, Any],
) -> AsyncGenerator[Client | aio.Client]:
    """A client that is connected to ``mcp_server`` in memory.

    In tests on trio (pytest-trio or anyio), it's a `trio_mcp.Client`. In tests on asyncio (pytest-asyncio in its auto
    mode, or anyio), it's a `trio_mcp.aio.Client`.
    """
    if _runs_on_asyncio(request):
        from trio_mcp.aio import open_memory as open_beside_asyncio

        async with open_beside_asyncio(mcp_server, era=mcp_era, **mcp_client_options) as bridged:
            yield bridged
        return
    from trio_mcp import open_memory

    async with open_memory(mcp_server, era=mcp_era, **mcp_client_options) as client:
        yield client


@pytest.fixture
async def mcp_scripted_client(
    request: pytest.FixtureRequest, mcp_server: Server, mcp_era: Literal["legacy", "modern"]
) -> AsyncGenerator[ScriptedClient]:
    """A `trio_mcp.testing.ScriptedClient` that is connected to ``mcp_server`` in memory.

    It declares no capabilities. For tests on trio.
    """
    if _runs_on_asyncio(request):
        pytest.fail("mcp_scripted_client is for tests on trio: mark the test with @pytest.mark.trio", pytrace=False)
    from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN
    from trio_mcp.testing import open_scripted_client

    revision = LATEST_LEGACY if mcp_era == "legacy" else LATEST_MODERN
    async with open_scripted_client(mcp_server, revision.name) as client:
        yield client


@pytest.fixture
def mcp_context() -> RecordingContext:
    """A `trio_mcp.testing.RecordingContext` whose client declares no capabilities.

    The client can't answer elicitation, sampling or roots requests.
    """
    from trio_mcp.testing import RecordingContext

    return RecordingContext()


@pytest.fixture
def mcp_seed(request: pytest.FixtureRequest) -> int:
    """A seed for `trio_mcp.testing.RandomFaults`.

    If the test fails, the seed is printed, so that you can repeat the run with ``--mcp-seed``.
    """
    seed: int | None = request.config.getoption("--mcp-seed")
    if seed is None:
        seed = random.randrange(2**32)  # noqa: S311 - no secret
    request.node.add_report_section("setup", "mcp_seed", f"repeat it with --mcp-seed={seed}")
    return seed
