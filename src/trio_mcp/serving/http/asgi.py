"""http_app: returns a server as an ASGI application, to run under web frameworks and ASGI servers, on trio or
asyncio. Its `ASGIFront` passes requests from the ASGI server to the MCP endpoint, in trio's thread."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Unpack

import trio

from ...concurrency.contexts import asynccontextmanager
from ...concurrency.misuse import check_keywords
from ...concurrency.nurseries import open_service_nursery
from ...diagnostics.log import log_in_thread
from ...protocol.types.server_cards import CATALOG_PATH
from ...server.servable import Running, Servable, check_servable, end_tasks, running_with
from ...transports.host_checks import host_checks_for
from ...transports.http.application import Admitted, Answer, BadRequest, DeferredDecision, RequestHead, UnservedBody
from ..process import recorder_of
from .asgi_requests import AsgiBody, AsgiResponse, ClientDisconnected, Receive, Scope, Send, head_of, send_answer
from .endpoint import watch_clock
from .responses import EndpointSettings, resource_metadata, text
from .serve import HTTPAppOptions, bounds_of, endpoint_to, open_recordings, settings_of

if TYPE_CHECKING:
    from ...auth.resource_server.protected import Gate
    from .asgi_loop import LoopRuns
    from .recorded import HttpRecordings

logger = logging.getLogger("trio_mcp")

_LAST_WRITES: Final = 1.0
"""Seconds that clients get to receive the last bytes of their responses when the application ends."""
_NOT_RUNNING: Final = (
    "http_app is not running: the framework in which it is mounted must run its lifespan. Write\n"
    "    wrong:  mcp = http_app(server, ...); app = Starlette(routes=[Mount('/', mcp)])\n"
    "    right:  mcp = http_app(server, ...); app = Starlette(routes=[Mount('/', mcp)], lifespan=mcp.lifespan)\n"
    "or enter `async with mcp.lifespan():` in a lifespan of your own"
)


def http_app(server: Servable, **options: Unpack[HTTPAppOptions]) -> HTTPApp:
    """Return an ASGI application that serves ``server`` in the same way as `serve_http`.

    Any ASGI server can run it. On trio (``hypercorn --worker-class trio module:app``), it runs in the event loop of the
    ASGI server. On asyncio (``uvicorn module:app``), it runs in a trio thread next to the event loop. All applications
    of a process share that thread.

    If you mount the application in Starlette or FastAPI, pass its lifespan to the framework, which doesn't forward
    lifespan events::

        mcp = http_app(server, allowed_origins=[], allowed_hosts=["mcp.example.com"])
        app = Starlette(routes=[Mount("/api", mcp)], lifespan=mcp.lifespan)  # serves /api/mcp

    Clients look for protected resource metadata (RFC 9728 section 3.1) and for a catalog at the root of the host. If
    the application is mounted elsewhere, add routes for them::

        documents = [Route(path, app) for app in (mcp.metadata, mcp.catalog) for path in app.paths]
        app = Starlette(routes=[*documents, Mount("/api", mcp)], lifespan=mcp.lifespan)

    On asyncio, if the lifespan of the application isn't run, the server starts with the first request, and ends with
    the event loop.

    `HTTPAppOptions` documents ``options``, which work as in `serve_http`. The address of a client is the one that the
    ASGI server reports. The ASGI server is responsible for addresses, certificates, connections and signals.

    Raises:
      ValueError: ``allowed_origins`` or ``allowed_hosts`` is missing. An application can't find out who can reach its
          server, so it has no defaults for them.
    """
    check_servable(server)
    check_keywords(http_app, options)
    origins, hosts = options.get("allowed_origins"), options.get("allowed_hosts")
    if origins is None or hosts is None:
        raise ValueError(
            "http_app needs allowed_origins (web pages that may call) and allowed_hosts (names of the server), for "
            'example http_app(server, allowed_origins=["https://app.example.com"], allowed_hosts=["mcp.example.com"]); '
            'allowed_origins=[] allows no web page, "*" allows any'
        )
    settings = settings_of(server, host_checks_for(None, origins, hosts), options)
    return HTTPApp(server, settings, options)


class HTTPApp:
    """An MCP server as an ASGI application, created by `http_app`."""

    def __init__(self, server: Servable, settings: EndpointSettings, options: HTTPAppOptions) -> None:
        self._server = server
        self._settings = settings
        self._options = options
        self._recorder = recorder_of(options.get("record"))
        self._front: ASGIFront | None = None
        self._making = threading.Lock()
        self._loop_runs: LoopRuns | None = None
        """The runs of this application, one for each asyncio event loop. `None` before the first run."""
        self.metadata = ResourceMetadataApp(settings.gate)
        """ASGI application that serves the protected resource metadata, to be mounted at the root of the host."""
        self.catalog = CatalogApp(settings)
        """ASGI application that serves the catalog, to be mounted at the root of the host."""

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Run the server while inside the ``async with`` block.

        The argument ``app`` is ignored. It exists because frameworks pass it.

        On exit, no new requests are accepted. Accepted requests get up to `Limits.drain_timeout` seconds, and streams
        are ended. Cancellation cancels all requests at once.
        """
        if not trio.lowlevel.in_trio_task():
            async with self._beside_loops().lifespan():
                yield
            return
        if self._front is not None:
            raise RuntimeError("http_app is already running: enter its lifespan once, in the outermost application")
        try:
            async with self._open_front() as self._front:
                yield
        finally:
            self._front = None

    @asynccontextmanager
    async def _open_front(self) -> AsyncGenerator[ASGIFront]:
        shared, limits = self._options.get("shared"), self._options.get("limits")
        async with (
            log_in_thread(),
            open_recordings(self._recorder) as recordings,
            running_with(self._server, shared, limits, stateless=self._options.get("stateless", False)) as running,
            open_service_nursery("the ASGI application has ended") as services,
        ):
            front: ASGIFront = await services.start(self._run, running, recordings)
            yield front
            await front.close()

    def _beside_loops(self) -> LoopRuns:
        with self._making:
            if self._loop_runs is None:
                # imported late, because an application that runs on trio doesn't need it
                from .asgi_loop import LoopRuns

                self._loop_runs = LoopRuns(self._open_front)
            return self._loop_runs

    async def _run(
        self, running: Running, recordings: HttpRecordings | None, *, task_status: trio.TaskStatus[ASGIFront]
    ) -> None:
        with ExitStack() as afterwards:
            async with trio.open_nursery() as nursery:
                front = ASGIFront(running, nursery, self._settings, recordings)
                afterwards.callback(front.cut)
                task_status.started(front)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope: a request, or the ASGI server's lifespan."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(receive, send)
        elif kind == "http":
            await self._serve(scope, receive, send)
        elif kind == "websocket":
            # Closing a WebSocket before its upgrade makes the ASGI server respond with 403.
            await send({"type": "websocket.close"})
        else:
            raise ValueError(f"http_app doesn't support the ASGI scope type {kind!r}")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Handle the ASGI server's lifespan scope, and run the MCP server until shutdown (ASGI 3, Lifespan)."""
        await receive()
        phase = "startup"
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except Exception as error:
            await send({"type": f"lifespan.{phase}.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not trio.lowlevel.in_trio_task():
            await self._beside_loops().serve(scope, receive, send)
        elif self._front is not None:
            await self._front.serve(scope, receive, send)
        else:  # the endpoint isn't running, so the request can't be served
            logger.error("%s", _NOT_RUNNING)
            await send_answer(send, text(HTTPStatus.INTERNAL_SERVER_ERROR, _NOT_RUNNING))


class ASGIFront:
    """Passes requests that arrive at an ASGI server to the MCP endpoint of ``running``, the running server.

    Its tasks run in ``nursery``.
    """

    def __init__(
        self, running: Running, nursery: trio.Nursery, settings: EndpointSettings, recordings: HttpRecordings | None
    ) -> None:
        self._running = running
        self._bounds = bounds_of(running.limits)
        self._endpoint = endpoint_to(running, settings, nursery, recordings)
        self._context = contextvars.copy_context()
        self._responses: dict[AsgiResponse, None] = {}
        self._all_closed = trio.Event()
        """Event that is set during shutdown when no responses are left."""
        self._is_ending = False
        nursery.start_soon(watch_clock, self._endpoint, running.limits.stream_interval, self._tick)

    def _tick(self, now: float) -> None:
        for response in tuple(self._responses):
            response.tick(now, self._bounds.write_timeout)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request until its response is complete or its client has disconnected."""
        hop = self._endpoint.callers.hop_at(_client_of(scope))
        response, body = AsgiResponse(send, self._context, hop), AsgiBody(receive, self._bounds)
        self._responses[response] = None
        try:
            await self._answer(scope, body, response)
        except ClientDisconnected:
            await response.abort()
        finally:
            response.leave()
            del self._responses[response]
            if self._is_ending and not self._responses:
                self._all_closed.set()

    async def _answer(self, scope: Scope, body: AsgiBody, response: AsgiResponse) -> None:
        head: RequestHead | None = None
        decision: Answer | Admitted | DeferredDecision | None = None
        try:
            head = head_of(scope, self._bounds)
            decision = self._endpoint.admit(head)
            if not isinstance(decision, Answer | Admitted):
                decision = await body.await_admission(decision, head)
            if isinstance(decision, Answer):
                body.refuse(head)
            data = await self._read(head, body, decision, response) if isinstance(decision, Admitted) else b""
        except BadRequest as bad:
            # RFC 9113 section 8.2.2: HTTP/2 has no Connection header.
            closes = scope.get("http_version", "1.1").startswith("1")
            response.answer(self._endpoint.refusal(bad.status, bad.reason, head), close=closes)
            may_come_again = bad.status is HTTPStatus.SERVICE_UNAVAILABLE
            if head is not None and isinstance(decision, Admitted) and not may_come_again:
                body.unserved = UnservedBody(head, decision.caller, bad.status, bad.reason, body.part)
            body.part.clear()
            try:
                await response.write(body)
            finally:
                if body.unserved is not None:
                    self._endpoint.report_unserved(body.unserved)
            return
        if isinstance(decision, Answer):
            response.answer(decision)
            await response.write(body)
            return
        # Don't run handlers in the context of the current request: the handlers may belong to another request.
        self._context.run(self._endpoint.serve, head, data, response, decision.caller)
        async with open_service_nursery("the response is over") as services:
            services.start_soon(self._watch, body, response)
            await response.write(body)

    async def _read(self, head: RequestHead, body: AsgiBody, admission: Admitted, response: AsgiResponse) -> bytes:
        held = self._endpoint.hold(head, admission.caller, response.client)
        try:
            return await body.read(head, held)
        finally:
            held.release()

    async def _watch(self, body: AsgiBody, response: AsgiResponse) -> None:
        await body.wait_for_disconnect()
        response.cut("the client is gone")

    async def close(self) -> None:
        """Stop accepting requests, and wait until all accepted requests and streams have ended."""
        self._is_ending = True
        self._endpoint.shut_down("the application ends", hurry=False)
        end_tasks(self._running, hurry=False)
        await self._endpoint.wait_closed()
        if self._responses:
            with trio.move_on_after(_LAST_WRITES):
                await self._all_closed.wait()

    def cut(self) -> None:
        """End all responses that are still being sent, although they are incomplete."""
        for response in tuple(self._responses):
            response.cut("the application has ended")


def _client_of(scope: Scope) -> str | None:
    """Return the IP address of the client (ASGI 3, HTTP Connection Scope).

    Return `None` if the ASGI server doesn't report the address.
    """
    client: tuple[str, int | None] | None = scope.get("client")
    return client[0] if client else None


class ResourceMetadataApp:
    """An ASGI application that serves the OAuth protected resource metadata of an MCP server.

    See `http_app`. The application needs no lifespan.
    """

    def __init__(self, gate: Gate | None) -> None:
        self._document = b"" if gate is None else gate.metadata
        self.paths: tuple[str, ...] = () if gate is None else tuple(sorted(gate.metadata_paths))
        """The paths at which clients look for the metadata. There are no paths if the server is unprotected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request for the protected resource metadata."""
        if scope["type"] != "http":
            raise RuntimeError(f"the metadata application doesn't support the ASGI scope type {scope['type']!r}")
        await send_answer(send, resource_metadata(self._document, scope["method"]))


class CatalogApp:
    """An ASGI application that serves the catalog of an MCP server with ``catalog=True``.

    See `http_app`. The application needs no lifespan.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self._checks = settings.checks
        self._document = settings.documents.get(CATALOG_PATH)
        self.paths: tuple[str, ...] = () if self._document is None else (CATALOG_PATH,)
        """The paths at which clients look for the catalog. There are no paths if there is no catalog."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request for the catalog."""
        if scope["type"] != "http" or self._document is None:
            raise RuntimeError(f"the catalog application doesn't support the ASGI scope type {scope['type']!r}")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self._checks.allows_host(host):
            answer = self._document.answer(scope["method"], headers.get(b"if-none-match", ""))
        else:
            answer = text(HTTPStatus.FORBIDDEN, self._checks.refused_host(host))
        await send_answer(send, answer)
