"""What a lost connection and an unreadable message say of themselves."""

from __future__ import annotations

import pytest
import trio

from trio_mcp.jsonrpc.errors import MCPError
from trio_mcp.runtime.transport import ConnectionLost, FramedTransport, ReplyLost, UnreadableFrame


def test_connection_lost_error_contains_a_reason() -> None:
    lost = ConnectionLost("broken pipe")
    assert (lost.reason, lost.exit_status, lost.stderr, str(lost)) == ("broken pipe", None, (), "broken pipe")
    assert isinstance(lost, MCPError)


@pytest.mark.parametrize("status", [0, 3, -9])
def test_connection_lost_error_of_a_child_process_contains_exit_status_and_last_stderr_lines(status: int) -> None:
    lost = ConnectionLost("gone", exit_status=status, stderr=("one", "two"))
    assert (lost.reason, lost.exit_status, lost.stderr) == ("gone", status, ("one", "two"))
    assert str(lost) == f"gone (exit status {status}); its last lines on stderr:\n  one\n  two"


def test_error_for_an_unreadable_message_contains_the_reason_and_the_start_and_end_of_the_message() -> None:
    bad = UnreadableFrame("too long", b"head", b"tail")
    assert (str(bad), bad.reason, bad.head, bad.tail) == ("too long", "too long", b"head", b"tail")
    assert (UnreadableFrame("x").head, UnreadableFrame("x").tail) == (b"", b"")


def test_reply_lost_error_contains_the_request_id_and_the_cause() -> None:
    error = MCPError("gone")
    lost = ReplyLost("a", error)
    assert (lost.request_id, lost.error) == ("a", error)


def test_network_attribute_of_a_framed_transport_is_none_by_default() -> None:
    assert FramedTransport.network is None


class Plain(FramedTransport):
    """A channel that can do no more than a channel must."""

    async def receive(self) -> bytes:
        raise trio.EndOfChannel

    async def send(self, messages: bytes | bytearray) -> None:
        raise ConnectionLost("gone")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def test_send_nowait_method_of_a_framed_transport_sends_nothing_by_default() -> None:
    assert Plain().send_nowait(b"{}\n") == 0
