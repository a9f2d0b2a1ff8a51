"""HttpTransport: exchanges messages with one server over Streamable HTTP. Each message of the client is a separate HTTP
request.

A request is a `PostedRequest` in a task of its own. OneWayPosts send the messages that expect no reply: notifications,
cancels, and answers to requests of the server.
"""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from itertools import count
from typing import Any, Final

import trio

from ...auth.credentials import AuthorizationError
from ...concurrency.time_limits import growing_delay
from ...jsonrpc.codec import frame_error
from ...jsonrpc.errors import INTERNAL_ERROR, MCPError
from ...jsonrpc.messages import RequestId
from ...runtime.calls import Call, DetachedCall
from ...runtime.outbox import Outbox, Owner, cancel_line
from ...runtime.transport import (
    ConnectionLost,
    Frame,
    FramedTransport,
    HTTPError,
    QuestionsLost,
    ReplyLost,
    SendRecorder,
)
from .endpoint import Endpoint, Seen
from .listening import listen, receive_all
from .outgoing import OutboundFrame, Session, SessionQuestion
from .posted_request import PostedRequest
from .responses import is_good, refusal

logger = logging.getLogger("trio_mcp")

_CLOSE_DEADLINE: Final = 0.5
"""When the client is closed, the number of seconds in which to send the last cancellations and end the session."""
_SLOW: Final = 0.2
"""If the server doesn't respond to ``notifications/initialized`` within this many seconds, the client sends requests
anyway."""
_BUSY: Final = frozenset((429, 502, 503, 504))
_MOST_REFUSALS: Final = 5
"""How many times the client sends ``notifications/initialized`` again after a refusal."""
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 30.0
_CANCEL_OF_TASK: Final = "tasks/cancel"
_CANCEL_OF_TASK_TIMEOUT: Final = 30.0
_CANCEL_WAIT: Final = "trio-mcp/cancel"
_MOST_LAST_WORDS: Final = 32
_OVER: Final = "the client was closed"
_FORGOTTEN: Final = "the server has lost the session"


