"""The demo with authorization: a client gets a token for a protected server, and more, and loses the token again."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import attrs
import trio

from examples.authorization import protected_server
from examples.authorization.provider import (
    AuthorizationServer,
    CannotInstall,
    DoesNotStart,
    NoSuchPage,
    authorization_server,
    installed,
    place,
    press,
)
from trio_mcp.auth.credentials import AuthorizationError, parse_challenges
from trio_mcp.auth.fetching import HttpFetcher, UrlRules
from trio_mcp.auth.oauth_client.acquisition import drive
from trio_mcp.auth.oauth_client.authorization_code import OAuth, revoke
from trio_mcp.auth.oauth_client.browser import open_in_browser
from trio_mcp.auth.oauth_client.grants import GrantContext
from trio_mcp.auth.storage.records import MemoryTokenStorage
from trio_mcp.cli.commands.demo import DemoFailed, Screen, tool_text
from trio_mcp.client.client import Client
from trio_mcp.concurrency.contexts import asynccontextmanager
from trio_mcp.connecting.http.opening import open_http
from trio_mcp.transports.http_client.client import HttpClient

_LIFETIME: Final = 5
"""Seconds that access tokens live: so few that the demo sees one replaced."""
_SCOPES: Final = ("notes:read", "notes:write")
_SERVER: Final = "notes-server"
"""The name of the protected server at the authorization server."""
_NO_USERS: Final[Mapping[str, Any]] = {"grant_types": ["client_credentials"], "redirect_uris": [], "response_types": []}
_START: Final = 20.0
_END: Final = 10.0


async def tell_story_with_authorization(screen: Screen, *, in_browser: bool) -> None:
    """Show the demo with authorization on ``screen``. The user signs in by the browser, or else the demo does."""
    started = time.monotonic()
    screen.headline("1. An authorization server and a server that it protects, each in a process of its own")
    try:
        if not place().exists():
            screen.say("  npm gets oidc-provider, once, into the cache of this user")
        folder = await trio.to_thread.run_sync(installed, abandon_on_cancel=True)
        secret = secrets.token_urlsafe()
        notes = {"client_id": _SERVER, "client_secret": secret, **_NO_USERS}
        async with (
            authorization_server(folder, scopes=_SCOPES, opaque=True, lifetime=_LIFETIME, clients=[notes]) as issuer,
            _protected_server(issuer.issuer, secret) as url,
        ):
            screen.say(f"  oidc-provider at {issuer.issuer}, in Node")
            screen.say(f"  notes at {url}: each request needs the scope notes:read, write_note needs notes:write, too")
            summary = await _Story(screen, issuer, url, in_browser).tell()
    except (CannotInstall, DoesNotStart, NoSuchPage) as error:
        raise DemoFailed(str(error)) from None
    screen.headline("Summary")
    for line in summary:
        screen.say(f"  - {line}")
    screen.say(f"  - all processes have exited; all took {time.monotonic() - started:.1f} s")


@attrs.define
class _Story:
    """The client's part, at a server that runs."""

    screen: Screen
    issuer: AuthorizationServer
    url: str
    in_browser: bool
    _told: Counter[str] = attrs.field(factory=Counter[str], init=False)
    """Whatever of the account of the authorization server was shown."""

    async def tell(self) -> list[str]:
        """Show everything, and return lines for the summary."""
        await self._refused()
        storage = MemoryTokenStorage()
        user = _User(self.screen, self.in_browser)
        auth = OAuth(client_name="trio-mcp demo", storage=storage, on_visit=user.visit)
        self.screen.headline("3. The same by a client with auth=OAuth(...): the user signs in")
        async with open_http(self.url, auth=auth) as client:
            return [
                await self._sign_in(client),
                await self._step_up(client),
                await self._refresh(client),
                await self._revoke(client, auth, user),
            ]

    async def _refused(self) -> None:
        self.screen.headline("2. A request without a token")
        async with (
            HttpClient(self.url, http_proxy=None) as http,
            http.request("POST", http.target, [(b"Content-Type", b"application/json")], b"{}") as reply,
        ):
            status, told = reply.status, reply.headers.get("www-authenticate", "")
        self.screen.say(f"  status {status}, and the way to a token:")
        for challenge in parse_challenges(told):
            for name, value in challenge.params.items():
                self.screen.say(f"    {challenge.scheme} {name}: {value}")

    async def _sign_in(self, client: Client) -> str:
        await self._account("authorization_code")
        caller = await self._caller(client)
        self.screen.say(f"  read_notes: {tool_text(await client.call_tool('read_notes'))}")
        return f"sign-in: {caller['user']} may {caller['scopes']}"

    async def _step_up(self, client: Client) -> str:
        self.screen.headline(
            "4. A call that needs more: the server answers 403, and the user is asked for another scope"
        )
        written = tool_text(await client.call_tool("write_note", {"text": "the key is under the mat"}))
        await self._account("authorization_code")
        self.screen.say(f"  write_note, sent again with the new token: {written}")
        caller = await self._caller(client)
        return f"step-up: the same call went on, now with {caller['scopes']}"

    async def _refresh(self, client: Client) -> str:
        self.screen.headline(
            f"5. The token lives for {_LIFETIME} s: the client refreshes it, and the user hears nothing"
        )
        await trio.sleep(_LIFETIME)
        await self._caller(client)
        await self._account("refresh_token")
        return "refresh: the next call brought a new token, and the user was not asked"

    async def _revoke(self, client: Client, auth: OAuth, user: _User) -> str:
        self.screen.headline("6. The tokens are revoked: the user is asked anew, and says no this time")
        stored = await auth.storage.load(self.url)
        assert stored is not None
        context = GrantContext(server_url=self.url, stored=stored)
        fetcher = HttpFetcher(UrlRules.for_server(self.url), http_proxy=None)
        await drive(revoke(auth._settings(), context, self.issuer.issuer), fetcher, None, lambda: None)
        await self._account("revocation")
        await trio.sleep(protected_server.REMEMBERED)  # for so long the server need not ask whether a token is good
        user.says_yes = False
        try:
            await client.call_tool("read_notes")
        except AuthorizationError as error:
            self.screen.say(f"  the call failed: {error}")
            return f"revocation: the next call failed with AuthorizationError, code {error.code!r}"
        self.screen.say("  you have said yes: the call went on")
        return "revocation: the next call went on, after another sign-in"

    async def _account(self, last: str) -> None:
        """Show what the authorization server did up to ``last``, in its own words."""
        with trio.fail_after(_END):
            await self.issuer.has_done(last, self._told[last] + 1)
        news = self.issuer.done - self._told
        self._told += news
        self.screen.say(f"  the authorization server tells of: {', '.join(news)}")

    async def _caller(self, client: Client) -> Mapping[str, Any]:
        """Return what the server knows of the client, and show the same, which is all but the token."""
        result = await client.call_tool("who_am_i")
        tool_text(result)
        caller: Mapping[str, Any] = result.structured_content
        self.screen.say("  the server knows the caller by the token, which nobody else is shown:")
        for name, value in caller.items():
            self.screen.say(f"    {name}: {value}")
        return caller


