"""BadTarget: the error for a URL, address or command that can't belong to a server. This module also validates host
names and ports."""

from __future__ import annotations

import re

from ..jsonrpc.errors import MCPError

_USER = re.compile(r"[^:/?#]+://[^/?#@]*@")
_LARGEST_PORT = 65535
_LONGEST_NAME = 254


class BadTarget(MCPError, ValueError):
    """Raised if the target of a client is invalid, such as an empty command, an invalid URL or an invalid host name.

    Such a target can't be a server on any machine.

    Nothing was started or sent.
    """


def check_url(url: str, example: str) -> None:
    """Raise `TypeError` if ``url`` isn't a string."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] user input
        raise TypeError(f"a URL must be a string, {example!r} for example, not {url!r}")


def check_server_url(url: str, example: str) -> None:
    """Raise `BadTarget` if ``url`` contains a user name or a password. Raises `TypeError` if ``url`` isn't a string."""
    check_url(url, example)
    if _USER.match(url):
        raise BadTarget(
            "a URL must not contain a user or a password: use headers={'Authorization': 'Basic ...'}, or --header on "
            "the command line"
        )


def check_address(host: str, port: int) -> None:
    """Raise `BadTarget` if the host name, the address or the port is invalid.

    Raise `TypeError` if the host isn't a string, or if the port isn't an integer.
    """
    if not isinstance(host, str) or not isinstance(port, int):  # pyright: ignore[reportUnnecessaryIsInstance] user input
        raise TypeError(f"the host must be a string and the port an integer, not {host!r} and {port!r}")
    if not 0 < port <= _LARGEST_PORT:
        raise BadTarget(f"the port must be a number from 1 to {_LARGEST_PORT}, not {port}")
    try:
        # The IDNA codec takes quadratic time, so check the length first.
        # The IDNA codec accepts spaces and control characters, so refuse them first.
        is_text = len(host) <= _LONGEST_NAME and host.isprintable() and " " not in host
        well_formed = is_text and bool(host.encode("idna"))
    except UnicodeError:  # invalid characters, or a label that is empty or longer than 63 bytes
        well_formed = False
    if not well_formed:
        raise BadTarget(f"not a valid host name: {host[:300]!r}")
