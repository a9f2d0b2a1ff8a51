"""MessageChannel is all that the runtime asks of a transport: whole messages in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..jsonrpc.errors import MCPError

__all__ = ["ConnectionLost", "MessageChannel", "UnreadableFrame"]


class ConnectionLost(MCPError):
    """The connection is gone, and every call that waited on it fails with this, exactly once.

    ``exit_status`` is the child's (negative: minus the signal), and ``stderr`` its last lines, where the
    peer was a child process of ours; else `None` and empty.
    """

    def __init__(self, reason: str, *, exit_status: int | None = None, stderr: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_status = exit_status
        self.stderr = stderr

    def __str__(self) -> str:
        text = self.reason
        if self.exit_status is not None:
            text += f" (exit status {self.exit_status})"
        if self.stderr:
            text += "; its last lines on stderr:\n  " + "\n  ".join(self.stderr)
        return text


class UnreadableFrame(Exception):
    """Raised when a message could not be read, because it was too long for example. The channel goes on.

    The peer is told the ``reason``. ``head`` and ``tail`` are the beginning and the end of the message: the call that
    waits for it may be found there.
    """

    def __init__(self, reason: str, head: bytes | bytearray = b"", tail: bytes | bytearray = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.head = head
        self.tail = tail


class MessageChannel(ABC):
    """A transport. It knows nothing of JSON-RPC; one task receives, and one at a time sends."""

    network: str | None = None
    """Way that the messages travel: ``pipe``, ``tcp`` or ``unix``; `None` when they do not leave the process."""

    @abstractmethod
    async def receive(self) -> bytes | bytearray:
        """Return the next message, without its framing.

        Raises `UnreadableFrame` for a message that was skipped, `trio.EndOfChannel` when the peer sends no
        more but may still read, and `ConnectionLost` when both directions are gone. Cancelled, it loses no
        message and no byte. It need not be a checkpoint while messages are at hand.
        """

    @abstractmethod
    async def send(self, messages: bytes | bytearray) -> None:
        """Send one or more whole messages, each ended by a newline and holding no other.

        Raises `ConnectionLost` when the peer reads no more. Cancelled, it may leave half a message behind,
        so nothing may be sent after that.
        """

    def send_nowait(self, message: bytes) -> int:
        """Send the front of a whole message, ended by a newline, without waiting, and return how many bytes of it were
        sent: ``0`` where that would wait or is not worth while, and where it fails, which `send` reports.

        Never raises. What is left must be sent before all else, by `send`. To be called only while nobody is in `send`,
        and after no `send` that was cancelled.
        """
        return 0

    @abstractmethod
    async def aclose(self) -> None:
        """Close both directions. Idempotent; when cancelled it closes forcefully, as `trio.abc.AsyncResource`."""
