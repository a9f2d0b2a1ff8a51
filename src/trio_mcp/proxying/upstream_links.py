"""Links lead clients of a proxy to the server behind, over a connection that is shared or one of their own.

A link of its own opens its connection for the first request, and closes the connection after some rest.
Places bound the number of such connections, and no holder takes the share of others.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, Unpack

import trio

from ..auth.credentials import AuthorizationError
from ..client.client import Client
from ..client.options import ClientOptions
from ..concurrency.fair_share import leaves_enough
from ..concurrency.nurseries import ServiceNursery
from ..jsonrpc.errors import TOO_BUSY, CodedError, MCPError, PeerError, ProtocolViolation
from ..protocol.errors import UPSTREAM_LOST
from ..protocol.types.lifecycle import ClientCapabilities, Elicitation, Roots, Sampling
from ..runtime.transport import ConnectionLost, HTTPError
from ..state.requests import InboundRequest
from .tasks import TaskOwners
from .upstream import Upstream

logger = logging.getLogger("trio_mcp")

_UNREACHABLE: Final = "The server behind this proxy cannot be reached"
_IDLE: Final = "the connection to the server behind was idle"


_ALL: Final = ClientCapabilities(
    roots=Roots(), sampling=Sampling(context={}, tools={}), elicitation=Elicitation(form={}, url={})
)


class OpenUpstream(Protocol):
    """A function that opens a client of the server behind, with these options: ``Command([...]).open``, for example."""

    def __call__(self, **options: Unpack[ClientOptions]) -> AbstractAsyncContextManager[Client]: ...


class UpstreamLink(Protocol):
    """The way of a client to the server behind."""

    @property
    def upstream(self) -> Upstream | None:
        """The server, once reached; else `None`."""
        ...

    @property
    def is_over(self) -> bool:
        """True once the way leads nowhere any more, or is about to."""
        ...

    def used(self) -> None:
        """Note that the way is used, after `rest`."""
        ...

    def rest(self) -> None:
        """Note that nobody uses the way now, which may end before long."""
        ...

    async def reached(self, request: InboundRequest) -> Upstream:
        """Return the server, for ``request``. Raises `CodedError` when the server cannot be reached."""
        ...


class SharedLink:
    """A server behind that is connected already."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream: Upstream | None = upstream
        self._upstream = upstream
        self.is_over = False

    async def reached(self, request: InboundRequest) -> Upstream:
        """Return the server: see `UpstreamLink.reached`."""
        return self._upstream

    def used(self) -> None:
        """Do nothing: the connection is somebody else's."""

    def rest(self) -> None:
        """Do nothing: the connection is somebody else's. There is nothing to keep for its next user."""
        self.is_over = True