class _User:
    """Whoever is asked to sign in: the user of this terminal, or somebody who presses the button in their place."""

    def __init__(self, screen: Screen, in_browser: bool) -> None:
        self._screen = screen
        self._in_browser = in_browser
        self.says_yes = True

    async def visit(self, url: str) -> None:
        """Sign in at ``url``."""
        if self._in_browser:
            self._screen.say("  your browser shows the sign-in page: press a button there")
            await open_in_browser(url)
            return
        button = "allow" if self.says_yes else "deny"
        self._screen.say(f"  the user is sent to the sign-in page, and presses {button.capitalize()!r} (by the demo)")
        await press(url, button)


@asynccontextmanager
async def _protected_server(issuer: str, secret: str) -> AsyncGenerator[str]:
    """Run the server in a process of its own, and yield its URL. The process is killed at the end."""
    # -P: what lies in the current directory is none of the demo's business.
    command = [
        sys.executable,
        "-P",
        protected_server.__file__,
        issuer,
        f"{issuer}/token/introspection",
        _SERVER,
    ]
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "CLIENT_SECRET": secret},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        told = b""
        with trio.fail_after(_START):
            while b"\n" not in told:
                if not (data := await process.stdout.receive_some()):
                    raise DemoFailed("the protected server did not start")
                told += data
        yield told.decode().strip()
    finally:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END):
            await process.wait()
            await process.stdout.aclose()
