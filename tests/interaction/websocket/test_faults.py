"""Unexpected errors end one connection with close code 1011 and reveal nothing internal."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial

import pytest
import trio
from tests.interaction.websocket.raw_peer import connected, port_of, serving
from tests.interaction.websocket.servers import watched_server
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked
from trio_websocket import WebSocketConnection

from trio_mcp import CancelCause, serve_websocket

served = partial(serving, serve_websocket)

NOTED = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -1, "message": "of what?"}})
"""An error for nobody, of which the log is told."""


@pytest.fixture
def broken_logging() -> Iterator[None]:
    """The application filters our logger, and its filter fails. So does whichever task of ours has something to
    say there, which no code of ours can foresee."""

    def broken(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("ignored:"):
            raise RuntimeError("password=swordfish")
        return True

    logger = logging.getLogger("trio_mcp")
    logger.addFilter(broken)
    yield
    logger.removeFilter(broken)


async def test_internal_error_in_one_connection_closes_only_that_websocket_with_code_1011(
    broken_logging: None, caplog: pytest.LogCaptureFixture
) -> None:
    watched = watched_server()
    async with served(watched.server, port=0) as listeners, connected(port_of(listeners)) as bystander:
        await bystander.open_legacy()
        async with connected(port_of(listeners)) as peer:
            await peer.open_legacy()
            await peer.ask(1, "tools/call", {"name": "hang"})
            await watched.started.wait()
            await peer.say(NOTED)
            close = await peer.closed()
        assert close is not None
        assert (close.code, close.reason) == (1011, "internal error")
        assert watched.causes == [(CancelCause.PARENT, None)]
        await bystander.ask(1, "tools/call", {"name": "echo", "arguments": {"text": "here"}})
        assert "result" in await bystander.reply(1)
        with trio.fail_after(PATIENCE):
            while not (errors := [record for record in caplog.records if record.levelno >= logging.ERROR]):
                await wait_all_tasks_blocked()
    [record] = errors
    assert record.message == "a connection failed"
    assert "swordfish" in caplog.text


async def test_error_inside_the_trio_websocket_library_closes_only_that_connection_with_code_1011(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever trio-websocket may still hold in store."""

    async def fail(self: WebSocketConnection, event: object) -> None:
        raise RuntimeError("a fault of somebody else")

    async with served(watched_server().server, port=0) as listeners, connected(port_of(listeners)) as bystander:
        await bystander.open_legacy()
        monkeypatch.setattr(WebSocketConnection, "_handle_pong_event", fail)
        async with connected(port_of(listeners)) as peer:
            await peer.stream.send_all(b"\x8a\x80\0\0\0\0")
            close = await peer.closed()
            assert close is not None
            assert (close.code, close.reason) == (1011, "internal error")
        monkeypatch.undo()
        await bystander.ask(1, "tools/call", {"name": "echo", "arguments": {"text": "here"}})
        assert "result" in await bystander.reply(1)
    assert "a fault of somebody else" in caplog.text
