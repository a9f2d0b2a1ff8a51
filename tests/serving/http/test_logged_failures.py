"""What the log says of a handler that fails."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from tests.serving.http.protection import call, issued, protected
from tests.serving.http.raw import BASE, LEGACY
from tests.serving.http.scenes import Scene, in_memory, over_sockets
from tests.serving.http.scenes import call as legacy_call
from trio.testing import MockClock


def failing() -> Scene:
    scene = Scene()

    @scene.server.tool
    async def crash(seconds: float) -> None:
        await trio.sleep(seconds)
        raise LookupError("secret")

    return scene


def said_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: vars(record)[name] for name in ("method", "tool", "caller", "duration")}


async def test_log_of_a_failed_call_names_tool_principal_and_duration(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_memory(failing().server, auth=protected(issued())) as endpoint:
        answer = await call(endpoint, "alice-1", "crash", seconds=12.5)
    assert answer.json["result"]["isError"]
    assert "alice" not in answer.body.decode()
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == "tools/call (request 1) failed in 'crash' for 'alice' after 12.500 s"
    assert said_of(record) == {"method": "tools/call", "tool": "crash", "caller": "alice", "duration": 12.5}
    assert record.exc_info is not None


async def test_log_of_a_failed_anonymous_call_names_the_client_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with over_sockets(failing().server, stateless=True) as endpoint:
        headers = {**BASE, "MCP-Protocol-Version": LEGACY}
        assert (await endpoint.ask("POST", headers, legacy_call("crash", seconds=0))).json["result"]["isError"]
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage().startswith("tools/call (request 1) failed in 'crash' for '127.0.0.1' after ")
    assert said_of(record)["caller"] == "127.0.0.1"


async def test_log_of_a_failed_resource_read_names_the_uri_and_omits_an_unknown_caller(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    scene = failing()

    @scene.server.resource("fails:{name}")
    async def fails(name: str) -> str:
        raise LookupError(name)

    async with in_memory(scene.server, stateless=True) as endpoint:
        params = {"uri": "fails:it"}
        headers = {**BASE, "MCP-Protocol-Version": LEGACY}
        await endpoint.ask("POST", headers, {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params})
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == "resources/read (request 1) failed in 'fails:it' after 0.000 s"
    assert said_of(record) == {"method": "resources/read", "tool": None, "caller": None, "duration": 0}
