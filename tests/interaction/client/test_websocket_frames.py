"""WebSocket frames from the server: close codes and invalid frames (WSK-02, WSK-03)."""

from __future__ import annotations

import logging

import pytest
import trio
from tests.interaction.client.raw import Serve
from tests.patience import PATIENCE

from trio_mcp import ConnectionLost, Limits


@pytest.fixture
def transport() -> str:
    return "websocket"


@pytest.mark.parametrize(
    ("code", "words", "meaning"),
    [
        (1000, "", r"the peer closed the connection \(close code 1000\)$"),
        (1001, "restarting", r"the peer is going away \(close code 1001\): restarting$"),
        (1009, "", r"the peer reported a message that is too long \(close code 1009\)$"),
        (1011, "oh dear", r"the peer reported an internal error \(close code 1011\): oh dear$"),
        (4001, "mine", r"the peer closed the connection \(close code 4001\): mine$"),
    ],
)
async def test_connection_lost_error_of_pending_calls_contains_the_websocket_close_code_of_the_server(
    serve_raw: Serve, era: str, code: int, words: str, meaning: str
) -> None:
    raw = serve_raw(f'opened(); until("tools/call"); close({code}, {words!r}); ended()')
    with trio.fail_after(PATIENCE):
        async with raw.client(era=era) as client:
            with pytest.raises(ConnectionLost, match=meaning):
                await client.call_tool("any")
            with pytest.raises(ConnectionLost, match=str(code)):
                await client.call_tool("another")
    assert raw.of("eof")[0]["close_code"] == code


async def test_connection_lost_error_contains_close_code_1006_if_server_sends_no_websocket_close_frame(
    serve_raw: Serve, era: str
) -> None:
    raw = serve_raw('opened(); until("tools/call"); os._exit(0)')
    with trio.fail_after(PATIENCE):
        async with raw.client(era=era) as client:
            with pytest.raises(ConnectionLost, match=r"the connection was lost \(close code 1006\)$"):
                await client.call_tool("any")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ('2, b"{}"', 1003),
        (r'1, b"\xff"', 1007),
        ('3, b""', 1002),
        ('1, b"x" * 70_000', 1009),
    ],
)
async def test_client_that_receives_an_invalid_websocket_frame_fails_calls_and_sends_a_close_code(
    serve_raw: Serve, frame: str, code: int
) -> None:
    raw = serve_raw(f'opened(); until("tools/call"); frame({frame}); ended()')
    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy", limits=Limits(max_message_bytes=65536)) as client:
            with pytest.raises(ConnectionLost, match=f"close code {code}"):
                await client.call_tool("any")
    assert raw.of("eof")[0]["close_code"] == code


async def test_websocket_client_sends_close_code_1000_when_it_closes(serve_raw: Serve, era: str) -> None:
    raw = serve_raw("opened()")
    with trio.fail_after(PATIENCE):
        async with raw.client(era=era):
            pass
    assert raw.of("eof")[0]["close_code"] == 1000


async def test_exception_inside_the_websocket_client_context_manager_sends_close_code_1000(serve_raw: Serve) -> None:
    raw = serve_raw("opened()")
    with trio.fail_after(PATIENCE):
        with pytest.raises(LookupError, match="mine"):
            async with raw.client(era="legacy"):
                raise LookupError("mine")
    assert raw.of("eof")[0]["close_code"] == 1000


async def test_internal_error_in_websocket_client_sends_close_code_1011(
    serve_raw: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application filters our logger, and its filter fails where we report a reply that is for nobody."""
    raw = serve_raw('opened(); until("tools/call"); send({"id": None, "error": {"code": -1, "message": "?"}}); ended()')

    def broken(record: logging.LogRecord) -> bool:
        raise OSError("the disk is full")

    monkeypatch.setattr(logging.getLogger("trio_mcp"), "filters", [broken])
    with trio.fail_after(PATIENCE):
        # With it may leave what the call raised, if the connection was gone before its task was cancelled.
        with pytest.raises(ExceptionGroup) as caught:
            async with raw.client(era="legacy") as client:
                await client.call_tool("any")
        assert caught.group_contains(OSError, match="the disk is full")
    assert raw.of("eof")[0]["close_code"] == 1011
