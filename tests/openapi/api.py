"""An HTTP API on a real socket, in the test's own process."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import h11
import httpx2
import trio


@attrs.frozen
class Seen:
    """A request as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@attrs.frozen
class Answer:
    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: dict[str, str] = attrs.field(factory=dict)


Handler = Callable[[Seen], Awaitable[Answer]]
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""What clients need not make each for itself: that takes longer than most tests here, none of which uses TLS."""


@attrs.define
class API:
    """``seen``: the requests so far. ``left``: set when a client has gone before its answer."""

    http: httpx2.AsyncClient
    seen: list[Seen] = attrs.field(factory=list)
    left: trio.Event = attrs.field(factory=trio.Event)
    url: str = ""


@asynccontextmanager
async def open_api(handler: Handler | Answer | None = None, base: str = "/", **options: Any) -> AsyncIterator[API]:
    """Serve ``handler``, and give a client for what is at ``base``."""

    async def answer(_: Seen) -> Answer:
        return handler if isinstance(handler, Answer) else Answer(body=b'{"ok": true}')

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    options = {"verify": NO_CERTIFICATES, **options}
    async with httpx2.AsyncClient(base_url=url + base, **options) as http, trio.open_nursery() as nursery:
        api = API(http, url=url)
        serve = partial(_serve, api, handler if callable(handler) else answer)
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield api
        nursery.cancel_scope.cancel()


async def _serve(api: API, handler: Handler, stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        while (request := await _read(connection, stream)) is not None:
            api.seen.append(request)
            answer = await _answered(api, handler, request, stream)
            if answer is None:
                return
            plain = {"content-type": answer.kind, "content-length": str(len(answer.body))}
            headers = [*(plain | answer.headers).items()]
            head = connection.send(h11.Response(status_code=answer.status, headers=headers))
            body = b"" if request.method == "HEAD" else answer.body
            await stream.send_all(head + (connection.send(h11.Data(data=body)) or b""))
            await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
            connection.start_next_cycle()
    except (trio.BrokenResourceError, h11.RemoteProtocolError, h11.LocalProtocolError):
        api.left.set()
    finally:
        await trio.aclose_forcefully(stream)


async def _answered(api: API, handler: Handler, request: Seen, stream: trio.SocketStream) -> Answer | None:
    """The answer, or nothing when the client goes away first."""
    answers: list[Answer] = []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            answers.append(await handler(request))
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        if await stream.receive_some() == b"":
            api.left.set()
            nursery.cancel_scope.cancel()
    return answers[0] if answers else None


async def _read(connection: h11.Connection, stream: trio.SocketStream) -> Seen | None:
    head: h11.Request | None = None
    body = b""
    while True:
        match event := connection.next_event():
            case h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            case h11.Request():
                head = event
            case h11.Data():
                body += event.data
            case h11.EndOfMessage():
                assert head is not None
                headers = {name.decode(): value.decode() for name, value in head.headers}
                return Seen(head.method.decode(), head.target.decode(), headers, body)
            case _:
                return None
