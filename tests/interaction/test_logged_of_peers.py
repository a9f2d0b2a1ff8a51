"""Text from a peer is logged quoted and truncated."""

from __future__ import annotations

import logging

import pytest
import trio

from trio_mcp import Limits, RequestContext, Server

from .conversation import LATEST_LEGACY
from .memory_peer import connected

LONG = "i" * 100_000
LONGEST = 2000
"""Characters of what is logged, but for our own tracebacks."""


@pytest.fixture
def server() -> Server:
    server = Server("s", limits=Limits(cleanup_grace=1))

    @server.tool
    async def fail() -> None:
        raise RuntimeError("oh dear")

    @server.tool
    async def nan() -> dict[str, float]:
        return {"nan": float("nan")}

    @server.tool
    async def linger() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 3):
                await trio.sleep_forever()

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample("well?", max_tokens=5)

    return server


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trio_mcp"]


@pytest.mark.parametrize("tool", ["fail", "nan"])
async def test_long_request_id_is_truncated_in_the_log(
    server: Server, tool: str, caplog: pytest.LogCaptureFixture, autojump_clock: object
) -> None:
    caplog.set_level(logging.DEBUG)
    async with connected(server) as peer:
        assert (await peer.call(tool, id=LONG))["isError"] is True
    assert any("request 'iii" in line for line in logged(caplog))
    assert max(map(len, logged(caplog))) < LONGEST


async def test_id_and_reason_of_a_request_that_overruns_cleanup_grace_are_truncated_in_the_log(
    server: Server, caplog: pytest.LogCaptureFixture, autojump_clock: object
) -> None:
    caplog.set_level(logging.DEBUG)
    async with connected(server) as peer:
        await peer.start("linger", id=LONG)
        await peer.cancel(LONG, reason="r" * 100_000)
        await trio.sleep(2)
    assert any("still runs" in line for line in logged(caplog))
    assert max(map(len, logged(caplog))) < LONGEST


async def test_error_response_with_null_id_is_escaped_and_truncated_in_the_log(
    server: Server, caplog: pytest.LogCaptureFixture, autojump_clock: object
) -> None:
    forged = "\n2026-01-01 CRITICAL all is lost \x1b[2J" + LONG
    async with connected(server) as peer:
        await peer.send({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": forged}})
        await peer.request("ping")
    (line,) = logged(caplog)
    assert "all is lost" in line
    assert line.isprintable()
    assert len(line) < LONGEST


async def test_long_duplicate_request_id_is_truncated_in_the_error(server: Server, autojump_clock: object) -> None:
    async with connected(server) as peer:
        await peer.start("linger", id=LONG)
        await peer.send(peer.call_message("linger", {}, id=LONG))
        reply = await peer.reply(LONG)
        assert reply["error"]["message"].endswith(" is already in flight")
        assert len(reply["error"]["message"]) < LONGEST


async def test_disconnect_of_a_client_during_sampling_is_logged_at_level_info(
    server: Server, caplog: pytest.LogCaptureFixture, autojump_clock: object
) -> None:
    caplog.set_level(logging.INFO)
    async with connected(server, LATEST_LEGACY, {"sampling": {}}) as peer:
        await peer.start("ask")
        await peer.close()
        await trio.sleep(1)
    (record,) = [record for record in caplog.records if "tools/call" in record.getMessage()]
    assert "failed, because the connection was lost: the peer closed the connection" in record.getMessage()
    assert record.levelno == logging.INFO
    assert record.exc_info is None
