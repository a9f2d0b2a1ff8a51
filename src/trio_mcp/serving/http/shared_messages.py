"""Messages to a session that are about requests of other replicas: answers and progress, which name the replica, and
cancels, whose requests may run anywhere."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias, cast

import msgspec

from ...concurrency.bounded_dict import BoundedDict
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
from ...state.connection import ConnectionState
from ...stores.letters import LetterRefused, ReplicaDead
from .entrance import invalid, unavailable
from .exchanges import HttpRequest
from .session_facts import MAX_CANCELLED_ID, cancelled
from .shared_facts import ENDED, UNREACHABLE, FactsTooLong, SessionEnded, SessionHost, SharedFacts

logger = logging.getLogger("trio_mcp")

MESSAGE_LETTER: Final = "session.message"
"""Kind of the letters with a message for a request of the replica that reads it."""
UNREADABLE_LETTER: Final = "session.unreadable"
"""Kind of the letters that say that the answer to a request cannot be read."""
_MOST_CAME: Final = 100
_TOO_LATE: Final = "the process that ran the request has ended, and takes no answer any more"

Step: TypeAlias = Callable[[], Awaitable[object]]
"""A function that brings a message to another replica, or reads what others have written. Raises as `Letters.send` and
`SharedFacts.change`."""


def tell_unreadable(host: SessionHost, session_id: str, owner: str, message: Unreadable) -> Awaitable[bytes]:
    """Tell the replica ``owner`` that the answer to a request of its cannot be read. Raises as `Letters.send`."""
    return host.send(owner, UNREADABLE_LETTER, (session_id, message.settles, message.reason))


class MessagesElsewhere:
    """The way to other replicas for messages to the session ``session_id``. ``state`` knows the requests that run
    here."""

    def __init__(self, host: SessionHost, session_id: str, facts: SharedFacts, state: ConnectionState) -> None:
        self._host = host
        self._id = session_id
        self._facts = facts
        self._state = state
        self._came = BoundedDict[int, None](_MOST_CAME)
        """Hashes of the ids of the newest requests that came here."""

    def steps(self, message: Message | Batch, body: bytes) -> tuple[list[Step], Message | Batch | None]:
        """Return the steps to take before the rest of a message is served here, and the rest, if any.

        The id of a request is used once in a session (2025-11-25 basic, Requests). Where a client uses one again, the
        cancels that were kept so far are for the former request: they are read before the later one begins."""
        if not isinstance(message, Batch):
            step = None if isinstance(message, Request) else self.step(message, body)
            steps, rest = ([], message) if step is None else ([step], None)
        else:
            steps, rest = self._parted(message, body)
        members = rest.members if isinstance(rest, Batch) else (rest,)
        came = {hash((type(each.id), each.id)) for each in members if isinstance(each, Request)}
        if not came.isdisjoint(self._came):
            steps.append(self._read)
        for each in came:
            self._came[each] = None
        return steps, rest

    async def _read(self) -> None:
        if not await self._facts.read():
            raise SessionEnded

    def _parted(self, batch: Batch, body: bytes) -> tuple[list[Step], Batch | None]:
        """Return the steps for other replicas, and the rest of the batch, if any."""
        bodies = msgspec.json.decode(body, type=list[msgspec.Raw])
        comes = {(type(member.id), member.id) for member in batch.members if isinstance(member, Request)}
        steps = [
            # A request that comes in the batch runs here, and so does its cancel.
            None if _cancelled_id(member) in comes else self.step(member, bytes(raw))
            for member, raw in zip(batch.members, bodies, strict=True)
        ]
        rest = [member for member, step in zip(batch.members, steps, strict=True) if step is None]
        return [step for step in steps if step is not None], Batch(tuple(rest)) if rest else None

    def step(self, message: Message | Unreadable, body: bytes) -> Step | None:
        """Return the step for other replicas; `None`: there is none."""
        named: object = None
        match message:
            case Response() | ErrorResponse():
                named = message.id
            case Notification("notifications/progress"):
                named = _params(message).get("progressToken")
            case Notification("notifications/cancelled"):
                return self._cancel_elsewhere(_params(message))
            case Unreadable():
                if owner := self._host.owner_of(message.settles):
                    return partial(tell_unreadable, self._host, self._id, owner, message)
            case _:
                pass
        owner = self._host.owner_of(named)
        if not owner:
            return None
        return partial(self._host.send, owner, MESSAGE_LETTER, (self._id, body))

    def _cancel_elsewhere(self, params: dict[str, Any]) -> Step | None:
        """Return the step that tells other replicas of a cancel; `None` for a request that runs here, or has no id."""
        request_id, reason = params.get("requestId"), params.get("reason")
        if not is_request_id(request_id) or self._state.knows(request_id):
            return None
        try:
            if len(encode_value(request_id)) > MAX_CANCELLED_ID:
                return None
        except NotSerializable:
            return None
        told = reason if isinstance(reason, str) else None
        return partial(self._facts.change, cancelled(self._host.new_id(), request_id, told))

    async def carry_out(self, steps: list[Step], posted: HttpRequest) -> bool:
        """Do ``steps`` for the ``posted`` message. Return false where a step fails, and all is answered."""
        response, extra = posted.response, posted.extra
        try:
            for step in steps:
                await step()
        except ReplicaDead:
            response.answer(invalid(HTTPStatus.BAD_REQUEST, _TOO_LATE, extra))
        except LetterRefused as error:
            reason = f"the process that runs the request takes no answer: {error}"
            response.answer(invalid(HTTPStatus.BAD_REQUEST, reason, extra))
        except SessionEnded:
            response.answer(invalid(HTTPStatus.NOT_FOUND, ENDED, extra))
        except ValueError as error:
            response.answer(invalid(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error), extra))
        except (OSError, FactsTooLong) as error:
            logger.debug("a message could not be passed on: %s", error)
            response.answer(unavailable(UNREACHABLE, extra))
        else:
            return True
        return False

    async def try_out(self, step: Step) -> None:
        """Do ``step``, of which nobody waits to be told."""
        try:
            await step()
        except (ReplicaDead, LetterRefused, OSError) as error:
            logger.debug("an answer that cannot be read could not be told of: %s", error)


def _cancelled_id(message: Message | Unreadable) -> tuple[type, RequestId] | None:
    """Return the id that a cancel names, with its type, since 1 and "1" differ; `None` for other messages."""
    if not (isinstance(message, Notification) and message.method == "notifications/cancelled"):
        return None
    named: object = _params(message).get("requestId")
    return (type(named), named) if is_request_id(named) else None


def _params(message: Notification) -> dict[str, Any]:
    params: Any = message.params
    return cast("dict[str, Any]", params) if isinstance(params, dict) else {}
