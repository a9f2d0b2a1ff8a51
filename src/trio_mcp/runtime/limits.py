"""Limits holds every bound of a connection, in one place.

`Load` counts the connections of one server, and their requests, streams and bytes together, and `Statistics` shows
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import attrs

from ..classes import define, evolve, frozen, not_negative, positive
from ..concurrency.contexts import contextmanager
from ..concurrency.fair_share import Callers

if TYPE_CHECKING:
    from ..stores.shared import StorageCounters


def _bound(default: float) -> Any:
    return attrs.field(default=default, validator=positive)


def _seconds(default: float) -> Any:
    return attrs.field(default=default, validator=not_negative)


@frozen(kw_only=True)
class Limits:
    """The bounds of one connection. Counts and bytes are per connection unless said otherwise, times are in seconds.

    What is bounded for the whole server is shared by caller, over all connections of a caller: no caller gets more than
    the caller leaves for others, half where no other caller wants any, a third where two want as much as possible, and
    the whole over stdio, where there is no other. So no client can use up the share of the next. A caller is the
    principal of a token; without a token, the principal that opened the legacy session; otherwise the IP address (in
    IPv6 the network of 56 bits). On a Unix socket it is the process at the other end, in memory the connection.

    The connections and legacy sessions of one caller share its part in the same way: a single one gets a third of the
    limit, two get a fifth each. Over modern HTTP, clients count instead of connections, by the name in their requests.
    Callers whose calls wait for threads take turns, and so do the connections of a caller.

    The fields come in four groups:

    - Requests and their handlers: ``max_in_flight``, ``max_queued``, ``max_inbound_bytes``, ``max_message_bytes``,
      ``max_batch``, ``max_rounds``, ``max_parked``, ``max_pending_notifications``, ``max_subscriptions``,
      ``high_water``, ``max_server_requests``, ``max_server_streams``, ``max_server_bytes``, ``max_cancel_waits``,
      ``max_endings``, ``max_server_endings``, ``worker_threads``, ``max_abandoned_threads``,
      ``max_asking_threads``, ``progress_interval``, ``cleanup_grace``, ``callback_grace``, ``deadline_grace``,
      ``retry_timeout``, ``max_state_bytes``, ``max_state_keys``, ``max_server_states``, ``state_timeout``,
      ``ending_timeout``.
    - Connections: ``max_connections``, ``max_unread_bytes``, ``max_head_bytes``, ``handshake_timeout``,
      ``body_timeout``, ``idle_timeout``, ``stream_interval``, ``ping_interval``, ``ping_timeout``.
    - Legacy sessions over HTTP, and connections of a proxy: ``max_sessions``, ``max_upstreams``,
      ``max_replay_bytes``, ``max_server_replay_bytes``, ``session_timeout``, ``answer_timeout``,
      ``replay_timeout``, ``priming_delay``.
    - The end of a server: ``shutdown_grace``, ``drain_delay``, ``drain_timeout``.

    `TaskSettings` has the bounds of tasks.
    """

    # Requests and their handlers

    max_in_flight: int = _bound(1000)
    """Requests of the peer whose handlers run at the same time. A handler that asks its peer keeps its place while
    waiting for the answer. If the peer must call back here to answer, a bound as small as the depth of such calls
    blocks all of the calls."""
    max_queued: int = attrs.field(default=1000, validator=not_negative)
    """Further requests that wait for their turn. Requests beyond the bound are answered with error -31000,
    unexecuted."""
    max_inbound_bytes: int = _bound(64 * 1024 * 1024)
    """Bytes of all requests running, waiting or parked, as held in memory (an estimate): between one and fifty times
    the bytes on the wire. A request that would exceed the bound is answered with error -31000, except when there is no
    other request. Waiting requests take less, since requests wait as text."""
    max_message_bytes: int = _bound(16 * 1024 * 1024)
    """Bytes of one message. A longer message is skipped. A server answers a skipped message with error -32600, under
    the message's id where the id can be read, else under null; a client answers only requests. Over WebSocket a longer
    message ends the connection (close code 1009); over HTTP a longer request is answered with status 413."""
    max_batch: int = _bound(100)
    """Messages in one batch (revisions that have batches). Longer batches are answered with error -32600."""
    max_rounds: int = _bound(32)
    """Number of times that, in the course of one call, a handler may ask a legacy client for input by its return value,
    and is run again with the answers. Asking once more is a failure of the handler. Modern clients count by themselves,
    with their option of the same name."""
    max_parked: int = _bound(1000)
    """Handlers of one caller that wait for a modern client to come back with answers. Beyond the limit, the oldest one
    of the caller's connection with the most is cancelled."""
    max_pending_notifications: int = _bound(10_000)
    """Log messages of the peer that wait for our callbacks. The same bound holds, separately, for the peer's changes
    and for the progress values of one call. Each kind takes ``max_inbound_bytes`` at most. Beyond the bound the oldest
    entry is dropped, and counted except for progress."""
    max_subscriptions: int = _bound(1000)
    """Resources and tasks that a client may be subscribed to, and, as a separate bound, streams for it to listen on.
    In legacy revisions one more resource is answered with error -31000, as is one more stream; a stream is
    acknowledged without the resources and tasks beyond the bound, which holds for all streams of a connection
    together."""
    high_water: int = _bound(16 * 1024)
    """Bytes in the outbox at which log messages wait for room. Responses and requests wait at four times as many bytes,
    and reading pauses at 64 times as many, when a peer keeps sending but does not read its answers."""
    max_server_requests: int = _bound(20_000)
    """Requests running, waiting or parked on all connections of a server together. Requests beyond the bound are
    answered with error -31000, unexecuted."""
    max_server_streams: int = _bound(20_000)
    """Streams of ``subscriptions/listen`` on all connections of a server together. Streams beyond the bound are
    answered as for ``max_server_requests``."""
    max_server_bytes: int = _bound(512 * 1024 * 1024)
    """Bytes in memory of the requests and streams on all connections of a server together. A request that would exceed
    the bound is answered as for ``max_inbound_bytes``; over HTTP before its body is decoded."""
    max_cancel_waits: int = _bound(1000)
    """Requests ``trio-mcp/cancel`` that wait for the end of a call, which take no place of ``max_in_flight``, but count
    in ``max_server_requests``. One more is answered with error -31000."""
    max_endings: int = _bound(1000)
    """Calls of one caller with a token of ``trio-mcp/cancelAcknowledged`` whose end is remembered, for
    ``ending_timeout``. The oldest go first."""
    max_server_endings: int = _bound(20_000)
    """Such calls of all callers together."""
    worker_threads: int = _bound(40)
    """Threads in which plain ``def`` handlers work, for the whole server. Further calls wait for a free thread."""
    max_abandoned_threads: int = _bound(100)
    """Threads of cancelled handlers that did not end within ``cleanup_grace`` and still run, for the whole server.
    Abandoned threads take no place of ``worker_threads``; while there are as many as the bound, calls of plain ``def``
    handlers are answered with error -31000, unexecuted, and the log says where the abandoned threads are. As many
    handlers on asyncio that ignored their cancel may run, before further calls of such handlers are refused."""
    max_asking_threads: int = _bound(200)
    """Threads beside ``worker_threads`` in which plain ``def`` handlers wait for their client, for the whole server.
    Asking one question more fails with error -31000. Where many users are asked, let handlers be ``async def``."""
    progress_interval: float = _seconds(0.1)
    """Least time between two progress notifications of one request."""
    cleanup_grace: float = _seconds(5.0)
    """Time that a cancelled handler may clean up before being reported; a thread is abandoned then. The cleanup of what
    was provided (`Provide`) may wait for so long, and is cancelled then."""
    callback_grace: float = _seconds(5.0)
    """Time that a callback of ours for a log message may hold up the answers to the requests during which the message
    came. Then the callback is reported, and the answers are given all the same. ``math.inf``: for ever."""
    deadline_grace: float = _seconds(1.0)
    """Time that a request may run beyond its caller's deadline, where the caller tells the deadline. So the caller's
    own cancel, which carries a reason, comes first, unless that cancel does not get through."""
    retry_timeout: float = _bound(600.0)
    """Time that a modern client may take to come back with answers. Then the handler that asked is cancelled, and the
    ``requestState`` of the questions is no longer valid. ``math.inf``: for ever."""
    max_state_bytes: int = _bound(64 * 1024)
    """Bytes of the state of one caller (`RequestContext.state`), all its values together, as JSON text."""
    max_state_keys: int = _bound(100)
    """Values in the state of one caller."""
    max_server_states: int = _bound(10_000)
    """Callers that a server keeps state of, with all its replicas together, shared by caller as ``max_sessions``."""
    state_timeout: float = _bound(3600.0)
    """Time for which the state of a caller is kept after its last use."""
    ending_timeout: float = _bound(60.0)
    """Time for which the end of a call with a token of ``trio-mcp/cancelAcknowledged`` is remembered."""

    # Connections

    max_connections: int = _bound(2000)
    """Connections to one server at the same time, over sockets, shared by address; connections of a trusted
    proxy are shared by caller. For one more connection, the oldest of the same address that has sent nothing yet (see
    ``handshake_timeout``), or over HTTP has no request, is closed; for the first of an address, one of the address with
    the most connections. Where there is none, the new connection is turned away, over HTTP and WebSocket with HTTP
    status 503."""
    max_unread_bytes: int = _bound(128 * 1024 * 1024)
    """Bytes of messages and HTTP requests that wait for their rest, or for their turn, on all connections of a server
    together, and at least three times ``max_message_bytes``; shared by caller. A body beyond the caller's share is
    answered with HTTP status 503; a client that sends as much behind a running request, or over lines, loses the
    connection, and one over WebSocket is closed with 1013. Up to 16 KiB of a connection are not counted, nor is
    anything of stdio."""
    max_head_bytes: int = _bound(16 * 1024)
    """Bytes of the head of one HTTP request. A longer head is answered with HTTP status 431."""
    handshake_timeout: float = _seconds(10.0)
    """Time that a client may take to ask for a WebSocket, or, over TCP or a Unix socket, to send its first message.
    Then the connection is closed."""
    body_timeout: float = _bound(60.0)
    """Time that an HTTP client may take to send the body of a request. ``handshake_timeout`` is the time for a head."""
    idle_timeout: float = _bound(75.0)
    """Time for which an HTTP connection is kept open between two requests."""
    stream_interval: float = _bound(15.0)
    """Longest silence on an HTTP stream: a comment is sent before. A handler that stays silent as long commits its
    request to a stream."""
    ping_interval: float = _bound(20.0)
    """Time that a WebSocket peer may be silent before a ping is sent, and any peer over TCP before the system checks
    that the peer's machine is still there. ``math.inf``: for ever."""
    ping_timeout: float = _bound(20.0)
    """Time that a peer may be silent after the ping or check of ``ping_interval``, before the connection is taken for
    lost. Over TCP the connection is lost, too, where the peer's system takes none of our bytes for both times
    together."""

    # Legacy sessions over HTTP, and connections of a proxy

    max_sessions: int = _bound(10_000)
    """Legacy sessions over HTTP at the same time, shared by caller. One more takes the place of one that its caller has
    not used, or, where the caller has none, of the idlest of the caller who has the most; else it is answered with HTTP
    status 503."""
    max_upstreams: int = _bound(1000)
    """Connections of a proxy to the server behind at the same time. One more closes a connection that no request of its
    principal uses; where there is none, its requests are answered with error -31000."""
    max_replay_bytes: int = _bound(1024 * 1024)
    """Bytes of events that one session keeps for a client that comes back for the events, and a quarter of the
    bytes for one stream. The oldest go first. The newest event of a stream whose client is away, the result of a call
    for example, is kept whatever its size, and does not count here."""
    max_server_replay_bytes: int = _bound(256 * 1024 * 1024)
    """Bytes of events that all sessions of a server together keep for clients that come back, results of any size
    included, shared by caller. A session that would exceed its caller's share drops its own oldest."""
    session_timeout: float = _bound(1800.0)
    """Time after which a legacy session over HTTP ends whose client has sent nothing and had no response open for so
    long, whatever waits for the client there: handlers are cancelled with the cause ``disconnect``.
    Also the time after which a proxy closes a connection to the server behind that no request of its principal uses."""
    answer_timeout: float = _bound(1800.0)
    """Time that a legacy client over HTTP, and its user, may take to answer a question. Then the question fails with
    `trio.TooSlowError`, and the client is sent its cancel: an answer that is refused on its way, by a proxy in front
    for example, might never be told of. ``math.inf``: for ever."""
    replay_timeout: float = _bound(60.0)
    """Time for which a session keeps the events of a stream that has ended."""
    priming_delay: float = _seconds(0.1)
    """Time after which a legacy request over HTTP gets a stream that its client can come back to, unless it is
    answered before (revision 2025-11-25)."""

    # The end of a server

    shutdown_grace: float = _seconds(1.0)
    """Longest time that a cancelled handler may clean up before its thread is abandoned, when the server or the
    connection ends."""
    drain_delay: float = _seconds(0.0)
    """Time after a signal in which `serve_http` with ``health`` goes on as before, but for ``/readyz``: a load balancer
    needs a while to notice. Then nothing more is accepted, requests are taken over open connections for half a second,
    and the drain begins. A second signal skips the rest. Without a delay, the server still accepts waiting connections,
    and requests that are already sent have half a second to arrive."""
    drain_timeout: float = _seconds(2.0)
    """Time that accepted work may go on after the end of input or a signal, before being cancelled. Hosts kill a server
    after about four seconds. By then the time to drain, ``shutdown_grace`` and the end of the lifespan should be
    over."""

    def _server_wide(self) -> Limits:
        """Return the bounds for all clients together whose requests belong to no connection: of requests, streams and
        bytes as many as for the whole server."""
        return evolve(
            self,
            max_in_flight=self.max_server_requests,
            max_cancel_waits=self.max_server_requests,
            max_subscriptions=self.max_server_streams,
            max_inbound_bytes=self.max_server_bytes,
        )


