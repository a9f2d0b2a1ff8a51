"""`CancelAcknowledged`: an extension that confirms to the caller that a cancelled call has stopped.

CANCEL_ACKNOWLEDGED.md, in the transports folder, specifies the extension for other implementations.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from ..classes import define, frozen
from .extensions import Extension, ExtensionRequest
from .meta import CANCEL_TOKEN

CANCEL: Final = "trio-mcp/cancel"
"""Name of the extension's method. The side that has cancelled a call sends this request."""
NAME: Final = "trio-mcp/cancelAcknowledged"

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_LONGEST_WAIT: Final = 24 * 3600 * 1000

CancelState: TypeAlias = Literal["stopped", "finished", "overran", "abandoned", "relayed", "unknown"]
"""State of a cancelled call, as far as one side knows it. See `trio_mcp.Ending`."""
CANCEL_STATES: Final[frozenset[object]] = frozenset(get_args(CancelState))
"""All values of `CancelState`."""


@frozen
class CancelSettings:
    """The settings that a server declares for the extension `CancelAcknowledged`."""

    max_wait_ms: int = 30_000
    """Maximum milliseconds that the server waits until a cancelled call has stopped."""


@frozen
class CancelParams:
    """The parameters of a `CANCEL` request, which cancels a call and asks how the call ended.

    They are the cancel token of the call, the reason, and how long the receiver should wait until the call has stopped.
    """

    cancel_token: str
    reason: str | None = None
    wait_ms: int | None = None

    def __attrs_post_init__(self) -> None:
        if _TOKEN.fullmatch(self.cancel_token) is None:
            raise ValueError("cancelToken must consist of 16 to 64 letters, digits, hyphens or underscores")
        if self.wait_ms is not None and not 0 <= self.wait_ms <= _LONGEST_WAIT:
            raise ValueError("waitMs must be from 0 to 86,400,000 milliseconds (one day)")


@frozen
class CancelResult:
    """The result of a `CANCEL` request, which tells how the cancelled call ended."""

    state: str
    cleanup_ms: int | None = None
    """Milliseconds from the cancellation until the end of the cleanup, if the call has stopped."""
    never_ran: bool | None = None
    """True if the call was cancelled before it started."""
    outcome: str | None = None
    """Kind of the reply, ``result`` or ``error``, if the call already had a reply when the cancellation arrived."""
    behind: str | None = None
    """The state of the call at the server behind a proxy."""


def token_in(meta: dict[str, Any]) -> str | None:
    """Return the token by which the extension ``trio-mcp/cancelAcknowledged`` identifies a call, from ``meta``, the
    ``_meta`` object of the call. Return `None` if the token is missing or malformed."""
    token = meta.get(CANCEL_TOKEN)
    return token if type(token) is str and _TOKEN.fullmatch(token) is not None else None


@define(eq=False)
class CancelAcknowledged(Extension[CancelSettings, dict[str, Any]]):
    """The extension ``trio-mcp/cancelAcknowledged``, with which a server confirms that a cancelled call has stopped.

        server = Server("pay", extensions=[CancelAcknowledged()])

        async with open_stdio(command, extensions=[CancelAcknowledged()]) as client:
            with confirm_cancels(within=6) as endings:
                with trio.move_on_after(2):
                    await client.call_tool("pay", {"amount": 5})

    Both sides must declare the extension. The server waits at most ``max_wait`` seconds until a cancelled call has
    stopped. Raises `ValueError` unless ``max_wait`` is positive and at most a day.
    """

    max_wait: float = 30.0
    """Maximum seconds that the server waits until a cancelled call has stopped, at most 86,400."""
    name: str = attrs.field(default=NAME, init=False)
    """Always ``trio-mcp/cancelAcknowledged``."""
    server: CancelSettings = attrs.field(factory=CancelSettings, init=False)
    """Settings that servers declare, with ``max_wait`` in milliseconds."""
    client: dict[str, Any] = attrs.field(factory=dict[str, Any], init=False)
    """Settings that clients declare: always an empty dict."""
    since: str = attrs.field(default="2024-11-05", init=False)
    """The first protocol revision in which the extension is declared: always ``2024-11-05``."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not 0 < self.max_wait <= _LONGEST_WAIT / 1000:
            raise ValueError(f"max_wait must be more than 0 and at most 86,400 seconds, not {self.max_wait!r}")
        self.server = CancelSettings(max(1, int(self.max_wait * 1000)))
        self._rows.append(
            ExtensionRequest[CancelParams, CancelResult](
                CANCEL, "client", CancelParams, CancelResult, extension=NAME, requires_client=True, ahead=True
            )
        )

    def _register(self, server: Any) -> None:
        """Register a handler of `CANCEL` requests on ``server``."""
        server._acknowledge_cancels(self)
