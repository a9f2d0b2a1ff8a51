"""The paths for probes, and the delay before a drain: what a load balancer sees of a server that ends."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator

import pytest
import trio
from tests.patience import LONG, PATIENCE
from tests.serving.http.memory_listener import ListenedEndpoint, listening
from tests.serving.http.protection import Tokens, protected
from tests.serving.http.raw import Answer, modern
from tests.serving.http.scenes import Scene
from trio.testing import MockClock

from trio_mcp import Limits

PATHS = ("/healthz", "/readyz")


@pytest.fixture
async def endpoint() -> AsyncGenerator[ListenedEndpoint]:
    async with listening(Scene(Limits(drain_delay=5, drain_timeout=2)).server, health=True) as one:
        yield one


async def probe(endpoint: ListenedEndpoint, path: str, method: str = "GET", **headers: str | None) -> Answer:
    connection = await endpoint.connect()
    await connection.send(method, {"Host": "127.0.0.1", **headers}, path=path)
    return await connection.answer()


@pytest.mark.parametrize("path", PATHS)
async def test_health_response_contains_only_the_status(endpoint: ListenedEndpoint, path: str) -> None:
    answer = await probe(endpoint, path)
    assert (answer.status, answer.body, answer.headers["cache-control"]) == (200, b"ok", "no-store")
    assert (await probe(endpoint, path, "HEAD")).body == b""
    assert (await probe(endpoint, path, "POST")).status == 405


@pytest.mark.parametrize("path", PATHS)
async def test_health_endpoints_need_no_host_origin_or_token(path: str) -> None:
    async with listening(Scene().server, health=True, auth=protected(Tokens())) as endpoint:
        for headers in ({"Host": "10.0.0.7:8000"}, {"Origin": "https://elsewhere.example"}):
            assert (await probe(endpoint, path, **headers)).status == 200
            assert (await probe(endpoint, "/other", **headers)).status == 403
        assert (await probe(endpoint, "/mcp")).status == 401


async def test_health_paths_get_status_404_if_health_endpoints_are_not_enabled() -> None:
    async with listening(Scene(Limits(drain_delay=LONG)).server) as endpoint:
        for path in PATHS:
            assert (await probe(endpoint, path)).status == 404
        signal.raise_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):  # nobody could learn of the delay, so there is none
            await endpoint.over.wait()


async def test_readyz_fails_after_sigterm_while_requests_are_still_served_during_drain_delay(
    endpoint: ListenedEndpoint, autojump_clock: MockClock
) -> None:
    begun = trio.current_time()
    signal.raise_signal(signal.SIGTERM)
    await trio.sleep(4.9)
    assert [(await probe(endpoint, path)).status for path in PATHS] == [200, 503]
    connection = await endpoint.connect()
    await connection.send("POST", *modern("tools/call", {"name": "echo", "arguments": {"text": "late"}}))
    assert (await connection.answer()).json["result"]["content"][0]["text"] == "late"
    await endpoint.over.wait()
    assert 5 <= trio.current_time() - begun < 6


async def test_server_closes_each_connection_after_its_first_response_after_sigterm(
    endpoint: ListenedEndpoint, autojump_clock: MockClock
) -> None:
    ask = modern("tools/call", {"name": "echo", "arguments": {"text": "again"}})
    idle = await endpoint.connect()
    assert "connection" not in (await idle.ask("POST", *ask)).headers
    signal.raise_signal(signal.SIGTERM)
    await trio.sleep(1)
    for connection in (idle, await endpoint.connect()):
        answer = await connection.ask("POST", *ask)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await connection.stream.receive_some() == b""


async def test_second_shutdown_signal_skips_drain_delay(endpoint: ListenedEndpoint, autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    signal.raise_signal(signal.SIGTERM)
    await trio.sleep(1)
    signal.raise_signal(signal.SIGTERM)
    await endpoint.over.wait()
    assert trio.current_time() - begun < 2
