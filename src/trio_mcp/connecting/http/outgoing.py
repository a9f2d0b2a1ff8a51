"""The client's outgoing messages over HTTP: their headers and sessions.

OutboundFrame is a message of ours, as far as HTTP needs to know it. RequestHeaders writes the headers of each request,
including those that the user has passed. ToolHeaders knows the arguments of tools that headers mirror, as far as the
tools were listed. Sessions are the legacy session of a client, and the one that follows if the server loses it
(2025-11-25 transports, Session Management). SessionQuestions are the server's requests in a session that wait for an
answer of ours.
"""

from __future__ import annotations

import copy
import logging
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec
import trio
from msgspec import UNSET

from ...classes import define, value
from ...concurrency.bounded import BoundedDict
from ...jsonrpc.codec import decode_value, frame_request
from ...jsonrpc.errors import MCPError
from ...jsonrpc.messages import RequestId, Response
from ...protocol.fields import JSONObject
from ...protocol.meta import PROTOCOL_VERSION
from ...protocol.param_headers import NAMED_BY, ParamHeader, encoded_name, headers_for, param_headers
from ...runtime.transport import HTTPError
from ..credentials import Headers, given_headers
from .responses import EVENT_STREAM, JSON

_MOST_UNANSWERED: Final = 3
_ID: Final = re.compile(r"[\x21-\x7e]+")


class Session:
    """A session of a legacy server: the ``version`` and ``id`` that the server has chosen in response to
    ``initialize``. ``id`` is `None` if the server has no sessions. If ``is_by_sse`` is true, the server uses HTTP+SSE,
    so that replies arrive on the stream, not in the response to the POST."""

    def __init__(self, session_id: str | None, version: str, *, is_by_sse: bool = False) -> None:
        if session_id is not None and not _ID.fullmatch(session_id):
            raise HTTPError(200, "the server assigned a session id with characters other than visible ASCII")
        self.id = session_id
        self.version = version
        self.is_by_sse = is_by_sse
        self.opened = trio.Event()
        """Event that is set when messages may be sent: ``notifications/initialized`` was delivered, or its response is
        slow."""
        self.has_stream = False
        """True once the server has opened a stream for messages outside of requests."""
        self.received_count = 0
        """The number of messages that came on such streams."""
        self.refusals = 0
        """The number of times that the server has refused ``notifications/initialized``."""
        self.over = trio.Event()
        """Event that is set when the server has lost the session, or the client is closed."""


class Sessions:
    """The current session, if there is one. Messages wait in `wait_opened` until the session is open.

    A task waits in `wait_for_trouble`: it opens a new session if one `is_wanted`, and reports changes that were missed.
    """

    def __init__(self) -> None:
        self.current: Session | None = None
        """The last session; `None` before the first session, and in modern revisions."""
        self.modern: str | None = None
        """The modern revision of the server, which has no sessions; `None` for a legacy server."""
        self.unanswered = 0
        """The number of sessions that were lost since the server last answered a request in a session."""
        self.started_at = -math.inf
        """The time at which the last session was agreed with the server."""
        self._failure: MCPError | None = None
        """The error with which the last attempt to open a session failed; `None` if it succeeded."""
        self.is_wanted = False
        """True while the client has to open a new session."""
        self._has_missed = False
        self._opener = trio.lowlevel.ParkingLot()
        self._messages = trio.lowlevel.ParkingLot()

    @property
    def is_by_sse(self) -> bool:
        """True if the server uses HTTP+SSE."""
        return self.current is not None and self.current.is_by_sse

    @property
    def has_stream(self) -> bool:
        """True if the server has opened a stream for messages outside of requests in the last session."""
        return self.current is not None and self.current.has_stream

    @property
    def has_failed(self) -> bool:
        """True from a failed attempt to open a session until the next session begins."""
        return self._failure is not None

    def start(self, session: Session) -> None:
        """Record that the server has agreed to ``session``. The session isn't open yet."""
        self.current, self._failure, self.is_wanted = session, None, False
        self.started_at = trio.current_time()
        self._messages.unpark_all()

    async def wait_opened(self) -> Session:
        """Wait until a session is open, and return it. Raises the error of the last attempt if no session can be
        opened."""
        while True:
            session = self.current
            if session is not None and not session.over.is_set():
                await session.opened.wait()
                if not session.over.is_set():
                    return session
            else:
                if session is not None:
                    self._request_session()
                await self._messages.park()
            if self._failure is not None:
                raise copy.copy(self._failure)

    def lose(self, session: Session, error: MCPError) -> bool:
        """Record that the server has lost ``session``, because of ``error``. Returns whether that wasn't known before.
        After three lost sessions without an answer, the waiting messages fail with the error."""
        if session.over.is_set():
            return False
        session.over.set()
        session.opened.set()
        if session is self.current:
            self.unanswered += 1
            if self.unanswered < _MOST_UNANSWERED:
                self._request_session()
            else:
                self.fail(error)
        return True

    def _request_session(self) -> None:
        self.is_wanted = True
        self._opener.unpark_all()

    def report_missed(self) -> None:
        """Record that the server may have sent changes that the client didn't receive."""
        self._has_missed = True
        self._opener.unpark_all()

    async def wait_for_trouble(self) -> None:
        """Wait until the client needs a new session, or may have missed changes."""
        while not (self.is_wanted or self._has_missed):
            await self._opener.park()
        self._has_missed = False

    def fail(self, error: MCPError) -> None:
        """Fail all messages that wait for a session, since none can be opened at the moment. The next message starts
        another attempt."""
        if self.current is not None:
            self.lose(self.current, error)
        self._failure, self.is_wanted = error, False
        self._messages.unpark_all()


