"""Credentials: the interface through which an HTTP client gets its tokens; `Bearer`: authorization with an existing
token.

An HTTP client requests the headers of each request, and reports each refusal. `ClientAuth` is what users pass: `Bearer`
without any OAuth, or a configuration of `oauth_client`. If no token can be had or used, `AuthorizationError` is raised,
also if a function of the user failed. A refusal has the `Challenge` of the server.
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
    """The server requires a token for a request, and the client couldn't get a token. Calls for which the server
    requires no such token still work.

    ``reason`` is written for the people who run the client, and contains no secret. ``code`` is the OAuth error, if a
    server has sent one (RFC 6749 sections 4.1.2.1 and 5.2; RFC 6750 section 3.1), ``"access_denied"`` for example.
    """

    def __init__(self, reason: str, *, code: str | None = None) -> None:
        self.reason = clean(reason)
        """Why the client got no token, on one line and without secrets."""
        super().__init__(self.reason)
        self.code = code
        """The OAuth error that a server sent, such as ``access_denied``; `None` if there is none."""


class SignInNeeded(AuthorizationError):
    """The user must sign in to get a token, but `OAuth.asks_user` is false. The client sent no request to an
    authorization server."""


logger = logging.getLogger("trio_mcp")


@contextmanager
def calling_user_code(what: str) -> Generator[None]:
    """Convert an exception that user code raises inside the block to an `AuthorizationError`, and log the exception.

    ``what`` names the user's function in the message. The new message contains only the exception's type, since the
    original message may contain secrets.
    """
    try:
        yield
    except AuthorizationError:
        raise
    except Exception as error:
        logger.exception("%s failed", what)
        raise AuthorizationError(f"{what} failed: {type(error).__name__}") from None


Secret: TypeAlias = str | Callable[[], Awaitable[str]]
"""A secret, or an async function that returns the current secret."""


async def current_secret(secret: Secret, what: str) -> str:
    """Return ``secret``, or what the function returns. ``what`` names the function: see `calling_user_code`."""
    if isinstance(secret, str):
        return secret
    with calling_user_code(what):
        return await secret()


UserIsAsked: TypeAlias = Callable[[], AbstractContextManager[None]]
"""A context manager that pauses the timeouts of all calls while the user signs in or decides."""


@frozen
class RefusedRequest:
    """A request that the server has refused with status 400, 401 or 403, because authorization is missing or not
    sufficient."""

    status: int
    """The HTTP status: 400, 401 or 403."""
    challenges: str
    """The value of the header ``WWW-Authenticate``, with repeated headers joined by commas; empty without that
    header."""
    sent: Sequence[tuple[bytes, bytes]] = attrs.field(repr=False)
    """The authorization headers that `Credentials.headers` returned for the request."""
    attempt: int
    """The number of times the request was sent so far; at least 1."""
    begun: float
    """The time at which the request was first sent, on trio's clock. If the server refuses a token that is newer than
    this time, another new token won't help."""
    is_background: bool = False
    """True if no caller waits for the request, so that it must not be the reason to ask the user to sign in."""


class Credentials(Protocol):
    """Interface for objects that authorize the requests of one client to one server. All requests share the tokens in
    the object."""

    async def headers(self, method: str) -> Sequence[tuple[bytes, bytes]]:
        """Return the headers that authorize one request with the HTTP method ``method``.

        Returns no headers until the server has demanded authorization. Call this for each request. Raises
        `AuthorizationError` if no token is available.
        """
        ...

    def noticed(self, headers: Mapping[str, str]) -> None:
        """If the ``headers`` of a response contain a new DPoP nonce, store the nonce for later requests (RFC 9449
        section 8.2).

        The names of the headers must be in lower case. Synchronous.
        """
        ...

    async def refused(self, request: RefusedRequest) -> None:
        """Get a token with which the server will accept the refused ``request``. Returns when the request can be sent
        again.

        A background request waits until the user has been asked because of another request. Raises `AuthorizationError`
        if sending again wouldn't help.
        """
        ...


class ClientAuth(Protocol):
    """Interface for objects that authorize a client's requests. `open_http` takes such an object as its argument
    ``auth``."""

    def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AbstractAsyncContextManager[Credentials]:
        """Return a context manager that yields the `Credentials` for the server at ``server_url``.

        Their background tasks end with the block. ``user_is_asked`` pauses the timeouts of calls while the user signs
        in.
        """
        ...


