"""BadTarget, raised for a target that cannot be a server; and the check of host names and ports."""

from __future__ import annotations

import re

from ..jsonrpc.errors import MCPError

_USER = re.compile(r"[^:/?#]+://[^/?#@]*@")
_LARGEST_PORT = 65535
_LONGEST_NAME = 254


class BadTarget(MCPError, ValueError):
    """The target cannot be a server, on any machine: a command without words, an invalid URL or host name. Nothing was
    started or sent."""


def check_url(url: str, example: str) -> None:
    """Raise `TypeError` for a URL that is no text."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] users' own
        raise TypeError(f"a URL is a text, {example!r} for example, not {url!r}")


def check_server_url(url: str, example: str) -> None:
    """Raise as `check_url`, and `BadTarget` for a URL with a user or a password."""
    check_url(url, example)
    if _USER.match(url):
        raise BadTarget(
            "a URL must not contain a user or a password: use headers={'Authorization': 'Basic ...'}, or --header on "
            "the command line"
        )


def check_address(host: str, port: int) -> None:
    """Raise `BadTarget` unless ``host`` may be a host name or address, and ``port`` is one to connect to, and
    `TypeError` for a host that is no text, or a port that is no integer."""
    if not isinstance(host, str) or not isinstance(port, int):  # pyright: ignore[reportUnnecessaryIsInstance] users' own
        raise TypeError(f"a host is a text and a port an integer, not {host!r} and {port!r}")
    if not 0 < port <= _LARGEST_PORT:
        raise BadTarget(f"a port is a number from 1 to {_LARGEST_PORT}, not {port}")
    try:
        # Encoded as the system will be asked for it, which would let spaces and control characters through. The codec
        # takes the square of the length.
        is_text = len(host) <= _LONGEST_NAME and host.isprintable() and " " not in host
        well_formed = is_text and bool(host.encode("idna"))
    except UnicodeError:  # empty labels, those of more than 63 bytes, and characters that no name has
        well_formed = False
    if not well_formed:
        raise BadTarget(f"no host can have the name {host[:300]!r}")
