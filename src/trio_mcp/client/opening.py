"""Opening of a client: finding out the era of the server, and settling the revision.

An `Opening` opens a client over any channel. `renew_session` opens a new session with a legacy server that has
forgotten the last one, and `notify_changes` makes good what the client may not have heard meanwhile.
`LegacyServers` remembers the servers that turned out to be legacy ones, so that these are not asked again.
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
from ..protocol.types.notifications import changing_lists
from ..runtime.outbound import Outbound
from ..runtime.transport import ConnectionLost, FramedTransport, HTTPError, Transport, framed
from ..state.events import NotificationReceived
from .client import Client, adopt
from .options import ClientOptions, ClientSettings
from .requests import capabilities_in, meta_in, open_stream
from .results import check_result_type, structured
from .timeouts import CallTimeouts

Negotiate: TypeAlias = Callable[[Client], Awaitable[None]]
"""Settles the revision of a client that is being opened."""

_FALLBACKS: Final = ("2025-03-26", "2025-06-18")
"""Revisions of Streamable HTTP for a server that refuses the latest, and names none."""
_CLOSE_DEADLINE: Final = 1.0
_LONGEST_TTL: Final = 24 * 3600 * 1000
"""Milliseconds that an answer is taken for fresh at most, as in `ResponseCache`."""
_DISCOVER: Final = "server/discover"
_REFUSALS: Final = (PeerError, UnreadableAnswer)
"""Answers of servers that do not know discovery. Some refuse discovery in words of their own, which are no JSON-RPC."""


class LostInProbe(ConnectionLost):
    """The server was gone before its answer to the question for its era: some servers die of that question."""

    @classmethod
    def of(cls, lost: ConnectionLost) -> LostInProbe:
        """Return the same error as a `LostInProbe`."""
        return cls(lost.reason, exit_status=lost.exit_status, stderr=lost.stderr)


@async_with_only("client")
@asynccontextmanager
async def open_client(transport: Transport, **options: Unpack[ClientOptions]) -> AsyncGenerator[Client]:
    """Open a client over a ``transport`` of your own, ready for calls; closed with the block. ``options``: see
    `ClientSettings`.

    Raises `trio.TooSlowError` when connecting takes longer than ``connect_timeout``, `ConnectionLost`,
    `PeerError` when the server refuses, and `ProtocolViolation` when the two have no revision in common.
    """
    async with Opening.under_trio("open_client", options).open_over(framed(transport)) as client:
        yield client


@frozen
class Opening:
    """The opening of one client: its settings, and the time to connect, which runs from here on."""

    settings: ClientSettings
    target: str | None = None
    """The address or the command of the server; `None` where it has none."""
    timeouts: CallTimeouts = attrs.field(
        default=attrs.Factory(lambda self: CallTimeouts(self.settings.call_timeout), takes_self=True)
    )
    begun: float = attrs.field(factory=trio.current_time)
    """When connecting began, on trio's clock."""

    @classmethod
    def under_trio(cls, name: str, options: ClientOptions, target: str | None = None) -> Opening:
        """Begin to open a client of the server at ``target`` by the function ``name``. Raises `RuntimeError` unless
        trio runs the caller, and `ValueError` for the prior answer of another server."""
        check_opened_under_trio(name)
        settings = ClientSettings(**options)
        if settings.prior is not None:
            from .prior import read_prior  # late: few clients have a prior answer

            read_prior(settings.prior).check_server(target)
        return cls(settings, target)

    @contextmanager
    def connecting(self, outbound: Outbound | None = None) -> Generator[None]:
        """Limit the time to connect in the block. Raises `trio.TooSlowError` ``connect_timeout`` seconds after the
        beginning. Time in which the timeouts of the client are paused doesn't count. The error quotes the server's last
        line that answers no request of ``outbound``."""
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
        """Open a client as `open_client` does, over a connected ``channel``. ``watch`` runs beside the client, from
        before the opening on, until the block is left. ``legacy_first``: with ``era="auto"`` the server is tried as a
        legacy one first. ``negotiate`` settles the revision instead, where the transport tells the era in its own way.
        Raises `LostInProbe`, which is a `ConnectionLost`, too."""
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
    from .prior_client import PriorClient  # late: few clients have a prior answer

    return PriorClient(channel, settings, timeouts, settle)


async def _follow_changes(client: Client) -> None:
    """Have a modern server tell of the changes that the settings of ``client`` want to hear of."""
    settings, streams = client.settings, client._change_streams
    if client.revision.changes == "listen" and settings.on_list_changed is not None:
        await streams.follow_lists(client.server_capabilities, settings.probe_timeout, partial(open_stream, client))
    if client.revision.changes == "listen" and settings.on_notification:
        names = _streamed_extensions(client)
        await streams.follow_extensions(names, settings.probe_timeout, partial(open_stream, client))