_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""Matches a bearer token (RFC 6750 section 2.1)."""


def _is_token(_: Any, __: Any, token: Secret) -> None:
    if isinstance(token, str) and not _TOKEN.fullmatch(token):
        raise ValueError("a bearer token may only have letters, digits, -._~+/ and trailing =")


@frozen
class Bearer:
    """Authorizes each request with a token that you already have, without OAuth.

    Raises `ValueError` if the token has characters that a header can't contain.
    """

    token: str | Callable[[], Awaitable[str]] = attrs.field(validator=_is_token, repr=False)
    """The token, or an async function that returns the current token. The function is called for each request, so it
    should cache valid tokens. If the server refuses a token, the function is called again, and another token is tried
    once."""
    trusted_http_hosts: Collection[str] = attrs.field(default=frozenset[str](), converter=host_names, kw_only=True)
    """Hosts of a private network to which the token may be sent over plain ``http``. Anyone who can read the traffic of
    that network can use the token."""

    @asynccontextmanager
    async def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AsyncGenerator[Credentials]:
        """Return a context manager that yields `Credentials` with the token of this `Bearer` object. See
        `ClientAuth`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        yield _BearerCredentials(self.token)


class _BearerCredentials:
    def __init__(self, token: Secret) -> None:
        self._token = token

    async def headers(self, method: str) -> Sequence[tuple[bytes, bytes]]:
        token = await current_secret(self._token, "the function that returns the token")
        if not isinstance(self._token, str) and not _TOKEN.fullmatch(token):
            raise AuthorizationError(
                "the function of Bearer must return a token of letters, digits, -._~+/ and trailing ="
            )
        return ((b"Authorization", f"Bearer {token}".encode("ascii")),)

    def noticed(self, headers: Mapping[str, str]) -> None:
        pass

    async def refused(self, request: RefusedRequest) -> None:
        is_old = request.status == HTTPStatus.UNAUTHORIZED and not isinstance(self._token, str)
        if is_old and request.attempt == 1 and await self.headers("GET") != request.sent:
            return
        raise AuthorizationError(f"the server refused the token with HTTP status {request.status}")


_LONGEST_VALUE: Final = 32 * 1024
_MOST_CHALLENGES: Final = 16
_MOST_PARAMS: Final = 32
"""The maximum number of parameters that are read from one challenge."""
_MOST_PARTS: Final = 600
"""The maximum number of challenges and parameters together that are read from one header value."""

_HTTP_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*+"'
"""Regular expressions for RFC 9110 section 5.6.4. None of them backtracks, so each character is read only a few
times."""
_END: Final = r"[ \t]*+(?=,|\Z)"

_GAP: Final = lazy_pattern(r"[ \t,]*+")
_SCHEME: Final = lazy_pattern(rf"({_HTTP_TOKEN})(?:{_END}|[ ]++)")
_TOKEN68: Final = lazy_pattern(rf"([A-Za-z0-9._~+/-]++=*+){_END}")
_PARAM_NAME: Final = lazy_pattern(rf"({_HTTP_TOKEN})[ \t]*+=[ \t]*+")
_VALUE: Final = lazy_pattern(rf"(?:({_HTTP_TOKEN})|({_QUOTED}))(?:{_END}|[ \t]++(?={_HTTP_TOKEN}[ \t]*+=))")
"""Matches the place of a missing comma before the next parameter, since some servers forget that comma."""
_ELEMENT: Final = lazy_pattern(rf'(?:[^",]|{_QUOTED})*+(?=,|\Z)')
"""Matches the text up to the next comma outside of quotes."""
_ESCAPED: Final = lazy_pattern(r"\\(.)")


@frozen
class Challenge:
    """A challenge in ``WWW-Authenticate``: one authentication scheme that a server offers (RFC 9110 section 11.3)."""

    scheme: str
    """The name of the scheme, in lower case."""
    params: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """The challenge's parameters, by their names in lower case. Read-only."""
    token68: str | None = attrs.field(default=None, repr=False)
    """The token68 string that some schemes have instead of parameters."""


def parse_challenges(value: str) -> list[Challenge]:
    """Return all challenges in the value of the header ``WWW-Authenticate``, in order and for any scheme (RFC 9110
    section 11.6.1).

    Repeated headers must be joined with commas.

    Never raises: parts that can't be read are left out, as are repeated parameters, and everything beyond the limits. A
    value of more than 32 KiB isn't read at all. Takes linear time.
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
        # After an unclosed quote, a comma may be quoted text, so ignore the rest of the header.
        rest = _ELEMENT.match(value, at)
        at = len(value) if rest is None else _match_end(_GAP, value, rest.end())
    if scheme is not None and found < _MOST_CHALLENGES:
        yield Challenge(scheme, MappingProxyType(params), token68)


def _match_end(pattern: re.Pattern[str], value: str, at: int) -> int:
    match = pattern.match(value, at)
    return at if match is None else match.end()
