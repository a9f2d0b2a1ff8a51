"""Hooks: functions of a user that see each request and response of an HTTP client, or dial its connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias

import attrs
import trio

from ...classes import frozen
from ...runtime.transport import ConnectionLost
from .connection import RequestNotSent

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


@frozen(eq=False)
class HTTPRequest:
    """A request of a client over HTTP, before it is sent. A redirect and a repetition with a new token are requests of
    their own."""

    method: str
    """``POST``, ``GET`` or ``DELETE``."""
    url: str
    """The URL."""
    headers: dict[str, str] = attrs.field(repr=False)
    """The headers, which you may change. ``Authorization`` is among them. Headers that HTTP or MCP needs can't be
    changed."""


@frozen(eq=False)
class HTTPResponse:
    """The head of a response to a client over HTTP. The body isn't read yet."""

    request: HTTPRequest
    """The request, with the headers that were sent."""
    status: int
    """The HTTP status."""
    headers: Mapping[str, str] = attrs.field(repr=False)
    """The headers, by names in lower case."""
    seconds: float
    """Time from before the request was sent to the head of the response, connecting included."""


OnRequest: TypeAlias = Callable[[HTTPRequest], Awaitable[None] | None]
OnResponse: TypeAlias = Callable[[HTTPResponse], Awaitable[None] | None]
Dial: TypeAlias = Callable[[str, int], Awaitable[trio.SocketStream]]


@frozen(eq=False)
class Hooks:
    """The hooks of one client. ``check`` raises `ValueError` for headers that no hook may set."""

    on_request: OnRequest | None
    on_response: OnResponse | None
    dial: Dial | None
    """Opens the TCP connections."""
    check: Callable[[Mapping[str, str]], object]

    async def before(self, method: str, url: str, headers: Headers) -> tuple[HTTPRequest, Headers]:
        """Call ``on_request``, and return the request with the headers to send. Raises `RequestNotSent` if it fails."""
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        request = HTTPRequest(method, url, dict(given))
        if self.on_request is None:
            return request, headers
        try:
            await _called(self.on_request, request)
            changed = {name: text for name, text in request.headers.items() if given.get(name) != text}
            self.check(changed | {name: text for name, text in given.items() if name not in request.headers})
        except Exception as error:
            raise RequestNotSent(f"on_request raised {type(error).__name__}: {error}") from error
        # A name in another case replaces the header.
        last = {
            name.lower(): (name.encode("latin-1"), text.encode("latin-1")) for name, text in request.headers.items()
        }
        return request, list(last.values())

    async def after(self, request: HTTPRequest, status: int, headers: Mapping[str, str], begun: float) -> None:
        """Call ``on_response``. Raises `ConnectionLost` if it fails."""
        if self.on_response is not None:
            try:
                await _called(self.on_response, HTTPResponse(request, status, headers, trio.current_time() - begun))
            except Exception as error:
                raise ConnectionLost(f"on_response raised {type(error).__name__}: {error}") from error


async def _called(hook: Callable[[Any], Awaitable[None] | None], value: object) -> None:
    answer = hook(value)
    if isawaitable(answer):
        await answer
