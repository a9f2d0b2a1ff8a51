"""Credentials: the questions of an HTTP client to whoever has its tokens, and `Bearer`, who has one at hand.

An HTTP client asks for the headers of each request, and tells of each refusal. `ClientAuth` is what users hand over:
`Bearer` without any OAuth, or a configuration of `oauth_client`. Whoever cannot get or use a token raises
`AuthorizationError`, also where a function of the user has failed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

import attrs
import trio

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..jsonrpc.errors import MCPError, clean
from ..transports.http_client.origins import host_names


class AuthorizationError(MCPError):
    """A request was refused for want of a token, and no token could be had. Other calls are not concerned.

    ``reason`` is for the people who run the client, and has no secret. ``code`` is the error of OAuth, where a server
    has sent one (RFC 6749 sections 4.1.2.1 and 5.2; RFC 6750 section 3.1), ``"access_denied"`` for example.
    """

    def __init__(self, reason: str, *, code: str | None = None) -> None:
        self.reason = clean(reason)
        super().__init__(self.reason)
        self.code = code


class SignInNeeded(AuthorizationError):
    """The user has to sign in, and `OAuth.asks_user` says that the user is not to be asked. Nothing was sent to an
    authorization server."""


logger = logging.getLogger("trio_mcp")


@contextmanager
def calling_user_code(what: str) -> Generator[None]:
    """Call ``what``, a function of the user, inside. An exception is logged, and becomes an `AuthorizationError` that
    has the name of its type alone: the words may have secrets, and are for the log of their author."""
    try:
        yield
    except AuthorizationError:
        raise
    except Exception as error:
        logger.exception("%s failed", what)
        raise AuthorizationError(f"{what} failed: {type(error).__name__}") from None


UserIsAsked: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Keeps the time limits of all calls standing still while inside: the user makes up their mind."""


@frozen
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


_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""RFC 6750 section 2.1."""
_MOST_BEARER_ATTEMPTS: Final = 2


def _is_token(_: Any, __: Any, token: str | Callable[[], Awaitable[str]]) -> None:
    if isinstance(token, str) and not _TOKEN.fullmatch(token):
        raise ValueError("a bearer token has no other characters than letters, digits and -._~+/ with = at the end")


@frozen
class Bearer:
    """Authorizes each request with a token that is at hand, without any OAuth.

    ``token`` is the token, or an async function that returns the present token. The function is called for each
    request, so good tokens are for the function to keep; when the server refuses a token, the function is called again,
    and another token is tried once. ``trusted_http_hosts`` are hosts of a private network to which the token may go
    over plain ``http``: whoever can read the traffic of that network can use the token. Raises `ValueError` for what no
    header can carry.
    """

    token: str | Callable[[], Awaitable[str]] = attrs.field(validator=_is_token, repr=False)
    trusted_http_hosts: Collection[str] = attrs.field(default=frozenset[str](), converter=host_names, kw_only=True)

    @asynccontextmanager
    async def opened(self, server_url: str, user_is_asked: UserIsAsked) -> AsyncGenerator[Credentials]:
        """Return the credentials: see `ClientAuth.opened`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        yield _BearerCredentials(self.token)


class _BearerCredentials:
    def __init__(self, token: str | Callable[[], Awaitable[str]]) -> None:
        self._token = token

    async def headers(self, method: str) -> Sequence[tuple[bytes, bytes]]:
        return ((b"Authorization", f"Bearer {await self._present()}".encode("ascii")),)

    async def _present(self) -> str:
        if isinstance(self._token, str):
            return self._token
        with calling_user_code("the function that returns the token"):
            token = await self._token()
        if not _TOKEN.fullmatch(token):
            raise AuthorizationError("the function that returns the token returned what no header can carry")
        return token

    def noticed(self, headers: Mapping[str, str]) -> None:
        pass

    async def refused(self, request: RefusedRequest) -> None:
        is_old = request.status == HTTPStatus.UNAUTHORIZED and not isinstance(self._token, str)
        if is_old and request.attempt < _MOST_BEARER_ATTEMPTS and await self.headers("GET") != request.sent:
            return
        raise AuthorizationError(f"the server refuses the token with HTTP status {request.status}")