DEFAULT_LIMITS = Limits()


@frozen
class Statistics:
    """The counts of a server: of one moment, and of all events since the server was made."""

    connections: int
    """Connections that are open now."""
    in_flight: int
    """Requests whose handlers run now."""
    queued: int
    """Requests that wait for their turn now."""
    listening: int
    """Streams of ``subscriptions/listen`` that are open now. Streams do not count as in flight."""
    parked: int
    """Handlers that wait now for a modern client to come back with answers."""
    cancelled: int
    """Requests cancelled so far: by their caller, by the loss or the end of their connection, or while parked."""
    expired: int
    """Parked requests cancelled so far, because no answers came in time or too many requests were parked."""
    overrun: int
    """Cancelled requests so far whose cleanup took longer than its grace."""
    tasks: int
    """Tasks that run in this process now."""
    dropped_logs: int
    """Messages of Python's logging so far that had no room on their way to the client."""
    takeovers: int
    """Tasks without a living holder so far that this process has taken over: to run them again, or to end them."""
    refused_writes: int
    """Changes of tasks so far that were refused here, since the task had another holder meanwhile."""
    forwarded_retries: int
    """Retries of modern clients so far that came here, and were forwarded to the replicas where their handlers
    waited."""
    received_retries: int
    """Retries so far that came to other replicas, and were forwarded to handlers that waited here."""
    replica_messages: int
    """Messages to other replicas so far."""
    round_trips: int
    """Round trips to Redis so far; 0 where nothing is shared by Redis, as for the next three."""
    reconnects: int
    """Times so far that Redis could be used again, after a time in which that was not so."""
    hints_lost: int
    """Times so far that messages of Redis may have been lost, so that readers looked again."""
    uncertain: int
    """Calls to Redis so far of which nobody knows whether they were carried out."""