class HttpTransport(FramedTransport):
    """The client's transport over HTTP. Sends each message in a separate POST.

    Receives the messages in all responses, and on the stream of a legacy server.

    At most ``max_requests`` requests are in flight, including streams; others wait. ``run`` must be running meanwhile.
    With ``send_cancels``, a legacy server is notified of cancelled requests.
    """

    names_calls = True
    network = "tcp"

    def __init__(self, endpoint: Endpoint, *, max_requests: int, send_cancels: bool = True) -> None:
        self._endpoint = endpoint
        self._send_cancels = send_cancels
        self._requests: dict[RequestId, PostedRequest] = {}
        self._request_places = trio.Semaphore(max_requests)
        # Allow as many concurrent cancellations as requests, because all requests may be cancelled at once.
        self._one_way = OneWayPosts(endpoint, max_requests)
        self._last_places = trio.Semaphore(_MOST_LAST_WORDS)
        self._cancel_places = trio.Semaphore(max_requests)
        """The limit for concurrent requests that query how a cancelled request has ended."""
        self._pending_sends = 0
        """The number of notifications, replies and cancellations of tasks in flight."""
        self._sends_done = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the background tasks of the transport until `aclose`."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def use_http_and_sse(self) -> None:
        """Switch to HTTP+SSE, the transport of 2024-11-05. The server must not have replied to any request so far.

        Raises the errors of `receive_all`.
        """
        if self._nursery is None:
            raise ConnectionLost(_OVER)
        await self._nursery.start(receive_all, self._endpoint, self._replied)

    def _replied(self, request_id: RequestId | None) -> None:
        """In HTTP+SSE, stop waiting for the response to the POST of the request ``request_id``, because the request's
        result or error has arrived on the server's separate stream."""
        if request_id is not None and (posted := self._requests.get(request_id)) is not None:
            posted.abandon()

    # The messages

    async def receive(self) -> Frame | ReplyLost | QuestionsLost:
        """Return the next message, or the report of a lost message: see `Transport.receive`."""
        return await self._endpoint.inbox.receive()

    async def send(self, messages: bytes | bytearray) -> None:
        """Send messages to the server: see `Transport.send`.

        This doesn't wait for the server, because each message has a task of its own.
        """
        for line in bytes(messages[:-1]).split(b"\n"):
            self._start(line)
        await trio.lowlevel.checkpoint()

    def send_nowait(self, message: bytes) -> int:
        """Send a message to the server without waiting: see `FramedTransport.send_nowait`."""
        if self._nursery is None:
            return 0
        self._start(message[:-1])
        return len(message)

    def _start(self, line: bytes) -> None:
        nursery = self._nursery
        if nursery is None:
            raise ConnectionLost(_OVER)
        message = OutboundFrame.of(line)
        self._pending_sends += 1
        if message.id is not None:
            self._endpoint.inbox.add_owed()
            nursery.start_soon(self._answer, message, message.id)
        else:
            nursery.start_soon(self._send_notification, message)

    def make_outbox(self, high_water: int, recorded: SendRecorder | None = None) -> Outbox:
        """Return an outbox for this transport. The outbox passes requests and cancellations to the transport as
        objects, because each needs an HTTP request of its own."""
        return _HttpOutbox(high_water, self, recorded)

    @trio.lowlevel.enable_ki_protection  # prevent a KeyboardInterrupt between storing the request and starting its task
    def start_request(self, message: OutboundFrame, request_id: RequestId) -> bool:
        """Send a request in a new task. Return false if the transport is closed."""
        nursery = self._nursery
        if nursery is None:
            return False
        is_last_word = message.method == _CANCEL_OF_TASK
        timeout = _CANCEL_OF_TASK_TIMEOUT if is_last_word else math.inf
        posted = self._requests[request_id] = PostedRequest(self._endpoint, message, request_id, timeout)
        if is_last_word:
            self._pending_sends += 1
            nursery.start_soon(self._send_final, request_id, posted)
        else:
            places = self._cancel_places if message.method == _CANCEL_WAIT else self._request_places
            nursery.start_soon(self._request, request_id, posted, places)
        return True

    def withdraw_request(self, request_id: RequestId) -> bool:
        """Drop a request if it wasn't sent yet. Return false if the server may have received it."""
        posted = self._requests.get(request_id)
        if posted is None or posted.is_sent:
            return False
        posted.close("the request was cancelled")
        return True

    @trio.lowlevel.enable_ki_protection
    def leave_request(self, request_id: RequestId, reason: str | None) -> None:
        """Stop waiting for a request that was cancelled. Close its response, or send a cancellation to the server."""
        posted = self._requests.get(request_id)
        if posted is None:
            is_told = self._endpoint.sessions.current is not None and self._send_cancels
        elif posted.is_modern or not posted.is_sent or not self._send_cancels:
            # 2026-07-28 Streamable HTTP, Cancellation: closing the response stream cancels the request.
            posted.close("the request was cancelled" if reason is None else reason)
            is_told = False
        else:
            posted.abandon()
            is_told = True
        if is_told and self._nursery is not None:
            self._pending_sends += 1
            cancel = OutboundFrame(cancel_line(request_id, reason)[:-1], None, CANCEL)
            self._nursery.start_soon(self._send_notification, cancel)

    async def _request(self, request_id: RequestId, posted: PostedRequest, places: trio.Semaphore) -> None:
        try:
            await posted.run(places)
        finally:
            del self._requests[request_id]

    async def _send_final(self, request_id: RequestId, posted: PostedRequest) -> None:
        """Send ``tasks/cancel``, the last request about a background task. This request isn't counted towards the limit
        on concurrent requests.

        `aclose` waits until this request has ended.
        """
        try:
            await self._request(request_id, posted, self._last_places)
        finally:
            self._finish_send()

    async def _send_notification(self, message: OutboundFrame) -> None:
        try:
            await self._post_notification(message)
        except MCPError as error:
            logger.warning("the server refused %s: %s", message.method, error)
        finally:
            self._finish_send()

    async def _post_notification(self, message: OutboundFrame) -> None:
        sessions = self._endpoint.sessions
        if message.method == "notifications/initialized":
            session = sessions.current
            assert session is not None, "the answer to initialize came"
            await self._open(session, message)
        elif sessions.modern is not None:
            await self._one_way.send(None, message.in_revision(sessions.modern))
        else:
            await self._one_way.send(await sessions.wait_opened(), message)

    def _finish_send(self) -> None:
        self._pending_sends -= 1
        if not self._pending_sends:
            self._sends_done.unpark_all()

    # Answers

    async def _answer(self, answer: OutboundFrame, request_id: RequestId) -> None:
        """Deliver the client's answer to a server-to-client request.

        If that fails, notify the server. If that fails too, fail the call in whose response the server waits for the
        answer.
        """
        question = self._endpoint.questions.find(request_id)
        failure: MCPError | None = None
        try:
            try:
                await self._deliver(question, answer)
            except MCPError as error:
                logger.warning("the server refused our answer: %s", error)
                failure = error.with_traceback(None)
            finally:
                self._finish_send()
            if question is not None and failure is not None:
                failure = await self._one_way.send_failure(question, request_id, failure)
                if failure is not None and question.call is not None:
                    self._fail(question.call, failure)
        finally:
            self._endpoint.inbox.remove_owed()
            if question is not None:
                self._endpoint.questions.remove(request_id, question)

    async def _deliver(self, question: SessionQuestion | None, answer: OutboundFrame) -> None:
        if question is not None:
            if not question.is_over:
                await self._one_way.send(question.session, answer)
            return
        session = self._endpoint.sessions.current
        if session is not None and session.over.is_set():
            session = None  # the server's request belongs to the new session, which isn't open yet
        await self._one_way.send(session, answer)

    def _fail(self, call: RequestId, failure: MCPError) -> None:
        """Let a call of the client fail, because the client couldn't deliver an answer that the server needs for this
        call.

        The server waits for this answer in the response to the call, and can't be notified.
        """
        posted = self._requests.get(call)
        if posted is None or self._nursery is None:
            return
        status = failure.status if isinstance(failure, HTTPError) else None
        posted.lose(HTTPError(status, f"the client's answer to the server's request could not be delivered: {failure}"))
        self.leave_request(call, "an answer could not be delivered")

    # Sessions

    async def _open(self, session: Session, initialized: OutboundFrame) -> None:
        delivered, slow = trio.Event(), trio.CancelScope(deadline=trio.current_time() + _SLOW)
        if self._nursery is not None:
            self._nursery.start_soon(self._live, session, delivered, slow)
        try:
            while (pause := await self._refused_for_now(session, initialized)) is not None:
                slow.deadline = trio.current_time() + pause + _SLOW
                await trio.sleep(pause)
        finally:
            delivered.set()

    async def _refused_for_now(self, session: Session, initialized: OutboundFrame) -> float | None:
        """Send the notification ``initialized``. If the server or a proxy in front of it is too busy, return the number
        of seconds after which to send the notification again.

        No other message may be sent before. Return `None` if the server has accepted the notification.
        """
        try:
            await self._one_way.send(session, initialized)
        except HTTPError as error:
            session.refusals += 1
            if error.status not in _BUSY or session.refusals > _MOST_REFUSALS or session.over.is_set():
                raise
            asked = min(error.retry_after or 0.0, _LONGEST_PAUSE)
            return max(growing_delay(session.refusals, first=_FIRST_PAUSE), asked)
        return None

    async def _live(self, session: Session, delivered: trio.Event, slow: trio.CancelScope) -> None:
        """Open ``session`` for other messages when ``notifications/initialized`` was delivered, or when its delivery
        takes too long.

        Listen to the server until the session ends, then fail the remaining requests in it.
        """
        with slow:
            await delivered.wait()
        session.opened.set()
        async with trio.open_nursery() as nursery:
            if not session.is_by_sse:
                nursery.start_soon(listen, self._endpoint, session)
            await session.over.wait()
            nursery.cancel_scope.cancel(reason=_FORGOTTEN)
        for posted in self._requests.values():
            if posted.session is session:
                posted.lose(HTTPError(HTTPStatus.NOT_FOUND, _FORGOTTEN, session_lost=True))

    async def aclose(self) -> None:
        """Close all pending requests, and end the session: see `Transport.aclose`. Takes at most half a second."""
        nursery, self._nursery = self._nursery, None
        if nursery is None:
            await trio.lowlevel.checkpoint()
            return
        try:
            for posted in self._requests.values():
                if posted.method != _CANCEL_OF_TASK:
                    posted.close(_OVER)
            with trio.move_on_after(_CLOSE_DEADLINE):
                while self._pending_sends:
                    await self._sends_done.park()
                await self._end_session()
        finally:
            nursery.cancel_scope.cancel(reason=_OVER)

    async def _end_session(self) -> None:
        endpoint = self._endpoint
        session = endpoint.sessions.current
        if session is None or session.id is None or session.over.is_set():
            return
        try:
            async with endpoint.delete(session) as reply:
                logger.debug("the session is ended: HTTP status %d", reply.status)
        except (AuthorizationError, ConnectionLost) as error:
            logger.debug("the session could not be ended: %s", error)