@define(eq=False)
class SessionQuestion:
    """A request of the server (sampling, elicitation, roots) in ``session``. It came in the response to the client's
    request ``call``; `None` if it came on a stream that belongs to no request of the client."""

    session: Session
    call: RequestId | None
    is_withdrawn: bool = False

    @property
    def is_over(self) -> bool:
        """True once the server no longer needs an answer to the request."""
        return self.is_withdrawn or self.session.over.is_set()


class SessionQuestions:
    """The server's requests in flight (sampling, elicitation, roots), until the client's answers are delivered. An
    answer belongs to one session: in the next session, the same id may identify another request."""

    def __init__(self) -> None:
        self._questions: dict[RequestId, SessionQuestion] = {}

    def add(self, request_id: RequestId, session: Session, call: RequestId | None) -> None:
        """Record a request of the server: see `SessionQuestion`."""
        self.withdraw(request_id)
        self._questions[request_id] = SessionQuestion(session, call)

    def withdraw(self, request_id: RequestId) -> None:
        """Record that the server no longer needs an answer to a request."""
        question = self._questions.pop(request_id, None)
        if question is not None:
            question.is_withdrawn = True

    def find(self, request_id: RequestId) -> SessionQuestion | None:
        """Return the request of the server that is being answered; `None` if it is unknown."""
        return self._questions.get(request_id)

    def remove(self, request_id: RequestId, question: SessionQuestion) -> None:
        """Record that the server has received the answer to the request ``question``, or never will receive it."""
        if self._questions.get(request_id) is question:
            del self._questions[request_id]

    def remove_session(self, session: Session) -> tuple[RequestId, ...]:
        """Remove the server's requests in ``session``, which has ended, and return their ids."""
        over = tuple(request_id for request_id, question in self._questions.items() if question.session is session)
        for request_id in over:
            del self._questions[request_id]
        return over


_NOTHING: Final[JSONObject] = {}


class _RequestHead(msgspec.Struct, gc=False):
    """The fields of a message that show what kind it is. All other fields are skipped."""

    id: Any = None
    method: Any = UNSET


read_head: Final = msgspec.json.Decoder(_RequestHead).decode
"""Decodes only the id and the method of a JSON message."""


@value
class OutboundFrame:
    """A message of the client. ``line`` is the body of its POST, without the newline."""

    line: bytes
    id: RequestId | None
    method: str | None
    """The method of the message; `None` if the message is a reply."""
    params: JSONObject = _NOTHING
    """The parameters of a request; not needed for other messages."""

    @classmethod
    def request(cls, request_id: RequestId, method: str, params: JSONObject | None = None) -> OutboundFrame:
        """Return the message for a request of the client. Raises `NotSerializable` if the parameters can't be written
        as JSON."""
        return cls(frame_request(request_id, method, params), request_id, method, params or _NOTHING)

    @classmethod
    def of(cls, line: bytes) -> OutboundFrame:
        """Return the message for a notification or a reply in ``line``, which this client has encoded."""
        head = read_head(line) if line.startswith(b"{") else _RequestHead()  # otherwise the line is replies to a batch
        return cls(line, head.id, None if head.method is UNSET else head.method)

    def in_revision(self, version: str) -> OutboundFrame:
        """Return the same message with this modern revision for its headers. The message itself need not contain the
        revision."""
        return OutboundFrame(self.line, self.id, self.method, {"_meta": {PROTOCOL_VERSION: version}})

    @property
    def is_notification(self) -> bool:
        """True if the message is a notification, whose delivery no task waits for."""
        return self.method is not None and self.id is None

    @property
    def version(self) -> str | None:
        """The modern revision in the ``_meta`` of the message; `None` for legacy messages."""
        version = self.params.get("_meta", _NOTHING).get(PROTOCOL_VERSION)
        return None if self.method == "initialize" else version


_POST: Final = [(b"Content-Type", JSON.encode()), (b"Accept", f"{JSON}, {EVENT_STREAM}".encode())]
_USER_AGENT: Final = b"user-agent"
_GET: Final = (b"Accept", EVENT_STREAM.encode())


