"""ServerMessages: what a server sends of its own accord, requests and notifications."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ..runtime.handler import NOT_NOW
from ..runtime.request_scope import RequestScope
from ..spec.lifecycle import EmptyResult
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .answers import Answers
from .callbacks import Callbacks

__all__ = ["ServerMessages"]


class ServerMessages:
    """Has requests answered by the handlers a client was opened with, and its callbacks told of notifications."""

    def __init__(self, answers: Answers, callbacks: Callbacks) -> None:
        self._answers = answers
        self._callbacks = callbacks

    def answer_now(self, request: InboundRequest) -> Any:
        """See `RequestHandler.answer_now`."""
        if request.method.name == "ping":
            return EmptyResult()
        if request.method.name == "elicitation/create":
            self._callbacks.urls.asked(request.params)  # here, since its end may come in the same read
        return NOT_NOW

    async def answer(self, scope: RequestScope) -> Any:
        """See `RequestHandler.answer`."""
        request = scope.request
        return await self._answers.prepare(request.method.name, request.params, request.revision)()

    def wants(self, event: NotificationReceived) -> bool:
        """See `RequestHandler.wants`."""
        return self._callbacks.wants(event)

    def notified(self, event: NotificationReceived) -> Awaitable[None]:
        """See `RequestHandler.notified`."""
        return self._callbacks.notified(event)
