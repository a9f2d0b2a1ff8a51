"""Arrivals: the messages that one answer of the server brings, each looked at before the reader gets the message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET

from ...jsonrpc.codec import decode
from ...jsonrpc.errors import PeerError, UnreadableAnswer
from ...jsonrpc.extent import MOST_LEVELS
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
from ...protocol.fields import JSONObject
from ...runtime.channel import ReplyLost
from ...runtime.http_error import HTTPError
from .endpoint import Endpoint
from .outgoing import Outgoing
from .sessions import Session


class _Head(msgspec.Struct, gc=False):
    """The members that tell messages apart. All else is skipped."""

    id: Any = UNSET
    method: Any = UNSET
    result: msgspec.Raw | msgspec.UnsetType = UNSET
    error: msgspec.Raw | msgspec.UnsetType = UNSET


_read_head: Final = msgspec.json.Decoder(_Head).decode
_LARGE: Final = 64 * 1024
"""Bytes from which the decoder looks for numbers that are slow to read."""
_CANCELLED: Final = "notifications/cancelled"


def arrived(endpoint: Endpoint, line: bytes, request: Outgoing, session: Session | None) -> bool:
    """Hand on a message that the answer to ``request`` has brought. Return whether the message was the reply.

    Raises an `MCPError`, and hands nothing on, for a message that ends the request instead: the reply to another one,
    an error that names no request, and an unreadable message.
    """
    try:
        head = _read_head(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _arrived_oddly(endpoint, line, request, session)
    if head.method is not UNSET:
        if session is not None and (head.id is not UNSET or head.method == _CANCELLED):
            _note_questions(endpoint, (cast("Message", decode(line)),), session, request.id)
        endpoint.inbox.put(line, request.id)
        return False
    is_reply = head.result is not UNSET or head.error is not UNSET
    if is_reply and head.id == request.id and type(head.id) is type(request.id):
        if line.count(b"[") + line.count(b"{") > MOST_LEVELS or len(line) > _LARGE:
            _check_readable(line, request)
        if request.method == "tools/list" and request.version is not None:
            line = endpoint.tools.learn(line)
        endpoint.inbox.put(line, request.id)
        return True
    return _arrived_oddly(endpoint, line, request, session)


def _check_readable(line: bytes, request: Outgoing) -> None:
    """Raise `UnreadableAnswer` for a reply that the reader would refuse: the request is known here."""
    message = decode(line)
    if isinstance(message, Unreadable):
        raise UnreadableAnswer(f"{request.method}: the answer cannot be read: {message.reason}")


def _arrived_oddly(endpoint: Endpoint, line: bytes, request: Outgoing, session: Session | None) -> bool:
    message = decode(line)
    match message:
        case ErrorResponse(id=None):
            raise PeerError(message.code, message.message, message.data)
        case Response() | ErrorResponse():
            raise HTTPError(200, f"the server has answered another request, with id {message.id!r:.100}")
        case Unreadable():
            raise UnreadableAnswer(f"{request.method}: the answer cannot be read: {message.reason}")
        case Batch():  # 2025-03-26 transports: a stream may carry batches of requests, notifications and replies
            ids = [each.id for each in message.members if isinstance(each, Response | ErrorResponse)]
            if any(each != request.id for each in ids):
                raise HTTPError(200, "the server has answered several requests at once")
            _note_questions(endpoint, message.members, session, request.id)
            endpoint.inbox.put(line, request.id)
            if ids and request.id is not None:
                # Where the revision has no batches, the reader makes nothing of the reply.
                batch = UnreadableAnswer(f"{request.method}: the answer is a batch, which the revision has not")
                endpoint.inbox.put(ReplyLost(request.id, batch))
            return bool(ids)
        case _:
            endpoint.inbox.put(line, request.id)
            return False


def arrived_unasked(endpoint: Endpoint, line: bytes, session: Session | None) -> bool:
    """Hand on a message of a stream that belongs to no request. Return false, and drop the message, when it is none
    that such a stream may have (2025-11-25 transports, Listening for Messages from the Server: no replies)."""
    message = decode(line)
    members = message.members if isinstance(message, Batch) else (message,)
    if not all(isinstance(each, Request | Notification) for each in members):
        return False
    _note_questions(endpoint, members, session, None)
    endpoint.inbox.put(line)
    return True


def _note_questions(
    endpoint: Endpoint, members: Iterable[Message | Unreadable], session: Session | None, call: RequestId | None
) -> None:
    """Note which questions the server asks, in the answer to ``call`` if any, and which ones are taken back."""
    if session is None:
        return
    for message in members:
        if isinstance(message, Request):
            endpoint.questions.asked(message.id, session, call)
        elif isinstance(message, Notification) and message.method == _CANCELLED:
            params: Any = message.params
            request_id = cast("JSONObject", params).get("requestId") if isinstance(params, dict) else None
            if is_request_id(request_id):
                endpoint.questions.withdrawn(request_id)
