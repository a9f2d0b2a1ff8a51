"""Cookies that one origin has set, in memory, as balancers set them to find the replica of a session (RFC 6265).

`http.cookiejar` isn't used: it writes a traceback to standard error for some attributes that a server may send, and
takes some 50 ms to import. Nothing here is logged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from ...classes import frozen
from ...lazy_pattern import lazy_pattern
from .origins import Origin

Headers = Sequence[tuple[bytes, bytes]]

_MOST: Final = 50
_LONGEST: Final = 4096
_MOST_CHARACTERS: Final = 8192
"""Characters of all cookies together, since servers refuse long headers."""
_LONGEST_DATE: Final = 40
_SECONDS: Final = lazy_pattern(r"-?[0-9]{1,12}")


@frozen
class _Cookie:
    pair: str
    """The name and the value, as the server has written them."""
    path: str
    secure: bool
    expires: float

    def goes_to(self, origin: Origin, path: str) -> bool:
        """Return whether the cookie is sent with a request for ``path`` (RFC 6265 section 5.4)."""
        below = path == self.path or path.startswith(self.path.removesuffix("/") + "/")
        return below and (origin.secure or not self.secure) and self.expires > time.time()


class Cookies:
    """The cookies of a client for ``origin``: the last 50 of up to 4 KiB each, up to 8 KiB in all."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._cookies: dict[tuple[str, str], _Cookie] = {}

    def learn(self, target: str, lines: Sequence[str]) -> None:
        """Store the cookies in ``lines``, the values of ``Set-Cookie`` in the answer for ``target``."""
        for line in lines:
            if len(line) <= _LONGEST:
                self._set(target.partition("?")[0], *line.split(";"))

    def _set(self, asked: str, pair: str, *attributes: str) -> None:
        name, equals, value = pair.partition("=")
        named = {key.strip().lower(): text.strip() for key, _, text in (each.partition("=") for each in attributes)}
        domain = named.get("domain", "").removeprefix(".").lower()
        if not name.strip() or not equals or (domain and not f".{self._origin.host}".endswith(f".{domain}")):
            return
        path = named.get("path", "")
        path = path if path.startswith("/") else asked.rpartition("/")[0] or "/"
        key = name.strip(), path
        self._cookies.pop(key, None)
        expires = _expiry(named.get("max-age", ""), named.get("expires", ""))
        if expires > time.time():
            self._cookies[key] = _Cookie(f"{key[0]}={value.strip()}", path, "secure" in named, expires)
        while len(self._cookies) > _MOST or sum(len(each.pair) for each in self._cookies.values()) > _MOST_CHARACTERS:
            del self._cookies[next(iter(self._cookies))]

    def added(self, target: str, headers: Headers) -> Headers:
        """Return ``headers`` with the cookies for a request to ``target``, after those of the user."""
        if not self._cookies:
            return headers
        path = target.partition("?")[0]
        pairs = [each.pair.encode("latin-1") for each in self._cookies.values() if each.goes_to(self._origin, path)]
        if not pairs:
            return headers
        given = [text for name, text in headers if name.lower() == b"cookie"]
        others = [header for header in headers if header[0].lower() != b"cookie"]
        return [*others, (b"Cookie", b"; ".join((*given, *pairs)))]


def _expiry(max_age: str, expires: str) -> float:
    """Return when a cookie expires, by the clock of the system (RFC 6265 section 5.3)."""
    if _SECONDS.fullmatch(max_age):
        return time.time() + int(max_age)
    from email.utils import parsedate_to_datetime  # late: 10 ms, for those who need it

    try:
        return parsedate_to_datetime(expires[:_LONGEST_DATE]).timestamp() if expires else float("inf")
    except (ValueError, TypeError, OverflowError, IndexError):
        return float("inf")
