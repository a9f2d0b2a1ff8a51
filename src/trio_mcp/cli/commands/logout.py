"""``trio-mcp logout``: arguments, options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from .shell_completion import TARGET
from .sign_in_options import tokens_option
from .target_options import config_option


@click.command()
@click.argument("target", type=TARGET, required=False)
@click.option("--all", "everywhere", is_flag=True, help="Sign out of all servers.")
@config_option
@tokens_option
def logout(
    target: str | None, everywhere: bool, config: Path | None, tokens: Literal["file", "keyring", "memory"]
) -> int:
    """Sign out of a server: forget its tokens.

    TARGET is a URL, or a name from the configuration file of a host. The tokens are removed from this machine, and the
    authorization server is asked to revoke them, for up to ten seconds; where that fails, the reason is told.

    \b
        trio-mcp logout https://mcp.example.com/mcp
        trio-mcp logout --all

    Exit status: 0, also for a server that you were not signed in at; 1 when the tokens could not be removed; 2 for
    wrong usage.
    """
    from ..errands.signing_out import sign_out_of, sign_out_of_all
    from ..signing_in import SignIn
    from ..targets import NoTarget, target_typed

    if tokens == "memory":
        raise click.UsageError("tokens in memory have ended with their command")
    if everywhere == (target is not None):
        raise click.UsageError("either TARGET or --all is required")
    if target is None:
        return sign_out_of_all(tokens)
    try:
        return sign_out_of(target_typed(target, config, sign_in=SignIn(tokens=tokens)), tokens)
    except NoTarget as error:
        raise click.UsageError(str(error)) from None
