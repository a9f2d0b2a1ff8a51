"""Browser: has a user visit an authorization server, and waits for where the browser is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import attrs
import trio

from ....concurrency.nurseries import open_service_nursery
from ....transports.host_checks import is_loopback
from ....transports.http_client.origin import split_url
from ...credentials import UserIsAsked
from ...errors import AuthorizationError
from ...own_functions import telling
from ..steps import Visit
from .answer import Answer
from .loopback import LoopbackListener

OnVisit: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Shows the URL to the user, or opens the URL, and returns the URL that the user agent was sent to; `None`: the
listener will hear of that."""

_LONGEST: Final = 16 * 1024


@attrs.frozen
class Browser:
    """The browser of the user. ``listener`` is `None` where ``on_visit`` alone learns where the browser is sent. A user
    who has not decided after ``timeout`` seconds is given up. Limits stand still inside ``user_is_asked``."""

    on_visit: OnVisit
    listener: LoopbackListener | None
    timeout: float
    user_is_asked: UserIsAsked

    async def make(self, visit: Visit) -> str:
        """Return the callback URL: see `Visitor`."""
        _check(visit.url)
        answer = Answer()
        with self.user_is_asked(), trio.move_on_after(self.timeout):
            async with open_service_nursery("the visit is over") as nursery:
                if self.listener is not None:
                    self.listener.expect(visit.url, answer)
                nursery.start_soon(self._ask, visit.url, answer)
                return await answer.wait()
        raise AuthorizationError(f"the user has not signed in within {self.timeout:g} s")

    async def _ask(self, url: str, answer: Answer) -> None:
        try:
            with telling("the function on_visit"):
                callback = await self.on_visit(url)
        except AuthorizationError as error:
            error.__traceback__ = error.__context__ = None  # whose frames have the URL in them
            answer.fail(error)
            return
        if callback is not None:
            answer.give(callback)
        elif self.listener is None:
            answer.fail(AuthorizationError("the function on_visit has not returned where the browser was sent"))


def _check(url: str) -> None:
    """Raise `AuthorizationError` for a URL that no browser is to open, whoever has named the URL (2026-07-28 security
    best practices, OAuth Authorization URL Validation)."""
    try:
        origin, _ = split_url(url)
    except ValueError:
        raise AuthorizationError("the authorization server has no URL for the browser") from None
    if len(url) > _LONGEST or not (origin.secure or is_loopback(origin.host)):
        raise AuthorizationError("the URL that the authorization server has for the browser is not to be opened")


async def open_in_browser(url: str) -> None:
    """Open ``url`` in the browser of the user: an `OnVisit`. Without a shell; the wait can be left at any time."""
    import webbrowser  # late, since servers have no use for a browser

    # A browser in a terminal ends with its user; the thread is left behind then.
    if not await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)):
        raise AuthorizationError("no browser can be opened here: hand the URL to the user by on_visit=")
