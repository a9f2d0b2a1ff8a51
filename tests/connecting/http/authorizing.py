"""A ClientAuth with tokens from the test, and a server that requires them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from tests.connecting.http.scripted import Answer, Got, Handler

from trio_mcp.auth.credentials import RefusedRequest, UserIsAsked

__all__ = ["Handed", "guarded", "told_by"]


class Handed:
    """Hands out ``token``; ``on_refused`` may get another one."""

    def __init__(self, on_refused: Callable[[Handed, RefusedRequest], Awaitable[None]], token: str = "") -> None:
        self.on_refused = on_refused
        self.token = token
        self.urls = list[str]()
        self.refusals = list[RefusedRequest]()
        self.answers = list[Mapping[str, str]]()
        self.closed = 0
        self.user_is_asked: UserIsAsked

    @asynccontextmanager
    async def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AsyncGenerator[Handed]:
        self.urls.append(server_url)
        self.user_is_asked = user_is_asked
        try:
            yield self
        finally:
            self.closed += 1

    async def headers(self, method: str) -> Sequence[tuple[bytes, bytes]]:
        return ((b"Authorization", f"Bearer {self.token}".encode()),) if self.token else ()

    def noticed(self, headers: Mapping[str, str]) -> None:
        self.answers.append(headers)

    async def refused(self, request: RefusedRequest) -> None:
        self.refusals.append(request)
        await self.on_refused(self, request)


def guarded(then: Handler, token: str = "good", status: int = 401, **challenge: str) -> Handler:
    """A server that serves those with ``token``, and refuses all others."""

    async def handler(got: Got, answer: Answer) -> None:
        if got.headers.get("authorization") == f"Bearer {token}":
            await then(got, answer)
        else:
            await answer.whole(status, b"who are you?", **challenge)

    return handler


def told_by(request: RefusedRequest) -> tuple[object, ...]:
    """All but the time."""
    return request.status, request.challenges, tuple(request.sent), request.attempt
