"""send_unheeded sends a request whose reply nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...jsonrpc.codec import frame_request

if TYPE_CHECKING:
    from ...protocol.revisions import Revision
    from ...state.connection import ConnectionState
    from ..outbox import Outbox


def send_unheeded(
    state: ConnectionState, outbox: Outbox, method: str, params: dict[str, Any], revision: Revision
) -> None:
    """Send a request ahead of all that waits, and even when ``outbox`` is full; its reply will be ignored. Synchronous,
    so that a task that is cancelled can send. Raises `MethodUnavailable`."""
    request = state.open_request(method, revision)
    state.abandon(request)
    outbox.put_first(frame_request(request.id, method, params) + b"\n")
