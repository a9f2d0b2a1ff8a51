"""Errors raised by a group itself. All other errors are those of the member's client, unchanged."""

from __future__ import annotations

from ..jsonrpc.errors import MCPError


class MemberUnavailable(MCPError):
    """The member of this name cannot be called: it has failed, was removed, or never existed. Nothing was sent.

    ``error`` is the cause of a failure, and ``stderr`` its last lines on standard error, where the member is a child.
    """

    def __init__(
        self, member: str, reason: str, *, error: Exception | None = None, stderr: tuple[str, ...] = ()
    ) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason
        self.error = error
        self.stderr = stderr

    def __str__(self) -> str:
        text = f"{self.member!r} {self.reason}"
        return text if self.error is None else f"{text}: {str(self.error) or type(self.error).__name__}"


class NotInCatalogue(MCPError, LookupError):
    """The name is not offered by any member. Nothing was sent."""
