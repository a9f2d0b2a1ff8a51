"""What a lost connection and an unreadable message say of themselves."""

from __future__ import annotations

import pytest
import trio

from trio_mcp.jsonrpc.errors import MCPError
from trio_mcp.runtime.transport import ConnectionLost, FramedTransport, ReplyLost, UnreadableFrame


def test_a_lost_connection_says_why() -> None:
    lost = ConnectionLost("broken pipe")
    assert (lost.reason, lost.exit_status, lost.stderr, str(lost)) == ("broken pipe", None, (), "broken pipe")
    assert isinstance(lost, MCPError)


@pytest.mark.parametrize("status", [0, 3, -9])
def test_a_lost_child_says_how_it_ended_and_its_last_lines(status: int) -> None:
    lost = ConnectionLost("gone", exit_status=status, stderr=("one", "two"))
    assert (lost.reason, lost.exit_status, lost.stderr) == ("gone", status, ("one", "two"))
    assert str(lost) == f"gone (exit status {status}); its last lines on stderr:\n  one\n  two"


def test_an_unreadable_message_says_why_and_has_both_its_ends() -> None:
    bad = UnreadableFrame("too long", b"head", b"tail")
    assert (str(bad), bad.reason, bad.head, bad.tail) == ("too long", "too long", b"head", b"tail")
    assert (UnreadableFrame("x").head, UnreadableFrame("x").tail) == (b"", b"")


def test_a_lost_reply_says_whose_it_is_and_why() -> None:
    error = MCPError("gone")
    lost = ReplyLost("a", error)
    assert (lost.request_id, lost.error) == ("a", error)


def test_a_channel_travels_nowhere_unless_it_says_so() -> None:
    assert FramedTransport.network is None


class Plain(FramedTransport):
    """A channel that can do no more than a channel must."""

    async def receive(self) -> bytes:
        raise trio.EndOfChannel

    async def send(self, messages: bytes | bytearray) -> None:
        raise ConnectionLost("gone")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def test_a_channel_takes_nothing_without_waiting_unless_it_says_so() -> None:
    assert Plain().send_nowait(b"{}\n") == 0
