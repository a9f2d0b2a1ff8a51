"""Tenants: the callers on one connection to a proxy, each with the upstream connection that it uses.

All may share one upstream connection, or each has its own, which is opened for the first request, and closed after some
idle time. A pool limits the number of such connections, and shares them fairly.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol, Unpack

import attrs
import trio

from ..auth.credentials import AuthorizationError
from ..classes import define
from ..client.client import Client
from ..client.options import ClientOptions
from ..concurrency.contexts import contextmanager
from ..concurrency.fair_share import leaves_enough
from ..concurrency.nurseries import ServiceNursery
from ..jsonrpc.errors import TOO_BUSY, CodedError, MCPError, PeerError, ProtocolViolation
from ..protocol.errors import UPSTREAM_LOST
from ..protocol.types.apps import APPS_EXTENSION
from ..protocol.types.lifecycle import ClientCapabilities, Elicitation, Roots, Sampling
from ..runtime.connection import Connection
from ..runtime.peer import PrincipalId
from ..runtime.transport import ConnectionLost, HTTPError
from ..state.requests import InboundRequest
from .downstream import ProxyClient
from .extensions import CANCELS, SharedExtensions
from .tasks import TaskOwners
from .upstream import Upstream

logger = logging.getLogger("trio_mcp")

_UNREACHABLE: Final = "The server behind this proxy cannot be reached"
_IDLE: Final = "the upstream connection was idle"
ALL_QUESTIONS: Final = ClientCapabilities(
    roots=Roots(), sampling=Sampling(context={}, tools={}), elicitation=Elicitation(form={}, url={})
)
"""All kinds of requests that a server may send to a client (sampling, elicitation, roots). Pass it as ``forwards`` if
clients of every kind connect: see `ClientSettings.forwards`."""


class OpenUpstream(Protocol):
    """Interface of a function that opens a client of the upstream server with the given client options.

    For example, pass ``Command([...]).open``.
    """

    def __call__(self, **options: Unpack[ClientOptions]) -> AbstractAsyncContextManager[Client]: ...


class UpstreamPool:
    """Limits the number of a proxy's upstream connections to ``limit``, shared fairly among the callers.

    The function ``open_upstream`` opens a connection. A connection is closed after it was idle for ``patience``
    seconds.
    """

    def __init__(self, open_upstream: OpenUpstream, task_owners: TaskOwners, limit: int, patience: float) -> None:
        self.open_upstream = open_upstream
        self.task_owners = task_owners
        self.patience = patience
        self._limit = limit
        self._held: Counter[object] = Counter()
        self._idle: dict[PrivateTenant, None] = {}
        """The tenants whose connections may be closed to make room for others, longest idle first."""

    async def acquire(self, holder: object) -> None:
        """Reserve one of the pool's upstream connections for ``holder``, a caller of the proxy.

        If none is free and ``holder`` has none, the longest idle connection is closed first. Raises `CodedError`
        (-31000) if none becomes free.
        """
        while not leaves_enough(self._held[holder], self._limit - self._held.total()):
            if self._held[holder] or not self._idle:
                raise CodedError(TOO_BUSY, "Too busy: too many connections to the upstream server; try again later")
            idle = next(iter(self._idle))
            del self._idle[idle]
            await idle.close()
        self._held[holder] += 1

    def release(self, holder: object) -> None:
        """Release an upstream connection that `acquire` has reserved for ``holder``."""
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]

    def mark_idle(self, tenant: PrivateTenant) -> None:
        """Record that the caller ``tenant`` doesn't use its upstream connection now.

        The pool may close this connection to make room for another.
        """
        self._idle[tenant] = None

    def mark_used(self, tenant: PrivateTenant) -> None:
        """From now on, the pool may not close the upstream connection of the caller ``tenant`` to make room. The caller
        uses the connection again, or has closed it. Idempotent."""
        self._idle.pop(tenant, None)


@define(eq=False)
class Tenant:
    """A caller of a proxy, reached through ``downstream``. It shares the upstream connection ``upstream`` with other
    callers.

    If ``gone`` isn't `None`, the caller exists only while it has requests: ``gone`` is called after its last one.
    """

    downstream: ProxyClient
    upstream: Upstream | None
    """The upstream server; `None` before it is connected."""
    _gone: Callable[[Tenant], None] | None
    _users: int = attrs.field(default=0, init=False)

    @property
    def is_over(self) -> bool:
        """True once the upstream connection has ended or begun to end."""
        return False

    async def connect(self, request: InboundRequest) -> Upstream:
        """Connect to the upstream server for ``request`` if necessary, and return the `Upstream`. Raises `CodedError`
        if the server can't be reached."""
        assert self.upstream is not None, "the connection of all is open"
        return self.upstream

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Keep the caller's upstream connection open while the ``with`` block runs.

        Outside the block, an unused connection may be closed, if callers exist only while they have requests.
        """
        if self._gone is None:
            yield
            return
        self._users += 1
        self._mark_used()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._mark_idle(self._gone)

    def _mark_used(self) -> None:
        """Record that the caller has requests again, after it was marked as idle."""

    def _mark_idle(self, gone: Callable[[Tenant], None]) -> None:
        """Drop this caller, because it has no more requests. The upstream connection, which it shares with other
        callers, has no data of this caller."""
        gone(self)


@define(eq=False)
class PrivateTenant(Tenant):
    """A caller of a proxy with its own upstream connection, which the first request opens.

    That connection uses the client's name, capabilities and kind of revision (modern or legacy) and, if the upstream
    server supports it, the client's revision.

    If many clients share the connection, it is opened anonymously and with all capabilities that can be forwarded; each
    call has its own. The connection takes one place of ``pool``, for ``holder``. It ends with ``nursery``, after some
    idle seconds, or when the place is needed.
    """

    _pool: UpstreamPool
    _nursery: ServiceNursery
    _holder: object
    _is_opened: bool = attrs.field(default=False, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _closed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _settled: trio.Event = attrs.field(factory=trio.Event, init=False)
    _refusal: CodedError = attrs.field(factory=partial(CodedError, UPSTREAM_LOST, _UNREACHABLE), init=False)

    async def connect(self, request: InboundRequest) -> Upstream:
        """Return the caller's `Upstream`. The first call connects to the upstream server: see `Tenant.connect`."""
        if not self._is_opened:
            self._is_opened = True
            self._nursery.start_soon(
                self._run_connection,
                request.revision.name if request.revision.handshake else None,
                {"forwards": ALL_QUESTIONS, "extensions": [CANCELS]}
                if self.downstream.is_connectionless
                else _options_of(request),
            )
        await self._settled.wait()
        if self.upstream is None:
            raise CodedError(self._refusal.code, self._refusal.message, self._refusal.data)
        return self.upstream

    # Closing an unused connection

    @property
    def is_over(self) -> bool:
        """True once the caller's upstream connection is lost or being closed."""
        lost = self.upstream is not None and self.upstream.client.lost is not None
        return lost or self._closed.is_set() or self._scope.cancel_called

    def _mark_used(self) -> None:
        self._pool.mark_used(self)
        self._scope.deadline = math.inf

    def _mark_idle(self, gone: Callable[[Tenant], None]) -> None:
        """Set the time at which the idle upstream connection will be closed. If the proxy knows unfinished tasks of the
        caller, the idle time begins when the last of these tasks will have expired."""
        now = trio.current_time()
        until = now if self.upstream is None else max(now, self.upstream.working.end_time())
        self._scope.deadline = until + self._pool.patience
        if self.is_over:
            gone(self)
        elif until == now:
            self._pool.mark_idle(self)

    async def close(self) -> None:
        """Close the caller's upstream connection, and wait until the proxy may open a connection for another caller."""
        self._scope.cancel(reason="the connection was idle, and another one is wanted")
        await self._closed.wait()

    async def _run_connection(self, revision: str | None, options: ClientOptions) -> None:
        why = _UNREACHABLE
        try:
            with self._scope:
                await self._pool.acquire(self._holder)
                try:
                    why = await self._until_over(revision, options)
                finally:
                    self._pool.release(self._holder)
            if self._scope.cancelled_caught:
                why = _IDLE
        except CodedError as error:
            self._refusal, why = error, f"{_UNREACHABLE}: {error}"
        finally:
            self._pool.mark_used(self)
            self._closed.set()
            self._settled.set()
        logger.log(logging.DEBUG if why == _IDLE else logging.ERROR, "%s", why)
        if self._gone is None:
            self.downstream.close(why)
        elif not self._users:
            self._gone(self)

    async def _until_over(self, revision: str | None, options: ClientOptions) -> str:
        """Open the upstream connection, wait until this connection has ended, and return the reason for its end."""
        why = _UNREACHABLE
        try:
            if revision is None:
                await self._serve_through({**options, "era": "auto"})
            else:
                await self._as_legacy(revision, options)
        except PeerError as error:
            self._refusal = CodedError(error.code, error.message, error.data)
            why = f"the upstream server refused: {error.message}"
        except ConnectionLost as error:
            why = f"the upstream server is gone: {error}" if self.upstream is not None else f"{_UNREACHABLE}: {error}"
        except AuthorizationError as error:
            # Log the reason for the operator of the proxy, because the client's error message doesn't contain it.
            logger.warning("the upstream server refused the proxy's authorization: %s", error)
            why = f"{_UNREACHABLE}: the server refused the proxy's authorization"
        except (MCPError, trio.TooSlowError, ValueError, OSError) as error:
            why = f"{_UNREACHABLE}: {error}"
        except Exception:  # an error in other libraries must not end the connections of other clients
            logger.exception("the upstream server failed")
        return why

    async def _as_legacy(self, revision: str, options: ClientOptions) -> None:
        """Connect to the upstream server in a legacy protocol revision, if possible in the client's own revision.

        If the server supports no legacy revision, connect in a modern revision.
        """
        try:
            await self._serve_through({**options, "era": "legacy", "revision": revision})
        except (PeerError, HTTPError, ProtocolViolation) as error:
            if self.upstream is not None:
                raise
            logger.debug("the upstream server has no legacy revision: %s", error)
            forwards = attrs.evolve(options.get("forwards") or ClientCapabilities(), extensions=None)
            await self._serve_through({**options, "forwards": forwards, "era": "modern"})

    async def _serve_through(self, options: ClientOptions) -> None:
        async with self._pool.open_upstream(**options) as client:
            self.upstream = Upstream(
                client, self._pool.task_owners, shared=False, many=self.downstream.is_connectionless
            )
            self._settled.set()
            await client.until_lost()


