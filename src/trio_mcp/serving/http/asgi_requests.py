"""One request from an ASGI server: its head, its body and its response (ASGI 3, HTTP & WebSocket)."""

from __future__ import annotations

import contextvars
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import trio

from ...concurrency.fair_share import HeldBytes
from ...concurrency.nurseries import open_service_nursery
from ...transports.http.application import (
    Admitted,
    Answer,
    BadRequest,
    DeferredDecision,
    HttpBounds,
    RequestHead,
    ResponseBody,
    ResponseHandle,
    UnservedBody,
    do_nothing,
)
from ...transports.http.requests import check_headers

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Pattern of control characters, which RFC 9110 section 5.5 forbids in headers. h11 accepts some of them."""
_NO_ROOM: Final = "incomplete requests take too many bytes; try again later"
_LONGEST_LENGTH: Final = 20
_CLIENT_LEFT: Final = 499
"""The status for clients that have disconnected, in access logs. nginx logs the same status."""


class ClientDisconnected(Exception):
    """Raised if the client disconnects before its request has arrived completely."""


def head_of(scope: Scope, bounds: HttpBounds) -> RequestHead:
    """Return the head of an ASGI request: the method, the path and the headers. The path is relative to the mount point
    of the application.

    Raises `BadRequest` if the head is invalid, because some ASGI servers pass on invalid heads.
    """
    headers: dict[str, str] = {}
    repeated: set[str] = set()
    size = count = 0
    for name, value in scope["headers"]:
        count += 1
        size += len(name) + len(value) + 4
        if _CONTROLS.search(value):
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header contains a control character")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")
        if key in headers:
            repeated.add(key)
            text = f"{headers[key]}, {text}"  # RFC 9110 section 5.3: join repeated headers
        headers[key] = text
    if count > bounds.max_headers or size > bounds.max_head_bytes:
        most = f"{bounds.max_headers} headers, or {bounds.max_head_bytes} bytes of headers"
        reason = f"the request has more than {most}"
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
    path, query = _path_below(scope), scope.get("query_string", b"").decode("latin-1")
    if len(path) + len(query) > bounds.max_target_bytes:
        raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL is longer than {bounds.max_target_bytes} bytes")
    http_1_0 = scope.get("http_version") == "1.0"
    check_headers(headers, repeated, http_1_0=http_1_0)
    return RequestHead(
        scope["method"], f"{path}?{query}" if query else path, path, headers, frozenset(repeated), http_1_0
    )


def _path_below(scope: Scope) -> str:
    # The path starts with the prefixes of all mounts, unless a proxy or an older framework has removed them.
    path: str = scope["path"]
    rest = path.removeprefix(scope.get("root_path", "").rstrip("/"))
    return rest if not rest or rest[0] == "/" else path


class AsgiBody:
    """The body of an ASGI request. ``receive`` returns it in pieces."""

    def __init__(self, receive: Receive, bounds: HttpBounds) -> None:
        self._receive = receive
        self._bounds = bounds
        self.is_over = False
        """Whether the last piece of the body was received."""
        self.part = bytearray()
        """Bytes of the body that were received but not returned yet."""
        self.unserved: UnservedBody | None = None
        """The body, if the request was admitted but the body was refused."""
        self._droppable = bounds.max_linger_bytes, bounds.linger_timeout
        """How many bytes of the body are read and discarded after an early response, and for how many seconds."""

    async def await_admission(self, ask: DeferredDecision, head: RequestHead) -> Answer | Admitted:
        """Wait until ``ask`` has decided whether to admit the request, and return the decision.

        If the client disconnects in the meantime, cancel ``ask`` and raise `ClientDisconnected`.
        """
        # The ASGI server sends status 100 when the application receives the body (RFC 9110 section 10.1.1).
        if "expect" in head.headers:
            return await ask()
        with trio.CancelScope() as scope:
            async with open_service_nursery("the request is decided on") as services:
                services.start_soon(self._watch_early, scope)
                return await ask()
        raise ClientDisconnected

    async def _watch_early(self, asking: trio.CancelScope) -> None:
        try:
            while len(self.part) < self._bounds.max_unserved_bytes:
                self.part += await self._piece()
        except ClientDisconnected:
            asking.cancel(reason="the client is gone")

    async def read(self, head: RequestHead, held: HeldBytes) -> bytes:
        """Receive and return the whole request body.

        ``held`` counts the bytes of the body while it arrives. Raises `BadRequest` if the body is invalid, and
        `ClientDisconnected` if the client disconnects.
        """
        if self._length(head) > self._bounds.max_body_bytes:
            raise self._too_long()
        part = self.part
        with trio.move_on_after(self._bounds.body_timeout):
            while len(part) <= self._bounds.max_body_bytes and not self.is_over:
                part += await self._piece()
                held.add(len(part) - held.size)
                if held.is_too_much and not self.is_over:
                    raise BadRequest(HTTPStatus.SERVICE_UNAVAILABLE, _NO_ROOM)
            if len(part) > self._bounds.max_body_bytes:
                raise self._too_long()
            self.part = bytearray()
            return bytes(part)
        reason = f"the body did not arrive within {self._bounds.body_timeout:g} s"
        raise BadRequest(HTTPStatus.REQUEST_TIMEOUT, reason)

    def refuse(self, head: RequestHead) -> None:
        """Record that the request was refused because of its head. `drop` may then discard a longer body: a body of
        permitted length, unless the client waits for permission to send it.

        Most clients send the body before they read the response.
        """
        with suppress(BadRequest):
            if "expect" not in head.headers and self._length(head) <= self._bounds.max_body_bytes:
                self._droppable = self._bounds.max_body_bytes, self._bounds.body_timeout

    async def drop(self) -> None:
        """Receive and discard the rest of the request body, up to a number of bytes and seconds.

        If unread bytes were left, the ASGI server would close the connection, and the response might be lost. Raises
        `ClientDisconnected` if the client disconnects.
        """
        dropped, (most, seconds) = 0, self._droppable
        with trio.move_on_after(seconds):
            while not self.is_over and dropped <= most:
                piece = await self._piece()
                dropped += len(piece)
                if self.unserved is not None:
                    self.unserved.feed(piece)

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects. Call this after the whole body was received."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _length(self, head: RequestHead) -> int:
        """Return the Content-Length, or 0 if the header is missing. Raises `BadRequest` if the header is invalid."""
        length = head.headers.get("content-length", "0")
        if len(length) > _LONGEST_LENGTH or not (length.isascii() and length.isdecimal()):
            raise BadRequest(HTTPStatus.BAD_REQUEST, "the Content-Length must be a number")
        return int(length)

    async def _piece(self) -> bytes:
        event = await self._receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnected
        self.is_over = not event.get("more_body", False)
        return event.get("body", b"")

    def _too_long(self) -> BadRequest:
        reason = f"the body is longer than {self._bounds.max_body_bytes} bytes"
        return BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)


class AsgiResponse(ResponseHandle):
    """The response to one ASGI request. The MCP endpoint creates the response, and the ASGI callable ``send`` sends it.

    The endpoint's callbacks run in ``context``, and not in the context of the current task.
    """

    __slots__ = (
        *("_closes", "_context", "_decided", "_has_begun", "_is_sending", "_scope", "_send", "_sending_since"),
        *("_source", "_whole"),
    )

    def __init__(self, send: Send, context: contextvars.Context, client: object) -> None:
        self.client = client
        self.is_gone = False
        self.on_gone = do_nothing
        self._send = send
        self._context = context
        self._scope = trio.CancelScope()
        self._decided = trio.Event()
        self._whole: Answer | None = None
        self._closes = False
        self._source: ResponseBody | None = None
        self._has_begun = False
        self._is_sending = False
        self._sending_since: float | None = None
        """The time of the first call of `tick` since ``send`` was called."""

    def answer(self, answer: Answer, *, close: bool = False) -> None:
        if self._whole is None and not self.is_gone:
            self._whole = answer
            self._closes = close
            self._decided.set()

    def stream(self, status: int, headers: bytes, source: ResponseBody) -> None:
        if self._whole is None and not self.is_gone:
            self._whole = Answer(status, headers)
            self._source = source
            self._decided.set()

    # The client goes

    def leave(self) -> None:
        """Notify the MCP endpoint that the client has disconnected, unless the response is complete. Idempotent."""
        if not self.is_gone:
            self.is_gone = True
            self._context.run(self.on_gone)

    def cut(self, reason: str) -> None:
        """End the response at once, even if it is incomplete. ``reason`` is the reason for trio's cancellation."""
        self.leave()
        self._scope.cancel(reason=reason)

    def tick(self, now: float, write_timeout: float) -> None:
        """End the response if the client has accepted no bytes for ``write_timeout`` seconds. ``now`` is the current
        time."""
        if not self._is_sending:
            return
        if self._sending_since is None:
            self._sending_since = now
        elif now - self._sending_since >= write_timeout:
            self.cut("the client does not read")

    # Writing

    async def write(self, body: AsgiBody) -> None:
        """Wait until the MCP endpoint has created the response, and send it to the client. Return early if `cut` is
        called.

        The rest of the request's ``body`` is discarded.
        """
        with self._scope:
            try:
                await self._decided.wait()
                await self._write(body)
                self.is_gone = True
            except (OSError, ClientDisconnected):  # since ASGI 2.4, `send` raises OSError after a disconnect
                pass
        await self.abort()

    async def abort(self) -> None:
        """Notify the MCP endpoint that the client has disconnected. If no response has begun, send an empty one, so
        that middleware doesn't report an application error."""
        self.leave()
        if not self._has_begun:
            with suppress(OSError):
                await self._send_message({"type": "http.response.start", "status": _CLIENT_LEFT, "headers": []})
                await self._send_message(_piece(b"", more=False))

    async def _write(self, body: AsgiBody) -> None:
        whole, source = self._whole, self._source
        assert whole is not None
        headers = _fields(whole, has_length=source is None)
        if self._closes:
            headers.append((b"connection", b"close"))
        await self._send_message({"type": "http.response.start", "status": int(whole.status), "headers": headers})
        if source is not None:
            while data := await source.next_chunk():
                await self._send_message(_piece(data, more=True))
            await self._send_message(_piece(b"", more=False))
        elif body.is_over:
            await self._send_message(_piece(whole.body, more=False))
        else:
            await self._send_message(_piece(whole.body, more=True))
            await body.drop()
            await self._send_message(_piece(b"", more=False))

    async def _send_message(self, message: dict[str, Any]) -> None:
        self._has_begun = self._is_sending = True
        self._sending_since = None
        await self._send(message)
        self._is_sending = False


def _piece(data: bytes | bytearray, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": bytes(data), "more_body": more}


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a whole ``answer`` with the function ``send`` of the ASGI server."""
    await send({"type": "http.response.start", "status": int(answer.status), "headers": _fields(answer)})
    await send({"type": "http.response.body", "body": answer.body})


def _fields(answer: Answer, *, has_length: bool = True) -> list[tuple[bytes, bytes]]:
    """Return the headers of ``answer`` in ASGI's format, with a Content-Length if the length is known."""
    pairs = (line.partition(b": ") for line in answer.headers.splitlines())
    headers = [(name.lower(), value) for name, _, value in pairs]
    # RFC 9110: a 204 has no Content-Length (section 8.6), and a 304 has no body (section 15.4.5).
    if has_length and answer.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        headers.append((b"content-length", b"%d" % len(answer.body)))
    return headers
