"""`Limits` contains all limits of a connection or server. `Statistics` contains the counters of a server.

`Load` holds the counters themselves: it counts the connections of one server, and the requests, streams and bytes of
all of them together.
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
    """The limits of a client or server.

    Times are in seconds. Counts and bytes apply to each connection by default. Limits of the whole server are shared
    fairly among callers. A caller can use at most as much as it leaves free, over all its connections: half of a limit
    if no other caller uses any, a third if two callers use as much as they can. Over stdio, the only caller can use
    everything.

    A caller is identified by the principal of its token. Without a token, it's the principal that opened the legacy
    session, and otherwise the IP address (for IPv6, the 56-bit network). On a Unix socket, it's the process at the
    other end; in memory, it's the connection.

    The connections and legacy sessions of one caller divide its share in the same way: a single one gets a third of the
    limit, two get a fifth each. Over modern HTTP, clients are counted instead of connections, by the name in their
    requests. Callers whose calls wait for threads take turns, and so do the connections of one caller.

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
    - Server shutdown: ``shutdown_grace``, ``drain_delay``, ``drain_timeout``.

    For the limits of tasks, see `TaskSettings`.
    """

    # Requests and their handlers

    max_in_flight: int = _bound(1000)
    """Maximum number of requests whose handlers run concurrently. A handler that sends a request to its client still
    counts while it waits for the answer. If the client must call this server to answer, and such calls nest as deep as
    the limit, all of them deadlock."""
    max_queued: int = attrs.field(default=1000, validator=not_negative)
    """Maximum number of requests that wait until another request's handler has ended. A request beyond the limit isn't
    executed, and gets error -31000."""
    max_inbound_bytes: int = _bound(64 * 1024 * 1024)
    """Maximum bytes of all requests that run, wait or are parked. The size in memory is estimated; it's between 1 and
    50 times the size on the wire. A request that would exceed the limit gets error -31000, unless it's the only
    request. Waiting requests need less memory, because they are kept as text."""
    max_message_bytes: int = _bound(16 * 1024 * 1024)
    """Maximum bytes of one message. A longer message is skipped. A server answers it with error -32600, with the
    message's id if that can be read, and otherwise with null; a client answers only requests. Over WebSocket, a longer
    message closes the connection with code 1009. Over HTTP, a longer request gets status 413."""
    max_batch: int = _bound(100)
    """Maximum number of messages in one batch, in revisions that have batches. A longer batch gets error -32600."""
    max_rounds: int = _bound(32)
    """Maximum number of times that the handler of one call can return `InputRequired` to a legacy client, and run again
    with the answers. After that, the call fails as if the handler had raised an exception. Modern clients have a limit
    of their own: see `ClientSettings.max_rounds`."""
    max_parked: int = _bound(1000)
    """Maximum number of one caller's handlers that wait for a modern client to retry with answers. Beyond the limit,
    the oldest parked handler is cancelled, on that connection of the caller that has the most parked handlers."""
    max_pending_notifications: int = _bound(10_000)
    """Maximum number of the peer's log messages that wait for callbacks on this side. The same limit applies separately
    to change notifications, and to the progress notifications of one call. Each kind can take at most
    ``max_inbound_bytes``. Beyond the limit, the oldest entry is dropped. Dropped entries are counted, except for
    progress."""
    max_subscriptions: int = _bound(1000)
    """Maximum number of resources and tasks that a client can be subscribed to, over all streams of a connection
    together. A separate limit of the same size applies to the number of ``subscriptions/listen`` streams. Beyond the
    limit, a legacy subscription or a stream gets error -31000. Resources and tasks beyond the limit are left out when a
    stream is acknowledged."""
    high_water: int = _bound(16 * 1024)
    """Bytes in the outgoing queue above which log messages wait. Responses and requests wait above four times this
    size. Above 64 times this size, reading pauses, because the peer keeps sending requests but doesn't read the
    replies."""
    max_server_requests: int = _bound(20_000)
    """Maximum number of requests that run, wait or are parked on all connections of a server together. A request beyond
    the limit isn't executed, and gets error -31000."""
    max_server_streams: int = _bound(20_000)
    """Maximum number of ``subscriptions/listen`` streams on all connections of a server together. A stream beyond the
    limit gets error -31000."""
    max_server_bytes: int = _bound(512 * 1024 * 1024)
    """Maximum bytes in memory of the requests and streams on all connections of a server together. A request that would
    exceed the limit gets error -31000; over HTTP, its body isn't decoded."""
    max_cancel_waits: int = _bound(1000)
    """Maximum number of ``trio-mcp/cancel`` requests that wait for the end of a call. They don't count in
    ``max_in_flight``, but they count in ``max_server_requests``. Further requests get error -31000."""
    max_endings: int = _bound(1000)
    """Maximum number of calls with a ``trio-mcp/cancelAcknowledged`` token whose outcome the server remembers per
    caller, for ``ending_timeout``. The oldest are removed first."""
    max_server_endings: int = _bound(20_000)
    """Maximum number of calls whose outcome the server remembers, like ``max_endings``, but for all callers
    together."""
    worker_threads: int = _bound(40)
    """Maximum number of threads in which plain ``def`` handlers run, for the whole server. Further calls wait for a
    free thread."""
    max_abandoned_threads: int = _bound(100)
    """Maximum number of threads, for the whole server, that still run after their cancelled handler didn't end within
    ``cleanup_grace``. Abandoned threads don't count in ``worker_threads``. If the limit is reached, calls of plain
    ``def`` handlers aren't executed and get error -31000, and the log shows where the abandoned threads are. The same
    limit applies separately to asyncio handlers that ignored their cancellation."""
    max_asking_threads: int = _bound(200)
    """Maximum number of threads, in addition to ``worker_threads``, in which plain ``def`` handlers wait for their
    client, for the whole server. A further request to a client fails with error -31000. If many users are asked
    concurrently, use ``async def`` handlers."""
    progress_interval: float = _seconds(0.1)
    """Minimum time between two progress notifications of one request."""
    cleanup_grace: float = _seconds(5.0)
    """Time that a cancelled handler has to clean up before a warning is logged. A thread is abandoned at that moment.
    The cleanup of dependencies (`Provide`) has the same time, and is then cancelled."""
    callback_grace: float = _seconds(5.0)
    """Maximum time that a slow log callback delays the results of calls. A call's result normally waits for the
    callbacks of the log messages that arrived during the call. After this time, the callback is logged, and the result
    is returned without waiting for it. ``math.inf`` means no limit."""
    deadline_grace: float = _seconds(1.0)
    """Time that a request can run beyond its caller's deadline, if the caller sends a deadline. The caller's own
    cancellation, which carries a reason, therefore arrives first, unless it gets lost."""
    retry_timeout: float = _bound(600.0)
    """Time that a modern client has to retry with answers. After that, the handler that asked for input is cancelled,
    and the client's ``requestState`` is no longer valid. ``math.inf`` means no limit."""
    max_state_bytes: int = _bound(64 * 1024)
    """Maximum bytes of one caller's state (`RequestContext.state`), which is all its values together as JSON."""
    max_state_keys: int = _bound(100)
    """Maximum number of values in the state of one caller."""
    max_server_states: int = _bound(10_000)
    """Maximum number of callers whose state a server stores, all its replicas together. The limit is shared among
    callers like ``max_sessions``."""
    state_timeout: float = _bound(3600.0)
    """Time that the state of a caller is kept after its last use."""
    ending_timeout: float = _bound(60.0)
    """Time that the server remembers how a call with a ``trio-mcp/cancelAcknowledged`` token ended."""

    # Connections

    max_connections: int = _bound(2000)
    """Maximum number of open socket connections to one server, shared among addresses. Connections from a trusted proxy
    are shared among callers. A connection beyond the limit closes the oldest idle connection of the same address: a
    connection that has sent nothing yet (see ``handshake_timeout``) or, over HTTP, has no open request. If it is the
    first connection of its address, it closes an idle connection of the address with the most connections. If no such
    connection is idle, the new connection is refused, over HTTP and WebSocket with status 503."""
    max_unread_bytes: int = _bound(128 * 1024 * 1024)
    """Maximum bytes of messages and HTTP requests that are incomplete or wait to be processed, on all connections of a
    server together. At least three times ``max_message_bytes``; shared among callers. A request body beyond the
    caller's share gets HTTP status 503. A connection that exceeds the share after a running request, or over a
    line-based transport, is closed; over WebSocket with code 1013. The first 16 KiB of each connection aren't counted,
    and stdio isn't counted at all."""
    max_head_bytes: int = _bound(16 * 1024)
    """Maximum bytes of the request line and headers of one HTTP request. A longer request gets HTTP status 431."""
    handshake_timeout: float = _seconds(10.0)
    """Time that a client has to request a WebSocket or, over TCP or a Unix socket, to send its first message. After
    that, the connection is closed."""
    body_timeout: float = _bound(60.0)
    """Time that an HTTP client has to send the body of a request. For its headers, it has ``handshake_timeout``."""
    idle_timeout: float = _bound(75.0)
    """Time that an HTTP connection is kept open between two requests."""
    stream_interval: float = _bound(15.0)
    """Maximum silence on an HTTP stream, before the server sends a comment. If a handler sends nothing for this long,
    its response becomes a stream."""
    ping_interval: float = _bound(20.0)
    """Time that a WebSocket peer can be silent before a ping is sent. Over TCP, the time after which the operating
    system checks that the peer's machine still responds. ``math.inf`` means never."""
    ping_timeout: float = _bound(20.0)
    """Time that a peer can stay silent after the ping (or, over TCP, after the system's check) of ``ping_interval``.
    After that, the connection counts as lost. A TCP connection is also lost if the peer's system accepts no sent bytes
    for the sum of both times."""

    # The limits below apply to HTTP sessions of legacy protocol revisions, and to the connections of a proxy

    max_sessions: int = _bound(10_000)
    """Maximum number of legacy sessions over HTTP, shared among callers. A session beyond the limit replaces a session
    that its caller has never used. If the caller has no session yet, the new session replaces the longest-idle session
    of the caller with the most sessions. If no session can be replaced, the new session gets HTTP status 503."""
    max_upstreams: int = _bound(1000)
    """Maximum number of connections from a proxy to its upstream server. A connection beyond the limit replaces a
    connection that no request of its principal uses. If all connections are in use, the request gets error -31000."""
    max_replay_bytes: int = _bound(1024 * 1024)
    """Maximum bytes of events that one legacy session stores for clients that resume. One stream can store a quarter of
    this. The oldest events are dropped first. The newest event of a stream whose client is disconnected, such as the
    result of a call, is always stored, and doesn't count here."""
    max_server_replay_bytes: int = _bound(256 * 1024 * 1024)
    """Maximum bytes of events that all sessions of a server together store for clients that resume, results of any size
    included. The limit is shared among callers. A session that would exceed its caller's share drops its own oldest
    events."""
    session_timeout: float = _bound(1800.0)
    """Time after which an unused legacy session over HTTP ends. A session is unused while its client sends nothing and
    has no response open. Handlers of the session are cancelled with the cause ``disconnect``, even if results wait for
    the client. A proxy also closes an upstream connection after this time, if no request of its principal uses it."""
    answer_timeout: float = _bound(1800.0)
    """Time that a legacy client over HTTP, and its user, have to answer a request of the server, such as elicitation.
    After that, the request fails with `trio.TooSlowError`, and the client gets a cancellation. Without this limit, a
    handler could wait forever if a proxy rejects the answer. ``math.inf`` means no limit."""
    replay_timeout: float = _bound(60.0)
    """Time that a legacy session stores the events of a stream after the end of the stream."""
    priming_delay: float = _seconds(0.1)
    """Time after which an unanswered legacy request over HTTP gets a stream that its client can resume (revision
    2025-11-25)."""

    # Server shutdown

    shutdown_grace: float = _seconds(1.0)
    """Maximum time that a cancelled handler has to clean up before its thread is abandoned, when the server shuts down
    or the connection ends."""
    drain_delay: float = _seconds(0.0)
    """Time after a signal for which `serve_http` with ``health`` keeps serving, while ``/readyz`` already returns 503.
    Set it to the time that your load balancer needs to notice. After the delay, the server accepts no new connections,
    takes requests over open connections for half a second, and then drains. A second signal skips the rest of the
    delay. Without a delay, the server still accepts connections that already wait, and requests that were already sent
    have half a second to arrive."""
    drain_timeout: float = _seconds(2.0)
    """Time that accepted requests can run after the end of input or a signal, before they are cancelled. Hosts kill a
    server after about four seconds, so ``drain_timeout``, ``shutdown_grace`` and the end of the lifespan together
    should take less."""

    def _server_wide(self) -> Limits:
        """Return the limits for requests that belong to no connection, such as the requests of all stateless HTTP
        clients together.

        The limits of the whole server apply to their number, their streams and their bytes.
        """
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
    """The counters of a server: current values, and totals since the server object was created."""

    connections: int
    """Number of connections that are open now."""
    in_flight: int
    """Number of requests whose handlers run now."""
    queued: int
    """Number of requests that wait now until another request's handler has ended."""
    listening: int
    """Number of ``subscriptions/listen`` streams that are open now. Streams don't count in ``in_flight``."""
    parked: int
    """Number of handlers that wait now for a modern client to retry with answers."""
    cancelled: int
    """Total number of requests that were cancelled: by their caller, because their connection was lost or ended, or
    while they were parked."""
    expired: int
    """Total number of parked requests that were cancelled, because the client's answers were late or too many requests
    were parked."""
    overrun: int
    """Total number of cancelled requests whose cleanup took longer than ``cleanup_grace``."""
    tasks: int
    """Number of background tasks that run in this process now."""
    dropped_logs: int
    """Total number of records of Python's logging that were dropped on their way to the client, because there was no
    room."""
    takeovers: int
    """Total number of background tasks that this process took over from a dead process, to run them again or to end
    them."""
    refused_writes: int
    """Total number of changes of background tasks that this process couldn't store, because another process had taken
    over the task."""
    forwarded_retries: int
    """Total number of retries of modern clients that arrived at this replica, and were forwarded to the replica whose
    handler waited."""
    received_retries: int
    """Total number of retries of modern clients that arrived at other replicas, and were forwarded to handlers that
    waited at this replica."""
    replica_messages: int
    """Total number of messages that this replica sent to other replicas."""
    round_trips: int
    """Total number of round trips to Redis. All counters about Redis are 0 if nothing is shared through Redis."""
    reconnects: int
    """Total number of times that Redis became available again after an outage."""
    hints_lost: int
    """Total number of times that notifications through Redis may have been lost. Each time, replicas read the store
    again."""
    uncertain: int
    """Total number of calls to Redis with an unknown outcome, for example because the connection was lost before the
    reply."""