def _streamed_extensions(client: Client) -> list[str]:
    """Return the extensions that the server has declared, and that have a notification outside of requests with a
    callback."""
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
                await _probe(client)  # the server may have changed its era
        case "auto":
            await _probe(client)


async def negotiate_modern(client: Client) -> None:
    """Settle a modern revision, with a server that is said to have one. Raises as `discover`."""
    try:
        await discover(client)
    except PeerError as error:
        if error.code == UNSUPPORTED_PROTOCOL_VERSION:
            raise _nothing_in_common(error) from error
        raise


async def _probe(client: Client) -> None:
    """Settle the era (2026-07-28 stdio, Backward Compatibility): ask ``server/discover`` first; any error that is not a
    modern error, or silence, means legacy. A slow modern server is not taken for a silent legacy server: the question
    stays open beside the handshake, and a good answer counts until the answer to the handshake is acted on."""
    discovered, initialized = _Attempt(), _Attempt()
    try:
        await _first_success(client, discovered, initialized)
    except ConnectionLost as error:
        if isinstance(discovered.error, _REFUSALS):
            raise
        raise LostInProbe.of(error) from None
    finally:
        # The raised error refers to frames, and the frames to the attempts: no cycle is to remain.
        discovered.error = initialized.error = None


async def _first_success(client: Client, discovered: _Attempt, initialized: _Attempt) -> None:
    """Act on one of the two answers. Only this task acts, so the result doesn't depend on the order in which tasks run:
    the answer to ``server/discover`` counts as soon as the reader has read it."""
    ended = trio.Semaphore(0)  # released at the end of each attempt
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
            # Without a checkpoint from here on, nothing more can arrive.
            if discovered.adopt is not None:
                return discovered.adopt()
            if initialized.adopt is not None:
                return initialized.adopt()
            if initialized.error is not None and (
                discovered.error is not None or not isinstance(initialized.error, PeerError)
            ):
                raise initialized.error


async def _until_read(client: Client, discovered: _Attempt) -> None:
    """Wait for the end of an attempt if the reader already has its answer."""
    asked = any(request.method.name == _DISCOVER for request in client._connection.state.outbound)
    if discovered.is_sent and (discovered.has_offer or not asked):
        await discovered.ended.wait()


Adopt: TypeAlias = Callable[[], None]
"""Acts on a server's answer. From then on the client uses the negotiated revision."""


@define(eq=False)
class _Attempt:
    """A way to open, tried in the background."""

    is_sent: bool = False
    """True once the request has been sent."""
    has_offer: bool = False
    """True once the server has named a modern revision that we support, which needs a second request."""
    adopt: Adopt | None = None
    error: MCPError | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, ended: trio.Semaphore, opening: Callable[..., Awaitable[Adopt]], *args: Any) -> None:
        self.is_sent = True  # sent in this step of the task, since the outbox of a new connection is not full
        try:
            self.adopt = await opening(*args)
        except MCPError as error:
            self.error = error
        self.ended.set()
        ended.release()


async def discover(client: Client) -> None:
    """Ask the server for its modern revisions, and adopt the newest in common. Raises the error of the request, and
    `PeerError` for a server that serves legacy revisions only."""
    (await _discovered(client))()


async def _discovered(client: Client, attempt: _Attempt | None = None) -> Adopt:
    data = await _discovery(client, LATEST_MODERN, attempt)
    check_result_type(_DISCOVER, data)
    if isinstance(data, dict) and "supportedVersions" not in data:
        # Some legacy servers answer each request that they do not know with an empty result.
        raise UnreadableAnswer("the answer to server/discover names no revisions")
    result = structured(_DISCOVER, data, DiscoverResult, client._faults)
    common = [row for row in MODERN_REVISIONS if row.name in result.supported_versions]
    if not common:
        raise PeerError(UNSUPPORTED_PROTOCOL_VERSION, "the server discovers, but serves legacy revisions only")
    info: Any = (result.meta or {}).get(SERVER_INFO)
    if info is not None:
        info = structured(_DISCOVER, info if isinstance(info, str) else as_object(info), Implementation, client._faults)
    expires = time.time() + min(result.ttl_ms, _LONGEST_TTL) / 1000 if result.ttl_ms > 0 else None
    return partial(adopt, client, common[-1], info, result.capabilities, result.instructions, (result, expires))


async def _discovery(client: Client, revision: Revision, attempt: _Attempt | None) -> Any:
    """Ask in ``revision``, and once more in a revision that the server offers instead (2026-07-28 versioning)."""
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
    """Return the legacy revision that a refusal of all modern revisions asks for; nothing for any other refusal, and
    without a refusal. Raises `ProtocolViolation` for a refusal that asks for revisions unknown here."""
    if not isinstance(error, PeerError) or error.code != UNSUPPORTED_PROTOCOL_VERSION or error.data is None:
        return ()
    rows = [row for row in LEGACY_REVISIONS if row.name in _supported(error)]
    if not rows:
        raise _nothing_in_common(error) from error
    return (rows[-1],)


