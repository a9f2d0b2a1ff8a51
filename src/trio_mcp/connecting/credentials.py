"""The credentials and headers that a user passes to the client of one server, over HTTP or WebSocket. They are
validated before the first request, so that no token is sent where others could read it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Mapping
from http import HTTPStatus
from typing import Final, TypeAlias

from ..auth.credentials import ClientAuth, Credentials
from ..client.timeouts import CallTimeouts
from ..concurrency.contexts import asynccontextmanager
from ..transports.http_client.origins import is_local_host, names_socket, split_url

_CHALLENGING: Final = frozenset((HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN))
"""HTTP statuses that refuse a request because of missing credentials, if the response has a challenge."""


def check_authorization(auth: ClientAuth | None, headers: Mapping[str, str], url: str) -> None:
    """Raise `ValueError` if a header conflicts with ``auth``, or if a token would be sent to ``url`` in plain text.

    A header conflicts with ``auth`` if ``auth`` sets the same header.
    """
    named = [name for name in headers if str(name).lower() in ("authorization", "dpop")]
    if named and auth is not None:
        raise ValueError(f"pass either auth= or the header {named[0]}, not both: auth= sets that header")
    if (named or auth is not None) and not is_confidential(url, trusted_http_hosts(auth)):
        scheme, _, rest = url.partition("://")
        where = f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2][:300]}"
        needed = "wss" if scheme.lower() == "ws" else "https"
        raise ValueError(f"refusing to send a token to {where} in plain text: the server needs {needed}")


def trusted_http_hosts(auth: ClientAuth | None) -> Collection[str]:
    """Return the hosts to which ``auth`` may send tokens over plain HTTP."""
    return getattr(auth, "trusted_http_hosts", ())


@asynccontextmanager
async def open_credentials(
    auth: ClientAuth | None, url: str, timeouts: CallTimeouts
) -> AsyncGenerator[Credentials | None]:
    """Prepare the credentials for requests to the server at ``url``, and yield them. Without ``auth``, yield `None`.

    ``timeouts`` are paused while the user signs in.
    """
    if auth is None:
        yield None
        return
    async with auth._opened(resource_at(url), timeouts.pause_all) as credentials:
        yield credentials


def is_challenge(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a response asks for other credentials: the token, its scopes or its DPoP nonce are missing or
    invalid."""
    # 2026-07-28 authorization, Error Handling, defines the statuses 400, 401 and 403.
    # RFC 9449 section 9: a server may also refuse a request because it requires a nonce in the DPoP proof.
    if status in _CHALLENGING:
        return "www-authenticate" in headers
    return status == HTTPStatus.UNAUTHORIZED


def is_confidential(url: str, trusted_http_hosts: Collection[str] = ()) -> bool:
    """Return whether a token that is sent to the server at ``url`` is safe from eavesdroppers.

    It is safe over TLS, on this machine, and over HTTP to one of ``trusted_http_hosts``.
    """
    scheme = url.partition(":")[0].lower()
    if names_socket(url):
        return True
    if scheme in ("http", "ws"):
        try:
            host = split_url(f"http{url[len(scheme) :]}")[0].host
        except ValueError:
            return False
        return is_local_host(host) or (scheme == "http" and host in trusted_http_hosts)
    return scheme in ("https", "wss")


def can_sign_in(url: str, trusted_http_hosts: Collection[str] = ()) -> bool:
    """Return whether OAuth can get a token for the server at ``url``.

    It can't for a server on a Unix socket, which has no URL that an authorization server could use.
    """
    return is_confidential(url, trusted_http_hosts) and not names_socket(url)


def resource_at(url: str) -> str:
    """Return the canonical URI of the server at ``url``, which identifies the server in OAuth requests.

    See RFC 8707 section 2, and 2026-07-28 authorization, Canonical Server URI.

    Scheme and host are in lower case, without query, fragment, and a slash for an empty path. A WebSocket gets the URI
    for HTTP. A URL of a Unix socket, which has no such URI, is returned unchanged. Raises `ValueError`.
    """
    if names_socket(url):
        return url
    origin, target = split_url(f"http{url[2:]}" if url[:2].lower() == "ws" else url)
    path = target.partition("?")[0]
    return str(origin) if path == "/" else f"{origin}{path}"


Headers: TypeAlias = list[tuple[bytes, bytes]]

_RESERVED_HEADERS: Final = frozenset(
    (
        *("accept", "content-type", "last-event-id", "mcp-method", "mcp-name"),
        *("mcp-protocol-version", "mcp-session-id"),
        # of HTTP itself
        *("accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)
_RESERVED_PREFIXES: Final = ("mcp-param-", "sec-websocket-")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")


def given_headers(given: Mapping[str, str]) -> Headers:
    """Check the HTTP headers that a user passes to a client, and return them as a list.

    Raises `TypeError` unless they are a mapping of strings to strings, and `ValueError` for headers that the client
    writes itself, or that HTTP doesn't allow. The messages contain no values, since values may be secrets.
    """
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] user input
        raise TypeError(f"headers must be a mapping, such as {{'X-Name': 'text'}}, not a {type(given).__name__}")
    return [_checked_header(name, text) for name, text in given.items()]


def _checked_header(name: str, text: str) -> tuple[bytes, bytes]:
    if not isinstance(name, str) or not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"headers must map strings to strings; the value of {name!r} is a {type(text).__name__}")
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"not a valid name for an HTTP header: {name[:100]!r}")
    if name.lower() in _RESERVED_HEADERS or name.lower().startswith(_RESERVED_PREFIXES):
        raise ValueError(f"the header {name} is reserved: the client writes it itself")
    if not _HEADER_VALUE.fullmatch(text):
        raise ValueError(f"the value of the header {name} has an invalid character, or leading or trailing spaces")
    return name.encode("ascii"), text.encode("latin-1")
