"""Credentials: the questions of an HTTP client to the keeper of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol, TypeAlias

import attrs

UserIsAsked: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Keeps the time limits of all calls standing still while inside: the user makes up their mind."""


@attrs.frozen
class RefusedRequest:
    """A request that the server has refused by its status, and has not carried out."""

    status: int
    """400, 401 or 403."""
    challenges: str
    """The value of ``WWW-Authenticate``, repeated headers joined with commas; empty where there was none."""
    sent: Sequence[tuple[bytes, bytes]] = attrs.field(repr=False)
    """The headers that `Credentials.headers` returned for the request."""
    attempt: int
    """Number of times that the request was sent so far; 1 or more."""
    begun: float
    """Time on trio's clock when the request was sent first: a token that is younger, and was refused, is of no use."""
    is_background: bool = False
    """True where no caller waits for the request, so no user is to be asked for the sake of the request alone."""


class Credentials(Protocol):
    """The tokens for one server, shared by all requests of one client."""

    async def headers(self, method: str) -> Sequence[tuple[bytes, bytes]]:
        """Return the headers that authorize one request by ``method`` to the server; none before the server has asked
        for any. Each call is for one request alone. Raises `AuthorizationError`."""
        ...

    def noticed(self, headers: Mapping[str, str]) -> None:
        """Note the ``headers`` of any answer, names in lower case: a new nonce may be among them (RFC 9449 section
        8.2). Synchronous."""
        ...

    async def refused(self, request: RefusedRequest) -> None:
        """Get what the server asks for, and return when the request can be sent once more: for a request in the
        background, when the user was asked for the sake of another one. Raises `AuthorizationError` when that would not
        help."""
        ...


class ClientAuth(Protocol):
    """A way to authorize the requests of a client: the argument ``auth`` of `open_http`."""

    def opened(self, server_url: str, user_is_asked: UserIsAsked) -> AbstractAsyncContextManager[Credentials]:
        """Return the credentials for the server at ``server_url``, whose tasks end with the block. Inside
        ``user_is_asked`` no limit of a call runs."""
        ...
