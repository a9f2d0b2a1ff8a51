"""Endpoint: the URL of one server, and the state that all requests to that server share.

`authorized` sends a request with a token, and again with a better one. `deliver_frame` decodes each message in a
response once, and puts it into the Inbox, where messages wait until the reader fetches them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum, auto
from http import HTTPStatus
from itertools import count
from typing import Final, TypeAlias

import attrs
import msgspec
import trio
from msgspec import UNSET

from ...auth.credentials import Credentials, RefusedRequest
from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.wakeups import Sleeper
from ...jsonrpc.codec import decode
from ...jsonrpc.errors import PeerError, UnreadableAnswer
from ...jsonrpc.messages import (
    Batch,
    ErrorResponse,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    Unreadable,
    is_request_id,
)
from ...protocol.fields import as_object
from ...runtime.limits import Limits
from ...runtime.outbound import quoted
from ...runtime.transport import ConnectionLost, Frame, HTTPError, QuestionsLost, ReplyLost
from ...transports.http_client.client import HttpClient
from ...transports.http_client.connection import Reply
from ...transports.sse import EventReader
from ..credentials import Headers, is_challenge
from .outgoing import OutboundFrame, RequestHeaders, Session, SessionQuestions, Sessions, ToolHeaders, read_head
from .responses import StatusPeerError, is_about_session

Seen: TypeAlias = Callable[[bool], None]
"""A callback that gets true before the server may receive a message, and false if the server has refused the message
because of missing authorization."""

_YOUNG: Final = 60.0
_CURSOR: Final = re.compile(r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,4094}[^\x00-\x20\x7f])?")


@frozen(eq=False)
class Endpoint:
    """The URL of one server, with the HTTP client and the state that all requests to this server share.

    With ``credentials``, each request is sent with a token: see `authorized`.
    """

    http: HttpClient
    headers: RequestHeaders
    inbox: Inbox
    limits: Limits
    credentials: Credentials | None = None
    sessions: Sessions = attrs.field(factory=Sessions)
    questions: SessionQuestions = attrs.field(factory=SessionQuestions)
    tools: ToolHeaders = attrs.field(factory=ToolHeaders)

    def post(
        self, message: OutboundFrame, headers: Headers, seen: Seen | None = None, *, sign_in: MaySignIn | None = None
    ) -> AbstractAsyncContextManager[Reply]:
        """Send ``message`` in a POST, and yield the response when its head has arrived: see `HttpClient.request`.

        ``sign_in`` says whether the client may prompt the user to sign in. The default depends on the kind of message.
        """
        return self._exchange("POST", headers, message.line, seen, sign_in=sign_in or _sign_in_for(message))

    def get(
        self, session: Session | None, last_event_id: str, sign_in: MaySignIn
    ) -> AbstractAsyncContextManager[Reply]:
        """Send a GET request for a stream of events, and yield the response.

        The stream has the events after ``last_event_id``, or all future events.
        """
        return self._exchange("GET", self.headers.of_stream(session, last_event_id), sign_in=sign_in)

    def delete(self, session: Session) -> AbstractAsyncContextManager[Reply]:
        """Send a DELETE request to end ``session``."""
        return self._exchange("DELETE", self.headers.of_end(session), sign_in=MaySignIn.NEVER)

    def _exchange(
        self, method: str, headers: Headers, body: bytes = b"", seen: Seen | None = None, *, sign_in: MaySignIn
    ) -> AbstractAsyncContextManager[Reply]:
        if self.credentials is not None:
            return authorized(self.http, self.credentials, method, headers, body, seen, sign_in)
        if seen is not None:
            seen(True)
        return self.http.request(method, self.http.target, headers, body)

    def event_reader(self) -> EventReader:
        """Return a parser for the events of a new stream."""
        return EventReader(self.limits.max_message_bytes)

    def frame(self, data: bytes, came_with: RequestId | None = None) -> Frame:
        """Decode the message in ``data``. If the message came in the response to a request, ``came_with`` is the id of
        this request."""
        return Frame(decode(data, max_batch=self.limits.max_batch), data, came_with)

    def loses(self, session: Session | None, error: HTTPError | StatusPeerError) -> bool:
        """Return whether ``error`` means that the server no longer knows ``session``.

        If so, mark the session as ended. The client then no longer tries to deliver answers in this session.

        404 always means that (2025-11-25 transports, Session Management 4). Other refusals mean it once: if they soon
        occur again in the next session, before any answer, they have another cause.
        """
        if session is None or session.id is None or not is_about_session(error):
            return False
        if session.over.is_set():
            return True
        is_young = trio.current_time() - self.sessions.started_at < _YOUNG
        if error.status != HTTPStatus.NOT_FOUND and self.sessions.unanswered and is_young:
            return False
        self.sessions.lose(session, error)
        self.inbox.put(QuestionsLost(self.questions.remove_session(session), "the server has lost the session"))
        return True


def _sign_in_for(message: OutboundFrame) -> MaySignIn:
    if message.method in ("subscriptions/listen", "notifications/initialized"):
        return MaySignIn.FIRST_TIME
    return MaySignIn.NEVER if message.is_notification else MaySignIn.ALWAYS


def cursor_of(events: EventReader) -> str:
    """Return the event id with which a stream can be resumed.

    Return an empty string if the server has sent no id, or an id that a header can't contain.
    """
    cursor = events.last_event_id
    return cursor if _CURSOR.fullmatch(cursor) else ""


class MaySignIn(Enum):
    """Whether the client may prompt the user to sign in after the server has refused a request."""

    ALWAYS = auto()
    NEVER = auto()
    FIRST_TIME = auto()
    """The client may prompt the user to sign in for the first time, but not again. This is for streams, which the
    client reopens automatically."""


@asynccontextmanager
async def authorized(
    http: HttpClient,
    credentials: Credentials,
    method: str,
    headers: Headers,
    body: bytes,
    seen: Callable[[bool], None] | None,
    sign_in: MaySignIn,
) -> AsyncGenerator[Reply]:
    """Send a request with ``credentials``, and yield the response when its head has arrived.

    If the server refuses the request because of its credentials, and better ones are available, the same request is
    sent again. A refused request wasn't executed. Raises the errors of `HttpClient.request`, and `AuthorizationError`.
    ``seen``: see `Endpoint.post`; ``sign_in`` says whether the user may be asked to sign in.
    """
    begun = trio.current_time()
    for attempt in count(1):
        sent = await credentials.headers(method)
        if seen is not None:
            seen(True)
        async with http.request(method, http.target, [*headers, *sent], body) as reply:
            credentials.noticed(reply.headers)
            # Don't get new credentials just to end a session.
            if method == "DELETE" or not is_challenge(reply.status, reply.headers):
                yield reply
                return
        if seen is not None:
            seen(False)
        challenges = reply.headers.get("www-authenticate", "")
        is_background = sign_in is MaySignIn.NEVER or (sign_in is MaySignIn.FIRST_TIME and bool(sent))
        await credentials.refused(RefusedRequest(reply.status, challenges, sent, attempt, begun, is_background))


_MOST_OWED: Final = 1000


class Inbox:
    """A queue of the messages that have arrived from the server.

    It also contains reports of replies and server-to-client requests that were lost.

    A response is read further only after `wait_for_room`. So once ``high_water`` bytes are waiting, or a thousand
    answers that the server doesn't accept, each response adds no more than was read at once.
    """

    def __init__(self, high_water: int) -> None:
        self._high_water = high_water
        self._waiting: deque[Frame | ReplyLost | QuestionsLost] = deque()
        self._size = 0
        self._owed = 0
        """The number of the client's answers that are being sent to the server."""
        self._reader = Sleeper()
        self._producers = trio.lowlevel.ParkingLot()
        self._lost: str | None = None
        """The reason why no more messages will arrive; `None` as long as more may arrive."""

    def close(self, reason: str) -> None:
        """Record that no more messages will arrive. ``reason`` explains why."""
        self._lost = reason
        self._reader.wake()

    def put(self, arrival: Frame | ReplyLost | QuestionsLost) -> None:
        """Append a received message, or the report of a lost message, to the queue."""
        self._waiting.append(arrival)
        if isinstance(arrival, Frame):
            self._size += len(arrival.data)
        self._reader.wake()

    @property
    def _is_full(self) -> bool:
        return self._size >= self._high_water or self._owed >= _MOST_OWED

    async def wait_for_room(self) -> None:
        """Wait until the queue has room for more messages.

        It has room if it has fewer bytes than the high-water mark, and if fewer than a thousand answers are being sent.

        If that is so already, return without a checkpoint.
        """
        while self._is_full:
            await self._producers.park()

    def add_owed(self) -> None:
        """Count one more answer that the client is sending to the server."""
        self._owed += 1

    def remove_owed(self) -> None:
        """Count one answer less, because an answer was delivered to the server, or can't be delivered."""
        self._owed -= 1
        self._make_room()

    def _make_room(self) -> None:
        if self._producers and not self._is_full:
            self._producers.unpark_all()

    async def receive(self) -> Frame | ReplyLost | QuestionsLost:
        """Wait for the next message, or the report of a lost message, and return it.

        Not a checkpoint if the queue isn't empty. A cancellation loses no message. Raises `ConnectionLost` if no more
        messages will arrive.
        """
        while not self._waiting:
            if self._lost is not None:
                raise ConnectionLost(self._lost)
            await self._reader.sleep()
        arrival = self._waiting.popleft()
        if isinstance(arrival, Frame):
            self._size -= len(arrival.data)
            self._make_room()
        return arrival


