"""What a group raises for itself. All other errors are those of the member's client, as they are."""

from __future__ import annotations

from ..jsonrpc.errors import MCPError

__all__ = ["MemberUnavailable", "NotInCatalogue"]


class MemberUnavailable(MCPError):
    """The member of this name cannot be called: it has failed, was removed, or never was. Nothing was sent.

    ``error`` is why it failed, if it did, and ``stderr`` its last lines on standard error, where it is a child.
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
    """No member offers anything by this name. Nothing was sent."""