class _HttpOutbox(Outbox):
    """The outbox of a connection over ``transport``. It passes requests and cancellations on as objects, not as encoded
    lines."""

    def __init__(self, high_water: int, transport: HttpTransport, recorded: SendRecorder | None) -> None:
        super().__init__(high_water, transport.send_nowait if recorded is None else recorded.send_nowait)
        self._transport = transport
        self._recorded = recorded

    def put_request(self, request_id: RequestId, method: str, params: Any, owner: Owner | None) -> None:
        message = OutboundFrame.request(request_id, method, params)
        if self._recorded is not None:
            self._recorded.record(message.line)
        if self.over or not self._transport.start_request(message, request_id):
            # Ignore the failure, because the writing task will notice that the transport is closed.
            super().put(message.line + b"\n", owner)

    def put_cancel(self, request_id: RequestId, reason: str | None) -> None:
        if self._recorded is not None:
            self._recorded.record(cancel_line(request_id, reason)[:-1])
        self._transport.leave_request(request_id, reason)

    def withdraw(self, owner: Owner) -> bool:
        if isinstance(owner, Call | DetachedCall) and self._transport.withdraw_request(owner.request.id):
            return True
        return super().withdraw(owner)


CANCEL: Final = "notifications/cancelled"

_PLACES: Final = 32
_CANCEL_TIMEOUT: Final = 5.0
_NOTIFICATION_TIMEOUT: Final = 30.0
_ANSWER_TIMEOUT: Final = 60.0
"""Seconds in which the client must deliver an answer, which may be long."""
_UNTOLD: Final = 60.0
"""Seconds in which the client tries to notify the server that an answer could not be delivered."""


