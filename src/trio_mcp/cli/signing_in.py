"""SignIn: the authorization of a command's user, as typed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal

import attrs

from ..transports.http_client.origins import split_url
from .terminal.terminal import Terminal

if TYPE_CHECKING:
    from ..auth.credentials import Bearer
    from ..auth.oauth_client.oauth import OAuth
    from ..auth.storage.records import Storage


class NoToken(ValueError):
    """There is no token where the user says there is. The message is one line for the user, without the token."""


@attrs.frozen(kw_only=True)
class SignIn:
    """The options about tokens, as typed. Nothing of the machinery of OAuth is imported without need."""

    asks: bool | None = None
    """Whether the user may be asked to sign in; `None`: where standard error is a terminal."""
    bearer_env: str | None = None
    """The variable that holds a token; `None` for a user who signs in."""
    tokens: Literal["file", "keyring", "memory"] = "file"
    """Place of the tokens."""

    def bearer(self) -> Bearer | None:
        """Return the authorization by a token that the user has; `None` for a user who signs in. Raises `NoToken`."""
        from ..auth.credentials import Bearer

        if self.bearer_env is None:
            return None
        token = os.environ.get(self.bearer_env, "").strip()
        if not token:
            raise NoToken(f"there is no variable {self.bearer_env}, or it is empty")
        try:
            return Bearer(token)
        except ValueError:
            raise NoToken(f"the variable {self.bearer_env} holds no bearer token") from None

    def oauth(self) -> OAuth:
        """Return the authorization of a user who signs in with the browser."""
        from ..auth.oauth_client.oauth import OAuth

        asks = sys.stderr.isatty() if self.asks is None else self.asks
        return OAuth(storage=storage_in(self.tokens), on_visit=_visit, asks_user=asks)


def storage_in(tokens: Literal["file", "keyring", "memory"]) -> Storage:
    """Return the place of the tokens."""
    if tokens == "keyring":
        from ..auth.storage.keyrings import KeyringStorage

        return KeyringStorage()
    if tokens == "file":
        from ..auth.storage.files import FileStorage
        from ..auth.storage.records import StorageFailed

        try:
            return FileStorage()
        except StorageFailed:  # a user without a home folder signs in anew each time
            pass
    from ..auth.storage.records import MemoryStorage

    return MemoryStorage()


async def _visit(url: str) -> str | None:
    """Open ``url`` in the browser, and show it to users whose browser is elsewhere; return the address that such a user
    pastes: an `OnVisit`."""
    from ..auth.errors import AuthorizationError
    from ..auth.oauth_client.browser import open_in_browser

    terminal = Terminal(None)
    where = split_url(url)[0].authority
    terminal.say(f"the server wants you to sign in, in your browser, at {where}:", "bold")
    terminal.say(f"  {url}")
    if "xn--" in where:
        terminal.say("  The name of this host has letters that can be mistaken for others.", "red")
    try:
        await open_in_browser(url)
    except AuthorizationError:
        terminal.say("  No browser can be opened here: open the address in yours.")
        if terminal.can_ask:
            # The browser of another machine ends at an address of that machine, where nobody listens.
            async with terminal.asking():
                return await terminal.read("  if it ends at a page that cannot be reached, paste the page's address")
    return None
