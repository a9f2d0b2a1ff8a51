"""Opens a client: detects whether the server is modern or legacy, and negotiates the protocol revision.

An `Opening` opens a client over any channel. `renew_session` opens a new session after a legacy server has lost the
last one, and `notify_changes` reports the changes that the client may have missed meanwhile. `LegacyServers` remembers
which servers are legacy ones, so that they aren't probed again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Hashable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias, Unpack, cast

import attrs
import trio

from ..classes import define, frozen
from ..concurrency.bounded import BoundedDict
from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..concurrency.misuse import async_with_only, check_opened_under_trio
from ..concurrency.nurseries import open_service_nursery
from ..jsonrpc.errors import MCPError, PeerError, ProtocolViolation, UnreadableAnswer
from ..protocol.converters import unstructure
from ..protocol.errors import UNSUPPORTED_PROTOCOL_VERSION
from ..protocol.fields import JSONObject, as_object
from ..protocol.meta import SERVER_INFO
from ..protocol.revisions import LATEST_LEGACY, LATEST_MODERN, LEGACY_REVISIONS, MODERN_REVISIONS, REVISIONS, Revision
from ..protocol.types.lifecycle import (
    DiscoverResult,
    Implementation,
    InitializeParams,
    InitializeResult,
    with_version,
)
from ..protocol.types.notifications import SubscriptionFilter, changing_lists
from ..runtime.outbound import Outbound
from ..runtime.transport import ConnectionLost, FramedTransport, HTTPError, Transport, framed
from ..state.events import NotificationReceived
from .client import Client, adopt
from .options import ClientOptions, ClientSettings
from .requests import meta_in, open_stream
from .results import check_result_type, structured
from .timeouts import CallTimeouts

Negotiate: TypeAlias = Callable[[Client], Awaitable[None]]
"""Negotiates the revision of a client that is being opened."""

_FALLBACKS: Final = ("2025-03-26", "2025-06-18")
"""The revisions of Streamable HTTP that the client tries if a server refuses the latest revision without naming
another."""
_CLOSE_DEADLINE: Final = 1.0
_LONGEST_TTL: Final = 24 * 3600 * 1000
"""The longest time for which a response counts as fresh, in milliseconds, as in `ResponseCache`."""
_DISCOVER: Final = "server/discover"
_REFUSALS: Final = (PeerError, UnreadableAnswer)
"""The exceptions that may mean that a server doesn't know ``server/discover``. Some such servers answer with an HTTP
body that isn't JSON-RPC."""


class LostInProbe(ConnectionLost):
    """The connection was lost before the server answered ``server/discover``. Some servers with a legacy protocol
    revision crash when they receive that request."""

    @classmethod
    def of(cls, lost: ConnectionLost) -> LostInProbe:
        """Return ``lost`` as a `LostInProbe` exception, because the connection was lost before the server answered
        ``server/discover``."""
        return cls(lost.reason, exit_status=lost.exit_status, stderr=lost.stderr)


@async_with_only("client")
@asynccontextmanager
async def open_client(transport: Transport, **options: Unpack[ClientOptions]) -> AsyncGenerator[Client]:
    """Open a client over a ``transport`` of your own, and close it at the end of the block. For ``options``, see
    `ClientSettings`.

    Raises:
        trio.TooSlowError: Connecting takes longer than ``connect_timeout``.
        ConnectionLost: The connection is lost.
        PeerError: The server refuses.
        ProtocolViolation: Client and server have no revision in common.
    """
    async with Opening.under_trio("open_client", options).open_over(framed(transport)) as client:
        yield client


