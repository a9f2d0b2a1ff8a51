"""Tenants: the callers of one connection to a proxy, each with a link of its own to the server behind."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol

import trio

from ..concurrency.contexts import contextmanager
from ..concurrency.nurseries import ServiceNursery
from ..runtime.connection import Connection
from ..runtime.peer import PrincipalId
from ..state.requests import InboundRequest
from .downstream import Downstream
from .upstream import Upstream
from .upstream_links import UpstreamLink


class MakeLink(Protocol):
    """Makes the link of a client, or of many clients together, to the server behind: see `OwnUpstream`."""

    def __call__(
        self, nursery: ServiceNursery, ended: Callable[[str], None], /, *, holder: object, many: bool
    ) -> UpstreamLink:
        """Return the link."""
        ...


class Tenant:
    """A caller, ``downstream``, with a way to the server behind. Where the caller comes and goes with the requests,
    ``gone`` is called when the way has ended and no request uses the way any more; else ``gone`` is `None`."""

    def __init__(self, downstream: Downstream, gone: Callable[[Tenant], None] | None) -> None:
        self.downstream = downstream
        self._gone = gone
        self._link: UpstreamLink | None = None
        self._users = 0

    def set_link(self, link: UpstreamLink) -> None:
        """Set the way to the server behind."""
        self._link = link

    @property
    def upstream(self) -> Upstream | None:
        """The server behind, if already reached; else `None`."""
        return self._link.upstream if self._link is not None else None

    @property
    def is_over(self) -> bool:
        """True once the way leads nowhere any more."""
        return self._link is not None and self._link.is_over

    async def reached(self, request: InboundRequest) -> Upstream:
        """Return the server behind, for ``request``: see `UpstreamLink.reached`."""
        assert self._link is not None, "requests come while the connection runs"
        return await self._link.reached(request)

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Use the way to the server inside. Where the caller comes and goes, a way that no request uses may end."""
        if self._gone is None or self._link is None:
            yield
            return
        self._users += 1
        self._link.used()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._link.rest()
                self._look()

    def ended(self, reason: str) -> None:
        """Note that the way to the server has ended."""
        self._look()

    def let_go(self) -> None:
        """Drop the way, which refers to the caller: else only the garbage collector could free the two."""
        self._link = None

    def _look(self) -> None:
        if self.is_over and not self._users and self._gone is not None:
            self._gone(self)


class Tenants:
    """The callers of ``connection``: one; or, where the requests of everybody come over the connection, one
    for each principal, and one for all unknown clients."""

    def __init__(self, connection: Connection, make_link: MakeLink) -> None:
        self._connection = connection
        self._make_link = make_link
        self._peer = connection.exchange.peer
        self._is_everybody = self._peer.everybody
        self._all: dict[PrincipalId | None, Tenant] = {}
        """The callers who are served, by their principals."""
        self._left: set[Tenant] = set()
        """Callers with requests on a way to the server that has ended."""
        self._services: ServiceNursery | None = None
        self._own: trio.Nursery | None = None

    def start_in(self, services: ServiceNursery, own: trio.Nursery) -> None:
        """Start the tasks of callers in ``own``, and open connections to the server behind in ``services``."""
        self._services, self._own = services, own

    def known(self, principal: PrincipalId | None) -> Tenant | None:
        """Return the caller for a request of ``principal``; `None` where there was none before."""
        return self._all.get(self._key(principal))

    def of(self, principal: PrincipalId | None) -> Tenant:
        """Return the caller for a request of ``principal``, to be used at once."""
        key = self._key(principal)
        tenant = self._all.get(key)
        if tenant is None or (self._is_everybody and tenant.is_over):
            if tenant is not None:
                self._left.add(tenant)
            tenant = self._all[key] = self._new(key)
        return tenant

    def _key(self, principal: PrincipalId | None) -> PrincipalId | None:
        return principal if self._is_everybody else self._peer.principal

    def _new(self, principal: PrincipalId | None) -> Tenant:
        assert self._services is not None, "requests come while the connection runs"
        assert self._own is not None, "requests come while the connection runs"
        downstream = Downstream(self._connection, principal)
        downstream.start_in(self._own)
        tenant = Tenant(downstream, self._drop if self._is_everybody else None)
        ended = tenant.ended if self._is_everybody else downstream.end
        holder = principal or self._peer.caller or downstream
        tenant.set_link(self._make_link(self._services, ended, holder=holder, many=self._is_everybody))
        return tenant

    def _drop(self, tenant: Tenant) -> None:
        principal = tenant.downstream.principal
        if self._all.get(principal) is tenant:
            del self._all[principal]
        self._left.discard(tenant)
        if tenant.upstream is not None:
            tenant.upstream.forget(tenant.downstream)
        tenant.let_go()

    def take_all(self) -> Iterable[Tenant]:
        """Return all callers, since the connection is over."""
        tenants = [*self._all.values(), *self._left]
        self._all, self._left = {}, set()
        return tenants