class OneWayPosts:
    """Sends notifications and answers to the server of ``endpoint``, each in a separate POST. They get no reply.

    At most ``max_cancels`` cancellations, 32 answers and 32 notifications are sent concurrently.
    """

    def __init__(self, endpoint: Endpoint, max_cancels: int) -> None:
        self._endpoint = endpoint
        # Each kind of message has its own limit, so that slow requests of one kind don't delay the other kinds.
        self._cancels = _CANCEL_TIMEOUT, trio.Semaphore(max_cancels)
        self._notifications = _NOTIFICATION_TIMEOUT, trio.Semaphore(_PLACES)
        self._answers = _ANSWER_TIMEOUT, trio.Semaphore(_PLACES)

    async def send(self, session: Session | None, message: OutboundFrame) -> None:
        """Send ``message`` in ``session``, and wait until the server has accepted it.

        First wait until fewer messages of the same kind are being sent.

        Raises `HTTPError` if the server refuses, can't be reached, or doesn't answer in time, and `AuthorizationError`.
        The time for getting a token doesn't count.
        """
        lane = self._notifications
        if message.method is None or message.method == CANCEL:
            lane = self._answers if message.method is None else self._cancels
        timeout, places = lane
        async with places:
            with trio.CancelScope() as scope:

                def seen(is_seen: bool) -> None:
                    scope.deadline = trio.current_time() + timeout if is_seen else math.inf

                await self._post(session, message, seen)
            if scope.cancelled_caught:
                raise HTTPError(None, f"the server did not answer within {timeout:g} s")

    async def _post(self, session: Session | None, message: OutboundFrame, seen: Seen) -> None:
        endpoint = self._endpoint
        written = endpoint.headers
        headers = written.in_session(session) if message.version is None else written.of_message(message)
        try:
            async with endpoint.post(message, headers, seen) as reply:
                if is_good(reply):
                    return
                error = await refusal(reply, None)
        except ConnectionLost as lost:
            raise HTTPError(None, lost.reason) from None
        endpoint.loses(session, error)
        raise error

    async def send_failure(
        self, question: SessionQuestion, request_id: RequestId, failure: MCPError
    ) -> MCPError | None:
        """Notify the server that its request ``request_id`` gets no answer. The client could not deliver its answer:
        ``failure`` is the error.

        This sends a small error, repeatedly after growing delays, for up to a minute, as long as the server wants an
        answer. Returns `None`, or why the server could not be notified.
        """
        words = f"Internal error: the client's answer could not be delivered{_status_in(failure)}"
        instead = OutboundFrame(frame_error(request_id, INTERNAL_ERROR, words), request_id, None)
        with trio.move_on_after(_UNTOLD):
            for attempt in count(1):
                if question.is_over:
                    return None
                if isinstance(failure, AuthorizationError):  # the client can't get a token, so don't try again
                    return failure
                try:
                    await self.send(question.session, instead)
                    return None
                except MCPError as error:
                    failure = error.with_traceback(None)
                await trio.sleep(growing_delay(attempt))
        return None if question.is_over else failure


def _status_in(failure: MCPError) -> str:
    status = failure.status if isinstance(failure, HTTPError) else None
    return "" if status is None else f" (HTTP status {status})"