@frozen
class Opening:
    """Opens one client. It holds the client's settings, and the time limit for connecting, which starts when the object
    is created."""

    settings: ClientSettings
    target: str | None = None
    """The address or command of the server; `None` if the transport has neither."""
    timeouts: CallTimeouts = attrs.field(
        default=attrs.Factory(lambda self: CallTimeouts(self.settings.call_timeout), takes_self=True)
    )
    begun: float = attrs.field(factory=trio.current_time)
    """The time at which connecting began, on trio's clock."""

    @classmethod
    def under_trio(cls, name: str, options: ClientOptions, target: str | None = None) -> Opening:
        """Return an `Opening` for the server at ``target``. Its time limit for connecting starts now.

        ``name`` is the function that the user called, for error messages. Raises `RuntimeError` if the caller doesn't
        run under trio, and `ValueError` if ``prior`` is a discovery response of another server.
        """
        check_opened_under_trio(name)
        settings = ClientSettings(**options)
        if settings.prior is not None:
            from .prior import read_prior  # lazy import: few clients set prior=

            read_prior(settings.prior).check_server(target)
        return cls(settings, target)

    @contextmanager
    def connecting(self, outbound: Outbound | None = None) -> Generator[None]:
        """Apply the time limit for connecting to the block. Raises `trio.TooSlowError` if connecting takes longer than
        ``connect_timeout``.

        Time in which the client's timeouts are paused doesn't count. The error quotes the last line of the server that
        wasn't a reply to a request of ``outbound``.
        """
        passed = trio.current_time() - self.begun - self.timeouts.paused_seconds
        with self.timeouts.move_on_after(self.settings.connect_timeout - passed) as scope:
            yield
        if scope.cancelled_caught:
            also = "" if outbound is None else outbound.strays_since(0)
            raise trio.TooSlowError(
                f"the server was not ready within {self.settings.connect_timeout:g} s (connect_timeout){also}"
            )

    @asynccontextmanager
    async def open_over(
        self,
        channel: FramedTransport,
        watch: Callable[[Client], Awaitable[None]] | None = None,
        *,
        legacy_first: bool = False,
        negotiate: Negotiate | None = None,
    ) -> AsyncGenerator[Client]:
        """Open a client over a connected ``channel``, as `open_client` does.

        Raises `LostInProbe`, a subclass of `ConnectionLost`, if the connection is lost before the server answered
        ``server/discover``.

        Args:
            watch: Runs beside the client, from before the opening until the block is left.
            legacy_first: With ``era="auto"``, try the server as a legacy one first.
            negotiate: Negotiates the revision instead, if the transport detects the era in its own way.
        """
        settings = self.settings
        if settings.record is not None:
            channel = settings.record._recorded(channel, "client")
        settle = partial(_negotiate, legacy_first=legacy_first) if negotiate is None else negotiate
        client = _client_of(channel, settings, self.timeouts, settle)
        client._target = self.target
        async with open_service_nursery("the client was closed") as nursery:
            client._change_streams.services = nursery
            await nursery.start(client._host.run_while, client._connection.run)
            if client._question_tasks is not None:
                await nursery.start(client._question_tasks.host.run)
            if watch is not None:
                nursery.start_soon(watch, client)
            try:
                with self.connecting(client._outbound):
                    await settle(client)
                    await _follow_changes(client)
                if settings.keep_alive is not None:
                    nursery.start_soon(settings.keep_alive._run, client._connection, client.ping)
                yield client
            finally:
                client._tool_calls.leave()
                if client._question_tasks is not None:
                    client._question_tasks.host.shut_down(hurry=True)
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_DEADLINE):
                    await client._connection.close("the client was closed")


def _client_of(channel: FramedTransport, settings: ClientSettings, timeouts: CallTimeouts, settle: Negotiate) -> Client:
    if settings.prior is None:
        return Client(channel, settings, timeouts)
    from .prior_client import PriorClient  # lazy import: few clients set prior=

    return PriorClient(channel, settings, timeouts, settle)


async def _follow_changes(client: Client) -> None:
    """Open the ``subscriptions/listen`` streams on which a server with a modern protocol revision reports changes, so
    that the client's callbacks are called."""
    settings, streams = client.settings, client._change_streams
    if client.revision.changes == "listen" and settings.on_list_changed is not None:
        await streams.follow_lists(client.server_capabilities, settings.probe_timeout, partial(open_stream, client))
    if client.revision.changes == "listen" and settings.on_notification:
        asked = SubscriptionFilter(extensions=_streamed_extensions(client) or None)
        await streams.follow("its extensions", asked, settings.probe_timeout, partial(open_stream, client))


def _streamed_extensions(client: Client) -> list[str]:
    """Return the names of those extensions of the server that send notifications outside of requests, and for which
    this client has callbacks."""
    rows = [row for row in client.settings.on_notification if not row.of_request and row.is_in(client.revision.name)]
    names = dict.fromkeys(str(row.extension) for row in rows if row.until is None)
    return [name for name in names if type((client.server_capabilities.extensions or {}).get(name)) is dict]


