"""The head of a request, written by hand, and checked so that no value begins a line of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Final

from .origin import TARGET

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 section 5.6.2."""
_VALUE: Final = re.compile(rb"(?![ \t])[\t\x20-\x7e\x80-\xff]*(?<![ \t])")
"""RFC 9110 section 5.5: neither control characters nor blanks around the value."""
_OURS: Final = frozenset(
    (
        *(b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding", b"proxy-authorization"),
        *(b"te", b"user-agent"),
    )
)
"""Headers that the client writes itself, or which have consequences that nobody here would bear."""


def request_head(method: str, target: str, given: Sequence[tuple[bytes, bytes]], ours: bytes) -> bytes:
    """Return the request line, the headers ``ours``, which are lines already, and the ``given`` headers, without the
    empty line at the end. Raises `ValueError` for a header that would not be one line; values are not in the text."""
    if not _TOKEN.fullmatch(method.encode()):
        raise ValueError(f"{method[:100]!r} is no HTTP method")
    lines = [b"%s %s HTTP/1.1\r\n%s" % (method.encode("ascii"), target.encode("ascii"), ours)]
    for name, value in given:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is no name of an HTTP header")
        if name.lower() in _OURS:
            raise ValueError(f"the header {name.decode('ascii')} is written by the HTTP client alone")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of the header {name.decode('ascii')} has a control character or outer blanks")
        lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join(lines)


def check_target(target: str) -> None:
    """Raise `ValueError` unless ``target`` is a path, with or without a query."""
    if not TARGET.fullmatch(target):
        raise ValueError(f"the target of a request is a path of printable ASCII characters, not {target[:300]!r}")


@cache
def own_name() -> str:
    """Return the name and the version of this package, as a ``User-Agent`` names a client (RFC 9110 section 10.1.5)."""
    return f"trio-mcp/{version('trio-mcp')}"
