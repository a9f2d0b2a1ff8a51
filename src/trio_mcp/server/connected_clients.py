"""Connected clients, for server code that runs outside of any request.

`Observers` are the connections that are notified of changes to a server. A `ConnectedClient` is passed to a function
that handles a notification from the client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import count
from secrets import token_urlsafe
from typing import Any, Protocol

from ..concurrency.threads import TrioRun, current_run
from ..protocol.converters import structure_result
from ..protocol.errors import CapabilityMissing, NoBackChannel
from ..protocol.methods import Method
from ..protocol.revisions import LATEST_MODERN, Revision
from ..protocol.types.lifecycle import Implementation
from ..protocol.types.sampling import ListRootsResult, Root
from ..runtime.connection import Connection
from ..runtime.peer import Auth, Peer
from ..runtime.requests.scope import current_request

logger = logging.getLogger("trio_mcp")


class ConnectedClient:
    """Describes a client to the handler of a notification that the client has sent. If the client uses a legacy
    protocol revision, the server can request its roots.

    Each connection has exactly one such object, which you can keep and compare. An HTTP notification that belongs to no
    connection, as in modern revisions, gets a new object that describes its sender.
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
        """The id of the connection, as in `RequestContext.session_id`."""
        return self._peer.session_id

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The HTTP headers of the client's first request, as in `RequestContext.headers`."""
        return self._peer.headers

    @property
    def auth(self) -> Auth | None:
        """The authenticated caller, as in `RequestContext.auth`."""
        return self._peer.auth

    @property
    def info(self) -> Implementation | None:
        """The client's name and version. The client may send any values, so display the name and version, but don't
        base decisions on them."""
        return self._connection.state.client_info

    @property
    def revision(self) -> Revision:
        """The protocol revision agreed in the client's handshake. Without a handshake, the latest revision."""
        return self._connection.state.revision or LATEST_MODERN

    @property
    def lifespan(self) -> Any:
        """The value that the server's lifespan yielded."""
        return self._lifespan

    async def list_roots(self) -> list[Root]:
        """Send the client a roots request, and return the roots.

        Raises:
            NoBackChannel: Before anything is sent, if the server is stateless or the client has no connection.
            CapabilityMissing: Before anything is sent, if the client didn't declare roots.
            PeerError: If the client answers with an error.
            ConnectionLost: If the connection closes before the answer.
            ProtocolViolation: If the answer is malformed.
        """
        if self._connection.stateless:
            raise NoBackChannel("this server is stateless, so it cannot wait for its client's answer")
        if self._sender is not None:
            raise NoBackChannel(
                "this client has no connection: the server can send requests only in responses to the client's requests"
            )
        if not self._connection.state.client_capabilities.supports("roots"):
            raise CapabilityMissing("roots", self.revision)
        result = await self._connection.request("roots/list", None, self.revision)
        return structure_result("roots/list", result, ListRootsResult).roots


class Observer(Protocol):
    """Interface of a server's connection to one client. The server notifies the connection of changes."""

    def list_changed(self, method: str) -> None:
        """Notify this connection's client that a list changed. ``method`` is the notification's method, such as
        ``notifications/tools/list_changed``."""
        ...

    def resource_updated(self, uri: str) -> None:
        """Notify this connection's client that the resource with the URI ``uri`` changed."""
        ...

    def everything_changed(self) -> None:
        """Notify this connection's client that all lists, and all resources that the client subscribed to, may have
        changed."""
        ...

    def send_extension_notification(self, row: Method, params: Any) -> None:
        """Send an extension's notification, which ``row`` describes, to the client, if the client declared that
        extension.

        ``params`` is an instance of the notification's parameter class.
        """
        ...


class Observers:
    """The connections of one server to the clients that it notifies of changes. All methods can be called from any
    thread.

    Each connection is notified in its own run of trio: at once if the change is made in that run's thread, otherwise
    soon after. Connections may open and close during a notification.
    """

    def __init__(self) -> None:
        self._runs: dict[Observer, TrioRun | None] = {}
        """The trio run of each observer. `None` for an observer that is the `Observers` of another server."""
        self._numbers = count(1)
        self._notification_number = threading.local()

    def __iter__(self) -> Iterator[Observer]:
        return iter(tuple(self._runs))

    def add(self, observer: Observer) -> None:
        """From now on, notify ``observer`` of changes. It is a connection in the current run of trio."""
        self._runs[observer] = current_run()

    def add_server(self, observers: Observers) -> None:
        """From now on, also notify the connections in ``observers`` of changes. They belong to another server that
        mounts this server.

        These connections get no extension notifications, because a mounted server's extensions aren't available to
        clients.
        """
        self._runs[observers] = None

    def discard(self, observer: Observer) -> None:
        """Stop notifying ``observer``, a connection, of changes. Do nothing if this connection wasn't added."""
        self._runs.pop(observer, None)

    @cached_property
    def source(self) -> str:
        """The id of this server in this process. With the id, other replicas recognize this server's notifications."""
        return token_urlsafe(9)

    @property
    def notification_number(self) -> int:
        """The sequence number of the extension notification that this server is sending. The server's extension
        notifications are numbered in order."""
        return self._notification_number.number

    def list_changed(self, method: str) -> None:
        """Notify the clients of all connections that a list changed. See `Observer.list_changed`."""
        self._notify_each_run(self._notify, "list_changed", method)

    def resource_updated(self, uri: str) -> None:
        """Notify the clients of all connections that a resource changed. See `Observer.resource_updated`."""
        self._notify_each_run(self._notify, "resource_updated", uri)

    def everything_changed(self) -> None:
        """Notify the clients of all connections that all lists and resources may have changed. See
        `Observer.everything_changed`."""
        self._notify_each_run(self._notify, "everything_changed")

    def send_extension_notification(self, row: Method, params: Any) -> None:
        """Send an extension notification to the clients of all connections. See
        `Observer.send_extension_notification`."""
        self._notify_each_run(self._notify_by_extension, next(self._numbers), row, params, idempotent=False)

    def _notify_by_extension(self, run: TrioRun | None, number: int, row: Method, params: Any) -> None:
        if run is not None:
            self._notification_number.number = number
            self._notify(run, "send_extension_notification", row, params)

    def _notify(self, run: TrioRun | None, method: str, *args: Any) -> None:
        """Call the method of `Observer` that is called ``method`` for each connection in ``run``."""
        for observer in [each for each, its in tuple(self._runs.items()) if its is run]:
            getattr(observer, method)(*args)

    def _notify_each_run(self, notify: Callable[..., None], *args: Any, idempotent: bool = True) -> None:
        """In each run of trio that has connections to notify, call ``notify`` with that run and ``args``."""
        if (request := current_request.get(None)) is not None:
            request.announces = True
        for run in dict.fromkeys(tuple(self._runs.values())):
            if run is None or run.is_current:
                notify(run, *args)
            else:
                run.call_soon(self._notify_later, notify, run, *args, idempotent=idempotent)

    def _notify_later(self, notify: Callable[..., None], run: TrioRun, *args: Any) -> None:
        try:
            notify(run, *args)
        except Exception:  # log the error, because no caller can catch it
            logger.exception("could not notify clients of a change that was made in another thread")
