"""Credentials: the questions of an HTTP client to whoever has its tokens, and `Bearer`, who has one at hand.

An HTTP client asks for the headers of each request, and tells of each refusal. `ClientAuth` is what users hand over:
`Bearer` without any OAuth, or a configuration of `oauth_client`. Whoever cannot get or use a token raises
`AuthorizationError`, also where a function of the user has failed. A refusal has the `Challenge` of the server.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

import attrs
import trio

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..jsonrpc.errors import MCPError, clean
from ..lazy import lazy_pattern
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

    def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AbstractAsyncContextManager[Credentials]:
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
    async def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AsyncGenerator[Credentials]:
        """Return the credentials: see `ClientAuth`."""
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


_LONGEST_VALUE: Final = 32 * 1024
_MOST_CHALLENGES: Final = 16
_MOST_PARAMS: Final = 32
"""Parameters of one challenge."""
_MOST_PARTS: Final = 600
"""Parts of a value that are looked at."""

_HTTP_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*+"'
"""RFC 9110 section 5.6.4. No expression here goes back, so each character is read a few times at most."""
_END: Final = r"[ \t]*+(?=,|\Z)"

_GAP: Final = lazy_pattern(r"[ \t,]*+")
_SCHEME: Final = lazy_pattern(rf"({_HTTP_TOKEN})(?:{_END}|[ ]++)")
_TOKEN68: Final = lazy_pattern(rf"([A-Za-z0-9._~+/-]++=*+){_END}")
_PARAM_NAME: Final = lazy_pattern(rf"({_HTTP_TOKEN})[ \t]*+=[ \t]*+")
_VALUE: Final = lazy_pattern(rf"(?:({_HTTP_TOKEN})|({_QUOTED}))(?:{_END}|[ \t]++(?={_HTTP_TOKEN}[ \t]*+=))")
"""Some servers forget the comma before the next parameter."""
_ELEMENT: Final = lazy_pattern(rf'(?:[^",]|{_QUOTED})*+(?=,|\Z)')
"""The text up to the next comma outside of quotes."""
_ESCAPED: Final = lazy_pattern(r"\\(.)")


@frozen
class Challenge:
    """A way to authenticate that a server offers (RFC 9110 section 11.3)."""

    scheme: str
    """The name of the scheme, in lower case."""
    params: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Values by names in lower case. Read-only."""
    token68: str | None = attrs.field(default=None, repr=False)
    """The text that some schemes have in place of parameters."""


def parse_challenges(value: str) -> list[Challenge]:
    """Return the challenges in the value of ``WWW-Authenticate``, of repeated headers joined with commas, in their
    order (RFC 9110 section 11.6.1). Schemes may be any.

    Never raises: a part that cannot be read is left out, as are a parameter that comes a second time, and all beyond
    the bounds. A value of more than 32 KiB is not read at all. Costs linear time.
    """
    return [] if len(value) > _LONGEST_VALUE else list(_challenges(value))


def _challenges(value: str) -> Iterator[Challenge]:
    scheme: str | None = None
    token68: str | None = None
    params: dict[str, str] = {}
    found = parts = 0
    at = _match_end(_GAP, value, 0)
    while at < len(value) and found < _MOST_CHALLENGES and parts < _MOST_PARTS:
        parts += 1
        if name := _PARAM_NAME.match(value, at):
            at = name.end()
            if read := _VALUE.match(value, at):
                token, quoted = read.groups()
                key = name[1].lower()
                if scheme is not None and key not in params and len(params) < _MOST_PARAMS:
                    params[key] = token if quoted is None else _ESCAPED.sub(r"\1", quoted[1:-1])
                at = _match_end(_GAP, value, read.end())
                continue
        else:
            if scheme is not None:
                yield Challenge(scheme, MappingProxyType(params), token68)
                found += 1
            scheme, token68, params = None, None, {}
            if begun := _SCHEME.match(value, at):
                scheme, at = begun[1].lower(), begun.end()
                if text := _TOKEN68.match(value, at):
                    token68, at = text[1], text.end()
                elif _PARAM_NAME.match(value, at):
                    continue
        # Beyond an open quote nobody knows what is a comma, so nothing is read.
        rest = _ELEMENT.match(value, at)
        at = len(value) if rest is None else _match_end(_GAP, value, rest.end())
    if scheme is not None and found < _MOST_CHALLENGES:
        yield Challenge(scheme, MappingProxyType(params), token68)


def _match_end(pattern: re.Pattern[str], value: str, at: int) -> int:
    match = pattern.match(value, at)
    return at if match is None else match.end()
