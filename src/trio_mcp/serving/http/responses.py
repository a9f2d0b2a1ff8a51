"""The settings of an HTTP endpoint, and the responses to requests that reach no handler.

These are refusals as text or JSON-RPC errors, CORS headers for web pages (`Cors`), health checks, and the metadata of a
protected endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...classes import frozen
from ...jsonrpc.codec import frame_error
from ...jsonrpc.errors import INVALID_REQUEST, METHOD_NOT_FOUND, TOO_BUSY
from ...jsonrpc.messages import ErrorResponse, RequestId
from ...lazy import lazy_pattern
from ...runtime.replies import error_line
from ...transports.host_checks import HostChecks
from ...transports.http.application import Answer, RequestHead
from ..callers import TrustedProxies

if TYPE_CHECKING:
    from ...auth.resource_server.protected import Gate
    from ...auth.resource_server.refusals import Refusal
    from ...server.servable import Servable
    from .cards import Card, PublicDocument
    from .routes import Route

JSON_HEADERS: Final = b"Content-Type: application/json\r\n"
_TEXT_HEADERS: Final = b"Content-Type: text/plain; charset=utf-8\r\n"
RETRY_AFTER: Final = b"Retry-After: 5\r\n"
"""The Retry-After header of a refusal, for requests that may succeed if the client retries soon."""


def text(status: HTTPStatus, reason: str, extra: bytes = b"") -> Answer:
    """Return an HTTP response with a plain text body."""
    return Answer(status, _TEXT_HEADERS + extra, reason.encode())


def empty(status: HTTPStatus, extra: bytes = b"") -> Answer:
    """Return an HTTP response without a body."""
    return Answer(status, extra, b"")


def error(
    status: HTTPStatus, code: int, message: str, extra: bytes, request_id: RequestId | None = None, data: Any = None
) -> Answer:
    """Return an HTTP response whose body is a JSON-RPC error.

    ``request_id`` is the id of the request, or `None` if the request couldn't be parsed.
    """
    line = error_line(ErrorResponse(request_id, code, message, data))
    return Answer(status, JSON_HEADERS + extra, line[:-1])


def invalid(status: HTTPStatus, reason: str, extra: bytes, request_id: RequestId | None = None) -> Answer:
    """Return the response to an HTTP request that the endpoint refuses with ``status`` and ``reason``."""
    return Answer(status, JSON_HEADERS + extra, frame_error(request_id, INVALID_REQUEST, f"Invalid request: {reason}"))


def busy(reason: str, extra: bytes, request_id: RequestId | None = None) -> Answer:
    """Return the response to a request that exceeds a limit of the server or of its caller."""
    return error(HTTPStatus.SERVICE_UNAVAILABLE, TOO_BUSY, reason, RETRY_AFTER + extra, request_id)


def unavailable(reason: str, extra: bytes) -> Answer:
    """Return the plain text response with status 503, for a request that can't be served at the moment."""
    return text(HTTPStatus.SERVICE_UNAVAILABLE, reason, RETRY_AFTER + extra)


def refused(refusal: Refusal, extra: bytes) -> Answer:
    """Return the response to a request that has no valid token, or whose caller may not use the server."""
    return text(refusal.status, refusal.reason, lines_of(refusal) + extra)


def lines_of(refusal: Refusal) -> bytes:
    """Return the HTTP headers of ``refusal``, such as WWW-Authenticate, as header lines."""
    return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in refusal.headers)


def status_of_refusal(code: int, *, legacy: bool = False) -> HTTPStatus:
    """Return the HTTP status for an error ``code`` that the endpoint itself, and not a handler, reports.

    See 2026-07-28 streamable HTTP, Server Validation.

    A missing method is an ordinary reply for legacy clients, for which status 404 means that their session has ended
    (2025-11-25 transports, Session Management).
    """
    if code != METHOD_NOT_FOUND:
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.OK if legacy else HTTPStatus.NOT_FOUND


NO_ROUTES: Final[Mapping[str, Route]] = MappingProxyType({})
NO_DOCUMENTS: Final[Mapping[str, PublicDocument]] = MappingProxyType({})

_PATH: Final = lazy_pattern(r"(?:/[!-\"$->@-~]*)?")  # excludes queries and fragments, which a path must not contain


def _check_path(_: Any, __: Any, path: str) -> None:
    if not isinstance(path, str) or not _PATH.fullmatch(path):  # pyright: ignore[reportUnnecessaryIsInstance] users' own
        raise ValueError(f"path must be like /mcp, with printable ASCII characters and without ? or #, not {path!r}")


