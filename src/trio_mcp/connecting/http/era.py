"""Eras: whether a server at a URL is a modern or a legacy one (2026-07-28 Streamable HTTP, Backward Compatibility)."""

from __future__ import annotations

from typing import Final

from ...client.client import Client
from ...client.opening import LegacyServers, discover, initialize, legacy_offer, negotiate_modern
from ...jsonrpc.errors import MCPError, PeerError, ProtocolViolation, UnreadableAnswer
from ...runtime.channel import ConnectionLost
from ...runtime.http_error import HTTPError
from .answers import StatusPeerError, is_passing

_LEGACY: Final = LegacyServers()
_FORBIDDEN: Final = frozenset((401, 403))
_REDIRECTS: Final = range(300, 400)


async def settle_era(client: Client, url: str) -> None:
    """Settle the revision with the server at ``url``, as the settings say. A server that was a legacy one the last time
    is greeted as such, and probed when that fails.

    Raises `ConnectionLost` when the server cannot be reached, `HTTPError` for refusals that say nothing of the era,
    `PeerError` and `ProtocolViolation`.
    """
    try:
        match client.settings.era:
            case "legacy":
                await initialize(client)
            case "modern":
                await negotiate_modern(client)
            case "auto":
                await _find_out(client, url)
    except HTTPError as error:
        if error.status is None:
            raise ConnectionLost(error.reason) from None
        raise


async def _find_out(client: Client, url: str) -> None:
    if _LEGACY.holds(url):
        try:
            await initialize(client)
        except (PeerError, HTTPError, ProtocolViolation) as error:
            if _says_nothing(error):
                raise
        else:
            return
    await _probe(client)
    _LEGACY.note(url, is_legacy=client.revision.handshake)


async def _probe(client: Client) -> None:
    """Ask for modern revisions first. What a modern server does not say means a legacy one: errors of any code but
    `UNSUPPORTED_PROTOCOL_VERSION`, which legacy servers use for other things, and statuses of requests that make no
    sense to such servers."""
    try:
        await discover(client)
    except (PeerError, HTTPError, UnreadableAnswer) as error:
        if _says_nothing(error):
            raise
        offered = legacy_offer(error)
    else:
        return
    await initialize(client, *offered)


def _says_nothing(error: MCPError) -> bool:
    """Return whether ``error`` comes from the network, a proxy or an access rule, and says nothing of the era."""
    if not isinstance(error, HTTPError | StatusPeerError):
        return False
    status = error.status
    return status is None or status in _FORBIDDEN or status in _REDIRECTS or is_passing(status)
