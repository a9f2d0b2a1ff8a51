"""The messages that a client sends over HTTP: their headers, and the sessions to which they belong.

`OutboundFrame` is a message that the client sends. `RequestHeaders` writes the headers of each request, including those
that the user has passed. `ToolHeaders` stores which arguments of listed tools are repeated in headers. `Sessions` holds
the legacy session of a client, and opens a new one if the server loses it (2025-11-25 transports, Session Management).
`SessionQuestions` are the pending requests of the server in a session.
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
    """A session with a server of a legacy protocol revision. The server has chosen its ``version`` and ``id`` in the
    reply to ``initialize``.

    ``id`` is `None` if the server has no sessions. With ``is_by_sse``, the server uses HTTP+SSE: replies arrive on its
    stream, not in the responses to POSTs.
    """

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
        """The number of messages that the client has received on streams for messages outside of requests."""
        self.refusals = 0
        """The number of times that the server has refused ``notifications/initialized``."""
        self.over = trio.Event()
        """Event that is set when the server has lost the session, or the client is closed."""


class Sessions:
    """Holds the current session with the server. Before a message is sent, `wait_opened` waits for a session.

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
        """The time at which the server agreed to the last session."""
        self._failure: MCPError | None = None
        """The error with which the last attempt to open a session failed. `None` if that attempt succeeded."""
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
        """True if the current session has an open stream for messages of the server that belong to no request."""
        return self.current is not None and self.current.has_stream

    @property
    def has_failed(self) -> bool:
        """True if the last attempt to open a session has failed."""
        return self._failure is not None

    def start(self, session: Session) -> None:
        """Make ``session`` the current session, because the server has agreed to it. It opens for other messages later,
        when ``notifications/initialized`` was delivered or its delivery takes too long."""
        self.current, self._failure, self.is_wanted = session, None, False
        self.started_at = trio.current_time()
        self._messages.unpark_all()

    async def wait_opened(self) -> Session:
        """Wait until a session is open, and return it. If no session can be opened, raise the error of the last
        attempt."""
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

    def lose(self, session: Session, error: MCPError) -> None:
        """Record that the server has lost ``session``. ``error`` is the error that shows the loss. Idempotent.

        After three lost sessions without any reply, the waiting messages fail with ``error``.
        """
        if session.over.is_set():
            return
        session.over.set()
        session.opened.set()
        if session is self.current:
            self.unanswered += 1
            if self.unanswered < _MOST_UNANSWERED:
                self._request_session()
            else:
                self.fail(error)

    def _request_session(self) -> None:
        self.is_wanted = True
        self._opener.unpark_all()

    def report_missed(self) -> None:
        """Record that the client may have missed notifications about changes on the server."""
        self._has_missed = True
        self._opener.unpark_all()

    async def wait_for_trouble(self) -> None:
        """Wait until the client must open a new session, or until the client may have missed notifications about
        changes."""
        while not (self.is_wanted or self._has_missed):
            await self._opener.park()
        self._has_missed = False

    def fail(self, error: MCPError) -> None:
        """Let all messages that wait for a session fail, because no session can be opened now.

        The next message starts another attempt.
        """
        if self.current is not None:
            self.lose(self.current, error)
        self._failure, self.is_wanted = error, False
        self._messages.unpark_all()


@define(eq=False)
class SessionQuestion:
    """A server-to-client request (sampling, elicitation, roots) in ``session``.

    The request was received in the response to the client's request ``call``. If ``call`` is `None`, it was received on
    a stream that doesn't belong to a request.
    """

    session: Session
    call: RequestId | None
    is_withdrawn: bool = False

    @property
    def is_over(self) -> bool:
        """True if the server no longer needs an answer to its request."""
        return self.is_withdrawn or self.session.over.is_set()


