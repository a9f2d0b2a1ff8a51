"""``trio-mcp logout``: deletes stored OAuth tokens for servers, and revokes them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
import trio

from ...auth.fetching import HttpFetcher, UrlRules
from ...auth.oauth_client.authorization_code import OAuth, sign_out
from ...auth.storage.persistent import FileTokenStorage
from ...auth.storage.records import TokenStorageFailed
from ...connecting.credentials import can_sign_in, resource_at
from ...connecting.targets import Address, Target
from .. import ENDED_WELL, NOT_WRITTEN, USAGE
from ..printable import say
from ..signals import run_until_interrupted
from ..targets import SignIn, storage_in, target_typed
from .options import TARGET, config_option, tokens_option


@click.command()
@click.argument("target", type=TARGET, required=False)
@click.option("--all", "everywhere", is_flag=True, help="Sign out of all servers.")
@config_option
@tokens_option
def logout(
    target: str | None, everywhere: bool, config: Path | None, tokens: Literal["file", "keyring", "memory"]
) -> int:
    """Sign out of a server: delete and revoke its tokens.

    TARGET is a URL, or a name from the configuration file of a host. The tokens are removed from this machine, and the
    authorization server is asked to revoke them, for up to ten seconds. If that fails, the reason is printed.

    \b
        trio-mcp logout https://mcp.example.com/mcp
        trio-mcp logout --all

    Exit status: 0 success, even if you were not signed in; 1 the tokens couldn't be removed; 2 wrong usage.
    """
    if tokens == "memory":
        raise click.UsageError("--tokens memory keeps no tokens after a command: there is nothing to sign out of")
    if everywhere == (target is not None):
        raise click.UsageError("either TARGET or --all is required, but not both")
    if target is None:
        return sign_out_of_all(tokens)
    return sign_out_of(target_typed(target, config, sign_in=SignIn(tokens=tokens)), tokens)


def sign_out_of(target: Target, tokens: Literal["file", "keyring"]) -> int:
    """Delete the stored tokens for the server ``target``, revoke them, and return the exit status."""
    if not isinstance(target, Address) or not can_sign_in(target.url):
        say("TARGET must be a server over HTTP or WebSocket: others have no tokens")
        return USAGE
    auth = target.auth if isinstance(target.auth, OAuth) else OAuth()
    url = resource_at(target.url)
    return run_until_interrupted(lambda: _signed_out([(url, auth)], tokens))


def sign_out_of_all(tokens: Literal["file", "keyring"]) -> int:
    """Delete the stored tokens for all servers, revoke them, and return the exit status."""
    if tokens == "keyring":
        say("a keyring can't list its entries: sign out of each server, or remove the entries of 'trio-mcp' in it")
        return USAGE

    async def all_of_them() -> int:
        try:
            urls = await FileTokenStorage().server_urls()
        except TokenStorageFailed as error:
            say(str(error))
            return NOT_WRITTEN
        if not urls:
            say("you are not signed in anywhere")
        return await _signed_out([(url, OAuth()) for url in urls], tokens)

    return run_until_interrupted(all_of_them)


async def _signed_out(servers: list[tuple[str, OAuth]], tokens: Literal["file", "keyring"]) -> int:
    """Sign out of all ``servers`` concurrently."""
    storage, statuses = storage_in(tokens), [ENDED_WELL]

    async def leave(url: str, auth: OAuth) -> None:
        fetcher = HttpFetcher(UrlRules.for_server(url), ssl_context=auth.ssl_context, http_proxy=auth.http_proxy)
        try:
            reasons = await sign_out(url, storage, auth._settings(), fetcher)
        except TokenStorageFailed as error:
            say(str(error))
            statuses.append(NOT_WRITTEN)
            return
        if reasons is None:
            say(f"you are not signed in at {url}")
        elif reasons:
            why = "; ".join(reasons)
            say(f"signed out of {url}; its tokens were deleted, but may still be valid: {why}")
        else:
            say(f"signed out of {url}; its tokens were revoked")

    async with trio.open_nursery() as nursery:
        for url, auth in servers:
            nursery.start_soon(leave, url, auth)
    return max(statuses)
