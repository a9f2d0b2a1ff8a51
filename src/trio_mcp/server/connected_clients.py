"""The clients that are connected, as a server meets them outside of any request.

`Observers` are the connections that are told of changes of a server. A `ConnectedClient` is given to a function that
is called for a notification of the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from secrets import token_urlsafe
from typing import Any, Protocol

from ..jsonrpc.errors import ProtocolViolation
from ..protocol.converters import structure
from ..protocol.errors import CapabilityMissing, NoWayBack
from ..protocol.methods import Method
from ..protocol.revisions import LATEST_MODERN, Revision
from ..protocol.types.lifecycle import Implementation
from ..protocol.types.sampling import ListRootsResult, Root
from ..runtime.connection import Connection
from ..runtime.peer import Auth, Peer


class ConnectedClient:
    """A client that notified the server, and the way to ask a legacy client for its roots.

    Each connection has a single such object, which may be kept and compared. A notification that came over HTTP and
    belongs to no connection, as in modern revisions, has an object of its own, which describes its ``sender``.
    """

    __slots__ = ("_connection", "_lifespan", "_sender")

    def __init__(self, connection: Connection, lifespan: Any, sender: Peer | None = None) -> None:
        self._connection = connection
        self._lifespan = lifespan
        self._sender = sender

    @property
    def _peer(self) -> Peer:
        return self._sender or self._connection.peer

    @property
    def session_id(self) -> str | None:
        """The name of the connection, as in `RequestContext.session_id`."""
        return self._peer.session_id

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The headers that the client came with, as in `RequestContext.headers`."""
        return self._peer.headers

    @property
    def auth(self) -> Auth | None:
        """The caller, as authorization has found, as in `RequestContext.auth`."""
        return self._peer.auth

    @property
    def info(self) -> Implementation | None:
        """The client's name and version. Self-reported: for display, never for decisions."""
        return self._connection.state.client_info

    @property
    def revision(self) -> Revision:
        """The protocol revision of the client's handshake; where there was none, the latest one."""
        return self._connection.state.revision or LATEST_MODERN

    @property
    def lifespan(self) -> Any:
        """The value that the server's lifespan yielded."""
        return self._lifespan

    async def list_roots(self) -> list[Root]:
        """Ask the client for its roots. Raises, with nothing sent, `NoWayBack` on a server run stateless and for a
        client without a connection, and `CapabilityMissing`; then `PeerError`, `ConnectionLost`, and
        `ProtocolViolation` for a malformed answer."""
        if self._connection.stateless:
            raise NoWayBack("this server is run stateless, so it cannot wait for an answer of its client")
        if self._sender is not None:
            raise NoWayBack("this client has no connection: modern servers ask in answers to calls alone")
        if not self._connection.state.client_capabilities.supports("roots"):
            raise CapabilityMissing("roots", self.revision)
        result = await self._connection.request("roots/list", None, self.revision)
        try:
            return structure(result, ListRootsResult).roots
        except ValueError as error:
            raise ProtocolViolation(f"the result of roots/list makes no sense: {error}") from None


class Observer(Protocol):
    """A connection that is told of changes."""

    def list_changed(self, method: str) -> None:
        """Tell the client that a list changed, for which ``method`` is the notification."""
        ...

    def resource_updated(self, uri: str) -> None:
        """Tell the client that a resource changed."""
        ...

    def everything_changed(self) -> None:
        """Tell the client that all that it is told of may have changed."""
        ...

    def told(self, row: Method, params: Any) -> None:
        """Tell a client that has declared the extension of ``row`` by this notification, with ``params``, an object of
        its class."""
        ...


class Observers(set[Observer]):
    """The connections of one server. Every connection is told at once; connections may come or go during the
    telling."""

    times_told = 0
    """Number of the notifications of extensions so far, the one that is being told included."""

    @cached_property
    def source(self) -> str:
        """A name of the server in this process, by which others know its notifications."""
        return token_urlsafe(9)

    def list_changed(self, method: str) -> None:
        """Tell all observers. See `Observer.list_changed`."""
        for observer in tuple(self):
            observer.list_changed(method)

    def resource_updated(self, uri: str) -> None:
        """Tell all observers. See `Observer.resource_updated`."""
        for observer in tuple(self):
            observer.resource_updated(uri)

    def everything_changed(self) -> None:
        """Tell all observers. See `Observer.everything_changed`."""
        for observer in tuple(self):
            observer.everything_changed()

    def told(self, row: Method, params: Any) -> None:
        """Tell all observers. See `Observer.told`."""
        self.times_told += 1
        for observer in tuple(self):
            observer.told(row, params)