_CANCELLED: Final = "notifications/cancelled"


def deliver_frame(endpoint: Endpoint, frame: Frame, request: OutboundFrame, session: Session | None) -> bool:
    """Put ``frame``, a message in the response to ``request``, into the inbox. Return whether the message is the
    reply to ``request``.

    Raises an `MCPError`, and delivers nothing, for a message that ends the request instead: the reply to another
    request, an error that names no request, and an unreadable message.
    """
    message = frame.message
    match message:
        case Response() | ErrorResponse() if message.id == request.id and type(message.id) is type(request.id):
            if request.method == "tools/list" and request.version is not None and isinstance(message, Response):
                frame = Frame(endpoint.tools.learn_reply(message), frame.data, request.id)
            endpoint.inbox.put(frame)
            return True
        case Request() | Notification():
            _record_questions(endpoint, (message,), session, request.id)
        case ErrorResponse(id=None):
            raise PeerError(message.code, message.message, message.data)
        case Response() | ErrorResponse():
            raise HTTPError(200, f"the response contains the reply to another request, with id {message.id!r:.100}")
        case Unreadable():
            if not _has_method(frame.data):
                shown = f"{message.reason}: {quoted(frame.data)}"
                raise UnreadableAnswer(f"{request.method}: the answer cannot be read: {shown}")
        case Batch():  # 2025-03-26 transports: a stream may contain batches of requests, notifications and replies
            ids = [each.id for each in message.members if isinstance(each, Response | ErrorResponse)]
            if any(each != request.id for each in ids):
                raise HTTPError(200, "the response contains replies to several requests")
            _record_questions(endpoint, message.members, session, request.id)
            endpoint.inbox.put(frame)
            return bool(ids)
    endpoint.inbox.put(frame)
    return False


