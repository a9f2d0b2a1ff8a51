"""Answer: the URL that a browser was sent to, from whoever learns of the URL first."""

from __future__ import annotations

import trio

from ...errors import AuthorizationError


class Answer:
    """The end of a visit, which some tasks bring about, and one waits for."""

    def __init__(self) -> None:
        self._given = trio.Event()
        self._url = ""
        self._failure: AuthorizationError | None = None

    def give(self, url: str) -> None:
        """End the visit with the callback URL. Without effect after the end."""
        if not self._given.is_set():
            self._url = url
            self._given.set()

    def fail(self, failure: AuthorizationError) -> None:
        """End the visit without a URL. Without effect after the end."""
        if not self._given.is_set():
            self._failure = failure
            self._given.set()

    async def wait(self) -> str:
        """Wait for the end, and return the URL, or raise the failure."""
        await self._given.wait()
        if self._failure is not None:
            raise self._failure
        return self._url