async def _negotiate(client: Client, legacy_first: bool) -> None:
    if client._adopt_prior():
        return
    match client.settings.era:
        case "legacy":
            await initialize(client)
        case "modern":
            await negotiate_modern(client)
        case "auto" if legacy_first:
            try:
                await initialize(client)
            except ConnectionLost as error:
                raise LostInProbe.of(error) from None
            except (PeerError, ProtocolViolation):
                await _probe(client)  # the server may have been replaced by one with a modern protocol revision
        case "auto":
            await _probe(client)


async def negotiate_modern(client: Client) -> None:
    """Negotiate the protocol revision with a server that is known to have modern revisions. Raises the same errors as
    `discover`."""
    try:
        await discover(client)
    except PeerError as error:
        if error.code == UNSUPPORTED_PROTOCOL_VERSION:
            raise _nothing_in_common(error) from error
        raise


async def _probe(client: Client) -> None:
    """Detect whether the server has modern or legacy protocol revisions (2026-07-28 stdio, Backward Compatibility).

    The client sends ``server/discover`` first. The server is legacy if it sends no answer, or an error that modern
    servers don't send.

    A slow modern server isn't mistaken for a silent legacy server: the request stays open during the handshake, and a
    valid answer to it is used until the answer to the handshake has been acted on.
    """
    discovered, initialized = _Attempt(), _Attempt()
    try:
        await _first_success(client, discovered, initialized)
    except ConnectionLost as error:
        if isinstance(discovered.error, _REFUSALS):
            raise
        raise LostInProbe.of(error) from None
    finally:
        # Break the reference cycle: the raised error refers to stack frames, which refer to both connection attempts.
        discovered.error = initialized.error = None


async def _first_success(client: Client, discovered: _Attempt, initialized: _Attempt) -> None:
    """Send ``server/discover``. If the request isn't answered in time or is refused, send ``initialize`` as well.

    Open the client with the first successful answer. Only this task decides, so that the result doesn't depend on the
    order in which tasks run.
    """
    ended = trio.Semaphore(0)  # each attempt to open the connection releases this semaphore when it ends
    async with open_service_nursery("the era is settled") as nursery:
        nursery.start_soon(discovered.run, ended, _discovered, client, discovered)
        with trio.move_on_after(client.settings.probe_timeout):
            await ended.acquire()
        await _until_read(client, discovered)
        if discovered.adopt is not None:
            return discovered.adopt()
        if discovered.error is not None and not isinstance(discovered.error, _REFUSALS):
            raise discovered.error
        nursery.start_soon(initialized.run, ended, _initialized, client, *legacy_offer(discovered.error))
        while True:
            await ended.acquire()
            await _until_read(client, discovered)
            # Now the client chooses between the answers to server/discover and initialize.
            # Don't add a checkpoint here: no further message of the server may arrive before this choice.
            if discovered.adopt is not None:
                return discovered.adopt()
            if initialized.adopt is not None:
                return initialized.adopt()
            if initialized.error is not None and (
                discovered.error is not None or not isinstance(initialized.error, PeerError)
            ):
                raise initialized.error


async def _until_read(client: Client, discovered: _Attempt) -> None:
    """If the client has already read the answer to ``server/discover``, wait until it is handled. The background task
    of the attempt ``discovered`` handles it."""
    asked = any(request.method.name == _DISCOVER for request in client._connection.state.outbound)
    if discovered.is_sent and (discovered.has_offer or not asked):
        await discovered.ended.wait()


Adopt: TypeAlias = Callable[[], None]
"""A function that applies a server's answer. After that, the client uses the negotiated revision."""


@define(eq=False)
class _Attempt:
    """An attempt to open the connection with one request, such as ``server/discover``, in a background task."""

    is_sent: bool = False
    """True once the attempt has sent its request."""
    has_offer: bool = False
    """True if the server has offered a modern revision that the client supports, so that the client sends a second
    request."""
    adopt: Adopt | None = None
    error: MCPError | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, ended: trio.Semaphore, opening: Callable[..., Awaitable[Adopt]], *args: Any) -> None:
        self.is_sent = True  # the request is sent without waiting, because the outbox of a new connection isn't full
        try:
            self.adopt = await opening(*args)
        except MCPError as error:
            self.error = error
        self.ended.set()
        ended.release()


