"""Stores cookies of one origin in memory (RFC 6265). Load balancers use cookies to route a session to its replica.

`http.cookiejar` isn't used: for some attributes that a server may send, it writes a traceback to standard error, and it
takes about 50 ms to import. Nothing here is logged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Final

from .origins import Origin

Headers = Sequence[tuple[bytes, bytes]]

_MOST: Final = 50
_LONGEST: Final = 4096
_MOST_CHARACTERS: Final = 8192
"""Maximum number of characters of all cookies together, because servers refuse long headers."""
_LONGEST_DATE: Final = 40


class Cookies:
    """The cookies that a client has received from ``origin``.

    The latest 50 cookies are kept. Each may have up to 4 KiB, and all together up to 8 KiB.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._cookies: dict[tuple[str, str], tuple[str, float]] = {}
        """The stored cookies, keyed by name and path: name and value as the server has written them, and the expiry
        time of the cookie."""

    def store(self, target: str, lines: Sequence[str]) -> None:
        """Store the cookies of a response to a request for ``target``. ``lines`` are the values of its ``Set-Cookie``
        headers."""
        for line in lines:
            if len(line) <= _LONGEST:
                self._set(target.partition("?")[0], *line.split(";"))

    def _set(self, asked: str, pair: str, *attributes: str) -> None:
        name, equals, value = (part.strip() for part in pair.partition("="))
        named = {key.strip().lower(): text.strip() for key, _, text in (each.partition("=") for each in attributes)}
        domain = named.get("domain", "").removeprefix(".").lower()
        is_ours = not domain or f".{self._origin.host}".endswith(f".{domain}")
        if not (name and equals and is_ours) or ("secure" in named and not self._origin.secure):
            return
        path = named.get("path", "")
        path = path if path.startswith("/") else asked.rpartition("/")[0] or "/"
        self._cookies.pop((name, path), None)
        expires = _expiry(named.get("max-age", ""), named.get("expires", ""))
        if expires > time.time():
            self._cookies[name, path] = f"{name}={value}", expires
        while len(self._cookies) > _MOST or sum(len(text) for text, _ in self._cookies.values()) > _MOST_CHARACTERS:
            del self._cookies[next(iter(self._cookies))]

    def add_to(self, target: str, headers: Headers) -> Headers:
        """Return ``headers`` with a Cookie header added, for the stored cookies that apply to ``target``.

        The stored cookies come after the user's own cookies (RFC 6265 section 5.4).
        """
        asked = target.partition("?")[0]
        pairs = [
            text.encode("latin-1")
            for (_, path), (text, expires) in self._cookies.items()
            if expires > time.time() and (asked == path or asked.startswith(path.removesuffix("/") + "/"))
        ]
        if not pairs:
            return headers
        given = [text for name, text in headers if name.lower() == b"cookie"]
        others = [header for header in headers if header[0].lower() != b"cookie"]
        return [*others, (b"Cookie", b"; ".join((*given, *pairs)))]


def _expiry(max_age: str, expires: str) -> float:
    """Return the time at which a cookie expires, on the system clock (RFC 6265 section 5.3)."""
    with suppress(ValueError, OverflowError):
        return time.time() + int(max_age)
    with suppress(ValueError, TypeError, OverflowError, IndexError):
        if expires:
            from email.utils import parsedate_to_datetime  # imported late, because the import takes 10 ms

            return parsedate_to_datetime(expires[:_LONGEST_DATE]).timestamp()
    return inf
