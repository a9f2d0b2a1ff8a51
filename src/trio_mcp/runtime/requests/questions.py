"""Requests that a handler sends to its client (elicitation, sampling, roots), and stored answers from before a restart.

A handler that runs again asks again, and its user shouldn't have to answer twice. But using the answer to a different
input request with the same text would be worse than asking twice. So an earlier answer is used only if both runs are at
the same point: this run has all answers that the earlier run had when it asked, and has asked no other input request.
The tasks of a handler can't be recognized after a restart, so input requests that were open together with the same text
are asked again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from ...classes import define, frozen
from ...concurrency.wakeups import Sleeper
from ...protocol.fields import JSONObject
from ...protocol.types.input_required import InputRequest


@define(eq=False)
class Question:
    """A request that a handler sends to its client for input: elicitation, sampling or roots.

    The object exists until the request is answered or abandoned.
    """

    key: str
    request: InputRequest
    sent: bool = False
    """True if the input request was sent to the client."""
    answer: JSONObject | None = None
    failure: Exception | None = None
    beside: tuple[Question, ...] | None = None
    """Input requests that were open when this input request was made: see `AskedBefore.beside`. `None` for an input
    request that isn't stored for a later run."""
    asker: Sleeper = attrs.field(factory=Sleeper)
    """The task that waits for the answer."""

    @property
    def is_open(self) -> bool:
        """True until this input request was answered by the client or has failed."""
        return self.answer is None and self.failure is None

    @property
    def is_waiting(self) -> bool:
        """True if this input request hasn't been sent to the client yet."""
        return self.is_open and not self.sent

    def resolve(self, answer: JSONObject) -> None:
        """Set the client's answer to this input request, and wake the task that waits for it."""
        self.answer = answer
        self.asker.wake()

    def fail(self, failure: Exception) -> None:
        """End this input request with an error. The waiting task gets the error instead of an answer."""
        self.failure = failure
        self.asker.wake()


_MOST: Final = 4 * 1024 * 1024
"""Maximum bytes of answers that are kept in memory until the background task has a record."""


def question_content(key: str) -> str:
    """Return the part of ``key``, the key of an input request, that depends only on the content of the input request.

    The rest of the key is a number.
    """
    return key.rpartition("-")[0]


@frozen
class AskedBefore:
    """An input request that the handler made in an earlier run, before the server restarted."""

    key: str
    beside: frozenset[str]
    """Keys of earlier input requests that were open when this input request was made, or that another task had made
    with the same text."""
    answer: Any = None
    """The client's answer, or the exception that the handler got instead. `None` if there is no answer yet, or the
    input request was abandoned."""
    is_open: bool = False
    """True if the client can still answer the input request."""


