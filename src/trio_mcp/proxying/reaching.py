"""Reach: the way of a proxy's client to the server behind, over a shared connection or one of its own."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, Unpack

import trio

from ..auth.errors import AuthorizationError
from ..client.client import Client
from ..client.options import ClientOptions
from ..concurrency.nurseries import ServiceNursery
from ..jsonrpc.errors import CodedError, MCPError, PeerError, ProtocolViolation
from ..protocol.errors import UPSTREAM_LOST
from ..protocol.types.capabilities import ClientCapabilities, Elicitation, Roots, Sampling
from ..runtime.channel import ConnectionLost
from ..runtime.http_error import HTTPError
from ..state.requests import InboundRequest
from .places import Places
from .task_owners import TaskOwners
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


class Reach(Protocol):
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


class SharedUpstream:
    """A server behind that is connected already."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream: Upstream | None = upstream
        self._upstream = upstream
        self.is_over = False

    async def reached(self, request: InboundRequest) -> Upstream:
        """Return the server: see `Reach.reached`."""
        return self._upstream

    def used(self) -> None:
        """Do nothing: the connection is somebody else's."""

    def rest(self) -> None:
        """Do nothing: the connection is somebody else's. There is nothing to keep for its next user."""
        self.is_over = True


class OwnUpstream:
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
        places: Places,
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
        """Return the server, which the first call opens: see `Reach.reached`."""
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
        """True once the connection is lost or being closed: see `Reach.is_over`."""
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