class SessionQuestions:
    """The server-to-client requests (sampling, elicitation, roots) for which the client's answer isn't delivered yet.

    Each belongs to one session, because another session may reuse its id.
    """

    def __init__(self) -> None:
        self._questions: dict[RequestId, SessionQuestion] = {}

    def add(self, request_id: RequestId, session: Session, call: RequestId | None) -> None:
        """Store a server-to-client request: see `SessionQuestion`."""
        self.withdraw(request_id)
        self._questions[request_id] = SessionQuestion(session, call)

    def withdraw(self, request_id: RequestId) -> None:
        """Record that the server has cancelled one of its requests to the client."""
        question = self._questions.pop(request_id, None)
        if question is not None:
            question.is_withdrawn = True

    def find(self, request_id: RequestId) -> SessionQuestion | None:
        """Return the server-to-client request with this id, or `None` if it is unknown."""
        return self._questions.get(request_id)

    def remove(self, request_id: RequestId, question: SessionQuestion) -> None:
        """Remove the server-to-client request ``question``. Its answer was delivered, or can't be delivered."""
        if self._questions.get(request_id) is question:
            del self._questions[request_id]

    def remove_session(self, session: Session) -> tuple[RequestId, ...]:
        """Remove all server-to-client requests of ``session``, which has ended, and return their ids."""
        over = tuple(request_id for request_id, question in self._questions.items() if question.session is session)
        for request_id in over:
            del self._questions[request_id]
        return over


_NOTHING: Final[JSONObject] = {}


class _RequestHead(msgspec.Struct, gc=False):
    """The fields that determine the kind of a message. The other fields aren't decoded."""

    id: Any = None
    method: Any = UNSET


read_head: Final = msgspec.json.Decoder(_RequestHead).decode
"""Decodes only the id and the method of a JSON message."""


@value
class OutboundFrame:
    """A message that the client sends. ``line`` is the body of the POST, without the newline."""

    line: bytes
    id: RequestId | None
    method: str | None
    """The method of the message; `None` if the message is a reply."""
    params: JSONObject = _NOTHING
    """The parameters of a request; not needed for other messages."""

    @classmethod
    def request(cls, request_id: RequestId, method: str, params: JSONObject | None = None) -> OutboundFrame:
        """Create the message for a request of the client.

        Raises `NotSerializable` if the parameters can't be encoded as JSON.
        """
        return cls(frame_request(request_id, method, params), request_id, method, params or _NOTHING)

    @classmethod
    def of(cls, line: bytes) -> OutboundFrame:
        """Create the message from ``line``, a notification or a reply that this client has already encoded."""
        # A line that doesn't begin with "{" is a batch of replies (a JSON array), which has no id and no method.
        head = read_head(line) if line.startswith(b"{") else _RequestHead()
        return cls(line, head.id, None if head.method is UNSET else head.method)

    def in_revision(self, version: str) -> OutboundFrame:
        """Return the message with headers for the modern protocol revision ``version``, and with the same body."""
        return OutboundFrame(self.line, self.id, self.method, {"_meta": {PROTOCOL_VERSION: version}})

    @property
    def is_notification(self) -> bool:
        """True if the message is a notification, so that no task waits for its delivery."""
        return self.method is not None and self.id is None

    @property
    def version(self) -> str | None:
        """The protocol revision in the message's ``_meta``, if it is a modern revision. `None` for a message of a
        legacy revision."""
        version = self.params.get("_meta", _NOTHING).get(PROTOCOL_VERSION)
        return None if self.method == "initialize" else version


_POST: Final = [(b"Content-Type", JSON.encode()), (b"Accept", f"{JSON}, {EVENT_STREAM}".encode())]
_USER_AGENT: Final = b"user-agent"
_GET: Final = (b"Accept", EVENT_STREAM.encode())