def _has_method(data: bytes) -> bool:
    """Return whether ``data``, a message that can't be decoded, has a method. Such a message can't be the reply that a
    call of the client waits for."""
    try:
        return read_head(data).method is not UNSET
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def deliver_unrequested(endpoint: Endpoint, data: bytes, session: Session | None) -> bool:
    """Put the message ``data``, which the server has sent on a stream for messages outside of requests, into the inbox.

    Return false, and ignore the message, if it is a reply (2025-11-25 transports, Listening for Messages from the
    Server).
    """
    frame = endpoint.frame(data)
    message = frame.message
    members = message.members if isinstance(message, Batch) else (message,)
    if not all(isinstance(each, Request | Notification) for each in members):
        return False
    _record_questions(endpoint, members, session, None)
    endpoint.inbox.put(frame)
    return True


def _record_questions(
    endpoint: Endpoint, members: Iterable[Message | Unreadable], session: Session | None, call: RequestId | None
) -> None:
    """Record the server's requests to the client that ``members`` contains, and the cancellations of earlier requests.

    These are requests for sampling, elicitation and roots.

    ``call`` is the client's request in whose response they were received, if any.
    """
    if session is None:
        return
    for message in members:
        if isinstance(message, Request):
            endpoint.questions.add(message.id, session, call)
        elif isinstance(message, Notification) and message.method == _CANCELLED:
            request_id: object = as_object(message.params).get("requestId")
            if is_request_id(request_id):
                endpoint.questions.withdraw(request_id)