class OwnLink:
    """A server behind that is opened for the first request of the client, with the name and the capabilities of the
    client, and in the era and revision of the client where the server has that revision. Where ``many`` clients share
    the connection, it is opened in no client's name and with all capabilities that can be handed on; each call has its
    own.

    The connection takes one of ``places``, for ``holder``, and ends with ``nursery``, after ``patience`` seconds of
    rest, or when the place is wanted. ``ended`` is called with the reason for an earlier end and for a failure to open.
    """

    def __init__(
        self,
        open_upstream: OpenUpstream,
        task_owners: TaskOwners,
        places: ConnectionPlaces,
        patience: float,
        nursery: ServiceNursery,
        ended: Callable[[str], None],
        *,
        holder: object,
        many: bool = False,
    ) -> None:
        self.upstream: Upstream | None = None
        self._open = open_upstream
        self._task_owners = task_owners
        self._places = places
        self._patience = patience
        self._nursery = nursery
        self._ended = ended
        self._holder = holder
        self._many = many
        self._asked = False
        self._scope = trio.CancelScope()
        self._closed = trio.Event()
        self._settled = trio.Event()
        self._refusal = CodedError(UPSTREAM_LOST, _UNREACHABLE)

    async def reached(self, request: InboundRequest) -> Upstream:
        """Return the server, which the first call opens: see `UpstreamLink.reached`."""
        if not self._asked:
            self._asked = True
            self._nursery.start_soon(
                self._hold,
                request.revision.name if request.revision.handshake else None,
                {"forwards": _ALL} if self._many else _options_of(request),
            )
        await self._settled.wait()
        if self.upstream is None:
            raise CodedError(self._refusal.code, self._refusal.message, self._refusal.data)
        return self.upstream

    # The end of a connection that nobody uses

    @property
    def is_over(self) -> bool:
        """True once the connection is lost or being closed: see `UpstreamLink.is_over`."""
        lost = self.upstream is not None and self.upstream.client.lost is not None
        return lost or self._closed.is_set() or self._scope.cancel_called

    def used(self) -> None:
        """Keep the connection open until `rest`."""
        self._places.mark_used(self)
        self._scope.deadline = math.inf

    def rest(self) -> None:
        """Let the connection end before long, not before the end of its known tasks."""
        now = trio.current_time()
        until = now if self.upstream is None else max(now, self.upstream.working.until())
        self._scope.deadline = until + self._patience
        if until == now and not self.is_over:
            self._places.mark_idle(self)

    async def make_room(self) -> None:
        """Close the connection: see `Idle.make_room`."""
        self._scope.cancel(reason="the connection was idle, and another one is wanted")
        await self._closed.wait()

    async def _hold(self, revision: str | None, options: ClientOptions) -> None:
        why = _UNREACHABLE
        try:
            with self._scope:
                await self._places.take(self._holder)
                try:
                    why = await self._until_over(revision, options)
                finally:
                    self._places.give_back(self._holder)
            if self._scope.cancelled_caught:
                why = _IDLE
        except CodedError as error:
            self._refusal, why = error, f"{_UNREACHABLE}: {error}"
        finally:
            self._places.mark_used(self)
            self._closed.set()
            self._settled.set()
        logger.log(logging.DEBUG if why == _IDLE else logging.ERROR, "%s", why)
        self._ended(why)

    async def _until_over(self, revision: str | None, options: ClientOptions) -> str:
        """Open the connection, and wait for its end. Return the reason."""
        why = _UNREACHABLE
        try:
            if revision is None:
                await self._serve_through({**options, "era": "auto"})
            else:
                await self._as_legacy(revision, options)
        except PeerError as error:
            self._refusal = CodedError(error.code, error.message, error.data)
            why = f"the server behind refused: {error.message}"
        except ConnectionLost as error:
            why = f"the server behind is gone: {error}" if self.upstream is not None else f"{_UNREACHABLE}: {error}"
        except AuthorizationError as error:
            # The reason is for the people of the proxy alone, and no part of the words for the client.
            logger.warning("the server behind does not let this proxy in: %s", error)
            why = f"{_UNREACHABLE}: the server does not let this proxy in"
        except (MCPError, trio.TooSlowError, ValueError, OSError) as error:
            why = f"{_UNREACHABLE}: {error}"
        except Exception:  # foreign code must not end the connections of other clients
            logger.exception("the server behind failed")
        return why

    async def _as_legacy(self, revision: str, options: ClientOptions) -> None:
        """Serve a legacy client in its own revision, which is best; where the server has no legacy revision, in a
        modern one."""
        try:
            await self._serve_through({**options, "era": "legacy", "revision": revision})
        except (PeerError, HTTPError, ProtocolViolation) as error:
            if self.upstream is not None:
                raise
            logger.debug("the server behind has no legacy revision: %s", error)
            await self._serve_through({**options, "era": "modern"})

    async def _serve_through(self, options: ClientOptions) -> None:
        async with self._open(**options) as client:
            self.upstream = Upstream(client, self._task_owners, shared=False, many=self._many)
            self._settled.set()
            await client.until_lost()


def _options_of(request: InboundRequest) -> ClientOptions:
    options: ClientOptions = {"forwards": request.capabilities or ClientCapabilities()}
    if request.client_info is not None:
        options["info"] = request.client_info
    return options


class IdleConnection(Protocol):
    """A connection to the server behind that nobody uses now."""

    async def make_room(self) -> None:
        """Close the connection, and wait until its place is free."""
        ...


class ConnectionPlaces:
    """The places of at most ``most`` connections at the same time, of which no holder takes the share of others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[object] = Counter()
        self._idle: dict[IdleConnection, None] = {}
        """The connections that may be closed for others, the one that is idle for the longest first."""

    async def take(self, holder: object) -> None:
        """Take a place for ``holder``, a party that calls the proxy. Where none is left, and ``holder`` has
        none, the connection that is idle for the longest is closed first. Raises `CodedError` (-31000)."""
        while not leaves_enough(self._held[holder], self._most - self._held.total()):
            if self._held[holder] or not self._idle:
                raise CodedError(TOO_BUSY, "Too busy: too many connections to the server behind; try again later")
            idle = next(iter(self._idle))
            del self._idle[idle]
            await idle.make_room()
        self._held[holder] += 1

    def give_back(self, holder: object) -> None:
        """Give a place of ``holder`` back."""
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]

    def mark_idle(self, idle: IdleConnection) -> None:
        """Note that nobody uses a connection now, so that it may be closed for others."""
        self._idle[idle] = None

    def mark_used(self, idle: IdleConnection) -> None:
        """Note that a connection is used again, or closed. Idempotent."""
        self._idle.pop(idle, None)