def _check_routes(settings: EndpointSettings, _: Any, routes: Mapping[str, Route]) -> None:
    if not routes:
        return
    from .routes import check_route  # imported late, because most servers have no routes of their own

    own = [*(HEALTH if settings.health else ()), settings.path, *settings.documents]
    for path, route in routes.items():
        _check_path(None, None, path)
        check_route(path, route)
        if path.rstrip("/") in (each.rstrip("/") for each in own):
            raise ValueError(f"routes must not contain {path}: the server itself serves this path")


def _check_seconds(_: Any, attribute: attrs.Attribute[Any], seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{attribute.name} must be a number of seconds, 0 or more, not {seconds!r}")


@frozen
class EndpointSettings:
    """The settings of an HTTP endpoint.

    ``path`` is served with or without a trailing slash. ``gate`` authenticates the callers of a protected endpoint.
    ``trusted_proxies`` may be in front of it. Clients of sessions reconnect ``retry_interval`` seconds after a stream
    breaks. ``health`` and ``routes``: see `serve_http`. ``documents`` are keyed by path: see `public_documents`.
    """

    path: str = attrs.field(validator=_check_path)
    checks: HostChecks
    gate: Gate | None = None
    trusted_proxies: TrustedProxies | None = None
    retry_interval: float = attrs.field(default=1.0, validator=_check_seconds)
    health: bool = attrs.field(default=False, kw_only=True)
    routes: Mapping[str, Route] = attrs.field(default=NO_ROUTES, kw_only=True, validator=_check_routes)
    documents: Mapping[str, PublicDocument] = attrs.field(default=NO_DOCUMENTS, kw_only=True)

    def covers(self, path: str) -> bool:
        """Return whether ``path`` is the endpoint's path, with or without a trailing slash.

        The endpoint doesn't redirect, because clients omit credentials when they follow a redirect.
        """
        return path.rstrip("/") == self.path.rstrip("/")


def documents_beside(server: Servable, path: str, card: Card | None, *, catalog: bool) -> Mapping[str, PublicDocument]:
    """Return the public documents, such as a server card, that the server offers in addition to the endpoint at
    ``path``.

    See `public_documents`.
    """
    if card is None and not catalog:
        return NO_DOCUMENTS
    from .cards import public_documents  # imported late, because most servers have no server card

    return public_documents(server, path, card, catalog=catalog)


JSON: Final = "application/json"
STREAM: Final = "text/event-stream"
JSON_AND_STREAM: Final = frozenset((JSON, STREAM))


_RANGE: Final = lazy_pattern(
    r"(?:^|,)[ \t]*+(application/json|text/event-stream|application/\*|text/\*|\*/\*)[ \t]*+((?:;[^,]*+)?+)(?=,|$)"
)
"""A media range in an Accept header that matches one of the two supported types, with its parameters. All other ranges
are skipped."""
_MAX_RANGES: Final = 200
_LONGEST_PARAMETERS: Final = 200
_LONGEST_NAMES: Final = 4000
_REFUSED: Final = lazy_pattern(r";[ \t]*+q=[0.]++[ \t]*+(?:;|$)")
"""Pattern of a quality value of zero in an Accept header."""


def accepted_types(accept: str) -> frozenset[str]:
    """Return which of the two media types, JSON and event stream, an Accept header allows (RFC 9110 section 12.5.1)."""
    admitted: dict[str, tuple[int, bool]] = {}
    # Parse only the first media ranges: the search restarts at each comma, so a long list would take long.
    if accept.count(",") >= _MAX_RANGES:
        accept = ",".join(accept.split(",", _MAX_RANGES)[:_MAX_RANGES])
    for found in _RANGE.finditer(accept.lower()):
        kind, parameters = found.groups()
        good = not _REFUSED.search(parameters, 0, _LONGEST_PARAMETERS)
        for ours in JSON_AND_STREAM:
            rank = {ours: 3, f"{ours.partition('/')[0]}/*": 2, "*/*": 1}.get(kind, 0)
            if rank > admitted.get(ours, (0, False))[0]:  # the most specific media range has priority
                admitted[ours] = rank, good
    return frozenset(ours for ours, (_, good) in admitted.items() if good)


_EXPOSED_HEADERS: Final = (
    b"Access-Control-Expose-Headers: "
    b"mcp-session-id, mcp-protocol-version, www-authenticate, dpop-nonce, retry-after\r\n"
    b"Vary: Origin\r\n"
)
_CORS_METHODS: Final = b"Access-Control-Allow-Methods: POST, GET, DELETE, OPTIONS\r\nAccess-Control-Max-Age: 7200\r\n"
_CORS_HEADERS: Final = ", ".join(
    (
        *("content-type", "accept", "authorization", "dpop", "mcp-protocol-version", "mcp-session-id"),
        *("last-event-id", "mcp-method", "mcp-name"),
    )
)
_PARAM: Final = lazy_pattern(r"(?:^|,)[ \t]*+(mcp-param-[!#$%&'*+.^_`|~0-9a-z-]{1,100}+)[ \t]*+(?=,|$)")
_MAX_PREFLIGHTS: Final = 100


class Cors:
    """Creates CORS headers for web pages whose origin is allowed by ``checks``."""

    def __init__(self, checks: HostChecks) -> None:
        self._checks = checks
        self._kept: dict[str, bytes] = {}

    def headers(self, origin: str | None) -> bytes:
        """Return the CORS headers for a response to a web page of ``origin``.

        Return no headers if ``origin`` isn't allowed, or is `None` because the client isn't a web page.
        """
        if origin is None:
            return b""
        kept = self._kept.get(origin)
        if kept is None:
            kept = b""
            if self._checks.allows_origin(origin):
                kept = b"Access-Control-Allow-Origin: %b\r\n%b" % (origin.encode("latin-1"), _EXPOSED_HEADERS)
            if len(self._kept) < _MAX_PREFLIGHTS:
                self._kept[origin] = kept
        return kept

    def preflight(self, head: RequestHead) -> Answer:
        """Return the response to a CORS preflight request (``OPTIONS``).

        It allows the headers of the protocol, and the ``Mcp-Param-…`` headers that the page requests. A wildcard isn't
        enough, because it doesn't include ``authorization``.
        """
        headers = head.headers
        extra = self.headers(headers.get("origin"))
        if extra:
            names = headers.get("access-control-request-headers", "")[:_LONGEST_NAMES]
            asked = _PARAM.findall(names.lower())
            allowed = ", ".join((_CORS_HEADERS, *asked))
            extra += b"%bAccess-Control-Allow-Headers: %b\r\n" % (_CORS_METHODS, allowed.encode())
            if headers.get("access-control-request-private-network") == "true":
                extra += b"Access-Control-Allow-Private-Network: true\r\n"
        return Answer(HTTPStatus.NO_CONTENT, extra, b"")


HEALTH: Final = ("/healthz", "/readyz")
"""Paths of the two health checks: liveness and readiness."""
_PROBES: Final = b"Allow: GET, HEAD\r\n"
_NOT_CACHED: Final = b"Cache-Control: no-store\r\n"


def health(path: str, method: str, *, is_ready: bool) -> Answer:
    """Return the response to a health check at one of the paths in `HEALTH`. It reveals only whether the server is
    healthy."""
    if method not in ("GET", "HEAD"):
        return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed here", _PROBES)
    if path == "/readyz" and not is_ready:
        return text(HTTPStatus.SERVICE_UNAVAILABLE, "ending", _NOT_CACHED)
    return text(HTTPStatus.OK, "ok", _NOT_CACHED)


_ANY_PAGE: Final = b"Access-Control-Allow-Origin: *\r\n"
_CACHED_AN_HOUR: Final = b"Cache-Control: public, max-age=3600\r\n"
_METADATA_METHODS: Final = b"GET, HEAD, OPTIONS"
_PREFLIGHT: Final = (
    b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Allow-Headers: *\r\nAccess-Control-Max-Age: 7200\r\n"
) % _METADATA_METHODS


def resource_metadata(document: bytes, method: str) -> Answer:
    """Return the HTTP response with the OAuth protected resource metadata in ``document``. ``method`` is the method of
    the HTTP request.

    Web pages of any origin may read it, because a client in a browser needs it before sign-in.
    """
    if method in ("GET", "HEAD"):
        return Answer(HTTPStatus.OK, JSON_HEADERS + _CACHED_AN_HOUR + _ANY_PAGE, document)
    if method == "OPTIONS":
        return empty(HTTPStatus.NO_CONTENT, _ANY_PAGE + _PREFLIGHT)
    allow = b"Allow: %b\r\n" % _METADATA_METHODS
    return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed here", _ANY_PAGE + allow)
