"""ASGIFront: passes requests from an ASGI server to an MCP endpoint, in trio's thread."""

from __future__ import annotations

import contextvars
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import trio

from ...concurrency.nurseries import open_service_nursery
from ...server.servable import Running, end_tasks
from ...transports.http.application import Admitted, Answer, DeferredDecision, UnservedBody
from ...transports.http.heads import BadRequest, RequestHead
from .asgi_requests import AsgiBody, AsgiResponse, ClientDisconnected, Receive, Scope, Send, client_of, head_of
from .endpoint import watch_clock
from .responses import EndpointSettings
from .serve import bounds_of, endpoint_to

if TYPE_CHECKING:
    from .recorded import HttpRecordings

_LAST_WRITES: Final = 1.0
"""Seconds that clients get to receive the last bytes of their responses when the application ends."""


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
        hop = self._endpoint.callers.hop_at(client_of(scope))
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
