"""Cors tells browsers which pages of other origins may read the answers (WHATWG Fetch, section 3.2)."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from ...transports.host_checks import HostChecks
from ...transports.http.application import Answer
from ...transports.http.heads import RequestHead

_EXPOSED: Final = (
    b"Access-Control-Expose-Headers: "
    b"mcp-session-id, mcp-protocol-version, www-authenticate, dpop-nonce, retry-after\r\n"
    b"Vary: Origin\r\n"
)
_METHODS: Final = b"Access-Control-Allow-Methods: POST, GET, DELETE, OPTIONS\r\nAccess-Control-Max-Age: 7200\r\n"
_HEADERS: Final = ", ".join(
    (
        *("content-type", "accept", "authorization", "dpop", "mcp-protocol-version", "mcp-session-id"),
        *("last-event-id", "mcp-method", "mcp-name"),
    )
)
_PARAM: Final = re.compile(r"(?:^|,)[ \t]*+(mcp-param-[!#$%&'*+.^_`|~0-9a-z-]{1,100}+)[ \t]*+(?=,|$)")
_MOST_KEPT: Final = 100


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
                kept = b"Access-Control-Allow-Origin: %b\r\n%b" % (origin.encode("latin-1"), _EXPOSED)
            if len(self._kept) < _MOST_KEPT:
                self._kept[origin] = kept
        return kept

    def preflight(self, head: RequestHead) -> Answer:
        """Return the answer to ``OPTIONS``. A page may send the headers of the protocol; those of parameters have any
        name, and no wildcard covers ``authorization``, so that the requested names are looked at."""
        headers = head.headers
        extra = self.headers(headers.get("origin"))
        if extra:
            asked = _PARAM.findall(headers.get("access-control-request-headers", "").lower())
            allowed = ", ".join((_HEADERS, *asked))
            extra += b"%bAccess-Control-Allow-Headers: %b\r\n" % (_METHODS, allowed.encode())
            if headers.get("access-control-request-private-network") == "true":
                extra += b"Access-Control-Allow-Private-Network: true\r\n"
        return Answer(HTTPStatus.NO_CONTENT, extra, b"")
