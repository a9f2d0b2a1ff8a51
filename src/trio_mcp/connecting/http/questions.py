"""Questions: the requests of the server that wait for an answer of ours."""

from __future__ import annotations

import attrs

from ...jsonrpc.codec import frame_notification
from ...jsonrpc.messages import RequestId
from .sessions import Session


@attrs.define(eq=False)
class Question:
    """A request of the server, which came in ``session``, in the answer to our request ``call``; `None` on a
    stream that belongs to no request of ours."""

    session: Session
    call: RequestId | None
    is_withdrawn: bool = False

    @property
    def is_over(self) -> bool:
        """True once the server wants no answer any more."""
        return self.is_withdrawn or self.session.over.is_set()


class Questions:
    """The requests of the server in flight, until the server has their answers. Answers are for one session alone: in
    the next one the same id may name another request."""

    def __init__(self) -> None:
        self._asked: dict[RequestId, Question] = {}

    def asked(self, request_id: RequestId, session: Session, call: RequestId | None) -> None:
        """Note a request of the server: see `Question`."""
        self.withdrawn(request_id)
        self._asked[request_id] = Question(session, call)

    def withdrawn(self, request_id: RequestId) -> None:
        """Note that the server wants no answer any more."""
        question = self._asked.pop(request_id, None)
        if question is not None:
            question.is_withdrawn = True

    def find(self, request_id: RequestId) -> Question | None:
        """Return the question that is being answered; `None` where that is not known."""
        return self._asked.get(request_id)

    def settled(self, request_id: RequestId, question: Question) -> None:
        """Note that the server has its answer to ``question``, or never will."""
        if self._asked.get(request_id) is question:
            del self._asked[request_id]

    def forgotten(self, session: Session) -> list[bytes]:
        """Forget the requests of ``session``, which is over, and return a cancel of each, as of the server."""
        over = [request_id for request_id, question in self._asked.items() if question.session is session]
        for request_id in over:
            del self._asked[request_id]
        params = {"reason": "the server has forgotten the session"}
        return [frame_notification("notifications/cancelled", {"requestId": each, **params}) for each in over]
