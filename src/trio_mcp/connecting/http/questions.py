"""Questions: the requests of the server that wait for an answer of ours."""

from __future__ import annotations

from ...jsonrpc.codec import frame_notification
from ...jsonrpc.messages import RequestId
from .sessions import Session

__all__ = ["Questions"]


class Questions:
    """The requests of the server in flight, each with the session it came in. Answers are for that session alone: in
    the next one the same id may name another request."""

    def __init__(self) -> None:
        self._asked: dict[RequestId, Session] = {}

    def asked(self, request_id: RequestId, session: Session) -> None:
        """Note a request of the server."""
        self._asked[request_id] = session

    def withdrawn(self, request_id: RequestId) -> None:
        """Note that the server wants no answer any more."""
        self._asked.pop(request_id, None)

    def answered(self, request_id: RequestId) -> Session | None:
        """Return the session that the answer to a request is for; `None` where that is not known."""
        return self._asked.pop(request_id, None)

    def forgotten(self, session: Session) -> list[bytes]:
        """Forget the requests of ``session``, which is over, and return a cancel of each, as of the server."""
        over = [request_id for request_id, asked_in in self._asked.items() if asked_in is session]
        for request_id in over:
            del self._asked[request_id]
        params = {"reason": "the server has forgotten the session"}
        return [frame_notification("notifications/cancelled", {"requestId": each, **params}) for each in over]