async def discover(client: Client) -> None:
    """Send ``server/discover``, and use the newest modern protocol revision that client and server have in common.

    Raises the error with which the server answers, and `PeerError` if the server has only legacy revisions.
    """
    (await _discovered(client))()


async def _discovered(client: Client, attempt: _Attempt | None = None) -> Adopt:
    data = await _discovery(client, LATEST_MODERN, attempt)
    check_result_type(_DISCOVER, data)
    if isinstance(data, dict) and "supportedVersions" not in data:
        # Refuse an empty result: some servers without server/discover answer every unknown request with {}.
        raise UnreadableAnswer("the answer to server/discover contains no protocol revisions")
    result = structured(_DISCOVER, data, DiscoverResult, client._faults)
    common = [row for row in MODERN_REVISIONS if row.name in result.supported_versions]
    if not common:
        raise PeerError(
            UNSUPPORTED_PROTOCOL_VERSION,
            "the server answered server/discover, but supports only protocol revisions without this request",
        )
    info: Any = (result.meta or {}).get(SERVER_INFO)
    if info is not None:
        info = structured(_DISCOVER, info if isinstance(info, str) else as_object(info), Implementation, client._faults)
    expires = time.time() + min(result.ttl_ms, _LONGEST_TTL) / 1000 if result.ttl_ms > 0 else None
    return partial(adopt, client, common[-1], info, result.capabilities, result.instructions, (result, expires))


async def _discovery(client: Client, revision: Revision, attempt: _Attempt | None) -> Any:
    """Send ``server/discover`` in the protocol ``revision`` and return the response.

    If the server refuses this revision and offers another modern revision, send the request again in the offered
    revision (2026-07-28 versioning).
    """
    try:
        return await _request_discovery(client, revision)
    except PeerError as error:
        offered = [row for row in MODERN_REVISIONS if row.name in _supported(error)]
        if not offered:
            raise
    if attempt is not None:
        attempt.has_offer = True
    return await _request_discovery(client, offered[-1])


def _request_discovery(client: Client, revision: Revision) -> Awaitable[Any]:
    return client._connection.request(_DISCOVER, {"_meta": meta_in(client, revision)}, revision)


def legacy_offer(error: MCPError | None) -> tuple[Revision, ...]:
    """If ``error`` shows that the server has only legacy protocol revisions, return a tuple with the newest of them
    that the client supports.

    Return an empty tuple for any other error, and if there is no error. Raises `ProtocolViolation` if the client
    supports none of the offered revisions.
    """
    if not isinstance(error, PeerError) or error.code != UNSUPPORTED_PROTOCOL_VERSION or error.data is None:
        return ()
    rows = [row for row in LEGACY_REVISIONS if row.name in _supported(error)]
    if not rows:
        raise _nothing_in_common(error) from error
    return (rows[-1],)


def _supported(error: PeerError) -> list[str]:
    """Return the revisions that the server offers in an error that refuses the client's revision (2026-07-28 schema,
    UnsupportedProtocolVersionError)."""
    data: Any = error.data if error.code == UNSUPPORTED_PROTOCOL_VERSION else None
    versions = as_object(data).get("supported")
    return [name for name in cast("list[Any]", versions) if type(name) is str] if isinstance(versions, list) else []


def _nothing_in_common(error: PeerError) -> ProtocolViolation:
    """Return the error for a server that has modern protocol revisions, but none in common with the client. In this
    case, the client tries no legacy revision."""
    names = ", ".join(name[:40] for name in _supported(error)[:10]) or "unknown"
    return ProtocolViolation(f"no modern revision in common with the server, which has {names}")


async def initialize(client: Client, wanted: Revision = LATEST_LEGACY) -> None:
    """Open a session of a legacy protocol revision with ``initialize``, and use the revision that the server chooses.

    The client offers the revision of its settings, by default ``wanted``. Raises the error with which the server
    answers, and `ProtocolViolation` if the server chooses a revision that the client doesn't support.
    """
    (await _initialized(client, wanted))()


