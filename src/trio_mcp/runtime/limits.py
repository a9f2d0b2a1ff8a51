"""Limits holds every bound of a connection, in one place."""

from __future__ import annotations

import math
from typing import Any

import attrs

__all__ = ["DEFAULT_LIMITS", "Limits"]


def _positive(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be greater than 0, not {value!r}")


def _not_negative(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if not (value >= 0 and not math.isnan(value)):
        raise ValueError(f"{attribute.name} must not be negative, not {value!r}")


def _bound(default: float) -> Any:
    return attrs.field(default=default, validator=_positive)


def _seconds(default: float) -> Any:
    return attrs.field(default=default, validator=_not_negative)


@attrs.frozen(kw_only=True)
class Limits:
    """The bounds of one connection. Counts and bytes are per connection unless said otherwise, times are in seconds.

    Of what is bounded for the whole server, a connection gets no more than it leaves for others: half of it where
    nobody else wants any, a third where two want all they can get, and all over stdio, where there is no other. So no
    client can use up what the next one needs. Connections whose calls wait for threads get them in turns.
    """

    max_in_flight: int = _bound(1000)
    """Requests of the peer whose handlers run at the same time. A handler that asks its peer keeps its place while
    it waits; if the peer must call back here to answer, a bound as small as the depth of such calls blocks them all."""
    max_queued: int = attrs.field(default=1000, validator=_not_negative)
    """Further requests that wait for their turn. Those beyond the bound are answered with error -31000, unexecuted."""
    max_inbound_bytes: int = _bound(64 * 1024 * 1024)
    """Bytes of all requests running, waiting or parked, as they are in memory: between one and thirty times what they
    were on the wire, estimated from their text. A request that would exceed the bound is answered with error -31000,
    except when it is the only one. Those that wait take less, since they wait as text."""
    max_message_bytes: int = _bound(16 * 1024 * 1024)
    """Bytes of one message. A longer one is skipped. A server answers it with error -32600, under its id where that can
    be read, else under null; a client answers only requests. Over WebSocket it ends the connection (close code
    1009)."""
    max_batch: int = _bound(100)
    """Messages in one batch (revisions that have batches). Longer batches are answered with error -32600."""
    max_parked: int = _bound(1000)
    """Handlers that wait for a modern client to come back with answers, for each connection or, where the transport
    knows one, each principal. When there are more, the oldest is cancelled."""
    max_rounds: int = _bound(32)
    """Number of times that, in the course of one call, a handler may return that it wants input of a legacy client, and
    is run again with the answers. Asking once more is a failure of the handler. Modern clients count by themselves:
    their option of the same name."""
    max_pending_notifications: int = _bound(10_000)
    """Log messages of the peer that wait for our callbacks; and as a bound of its own for each, its changes, and the
    progress values of one call. Each kind takes ``max_inbound_bytes`` at most. Beyond the bound the oldest is dropped,
    and counted unless it is progress."""
    max_subscriptions: int = _bound(1000)
    """Resources a client may be subscribed to, and, as a bound of its own, streams it may listen on. In legacy
    revisions one more resource is answered with error -31000, as is one more stream; a stream is acknowledged
    without the resources beyond the bound, which holds for all streams of a connection together."""
    high_water: int = _bound(16 * 1024)
    """Bytes in the outbox at which log messages wait for room. Responses and requests wait at four times
    that, and reading pauses at 64 times, when a peer sends on and on but does not read its answers."""
    max_connections: int = _bound(2000)
    """Connections to one server at the same time, over sockets. For one more, the oldest that has sent nothing yet (see
    ``handshake_timeout``) is closed; where all have sent something, the new one is turned away, WebSocket clients with
    HTTP status 503."""
    max_server_requests: int = _bound(20_000)
    """Requests running, waiting or parked on all connections of a server together. Those beyond the bound are answered
    with error -31000, unexecuted."""
    max_server_streams: int = _bound(20_000)
    """Streams of ``subscriptions/listen`` on all connections of a server together. Those beyond the bound are answered
    as for ``max_server_requests``."""
    max_server_bytes: int = _bound(512 * 1024 * 1024)
    """Bytes in memory of the requests and streams on all connections of a server together. A request that would exceed
    the bound is answered as for ``max_inbound_bytes``."""
    worker_threads: int = _bound(40)
    """Threads in which plain ``def`` handlers work, for the whole server. Further calls wait for a free one."""
    max_abandoned_threads: int = _bound(100)
    """Threads of cancelled handlers that did not end within ``cleanup_grace`` and still run, for the whole server. They
    take no place of ``worker_threads``; while there are this many, calls of plain ``def`` handlers are answered with
    error -31000, unexecuted, and the log says where those threads are."""
    max_asking_threads: int = _bound(200)
    """Threads beside ``worker_threads`` in which plain ``def`` handlers wait for their client, for the whole server.
    Asking one question more fails with error -31000. Where many users are asked, let handlers be ``async def``."""
    progress_interval: float = _seconds(0.1)
    """Least time between two progress notifications of one request."""
    cleanup_grace: float = _seconds(5.0)
    """Time that a cancelled handler may clean up before it is reported; a thread is abandoned then."""
    shutdown_grace: float = _seconds(1.0)
    """Longest time that a cancelled handler may clean up before its thread is abandoned, when the server or the
    connection ends."""
    handshake_timeout: float = _seconds(10.0)
    """Time that a client may take to ask for a WebSocket, and over TCP or a Unix socket until its first message has
    come. Then its connection is closed."""
    ping_interval: float = _bound(20.0)
    """Time that a WebSocket peer may be silent before it is sent a ping, and one over TCP before the system asks
    whether its machine is still there. ``math.inf``: for ever."""
    ping_timeout: float = _bound(20.0)
    """Time that a peer may be silent after that, before the connection is taken for lost."""
    callback_grace: float = _seconds(5.0)
    """Time that a callback of ours for a log message may hold up the answers to the requests in whose course the
    message came. Then it is reported, and the answers are given all the same. ``math.inf``: for ever."""
    deadline_grace: float = _seconds(1.0)
    """Time that a request may run beyond its caller's deadline, where the caller tells it. So the caller's own cancel,
    which says why, comes first, unless it does not get through."""
    retry_timeout: float = _bound(600.0)
    """Time that a modern client may take to come back with answers. Then the handler that asked is cancelled, and
    the ``requestState`` it gave is no longer valid. ``math.inf``: for ever."""
    drain_timeout: float = _seconds(2.0)
    """Time that accepted work may go on after the end of input or a signal, before it is cancelled. Hosts kill a server
    after about four seconds. By then this time, ``shutdown_grace`` and the end of the lifespan should be over."""


DEFAULT_LIMITS = Limits()
