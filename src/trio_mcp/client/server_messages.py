"""ServerMessages: the requests and notifications that a server sends of its own accord."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ..protocol.types.lifecycle import EmptyResult
from ..runtime.exchange import Exchange
from ..runtime.requests.handler import LATER, Decision, Now
from ..runtime.requests.request_scope import RequestScope
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .answering.answers import Answers
from .callbacks import Callbacks

__all__ = ["ServerMessages"]


class ServerMessages:
    """Has requests answered by the handlers a client was opened with, and its callbacks told of notifications."""

    seal = None
    """Clients answer no request with questions. See `RequestHandler.seal`."""

    def __init__(self, answers: Answers, callbacks: Callbacks) -> None:
        self._answers = answers
        self._callbacks = callbacks
        self.wants = callbacks.wants
        """Says whether `notified` is to be called for an event. See `RequestHandler.wants`."""

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        """Answer a request that needs no waiting. See `RequestHandler.answer_now`."""
        if request.method.name == "ping":
            return Now(EmptyResult())
        if request.method.name == "elicitation/create":
            self._callbacks.urls.asked(request.params)  # here, since the end of the request may come in the same read
        return LATER

    async def answer(self, scope: RequestScope) -> Any:
        """Answer a request with its handler. See `RequestHandler.answer`."""
        request = scope.request
        return await self._answers.prepare(request.method.name, request.params, request.revision)()

    def notified(self, event: NotificationReceived) -> Awaitable[None]:
        """Call the callback for ``event``. See `RequestHandler.notified`."""
        return self._callbacks.notified(event)
