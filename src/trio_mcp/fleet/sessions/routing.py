"""SessionRouter: forwards a client's message, which may arrive at any replica, to the replica that the message
concerns.

Answers and progress name the replica that sent the request. A cancel is stored for all replicas, because its request
can run on any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec

from ...concurrency.bounded import BoundedDict
from ...jsonrpc.codec import encode_value
from ...jsonrpc.errors import NotSerializable
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
from ...serving.http.exchanges import HttpRequest
from ...serving.http.responses import invalid
from ...state.connection import ConnectionState
from ..messenger import MessageRefused, ReplicaDead, logged_failure
from .shared_state import SessionEnded, SessionServices, SharedSessionState, session_ended, unreachable
from .state import MAX_CANCELLED_ID, SessionStateTooLong, add_cancel

logger = logging.getLogger("trio_mcp")

FORWARDED_MESSAGE: Final = "session.message"
"""The kind of messages that forward a client's message to the replica that the message concerns."""
UNREADABLE_MESSAGE: Final = "session.unreadable"
"""The kind of messages that report that the client's response to a request can't be read."""
_RECEIVED_IDS_LIMIT: Final = 100
_TOO_LATE_TEXT: Final = "the process that ran the request has ended, and cannot receive the answer"

Delivery: TypeAlias = Callable[[], Awaitable[object]]
"""A function that forwards a message to another replica, or reads the state that others have written.

Raises the errors of `Messenger.send` and `SharedSessionState.change`.
"""


def forward_unreadable(services: SessionServices, session_id: str, owner: str, message: Unreadable) -> Awaitable[bytes]:
    """Notify the replica ``owner`` that the client's response to a request from ``owner`` can't be read. Raises the
    same errors as `Messenger.send`."""
    return services.send(owner, UNREADABLE_MESSAGE, (session_id, message.settles, message.reason))


class SessionRouter:
    """Forwards a client's messages, such as cancellations, to the replicas that run the requests to which these
    messages refer.

    ``state`` has the requests that run on this replica.
    """

    def __init__(self, services: SessionServices, session_state: SharedSessionState, state: ConnectionState) -> None:
        self._services = services
        self._session_state = session_state
        self._state = state
        self._received_ids = BoundedDict[int, None](_RECEIVED_IDS_LIMIT)
        """Hashes of the ids of the latest requests that arrived at this replica."""

    def route(self, message: Message | Batch, body: bytes) -> tuple[list[Delivery], Message | Batch | None]:
        """Find out which replicas must handle a client's message, and how to deliver it to them.

        Returns functions that deliver parts of the message to other replicas, and the rest of the message, which this
        replica must handle afterwards (`None` if nothing is left).

        A client must use a request id only once in a session (2025-11-25 basic, Requests). If it reuses one, the stored
        cancels belong to the earlier request, so they are read before the later request begins.
        """
        if not isinstance(message, Batch):
            step = None if isinstance(message, Request) else self.delivery_for(message, body)
            steps, rest = ([], message) if step is None else ([step], None)
        else:
            steps, rest = self._route_batch(message, body)
        members = rest.members if isinstance(rest, Batch) else (rest,)
        came = {hash((type(each.id), each.id)) for each in members if isinstance(each, Request)}
        if not came.isdisjoint(self._received_ids):
            steps.append(self._read)
        for each in came:
            self._received_ids[each] = None
        return steps, rest

    async def _read(self) -> None:
        if not await self._session_state.read():
            raise SessionEnded

    def _route_batch(self, batch: Batch, body: bytes) -> tuple[list[Delivery], Batch | None]:
        """Divide a batch between replicas. Return the functions that forward messages to other replicas, and a batch
        of the messages that this replica must handle."""
        bodies = msgspec.json.decode(body, type=list[msgspec.Raw])
        comes = {(type(member.id), member.id) for member in batch.members if isinstance(member, Request)}
        steps = [
            # If a batch contains a request and its cancellation, this replica handles both.
            None if _cancelled_id(member) in comes else self.delivery_for(member, bytes(raw))
            for member, raw in zip(batch.members, bodies, strict=True)
        ]
        rest = [member for member, step in zip(batch.members, steps, strict=True) if step is None]
        return [step for step in steps if step is not None], Batch(tuple(rest)) if rest else None

    def delivery_for(self, message: Message | Unreadable, body: bytes) -> Delivery | None:
        """Return a function that forwards a client's message to the replica that must handle it. Return `None` if this
        replica must handle it."""
        named: object = None
        match message:
            case Response() | ErrorResponse():
                named = message.id
            case Notification("notifications/progress"):
                named = as_object(message.params).get("progressToken")
            case Notification("notifications/cancelled"):
                return self._cancel_delivery(as_object(message.params))
            case Unreadable():
                if owner := self._services.owning_replica(message.settles):
                    return partial(forward_unreadable, self._services, self._session_state.id, owner, message)
            case _:
                pass
        owner = self._services.owning_replica(named)
        if not owner:
            return None
        return partial(self._services.send, owner, FORWARDED_MESSAGE, (self._session_state.id, body))

    def _cancel_delivery(self, params: dict[str, Any]) -> Delivery | None:
        """Return a function that stores a client's cancellation of a request in the session state, so that every
        replica sees it.

        Returns `None` if the cancelled request runs on this replica, or has no valid id.
        """
        request_id, reason = params.get("requestId"), params.get("reason")
        if not is_request_id(request_id) or self._state.knows(request_id):
            return None
        try:
            if len(encode_value(request_id)) > MAX_CANCELLED_ID:
                return None
        except NotSerializable:
            return None
        told = reason if isinstance(reason, str) else None
        return partial(self._session_state.change, add_cancel(self._services.new_id(), request_id, told))

    async def deliver_all(self, deliveries: list[Delivery], posted: HttpRequest) -> bool:
        """Forward a client's message to other replicas, by awaiting the functions ``deliveries``.

        If a delivery fails, send an error response to the POST ``posted`` and return false.
        """
        response, extra = posted.response, posted.extra
        try:
            for step in deliveries:
                await step()
        except ReplicaDead:
            response.answer(invalid(HTTPStatus.BAD_REQUEST, _TOO_LATE_TEXT, extra))
        except MessageRefused as error:
            reason = f"the process that runs the request refused the answer: {error}"
            response.answer(invalid(HTTPStatus.BAD_REQUEST, reason, extra))
        except SessionEnded:
            response.answer(session_ended(extra))
        except ValueError as error:
            response.answer(invalid(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error), extra))
        except (OSError, SessionStateTooLong) as error:
            logger.debug("could not forward a message: %s", error)
            response.answer(unreachable(extra))
        else:
            return True
        return False

    async def deliver_or_log(self, delivery: Delivery) -> None:
        """Deliver a message to another replica. If the delivery fails, log the error instead of raising it."""
        with logged_failure("could not report an unreadable answer"):
            await delivery()


def _cancelled_id(message: Message | Unreadable) -> tuple[type, RequestId] | None:
    """Return the type and the value of the request id in a cancellation, because the ids 1 and "1" differ. Return
    `None` for other messages."""
    if not (isinstance(message, Notification) and message.method == "notifications/cancelled"):
        return None
    named: object = as_object(message.params).get("requestId")
    return (type(named), named) if is_request_id(named) else None