class LinkCounts:
    """The counts of the links of a server to other replicas: of those that are open, and of those that were."""

    def __init__(self) -> None:
        self._open: list[tuple[StorageCounters | None, Callable[[], int]]] = []
        self._past = Counter[str]()

    @property
    def is_up(self) -> bool | None:
        """True while all storages that are shared can be used; `None` where there is none, or none tells."""
        states = [counts.is_up for counts, _ in self._open if counts is not None]
        return all(states) if states else None

    def total(self) -> Counter[str]:
        """Return the present counts, by the names that they have in `Statistics`."""
        return sum((_counted(*each) for each in self._open), Counter(self._past))

    @contextmanager
    def counting(self, counts: StorageCounters | None, count_sent: Callable[[], int]) -> Generator[None]:
        """Count the link of a replica, until the end of the block. ``count_sent`` returns the number of the messages
        that the replica has sent to others so far."""
        link = counts, count_sent
        self._open.append(link)
        try:
            yield
        finally:
            self._open.remove(link)
            self._past += _counted(counts, count_sent)


def _counted(counts: StorageCounters | None, count_sent: Callable[[], int]) -> Counter[str]:
    found = Counter(replica_messages=count_sent())
    if counts is not None:
        found.update(
            round_trips=counts.round_trips,
            reconnects=counts.reconnects,
            hints_lost=counts.hints_lost,
            uncertain=counts.uncertain,
        )
    return found


@define(eq=False)
class Load:
    """The counts behind `Statistics`, kept by every connection."""

    connections: int = 0
    in_flight: int = 0
    queued: int = 0
    listening: int = 0
    parked: int = 0
    inbound_bytes: int = 0
    cancelled: int = 0
    expired: int = 0
    overrun: int = 0
    tasks: int = 0
    dropped_logs: int = 0
    takeovers: int = 0
    refused_writes: int = 0
    forwarded_retries: int = 0
    received_retries: int = 0
    links: LinkCounts = attrs.Factory(LinkCounts)
    callers: Callers = attrs.Factory(Callers)
    """The parties that the bounds are shared by."""

    def statistics(self) -> Statistics:
        """Return the present counts."""
        links = self.links.total()
        own = {name: getattr(self, name) for name in Statistics.__annotations__ if hasattr(self, name)}
        return Statistics(**own, **{name: links[name] for name in Statistics.__annotations__.keys() - own})
