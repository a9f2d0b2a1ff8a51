"""PageApplication: the HTTP application of the web inspector, which is only reachable from this machine.

It reads the head of each request, and refuses requests without the token of the page's address, and those that come
from other pages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

import trio

from ..concurrency.fair_share import Caller, HeldBytes, SharedBytes
from ..concurrency.nurseries import open_service_nursery
from ..connecting.targets import Target
from ..jsonrpc.codec import decode_value
from ..jsonrpc.errors import MCPError
from ..protocol.fields import JSONObject
from ..runtime.limits import Limits
from ..serving.http.asgi_requests import Receive, Scope, Send
from ..serving.http.routes import RouteRequest, RouteResponse, Routes
from ..transports.host_checks import host_checks_for
from ..transports.http.application import (
    Admitted,
    Answer,
    HeadDecision,
    HttpApplication,
    HttpBounds,
    RequestHead,
    ResponseHandle,
    UnservedBody,
)
from ..transports.http.connection import HttpConnection
from ..transports.http.responses import ConnectionPhase
from .inspection import Era, Inspection
from .runs import InvalidPageRequest, error_text

HOST: Final = "127.0.0.1"
_MOST_CONNECTIONS: Final = 64
_MOST_UNREAD: Final = 32 * 1024 * 1024
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PICTURE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
"""Content Security Policy of pictures, which contain their own styles and no scripts."""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the page's URL contains the secret token, so don't send it to other sites
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_JSON: Final = "application/json"
_FOLDER: Final = Path(__file__).parent / "page"


def _response(
    body: object, kind: str | None = None, status: HTTPStatus = HTTPStatus.OK, policy: str = _POLICY
) -> RouteResponse:
    headers = {**_HEADERS, "Content-Security-Policy": policy}
    if kind is not None:
        headers["Content-Type"] = kind
    return RouteResponse(body, status, headers)


def _refusal(status: HTTPStatus, reason: str) -> Answer:
    return _response(reason + "\n", status=status)._encoded()


class PageApplication(HttpApplication):
    """The HTTP application of the web inspector. It serves the page for ``inspection`` under the path ``/TOKEN/``.

    HTTP requests are handled by trio tasks in ``nursery``.
    """

    def __init__(self, inspection: Inspection, token: str, nursery: trio.Nursery) -> None:
        self._inspection = inspection
        self._token = token
        self._checks = host_checks_for(HOST, [], [HOST, "localhost"])
        self._unread = SharedBytes(_MOST_UNREAD)
        self._caller = Caller(alone=True)
        self._files = {path.name: path.read_bytes() for path in _FOLDER.iterdir() if path.suffix in _TYPES}
        base = f"/{token}/"
        self._routes = Routes(
            {base: self._file, f"{base}do": self._do, f"{base}events": self._events, f"{base}timeline.svg": self._draw},
            nursery,
            Limits(),
        )

    # Admission

    def admit(self, head: RequestHead) -> HeadDecision:
        """Refuse an HTTP request if it lacks the secret token, or comes from another web page. See
        `HttpApplication.admit`."""
        if not (self._knows_token(head.path) and self._is_own_page(head)):
            return _refusal(HTTPStatus.FORBIDDEN, "open the complete address that trio-mcp inspect --web printed")
        if head.method != ("POST" if head.path.endswith("/do") else "GET"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "this address only allows GET, or POST for /do")
        return Admitted()

    def _knows_token(self, path: str) -> bool:
        first = path.removeprefix("/").partition("/")[0]
        return secrets.compare_digest(first.encode("utf-8", "replace"), self._token.encode())

    def _is_own_page(self, head: RequestHead) -> bool:
        """Return whether the HTTP request comes from the inspector's own page.

        For a request that only reads, also return true if the user has typed the URL into the browser.

        The host is checked to prevent DNS rebinding, and the origin to refuse other pages that have found out the
        token. If such a page only embeds the inspector or links to it, the browser reveals that in Sec-Fetch-Site.
        """
        host, origin = head.headers.get("host", ""), head.headers.get("origin")
        if not self._checks.allows_host(host):
            return False
        if head.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return False
        if head.method == "POST":
            kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
            return origin == f"http://{host}" and kind == "application/json"
        return origin is None or origin == f"http://{host}"

    def serve(self, head: RequestHead, body: bytes, response: ResponseHandle, caller: object | None) -> None:
        """Start a task that handles an admitted HTTP request. See `HttpApplication.serve`."""
        run = self._routes.find(head.path)
        assert run is not None, "the path begins with the token"
        run(head, body, response)

    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        """Return the response to an invalid HTTP request. See `HttpApplication.refusal`."""
        return _refusal(status, reason)

    def hold(self, head: RequestHead | None, caller: object | None, client: object) -> HeldBytes:
        """Return a counter for the bytes of HTTP requests that were read but not handled yet. See
        `HttpApplication.hold`."""
        return self._unread.held_for(self._caller)

    def report_unserved(self, body: UnservedBody) -> None:
        """Do nothing, because the web inspector doesn't report refused requests. See
        `HttpApplication.report_unserved`."""

    # Routes

    async def _file(self, request: RouteRequest) -> RouteResponse:
        name = request.path.removeprefix(f"/{self._token}/") or "page.html"
        body = self._files.get(name)
        if body is None:
            return _response("file not found\n", status=HTTPStatus.NOT_FOUND)
        return _response(body, _TYPES[Path(name).suffix])

    async def _do(self, request: RouteRequest) -> RouteResponse:
        try:
            given: Any = decode_value(request.body)
        except (ValueError, RecursionError):
            return _failed("the body must be JSON")
        if not isinstance(given, dict):
            return _failed("the body must be a JSON object")
        asked = cast("JSONObject", given)
        try:
            if asked.get("do") == "result":
                return _response(self._inspection.result(asked.get("run")), _JSON)
            return _response({"answer": await self._inspection.do(asked)})
        except (MCPError, trio.TooSlowError) as error:
            return _failed(error_text(error), HTTPStatus.BAD_GATEWAY)
        except ValueError as error:
            return _failed(error_text(error))

    async def _draw(self, request: RouteRequest) -> RouteResponse:
        number = request.query.removeprefix("run=").partition("&")[0]
        try:
            picture = await self._inspection.picture(int(number) if number.isdecimal() and len(number) < 10 else None)
        except InvalidPageRequest as error:
            return _failed(error_text(error), HTTPStatus.NOT_FOUND)
        return _response(picture, _TYPES[".svg"], policy=_PICTURE_POLICY)

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events of the inspection to an open inspector page, as an SSE stream, until the page closes the
        connection."""
        feed = self._inspection.feed
        is_full = feed.is_full
        kind = "text/plain" if is_full else "text/event-stream"
        headers = {**_HEADERS, "Content-Security-Policy": _POLICY, "Content-Type": kind}
        status = HTTPStatus.SERVICE_UNAVAILABLE if is_full else HTTPStatus.OK
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": int(status), "headers": raw})
        if is_full:
            await send({"type": "http.response.body", "body": b"too many pages are open\n"})
            return
        with feed.opened() as stream:
            while True:
                await send({"type": "http.response.body", "body": await stream.next_events(), "more_body": True})