def _options_of(request: InboundRequest) -> ClientOptions:
    capabilities = request.capabilities
    declared = capabilities.extensions or {}
    if not request.revision.handshake:
        # Declare only the extension for apps to a server in a legacy protocol revision.
        # A server in a modern revision gets the client's extensions in each request.
        apps = {name: settings for name, settings in declared.items() if name == APPS_EXTENSION}
        capabilities = attrs.evolve(capabilities, extensions=apps or None)
    options: ClientOptions = {"forwards": capabilities}
    if CANCELS.name in declared:
        options["extensions"] = [CANCELS]
    if request.client_info is not None:
        options["info"] = request.client_info
    return options


class Tenants:
    """The callers whose requests a proxy receives over ``connection``.

    Usually this is a single client. If the connection carries the requests of all HTTP clients, it is one caller for
    each principal, and one for all clients without a principal.

    All share the server ``behind``, or each takes a connection from that pool. ``shared_extensions`` pass over a
    connection of several clients.
    """

    def __init__(
        self, connection: Connection, behind: Upstream | UpstreamPool, shared_extensions: SharedExtensions
    ) -> None:
        self._connection = connection
        self._behind = behind
        self._shared_extensions = shared_extensions
        self._peer = connection.exchange.peer
        self._all: dict[PrincipalId | None, Tenant] = {}
        """The current callers of the proxy, by their principals."""
        self._left: set[Tenant] = set()
        """Callers that still have requests on an upstream connection that has ended."""
        self._nurseries: tuple[ServiceNursery, trio.Nursery] | None = None

    def start_in(self, services: ServiceNursery, own: trio.Nursery) -> None:
        """Start the callers' tasks in the nursery ``own``, and the tasks that open upstream connections in the nursery
        ``services``."""
        self._nurseries = services, own

    def known(self, principal: PrincipalId | None) -> Tenant | None:
        """Return the `Tenant` to which a request of ``principal`` belongs. Return `None` if it doesn't exist yet."""
        return self._all.get(principal if self._peer.everybody else self._peer.principal)

    def reached(self, principal: PrincipalId | None) -> tuple[ProxyClient, Upstream] | None:
        """Find the caller to which a request of ``principal`` belongs. Return this caller, and the upstream server to
        which it is connected.

        Returns `None` if there is no such caller, or if it isn't connected yet.
        """
        tenant = self.known(principal)
        return None if tenant is None or tenant.upstream is None else (tenant.downstream, tenant.upstream)

    def admit(self, principal: PrincipalId | None) -> Tenant:
        """Return the `Tenant` to which a request of ``principal`` belongs. Create the `Tenant` if necessary.

        Use the result before the next trio checkpoint.
        """
        tenant = self.known(principal)
        if tenant is None or (self._peer.everybody and tenant.is_over):
            if tenant is not None:
                self._left.add(tenant)
            key = principal if self._peer.everybody else self._peer.principal
            tenant = self._all[key] = self._new(key)
        return tenant

    def _new(self, principal: PrincipalId | None) -> Tenant:
        assert self._nurseries is not None, "requests come while the connection runs"
        services, own = self._nurseries
        downstream = ProxyClient(self._connection, principal, self._shared_extensions)
        downstream.start_in(own)
        gone = self._drop if self._peer.everybody else None
        if isinstance(self._behind, Upstream):
            return Tenant(downstream, self._behind, gone)
        caller = self._peer.caller
        holder = principal or (None if caller is None else caller.whole) or downstream
        return PrivateTenant(downstream, None, gone, self._behind, services, holder)

    def _drop(self, tenant: Tenant) -> None:
        principal = tenant.downstream.principal
        if self._all.get(principal) is tenant:
            del self._all[principal]
        self._left.discard(tenant)
        if tenant.upstream is not None:
            tenant.upstream.detach(tenant.downstream)

    def remove_all(self) -> list[Tenant]:
        """Remove all callers and return them, because their connection to the proxy has ended."""
        tenants = [*self._all.values(), *self._left]
        self._all, self._left = {}, set()
        return tenants
