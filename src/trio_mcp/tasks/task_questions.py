"""TaskQuestions: the questions of a task, which are kept in its record, as are the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..jsonrpc.codec import encode_value
from .core.refusals import answer_of
from .transitions import asked, withdrawn

if TYPE_CHECKING:
    from ..runtime.requests.request_scope import RequestScope
    from ..runtime.requests.rounds import Question
    from .records import Transition

__all__ = ["TaskQuestions"]


class TaskQuestions:
    """The questions of the handler of ``scope``, from `take` on. ``change`` carries out a transition on the record."""

    __slots__ = ("_change", "_scope")

    def __init__(self, scope: RequestScope, change: Callable[[Transition], Awaitable[None]]) -> None:
        self._scope = scope
        self._change = change

    def take(self, known: Mapping[str, Any] | None = None) -> None:
        """Have questions kept in the record from now on. ``known``: the answers of a run before."""
        if known is not None:
            self._scope.replay(self._send, known)
        self._scope.collect_questions(self._send, self._given_up)

    def let_go(self) -> None:
        """Drop the way to the record: the task is over."""
        del self._change

    @property
    def are_open(self) -> bool:
        """True while the handler waits for an answer."""
        return self._scope.rounds is not None and self._scope.rounds.is_waiting

    def deliver(self, answers: Mapping[str, bytes]) -> None:
        """Give the handler the expected ones of ``answers``."""
        rounds = self._scope.rounds
        if rounds is not None:
            rounds.deliver({key: answer_of(text) for key, text in answers.items() if rounds.waits_for(key)})

    def _send(self, questions: Sequence[Question]) -> None:
        nursery = self._scope.abort.nursery
        assert nursery is not None, "who asks has a nursery"
        nursery.start_soon(self._publish, questions)

    async def _publish(self, questions: Sequence[Question]) -> None:
        texts = {
            each.key: encode_value({"method": each.request.method, "params": each.request.params or {}})
            for each in questions
        }
        await self._change(lambda record, now: asked(record, now, texts))
        await self._withdraw([key for key in texts if not self._waits_for(key)])  # those given up meanwhile

    def _waits_for(self, key: str) -> bool:
        return self._scope.rounds is not None and self._scope.rounds.waits_for(key)

    def _given_up(self, key: str) -> None:
        nursery = self._scope.abort.nursery
        if nursery is not None:
            nursery.start_soon(self._withdraw, [key])

    async def _withdraw(self, keys: Sequence[str]) -> None:
        if keys:
            await self._change(lambda record, now: withdrawn(record, now, keys))