class LinkCounts:
    """Counters of a server's connections to the other replicas of the same service.

    They are the number of open connections, and totals that include closed connections.
    """

    def __init__(self) -> None:
        self._open: list[tuple[StorageCounters | None, Callable[[], int]]] = []
        self._past = Counter[str]()

    @property
    def is_up(self) -> bool | None:
        """True if all storages that the server shares with its replicas are available.

        `None` if the server shares no storage, or if no storage reports its state.
        """
        states = [counts.is_up for counts, _ in self._open if counts is not None]
        return all(states) if states else None

    def total(self) -> Counter[str]:
        """Return the sum of each counter over all connections to other replicas.

        The keys are the names of the counters in `Statistics`.
        """
        return sum((_counted(*each) for each in self._open), Counter(self._past))

    @contextmanager
    def counting(self, counts: StorageCounters | None, count_sent: Callable[[], int]) -> Generator[None]:
        """While inside the ``with`` block, include the counters of one connection to other replicas in `total`.

        ``count_sent`` returns how many messages this replica has sent to the others so far.
        """
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
    """Counts the connections and requests of a server. All connections of the server update these counters, and
    `Statistics` shows them."""

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
    """The callers among whom the server-wide limits are shared."""

    def statistics(self) -> Statistics:
        """Return the current values of all counters."""
        links = self.links.total()
        own = {name: getattr(self, name) for name in Statistics.__annotations__ if hasattr(self, name)}
        return Statistics(**own, **{name: links[name] for name in Statistics.__annotations__.keys() - own})
