"""address_options: the options shared by commands that listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
"""Levels of Python's logging."""


def address_options(command: F) -> F:
    """Add the options for the address, --http, --websocket, --tcp and --unix; for HTTP and WebSocket also --path, for
    the clients that may come --origin and --name, and --proxy for the reverse proxies in front."""
    for option in (
        click.option(
            "--proxy",
            "proxies",
            multiple=True,
            metavar="NETWORK",
            help="The address or network of a reverse proxy in front, like 127.0.0.1 or 10.0.0.0/8, whose "
            "X-Forwarded-For is believed: bounds are shared by address. Repeatable.",
        ),
        click.option(
            "--name",
            "names",
            multiple=True,
            metavar="NAME",
            help="A name under which clients reach the server, as in their URL. Repeatable.",
        ),
        click.option(
            "--origin",
            "origins",
            multiple=True,
            metavar="ORIGIN",
            help="A web page that may connect over HTTP or WebSocket, like https://app.example.com. Repeatable; 'none' "
            "for none. Required, with --name, when other machines can reach HOST.",
        ),
        click.option("--path", metavar="PATH", help="Path of the URL, for HTTP and WebSocket. Default: /mcp."),
        click.option("--unix", metavar="PATH", help="Serve many clients at once on a Unix socket, a message per line."),
        click.option(
            "--tcp", metavar="[HOST:]PORT", help="Serve many clients at once over plain TCP, a message per line."
        ),
        click.option("--websocket", metavar="[HOST:]PORT", help="Serve many clients at once over WebSocket."),
        click.option("--http", metavar="[HOST:]PORT", help="Serve many clients at once over Streamable HTTP."),
    ):
        command = option(command)
    return command