def _failed(words: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> RouteResponse:
    return _response({"error": words}, status=status)


class _Connections:
    """The open HTTP connections to the web inspector, from browsers and other programs on this machine."""

    def __init__(self, application: PageApplication) -> None:
        self._application = application
        self._open: dict[HttpConnection, None] = {}
        """The open connections, oldest first."""

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one HTTP connection. If too many connections are open, close the oldest idle one first. If all of them
        are in use, close the new connection."""
        if len(self._open) >= _MOST_CONNECTIONS and not self._close_one():
            await trio.aclose_forcefully(stream)
            return
        connection = HttpConnection(stream, self._application, HttpBounds())
        self._open[connection] = None
        try:
            await connection.serve()
        finally:
            self._open.pop(connection, None)

    def _close_one(self) -> bool:
        found = min(self._open, key=_worth)
        if _worth(found) == _IN_USE:
            return False
        del self._open[found]
        found.shut_down(now=True)
        return True

    async def watch(self) -> None:
        """Once a second, close the connections whose timeouts have expired."""
        while True:
            await trio.sleep(1)
            for connection in tuple(self._open):
                connection.tick(trio.current_time())


_IN_USE: Final = 2


def _worth(connection: HttpConnection) -> int:
    """Return a rank for ``connection``. If too many connections are open, the connection with the lowest rank is closed
    first.

    Silent and refused connections have the lowest rank, since they haven't sent the token. Idle connections come next:
    a browser reopens a connection that is closed between two requests.
    """
    if ConnectionPhase.ASKED <= connection.phase <= ConnectionPhase.SERVED:
        return _IN_USE
    return int(connection.phase is ConnectionPhase.IDLE)


async def serve_page(
    inspection: Inspection, port: int = 0, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the web inspector's page for ``inspection`` on a loopback address, until cancelled.

    The ``task_status`` reports the page's address, with a new token. Raises `OSError` if the ``port`` isn't available.
    """
    token = secrets.token_urlsafe(24)
    listeners = await trio.open_tcp_listeners(port, host=HOST)
    async with trio.open_nursery() as nursery:
        connections = _Connections(PageApplication(inspection, token, nursery))
        nursery.start_soon(connections.watch)
        number = cast("Any", listeners[0]).socket.getsockname()[1]
        await nursery.start(trio.serve_listeners, connections.serve, listeners)
        task_status.started(f"http://{HOST}:{number}/{token}/")
        await trio.sleep_forever()


async def inspect_in_page(
    target: Target, on_address: Callable[[str], None], *, era: Era, timeout: float, port: int
) -> None:
    """Connect to the server ``target``, and serve a web inspector for it until cancelled.

    Calls ``on_address`` with the page's address. For ``era`` and ``timeout`` see `Inspection`. Raises the errors of
    ``target.open`` if the first connection fails, and `OSError`.
    """
    inspection = Inspection(target, era=era, timeout=timeout)
    async with open_service_nursery("the page is closed") as nursery:
        await nursery.start(inspection.run)
        on_address(await nursery.start(serve_page, inspection, port))
        await trio.sleep_forever()
