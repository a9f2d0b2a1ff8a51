"""renew_session opens a new session with a legacy server that has forgotten the last one; tell_of_changes makes good
what the client may not have heard."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ..jsonrpc.errors import PeerError
from ..protocol.types.capabilities import ServerCapabilities
from ..state.events import NotificationReceived
from .client import Client
from .opening import initialize

__all__ = ["renew_session", "tell_of_changes"]

logger = logging.getLogger("trio_mcp")


async def renew_session(client: Client) -> None:
    """Send ``initialize`` again, and then what the client has told the server in the session before: the log level, and
    the resources to watch. The callbacks are called for the lists and resources whose changes the client may have
    missed meanwhile.

    Raises the error of the request when there is no new session. A server that refuses a wish is logged.
    """
    await initialize(client)
    wishes = client.session_wishes
    try:
        if wishes.log_level is not None:
            await client.set_log_level(wishes.log_level)
        for uri in tuple(wishes.uris):
            await client.subscribe(uri)
    except PeerError as error:
        logger.warning("the server has forgotten its session, and refuses in the new one: %s", error)
    tell_of_changes(client)


def tell_of_changes(client: Client) -> None:
    """Tell the callbacks that everything may have changed that the server tells of."""
    methods = client.revision.methods
    for kind in _watched_lists(client.server_capabilities):
        _tell(client, NotificationReceived(methods[f"notifications/{kind}/list_changed"], {}, client.revision))
    for uri in tuple(client.session_wishes.uris):
        _tell(client, NotificationReceived(methods["notifications/resources/updated"], {"uri": uri}, client.revision))


def _watched_lists(declared: ServerCapabilities) -> Iterator[str]:
    for kind, capability in (
        ("tools", declared.tools),
        ("prompts", declared.prompts),
        ("resources", declared.resources),
    ):
        if capability is not None and capability.list_changed:
            yield kind


def _tell(client: Client, event: NotificationReceived) -> None:
    if client.callbacks.take(event):
        client.duplex.notified(event, 0)
