"""Entrance decides by the head of a request, before the body is read, who comes in. `Cors` tells browsers which pages
of other origins may read the answers (WHATWG Fetch, section 3.2). Everybody may read the protected resource metadata
(RFC 9728), by which clients find out where to get tokens.
"""

from __future__ import annotations

import math
import re
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...auth.resource_server.refusals import Refusal
from ...transports.host_checks import HostChecks
from ...transports.http.application import Admission, Answer, Looked
from ...transports.http.heads import RequestHead
from ..callers import TrustedProxies
from .answers import JSON_HEADERS, empty, invalid, refused, text

if TYPE_CHECKING:
    from ...auth.resource_server.protected import Gate
    from ...runtime.peer import Auth

_MOST_ACCEPTS: Final = 100
_PATH: Final = re.compile(r"(?:/[!-\"$->@-~]*)?")  # neither a query nor a fragment
_ANYBODY: Final = Admission()


def _check_path(_: Any, __: Any, path: str) -> None:
    if not isinstance(path, str) or not _PATH.fullmatch(path):  # pyright: ignore[reportUnnecessaryIsInstance] users' own
        raise ValueError(f"the path of an endpoint is like /mcp, of printable ASCII characters without ?, not {path!r}")


def _check_seconds(_: Any, attribute: attrs.Attribute[Any], seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{attribute.name} must be a number of seconds, 0 or more, not {seconds!r}")


@attrs.frozen
class EndpointSettings:
    """The place of an endpoint, ``path``, with or without a slash at the end, and who may ask there. ``gate`` knows the
    callers of a protected one; ``proxies`` may stand in front. ``retry_interval``: seconds after which clients of
    sessions come back when a response breaks."""

    path: str = attrs.field(validator=_check_path)
    checks: HostChecks
    gate: Gate | None = None
    proxies: TrustedProxies | None = None
    retry_interval: float = attrs.field(default=1.0, validator=_check_seconds)

    def covers(self, path: str) -> bool:
        """Return whether ``path`` is the endpoint. Another spelling is served, never redirected: a redirect loses
        credentials."""
        return path.rstrip("/") == self.path.rstrip("/")


class Entrance:
    """The first checks of each request to an endpoint. ``cors`` writes the headers for web pages. A ``stateless``
    endpoint has no sessions, and so no GET and no DELETE."""

    def __init__(self, settings: EndpointSettings, cors: Cors, *, stateless: bool) -> None:
        self._settings = settings
        self._checks = settings.checks
        self._gate = settings.gate
        self._cors = cors
        self._stateless = stateless
        self._methods = b"POST, OPTIONS" if stateless else b"POST, GET, DELETE, OPTIONS"
        self._accepted: dict[str, frozenset[str]] = {}
        self._host: str | None = None
        """The Host that was allowed last, which most requests repeat."""

    def look(self, head: RequestHead) -> Looked:
        """Refuse a request, or admit its caller: see `HttpApplication.look`. The caller is an `Auth`; `None` where the
        endpoint is not protected."""
        headers, checks, gate = head.headers, self._checks, self._gate
        # 2026-07-28 streamable HTTP, Security & Endpoint: an Origin that is not allowed MUST be 403; a Host that is not
        # ours is a name that somebody has made point here.
        host = headers.get("host", "")
        if host != self._host:
            if not checks.allows_host(host):
                return text(HTTPStatus.FORBIDDEN, "this Host is not allowed here")
            self._host = host
        if gate is not None and head.path in gate.metadata_paths:
            return resource_metadata(gate.metadata, head.method)
        origin, extra = headers.get("origin"), b""
        if origin is not None:
            if not checks.allows_origin(origin):
                return text(HTTPStatus.FORBIDDEN, "this Origin is not allowed here")
            extra = self._cors.headers(origin)
        if head.path != self._settings.path and not self._settings.covers(head.path):
            return text(HTTPStatus.NOT_FOUND, "there is nothing here", extra)
        if head.method == "OPTIONS":
            return self._cors.preflight(head)  # WHATWG Fetch section 4.8: a browser sends no credentials with it
        if gate is None:
            return self._fault(head, extra) or _ANYBODY
        found = gate.known(head)
        return partial(self._ask, gate, head, extra) if found is None else self._decide(found, head, extra)

    async def _ask(self, gate: Gate, head: RequestHead, extra: bytes) -> Answer | Admission:
        return self._decide(await gate.ask(head), head, extra)

    def _decide(self, found: Auth | Refusal, head: RequestHead, extra: bytes) -> Answer | Admission:
        if isinstance(found, Refusal):
            return refused(found, extra)
        return self._fault(head, extra) or Admission(found)

    def _fault(self, head: RequestHead, extra: bytes) -> Answer | None:
        """Return the answer to a head that fits no request to the endpoint, of any caller."""
        method, headers = head.method, head.headers
        if method != "POST" and (method not in ("GET", "DELETE") or self._stateless):
            allow = b"Allow: %b\r\n" % self._methods
            return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed here", extra + allow)
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A browser sends other types to any origin without asking first.
            return invalid(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the Content-Type is application/json", extra)
        wanted = {"POST": _BOTH, "GET": _STREAM}.get(method, frozenset[str]())
        if not wanted <= self._accepts(headers.get("accept", "*/*")):
            return invalid(HTTPStatus.NOT_ACCEPTABLE, f"Accept has to admit {' and '.join(sorted(wanted))}", extra)
        return None

    def _accepts(self, accept: str) -> frozenset[str]:
        accepted = self._accepted.get(accept)
        if accepted is None:
            accepted = _accepted(accept)
            if len(self._accepted) < _MOST_ACCEPTS:
                self._accepted[accept] = accepted
        return accepted


_STREAM: Final = frozenset(("text/event-stream",))
_BOTH: Final = frozenset(("application/json", "text/event-stream"))


_RANGE: Final = re.compile(
    r"(?:^|,)[ \t]*+(application/json|text/event-stream|application/\*|text/\*|\*/\*)[ \t]*+((?:;[^,]*+)?+)(?=,|$)"
)
"""A range that admits a type of ours, with its parameters. Other ranges are passed over, as many as there are."""
_MOST_RANGES: Final = 50
_REFUSED: Final = re.compile(r";[ \t]*+q=[0.]++[ \t]*+(?:;|$)")
"""A quality of zero."""


def _accepted(accept: str) -> frozenset[str]:
    """Return the types of ours that an Accept header admits (RFC 9110 section 12.5.1)."""
    admitted: dict[str, tuple[int, bool]] = {}
    for found in islice(_RANGE.finditer(accept.lower()), _MOST_RANGES):
        kind, parameters = found.groups()
        good = not _REFUSED.search(parameters)
        for ours in _BOTH:
            rank = {ours: 3, f"{ours.partition('/')[0]}/*": 2, "*/*": 1}.get(kind, 0)
            if rank > admitted.get(ours, (0, False))[0]:  # the most specific range counts
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
_PARAM: Final = re.compile(r"(?:^|,)[ \t]*+(mcp-param-[!#$%&'*+.^_`|~0-9a-z-]{1,100}+)[ \t]*+(?=,|$)")
_MOST_PREFLIGHTS: Final = 100


class Cors:
    """Writes the headers for pages whose origin ``checks`` allows. Pages of other origins get none."""

    def __init__(self, checks: HostChecks) -> None:
        self._checks = checks
        self._kept: dict[str, bytes] = {}

    def headers(self, origin: str | None) -> bytes:
        """Return the headers of an answer to a page of ``origin``; nothing for `None`, which is no page."""
        if origin is None:
            return b""
        kept = self._kept.get(origin)
        if kept is None:
            kept = b""
            if self._checks.allows_origin(origin):
                kept = b"Access-Control-Allow-Origin: %b\r\n%b" % (origin.encode("latin-1"), _EXPOSED_HEADERS)
            if len(self._kept) < _MOST_PREFLIGHTS:
                self._kept[origin] = kept
        return kept

    def preflight(self, head: RequestHead) -> Answer:
        """Return the answer to ``OPTIONS``. A page may send the headers of the protocol; those of parameters have any
        name, and no wildcard covers ``authorization``, so that the requested names are looked at."""
        headers = head.headers
        extra = self.headers(headers.get("origin"))
        if extra:
            asked = _PARAM.findall(headers.get("access-control-request-headers", "").lower())
            allowed = ", ".join((_CORS_HEADERS, *asked))
            extra += b"%bAccess-Control-Allow-Headers: %b\r\n" % (_CORS_METHODS, allowed.encode())
            if headers.get("access-control-request-private-network") == "true":
                extra += b"Access-Control-Allow-Private-Network: true\r\n"
        return Answer(HTTPStatus.NO_CONTENT, extra, b"")


_ANY_PAGE: Final = b"Access-Control-Allow-Origin: *\r\n"
_CACHED_AN_HOUR: Final = b"Cache-Control: public, max-age=3600\r\n"
_METADATA_METHODS: Final = b"GET, HEAD, OPTIONS"
_PREFLIGHT: Final = (
    b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Allow-Headers: *\r\nAccess-Control-Max-Age: 7200\r\n"
) % _METADATA_METHODS


def resource_metadata(document: bytes, method: str) -> Answer:
    """Return the answer to a request by ``method`` for ``document``, for any page: a client in a browser reads the
    metadata before anything else is known of the client."""
    if method in ("GET", "HEAD"):
        return Answer(HTTPStatus.OK, JSON_HEADERS + _CACHED_AN_HOUR + _ANY_PAGE, document)
    if method == "OPTIONS":
        return empty(HTTPStatus.NO_CONTENT, _ANY_PAGE + _PREFLIGHT)
    allow = b"Allow: %b\r\n" % _METADATA_METHODS
    return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed here", _ANY_PAGE + allow)