class RequestHeaders:
    """Creates the headers of requests to one server: those that the specification requires, and the ``given`` ones of
    the user.

    Raises the errors of `given_headers`.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        headers = given_headers(given)
        self.user_agent = next((text.decode("latin-1") for name, text in headers if name.lower() == _USER_AGENT), None)
        """The ``User-Agent`` that the user has set; `None` if the user hasn't set one."""
        self._given = [header for header in headers if header[0].lower() != _USER_AGENT]

    def of_message(self, message: OutboundFrame) -> Headers:
        """Return the headers for the POST of a modern request or notification."""
        headers = [*_POST, *self._given]
        if message.version is not None:
            headers.append((b"MCP-Protocol-Version", message.version.encode()))
        if message.method is not None:
            headers.append((b"Mcp-Method", encoded(message.method)))
        name = _name_in(message.method, message.params)
        return headers if name is None else [*headers, (b"Mcp-Name", encoded(name))]

    def in_session(self, session: Session | None) -> Headers:
        """Return the headers for the POST of a legacy message. If there is no session, the message is
        ``initialize``."""
        return [*_POST, *self._given, *_of_session(session)]

    def of_stream(self, session: Session | None, last_event_id: str) -> Headers:
        """Return the headers for the GET of a stream with the events after ``last_event_id``, or with all future events
        if that is empty."""
        headers = [_GET, *self._given, *_of_session(session)]
        if last_event_id:
            headers.append((b"Last-Event-ID", last_event_id.encode()))
        return headers

    def of_end(self, session: Session) -> Headers:
        """Return the headers for the DELETE that ends ``session``."""
        return [*self._given, *_of_session(session)]


def encoded(text: str) -> bytes:
    """Return ``text`` in the encoding of headers that repeat values from the message."""
    return encoded_name(text).encode("ascii")


def _name_in(method: str | None, params: JSONObject) -> str | None:
    name: Any = params.get(NAMED_BY.get(method or "", ""))
    return str.__str__(name) if isinstance(name, str) else None


def _of_session(session: Session | None) -> Headers:
    if session is None or session.is_by_sse:  # HTTP+SSE doesn't have these headers
        return []
    version = (b"MCP-Protocol-Version", session.version.encode("ascii"))
    return [version] if session.id is None else [(b"Mcp-Session-Id", session.id.encode("ascii")), version]


logger = logging.getLogger("trio_mcp")

_MOST_TOOLS: Final = 10_000


class ToolHeaders:
    """The headers that tools require in calls, by the names of the tools, for the last 10,000 listed tools."""

    def __init__(self) -> None:
        self._known = BoundedDict[str, tuple[ParamHeader, ...]](_MOST_TOOLS)

    def __contains__(self, tool: str) -> bool:
        return tool in self._known

    def of(self, tool: object) -> tuple[ParamHeader, ...]:
        """Return the headers that ``tool`` requires; empty if the tool wasn't listed, or if it has no name."""
        return self._known.get(tool, ()) if isinstance(tool, str) else ()

    def of_call(self, call: OutboundFrame) -> Headers:
        """Return the headers that repeat arguments of ``call``, a tool call. An argument that isn't possible in a
        header is left out: the server will report the error."""
        table = self.of(call.params.get("name"))
        arguments = decode_value(call.line)["params"].get("arguments") if table else None  # as the server reads them
        if not isinstance(arguments, dict):
            return []
        headers: Headers = []
        for header in table:
            try:
                mirrored = headers_for((header,), cast("JSONObject", arguments))
            except ValueError:
                continue
            headers += [(key.encode("ascii"), text.encode("ascii")) for key, text in mirrored]
        return headers

    def learn_reply(self, reply: Response) -> Response:
        """Read the headers of tools from a reply to ``tools/list``, and return the reply without the tools that `learn`
        leaves out."""
        result: Any = reply.result
        try:
            good = self.learn(result["tools"])
        except (KeyError, TypeError):
            return reply  # the code that reads the reply later reports that it is invalid
        return reply if len(good) == len(result["tools"]) else Response(reply.id, {**result, "tools": good})

    def learn(self, tools: Iterable[Any]) -> list[Any]:
        """Read the headers that listed tools require. Returns the tools with valid annotations: others can't be called
        over HTTP, and MUST be left out by clients (2026-07-28 Streamable HTTP, Schema Extension). Raises `KeyError` or
        `TypeError` if the list is malformed."""
        good: list[Any] = []
        for tool in tools:
            name, table = tool["name"], ()
            try:
                table = param_headers(tool["inputSchema"])
                good.append(tool)
            except ValueError as error:
                logger.warning("the tool %.100r is left out, since it cannot be called over HTTP: %s", name, error)
            self._known[name] = table
        return good

    def forget(self) -> None:
        """Forget the headers of all tools."""
        self._known.clear()