class RequestHeaders:
    """Creates the HTTP headers of requests to one server.

    These are the headers that the specification requires, and the user's own headers (``given``).

    Raises the errors of `given_headers`.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        headers = given_headers(given)
        self.user_agent = next((text.decode("latin-1") for name, text in headers if name.lower() == _USER_AGENT), None)
        """The ``User-Agent`` that the user has set; `None` if the user hasn't set one."""
        self._given = [header for header in headers if header[0].lower() != _USER_AGENT]

    def of_message(self, message: OutboundFrame) -> Headers:
        """Return the headers for the POST of a request or notification in a modern protocol revision."""
        headers = [*_POST, *self._given]
        if message.version is not None:
            headers.append((b"MCP-Protocol-Version", message.version.encode()))
        if message.method is not None:
            headers.append((b"Mcp-Method", encoded(message.method)))
        name = _name_in(message.method, message.params)
        return headers if name is None else [*headers, (b"Mcp-Name", encoded(name))]

    def in_session(self, session: Session | None) -> Headers:
        """Return the headers for the POST of a message in a legacy protocol revision. Only ``initialize`` has no
        session."""
        return [*_POST, *self._given, *_of_session(session)]

    def of_stream(self, session: Session | None, last_event_id: str) -> Headers:
        """Return the headers for a GET request that opens a stream of the events after ``last_event_id``.

        If ``last_event_id`` is empty, the stream has all future events.
        """
        headers = [_GET, *self._given, *_of_session(session)]
        if last_event_id:
            headers.append((b"Last-Event-ID", last_event_id.encode()))
        return headers

    def of_end(self, session: Session) -> Headers:
        """Return the headers for the DELETE request that ends ``session``."""
        return [*self._given, *_of_session(session)]


def encoded(text: str) -> bytes:
    """Encode ``text``, a value in the message, for an HTTP header that repeats this value."""
    return encoded_name(text).encode("ascii")


def _name_in(method: str | None, params: JSONObject) -> str | None:
    name: Any = params.get(NAMED_BY.get(method or "", ""))
    return str.__str__(name) if isinstance(name, str) else None


def _of_session(session: Session | None) -> Headers:
    # without a session, or over HTTP+SSE, requests have no headers for a session id and a revision
    if session is None or session.is_by_sse:
        return []
    version = (b"MCP-Protocol-Version", session.version.encode("ascii"))
    return [version] if session.id is None else [(b"Mcp-Session-Id", session.id.encode("ascii")), version]


logger = logging.getLogger("trio_mcp")

_MOST_TOOLS: Final = 10_000


class ToolHeaders:
    """The HTTP headers that tool calls must have, keyed by tool. Covers the last 10,000 listed tools."""

    def __init__(self) -> None:
        self._known = BoundedDict[str, tuple[ParamHeader, ...]](_MOST_TOOLS)

    def __contains__(self, tool: str) -> bool:
        return tool in self._known

    def of(self, tool: object) -> tuple[ParamHeader, ...]:
        """Return the headers that calls of ``tool`` must have. Empty if the tool wasn't listed, or has no name."""
        return self._known.get(tool, ()) if isinstance(tool, str) else ()

    def of_call(self, call: OutboundFrame) -> Headers:
        """Return the HTTP headers that repeat arguments of the tool call ``call``.

        An argument that a header can't carry is left out, and the server reports the error.
        """
        table = self.of(call.params.get("name"))
        # Decode the arguments from the encoded line, as the server will do.
        arguments = decode_value(call.line)["params"].get("arguments") if table else None
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
        """Store which HTTP headers the tools in the reply to ``tools/list`` require in their calls.

        Return the reply without the tools that `learn` leaves out.
        """
        result: Any = reply.result
        try:
            good = self.learn(result["tools"])
        except (KeyError, TypeError):
            return reply  # ignore an invalid reply here, because the code that decodes it later reports the error
        return reply if len(good) == len(result["tools"]) else Response(reply.id, {**result, "tools": good})

    def learn(self, tools: Iterable[Any]) -> list[Any]:
        """Store the headers that listed tools require, and return the tools with valid annotations.

        Clients MUST leave out other tools, which can't be called over HTTP (2026-07-28 Streamable HTTP, Schema
        Extension). Raises `KeyError` or `TypeError` if the list is malformed.
        """
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
        """Remove the stored headers of all tools."""
        self._known.clear()
