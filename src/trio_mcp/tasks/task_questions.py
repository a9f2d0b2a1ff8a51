"""`TaskQuestions`: stores the input requests of a background task's handler, and the client's responses, in the task
record."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..jsonrpc.codec import encode_value
from ..protocol.types.input_required import InputRequest
from ..runtime.requests.questions import AnswerLog, AskedBefore
from ..runtime.requests.rounds import Rounds, keeps_answers
from .core_questions import decode_answer
from .transitions import EMPTY_LOG, QuestionLog, asked, withdrawn

if TYPE_CHECKING:
    from ..runtime.requests.questions import Question
    from ..stores.task_store import TaskRecord
    from .request_task import RequestTask

_IN_THE_RECORD: Final = InputRequest("roots/list")
"""Placeholder for the text of each input request that is stored in the task record. It saves memory, because ten
thousand tasks may be waiting."""
_RUN: Final = 8
"""Number of characters of a holder token's hash that identify one run of a task."""


def log_before_start(task: RequestTask, limit: int) -> QuestionLog:
    """Return the input requests and responses that were sent before the task had a record, to store them in its record.

    Returns nothing if the responses have more than ``limit`` bytes.
    """
    log = _log_of_run(task)
    if log is None:
        return EMPTY_LOG
    noted = _log_entries(log.noted)
    if sum(map(len, noted.answers.values())) <= limit:
        return noted
    log.switch_off()
    return EMPTY_LOG


def _log_of_run(task: RequestTask) -> AnswerLog | None:
    """Return the log of the input requests and responses of ``task``. If the task record stores no such log, return
    `None`."""
    rounds = task.scope.rounds
    return rounds.log if rounds is not None and keeps_answers(task.scope) else None


class TaskQuestions:
    """Writes the input requests of a task's handler into the task record."""

    __slots__ = ("_task",)

    def __init__(self, task: RequestTask) -> None:
        self._task = task

    def collect(self) -> None:
        """From now on, store the handler's input requests in the task record. Earlier ones that weren't sent yet are
        stored as well."""
        if self._task.scope.rounds is not None:
            self._task.scope.rounds.redirect(self._send, self._given_up)

    def replay(self, record: TaskRecord) -> None:
        """Use the stored responses in ``record`` when the restarted handler makes the same input requests as before.

        Store new input requests as `collect` does.
        """
        self._task.scope.rounds = Rounds(self._task.scope, self._send, None, _log_in(record))
        self.collect()

    def _send(self, questions: Sequence[Question]) -> None:
        nursery = self._task.scope.nursery
        assert nursery is not None, "who asks has a nursery"
        nursery.start_soon(self._publish, questions)

    async def _publish(self, questions: Sequence[Question]) -> None:
        texts = {
            each.key: encode_value({"method": each.request.method, "params": each.request.params or {}})
            for each in questions
        }
        for each in questions:
            each.request = _IN_THE_RECORD
        log = _log_of_run(self._task)
        if log is None:
            await self._task.change(lambda record, now: asked(record, now, texts))
        else:
            # Store all new input requests in one change, so that no request is stored without the earlier ones.
            noted, given_up, forgotten = log.drain(), log.given_up, log.take_forgotten()
            await self._task.change(
                lambda record, now: asked(record, now, texts, _log_entries(noted), given_up, forgotten)
            )
            for question in noted:
                question.beside = ()
        given_up_meanwhile = [each.key for each in questions if each.is_open and not self._task.awaits(each.key)]
        await self._withdraw(given_up_meanwhile)

    def _given_up(self, key: str) -> None:
        nursery = self._task.scope.nursery
        if nursery is not None:
            nursery.start_soon(self._withdraw, [key])

    async def _withdraw(self, keys: Sequence[str]) -> None:
        if keys:
            log = _log_of_run(self._task)
            forgotten = () if log is None else log.take_forgotten()
            await self._task.change(lambda record, now: withdrawn(record, now, keys, forgotten))
            if log is not None:
                log.given_up = tuple(key for key in log.given_up if key not in keys)


def _log_entries(questions: Sequence[Question]) -> QuestionLog:
    """Return the log entries for the handler's input requests ``questions`` in the format of the task record."""
    kept = {each.key: each for each in questions if each.beside is not None}
    return QuestionLog(
        {key: tuple(other.key for other in each.beside or ()) for key, each in kept.items()},
        {key: encode_value(each.answer) for key, each in kept.items() if each.answer is not None},
    )


def _log_in(record: TaskRecord) -> AnswerLog:
    """Return the log of input requests and responses in ``record``, for a handler that is restarted."""
    before = [
        AskedBefore(
            key,
            frozenset(beside),
            decode_answer(record.answers[key]) if key in record.answers else None,
            is_open=key in record.questions,
        )
        for key, beside in record.asked.items()
    ]
    return AnswerLog(before, hashlib.sha256((record.holder or "").encode()).hexdigest()[:_RUN])