async def _initialized(client: Client, wanted: Revision = LATEST_LEGACY) -> Adopt:
    offered: Revision | None = REVISIONS[client.settings.revision or wanted.name]
    tried: list[Revision] = []
    data: Any = None
    refusal: MCPError | None = None
    while offered is not None:
        tried.append(offered)
        params = InitializeParams(offered.name, client._answers.capabilities_in(offered), client.settings.info)
        try:
            data = await client._connection.request("initialize", unstructure(params, offered), offered)
            offered = None
        except ConnectionLost as lost:
            if refusal is None:
                raise
            try:
                raise refusal from lost  # the server sent an error with the reason, and closed the connection
            finally:
                refusal = None  # leave no reference cycle
        except (PeerError, HTTPError) as error:
            offered = None if client.settings.revision else _other_offer(error, tried)
            if offered is None:
                raise
            refusal = error.with_traceback(None)
            logger.info("the server refused revision %s; offering %s", tried[-1].name, offered.name)
    result = structured("initialize", with_version(data, tried[-1].name), InitializeResult, client._faults)
    revision = REVISIONS.get(result.protocol_version)
    if revision is None or not revision.handshake:
        # By MCP 2025-11-25 (lifecycle page), a client that doesn't support the server's revision SHOULD disconnect.
        raise ProtocolViolation(
            f"the server chose the revision {result.protocol_version[:40]!r}, which trio-mcp doesn't support"
        )

    def adopt_session() -> None:
        adopt(client, revision, result.server_info, result.capabilities, result.instructions)
        client._connection.notify("notifications/initialized")

    return adopt_session


def _other_offer(error: PeerError | HTTPError, tried: list[Revision]) -> Revision | None:
    """The server has refused ``initialize`` with ``error``. Return the newest legacy protocol revision that the error's
    data or message names.

    If the error names no revision but is about the version, or has HTTP status 400, return an older revision to try.
    """
    status: int | None = getattr(error, "status", None)
    if isinstance(error, HTTPError) and status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return None
    data: Any = getattr(error, "data", None)
    named: Any = as_object(data).get("supported")
    words = str(error)
    rows = [row for row in LEGACY_REVISIONS if row not in tried]
    offered = [row for row in rows if row.name in words or row.name in repr(cast("object", data))]
    if not offered and not isinstance(named, list) and (status == HTTPStatus.BAD_REQUEST or "version" in words.lower()):
        offered = [row for row in rows if row.name in _FALLBACKS]
    return offered[-1] if offered else None


logger = logging.getLogger("trio_mcp")


async def renew_session(client: Client) -> None:
    """Send ``initialize`` again after the server has lost the session, and restore the log level and the subscriptions
    to resources.

    Afterwards the callbacks are called for the lists and resources whose changes the client may have missed. Raises the
    error of the request if there is no new session. If the server refuses to restore something, that is logged.
    """
    await initialize(client)
    session = client._legacy_session
    try:
        if session.log_level is not None:
            await client.set_log_level(session.log_level)
        for uri in tuple(session.uris):
            await client.subscribe(uri)
    except PeerError as error:
        logger.warning("the server lost its session, and refused to restore it: %s", error)
    notify_changes(client)


def notify_changes(client: Client) -> None:
    """Call the callbacks for all lists and resources for which the server reports changes. The client may have missed
    some changes."""
    lists = changing_lists(client.server_capabilities)
    changes: list[tuple[str, JSONObject]] = [(f"notifications/{kind}/list_changed", {}) for kind in lists]
    changes += [("notifications/resources/updated", {"uri": uri}) for uri in client._legacy_session.uris]
    for name, params in changes:
        event = NotificationReceived(client.revision._methods[name], params, client.revision)
        if client._callbacks.receive(event):
            client._connection.notified(event, 0)


_MOST_KNOWN: Final = 256


class LegacyServers:
    """The last 256 servers to which this process has connected with a legacy protocol revision (2026-07-28 versioning:
    clients SHOULD cache the result of the detection)."""

    def __init__(self) -> None:
        self._known = BoundedDict[Hashable, None](_MOST_KNOWN)

    def is_known(self, server: Hashable) -> bool:
        """Return whether ``server`` had a legacy protocol revision when this process last connected to it."""
        return server in self._known

    def record(self, server: Hashable, *, is_legacy: bool) -> None:
        """Record whether ``server`` has a legacy or a modern protocol revision."""
        if is_legacy:
            self._known[server] = None
        else:
            self._known.pop(server, None)
