"""Telling: the messages of a client that ask for nothing: notifications, cancels, answers to questions."""

from __future__ import annotations

import math
from http import HTTPStatus
from itertools import count
from typing import Final

import trio

from ...auth.errors import AuthorizationError
from ...concurrency.delays import growing_delay
from ...jsonrpc.codec import frame_error
from ...jsonrpc.errors import INTERNAL_ERROR, MCPError
from ...jsonrpc.messages import RequestId
from ...runtime.channel import ConnectionLost
from ...runtime.http_error import HTTPError
from .answers import is_good, refusal
from .endpoint import Endpoint, Seen
from .outgoing import Outgoing
from .questions import Question
from .sessions import Session

CANCEL: Final = "notifications/cancelled"

_PLACES: Final = 32
_CANCEL_TIMEOUT: Final = 5.0
_NOTIFICATION_TIMEOUT: Final = 30.0
_ANSWER_TIMEOUT: Final = 60.0
"""Seconds for an answer, which may be long."""
_UNTOLD: Final = 60.0
"""Seconds for which the server is told that an answer could not be delivered."""
_FIRST: Final = 1.0
_LONGEST: Final = 30.0
_JITTER: Final = 0.5


class _Way:
    """The way of one kind of messages: up to ``most`` at a time, each for ``timeout`` seconds at most. So a message
    that the server does not answer holds up others of its kind for a time, and of other kinds never."""

    def __init__(self, timeout: float, most: int = _PLACES) -> None:
        self.timeout = timeout
        self.places = trio.Semaphore(most)


class Telling:
    """Tells the server of ``endpoint``, in one POST for each message. There are at most ``most_cancels`` cancels at a
    time, and 32 answers, and 32 notifications."""

    def __init__(self, endpoint: Endpoint, most_cancels: int) -> None:
        self._endpoint = endpoint
        self._cancels = _Way(_CANCEL_TIMEOUT, most_cancels)
        self._notifications = _Way(_NOTIFICATION_TIMEOUT)
        self._answers = _Way(_ANSWER_TIMEOUT)

    def _way_of(self, message: Outgoing) -> _Way:
        if message.method is None:
            return self._answers
        return self._cancels if message.method == CANCEL else self._notifications

    async def tell(self, session: Session | None, message: Outgoing) -> None:
        """Send ``message`` in ``session``, once there is a place, and wait until the server has accepted the message.

        Raises `HTTPError` where the server refuses, cannot be reached, or does not answer in time, and
        `AuthorizationError`. The time in which a token is got does not count.
        """
        way = self._way_of(message)
        async with way.places:
            with trio.CancelScope() as scope:

                def seen(is_seen: bool) -> None:
                    scope.deadline = trio.current_time() + way.timeout if is_seen else math.inf

                await self._post(session, message, seen)
            if scope.cancelled_caught:
                raise HTTPError(None, f"the server has not answered within {way.timeout:g} s")

    async def _post(self, session: Session | None, message: Outgoing, seen: Seen) -> None:
        endpoint = self._endpoint
        try:
            async with endpoint.post(message, endpoint.headers.in_session(session), seen) as reply:
                if is_good(reply):
                    return
                error = await refusal(reply, None)
        except ConnectionLost as lost:
            raise HTTPError(None, lost.reason) from None
        if reply.status == HTTPStatus.NOT_FOUND and session is not None:
            endpoint.lose(session)
        raise error

    async def tell_failure(self, question: Question, request_id: RequestId, failure: MCPError) -> MCPError | None:
        """Tell the server that its question ``request_id`` gets no answer, since the answer could not be delivered, as
        ``failure`` says: in a small error, after growing delays, for a minute, while the server wants to know.

        Return `None`, or why the server could not be told.
        """
        words = f"Internal error: the answer of the client could not be delivered{_status_in(failure)}"
        instead = Outgoing.of(frame_error(request_id, INTERNAL_ERROR, words))
        with trio.move_on_after(_UNTOLD):
            for attempt in count(1):
                if question.is_over:
                    return None
                if isinstance(failure, AuthorizationError):  # nobody is asked for a token again and again
                    return failure
                try:
                    await self.tell(question.session, instead)
                except MCPError as error:
                    failure = error.with_traceback(None)
                else:
                    return None
                await trio.sleep(growing_delay(attempt, first=_FIRST, longest=_LONGEST, jitter=_JITTER))
        return None if question.is_over else failure


def _status_in(failure: MCPError) -> str:
    status = failure.status if isinstance(failure, HTTPError) else None
    return "" if status is None else f" (HTTP status {status})"
