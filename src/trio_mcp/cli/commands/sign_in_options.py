"""sign_in_options: the options about tokens, of commands that use a server."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, Literal

import click

_VARIABLE: Final = "TRIO_MCP_TOKENS"

tokens_option = click.option(
    "--tokens",
    type=click.Choice(["file", "keyring", "memory"]),
    default="file",
    show_default=True,
    envvar=_VARIABLE,
    help="Place of the tokens that you have signed in for: files of yours alone, the keyring of your desktop, or "
    f"nowhere. The variable {_VARIABLE} says the same for all commands.",
)


def sign_in_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about tokens: --sign-in, --bearer-env and --tokens. The function gets the argument ``sign_in``,
    a `SignIn`."""

    @wraps(command)
    def run(
        *args: Any,
        asks: bool | None,
        bearer_env: str | None,
        tokens: Literal["file", "keyring", "memory"],
        **named: Any,
    ) -> Any:
        from ..signing_in import SignIn

        return command(*args, sign_in=SignIn(asks=asks, bearer_env=bearer_env, tokens=tokens), **named)

    for option in (
        tokens_option,
        click.option(
            "--bearer-env",
            metavar="NAME",
            help="Send the token in this environment variable to the server, in place of signing in.",
        ),
        click.option(
            "--sign-in/--no-sign-in",
            "asks",
            default=None,
            help="Open your browser when a server over HTTP or WebSocket wants you to sign in, or fail then. Default: "
            "sign in where standard error is a terminal. Tokens that are kept are used in either case.",
        ),
    ):
        run = option(run)
    return run
