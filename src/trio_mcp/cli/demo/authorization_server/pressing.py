"""press: presses a button of the sign-in page, in place of a user and their browser."""

from __future__ import annotations

from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

import trio

_PATIENCE: Final = 30.0
_LONGEST_PAGE: Final = 100_000


class NoSuchPage(Exception):
    """There was no page with such a button. The message has no address, whose query is secret."""


async def press(url: str, button: str = "allow") -> None:
    """Go to ``url`` as a browser would, press ``button`` on the sign-in page there, and follow redirects to their end.
    Scripts are not run. Raises `NoSuchPage`."""
    # With cookies, redirects and forms, the standard library is the smallest of browsers; as such, it blocks.
    await trio.to_thread.run_sync(_press, url, button, abandon_on_cancel=True)


def _press(url: str, button: str) -> None:
    browser = build_opener(ProxyHandler({}), HTTPCookieProcessor())
    try:
        with browser.open(url, timeout=_PATIENCE) as page:
            if f'value="{button}"'.encode() not in page.read(_LONGEST_PAGE):
                raise NoSuchPage(f"the page (status {page.status}) has no button {button!r}")
            form = page.url  # a form without an action is sent to where the page is
        with browser.open(form, urlencode({"answer": button}).encode(), timeout=_PATIENCE):
            pass
    except HTTPError as error:
        error.close()
        raise NoSuchPage(f"a page answered with status {error.code}") from None