def _supported(error: PeerError) -> list[str]:
    """Return the revisions that a refusal of ours names (2026-07-28 schema, UnsupportedProtocolVersionError)."""
    data: Any = error.data if error.code == UNSUPPORTED_PROTOCOL_VERSION else None
    versions = as_object(data).get("supported")
    return [name for name in cast("list[Any]", versions) if type(name) is str] if isinstance(versions, list) else []


def _nothing_in_common(error: PeerError) -> ProtocolViolation:
    """Return the error for a server that is modern (no fall-back), but speaks other versions than we do."""
    names = ", ".join(name[:40] for name in _supported(error)[:10]) or "unknown"
    return ProtocolViolation(f"the server speaks none of our modern revisions: {names}")


async def initialize(client: Client, wanted: Revision = LATEST_LEGACY) -> None:
    """Open a legacy session in the revision of the settings, by default ``wanted``, and adopt what the server agrees
    to. Raises the error of the request, and `ProtocolViolation` when the server chooses a revision that is not ours."""
    (await _initialized(client, wanted))()


async def _initialized(client: Client, wanted: Revision = LATEST_LEGACY) -> Adopt:
    offered: Revision | None = REVISIONS[client.settings.revision or wanted.name]
    tried: list[Revision] = []
    data: Any = None
    refusal: MCPError | None = None
    while offered is not None:
        tried.append(offered)
        params = InitializeParams(offered.name, capabilities_in(client, offered), client.settings.info)
        try:
            data = await client._connection.request("initialize", unstructure(params, offered), offered)
            offered = None
        except ConnectionLost as lost:
            if refusal is None:
                raise
            try:
                raise refusal from lost  # the server ended after its refusal, which says why
            finally:
                refusal = None  # no cycle is to remain
        except (PeerError, HTTPError) as error:
            offered = None if client.settings.revision else _other_offer(error, tried)
            if offered is None:
                raise
            refusal = error.with_traceback(None)
            logger.info("the server refuses the revision %s, and is offered %s", tried[-1].name, offered.name)
    result = structured("initialize", with_version(data, tried[-1].name), InitializeResult, client._faults)
    revision = REVISIONS.get(result.protocol_version)
    if revision is None or not revision.handshake:
        # 2025-11-25 lifecycle, Version Negotiation: the client SHOULD disconnect.
        raise ProtocolViolation(
            f"the server chose the revision {result.protocol_version[:40]!r}, which we do not speak"
        )

    def adopt_session() -> None:
        adopt(client, revision, result.server_info, result.capabilities, result.instructions)
        client._connection.notify("notifications/initialized")

    return adopt_session


def _other_offer(error: PeerError | HTTPError, tried: list[Revision]) -> Revision | None:
    """Return the newest legacy revision that a refusal of ``initialize`` names, in its data or in words. Without names,
    a refusal of the version, and HTTP status 400, may mean a server that only knows older ones."""
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
    """Send ``initialize`` again, and then what the client has told the server in the session before: the log level, and
    the resources to watch. The callbacks are called for the lists and resources whose changes the client may have
    missed meanwhile.

    Raises the error of the request when there is no new session. A server that refuses a wish is logged.
    """
    await initialize(client)
    session = client._legacy_session
    try:
        if session.log_level is not None:
            await client.set_log_level(session.log_level)
        for uri in tuple(session.uris):
            await client.subscribe(uri)
    except PeerError as error:
        logger.warning("the server has forgotten its session, and refuses in the new one: %s", error)
    notify_changes(client)


def notify_changes(client: Client) -> None:
    """Tell the callbacks that everything may have changed that the server tells of."""
    lists = changing_lists(client.server_capabilities)
    changes: list[tuple[str, JSONObject]] = [(f"notifications/{kind}/list_changed", {}) for kind in lists]
    changes += [("notifications/resources/updated", {"uri": uri}) for uri in client._legacy_session.uris]
    for name, params in changes:
        event = NotificationReceived(client.revision._methods[name], params, client.revision)
        if client._callbacks.receive(event):
            client._connection.notified(event, 0)


_MOST_KNOWN: Final = 256


class LegacyServers:
    """The latest 256 servers that were legacy ones the last time, for the life of the process (2026-07-28 versioning:
    clients SHOULD cache the result)."""

    def __init__(self) -> None:
        self._known = BoundedDict[Hashable, None](_MOST_KNOWN)

    def is_known(self, server: Hashable) -> bool:
        """Return whether ``server`` was a legacy one."""
        return server in self._known

    def record(self, server: Hashable, *, is_legacy: bool) -> None:
        """Note the era of ``server``."""
        if is_legacy:
            self._known[server] = None
        else:
            self._known.pop(server, None)