class AnswerLog:
    """Records the input requests of a handler and their answers, in order.

    After a restart, the handler can then run again without asking the user again.

    ``before``: the input requests of earlier runs. ``run``: text that distinguishes the keys of this run from those of
    others; empty in the first run.
    """

    __slots__ = ("_askers", "_before", "_doubtful", "_forgotten", "_is_off", "_noted", "_size", "given_up", "run")

    def __init__(self, before: Sequence[AskedBefore] = (), run: str = "") -> None:
        self.run = run
        self._before = {each.key: each for each in before}
        """Input requests of the earlier run that this run hasn't repeated yet."""
        self._doubtful = frozenset(_in_the_same_words(before))
        self._forgotten: tuple[str, ...] = ()
        self._noted: list[Question] = []
        """Input requests that this run has made since the last `drain`."""
        self._askers: dict[str, tuple[trio.lowlevel.Task, Question]] = {}
        """The latest input request with each text, and the task that made it, by that text."""
        self.given_up: tuple[str, ...] = ()
        """Keys of abandoned input requests that the stored task record may still contain."""
        self._size = 0
        self._is_off = False

    def note(self, question: Question, others: Sequence[Question]) -> None:
        """Record that the current trio task makes the input request ``question``. ``others`` are the other input
        requests that are still open."""
        if self._is_off:
            return
        words, task = question_content(question.key), trio.lowlevel.current_task()
        asker, latest = self._askers.get(words, (task, question))
        self._askers[words] = (task, question)
        question.beside = tuple(others)
        if asker is not task and _runs(asker):
            # After a restart, two tasks that make equal input requests may make them in the opposite order.
            question.beside = (*others, latest)
        self._noted.append(question)

    @property
    def noted(self) -> list[Question]:
        """Input requests of this run that were sent, answered or abandoned since `drain` was last called."""
        return [each for each in self._noted if each.failure is None and not each.is_waiting]

    def drain(self) -> list[Question]:
        """Return the input requests in `noted`, and empty `noted`.

        The caller is about to store the input requests in a task record.
        """
        noted, self._noted = self.noted, [each for each in self._noted if each.is_waiting]
        return noted

    def give_up(self, question: Question) -> None:
        """Mark the input request ``question`` as abandoned, because no task waits for its answer any more."""
        self.forget_earlier_run()
        if question.sent:
            self.given_up += (question.key,)

    def count_bytes(self, size: int) -> None:
        """Add ``size``, the length of an answer in bytes, to the memory that recorded answers use.

        Answers are recorded until the record of the background task is stored. Above 4 MiB, stop recording.
        """
        self._size += size
        if self._size > _MOST:
            self.switch_off()

    def switch_off(self) -> None:
        """Stop recording input requests and answers, and delete the existing records.

        A log without its beginning can't be used, because it would look like the log of a different run.
        """
        self._is_off = True
        self.forget()

    def forget(self) -> None:
        """Delete the records of all input requests that this handler has made so far.

        If the handler runs again after a restart, stored answers exist only for input requests made after this call.
        """
        self.forget_earlier_run()
        for question in self._noted:
            question.beside = None
        self._noted = []

    # The run before

    @property
    def has_more(self) -> bool:
        """True if an earlier run of the handler made input requests that the current run hasn't made yet."""
        return bool(self._before)

    def recall(
        self, asked: Sequence[Question], waiting: Sequence[Question], handler: trio.lowlevel.Task
    ) -> Mapping[Question, AskedBefore]:
        """Return the records of those input requests in ``asked`` that an earlier run of the handler has already made.

        An input request matches if it is made at the same point of the handler's run, and is answered or still open at
        the client.

        ``asked``: all input requests made at this moment. ``waiting``: all input requests without an answer.
        ``handler``: the handler's task, which has started all other tasks.
        """
        found: dict[Question, AskedBefore] = {}
        lines = {question: _line_of(question, handler) for question in waiting}
        asking = {task for line in lines.values() for task in line}
        for question in asked:
            words, others = question_content(question.key), (*waiting, *(question.beside or ()))
            if question.beside is None or any(
                question_content(each.key) == words for each in others if each is not question
            ):
                continue
            before = next((each for each in self._before.values() if question_content(each.key) == words), None)
            if before is not None and self._is_same_point(before) and _is_only_one(lines[question], asking):
                found[question] = before
        for before in found.values():
            del self._before[before.key]
        return found

    def _is_same_point(self, before: AskedBefore) -> bool:
        if before.key in self._doubtful or (before.answer is None and not before.is_open):
            return False
        for key in self._before:
            if key == before.key:
                return True
            if key not in before.beside:
                return False
        return True

    def forget_earlier_run(self) -> None:
        """Delete the records of the input requests that the handler made in its earlier run, before the server
        restarted.

        The current run makes different input requests, or the handler has saved a checkpoint.
        """
        self._forgotten += tuple(self._before)
        self._before = {}

    def take_forgotten(self) -> tuple[str, ...]:
        """Return the keys of the input requests whose records were deleted since the last call of this method."""
        forgotten, self._forgotten = self._forgotten, ()
        return forgotten


def _in_the_same_words(questions: Sequence[AskedBefore]) -> Iterator[str]:
    """Yield the keys of those input requests in ``questions`` that could be confused with another one: both had the
    same content, and were open at the same time."""
    for question in questions:
        for key in question.beside:
            if question_content(key) == question_content(question.key):
                yield from (question.key, key)


def _line_of(question: Question, handler: trio.lowlevel.Task) -> list[trio.lowlevel.Task]:
    """Return the task that made the input request ``question``, and the ancestors of this task up to the handler's
    task.

    The handler's task isn't included.
    """
    line, task = list[trio.lowlevel.Task](), question.asker.task
    while task is not None and task is not handler and task.parent_nursery is not None:
        line.append(task)
        task = task.parent_nursery.parent_task
    return line


def _is_only_one(line: Sequence[trio.lowlevel.Task], asking: Container[trio.lowlevel.Task]) -> bool:
    """Return true if only one running task can have made this input request, because no other task runs the same
    function.

    trio starts tasks in any order, so in the next run, workers that share a queue may swap roles. Tasks that are
    ``asking`` wait for different input requests.
    """
    for task in line:
        assert task.parent_nursery is not None, "only the first task of trio has no nursery"
        if any(each.name == task.name and each not in asking for each in task.parent_nursery.child_tasks):
            return False
    return True


def _runs(task: trio.lowlevel.Task) -> bool:
    """Return true if the trio ``task`` has not ended yet."""
    return getattr(task.coro, "cr_frame", task) is not None
