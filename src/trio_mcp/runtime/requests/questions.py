"""Questions of a request to its client, and how they are matched with answers that were given before a restart.

A handler that runs again asks again, and its user shouldn't have to answer twice. But using the answer to a different
question with the same text is worse than asking twice. So an earlier answer is used only if both runs are at the same
point: this run has all answers that the earlier run had when it asked, and has asked no other question. The tasks of a
handler can't be recognized after a restart, so questions that were open together with the same text are asked again.
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
    """A question of a request, until it's answered or abandoned."""

    key: str
    request: InputRequest
    sent: bool = False
    """Whether the client has received the question."""
    answer: JSONObject | None = None
    failure: Exception | None = None
    beside: tuple[Question, ...] | None = None
    """See `AskedBefore.beside`. `None` for a question that isn't kept for a later run."""
    asker: Sleeper = attrs.field(factory=Sleeper)
    """The task that waits for the answer."""

    @property
    def is_open(self) -> bool:
        """True until the question is answered or has failed."""
        return self.answer is None and self.failure is None

    @property
    def is_waiting(self) -> bool:
        """Whether the question still has to be sent."""
        return self.is_open and not self.sent

    def resolve(self, answer: JSONObject) -> None:
        """Set the client's answer."""
        self.answer = answer
        self.asker.wake()

    def fail(self, failure: Exception) -> None:
        """Fail the question, because it can't be asked."""
        self.failure = failure
        self.asker.wake()


_MOST: Final = 4 * 1024 * 1024
"""Maximum bytes of answers that are kept until the task has a record."""


def question_content(key: str) -> str:
    """Return the part of a question's key that identifies its content."""
    return key.rpartition("-")[0]


@frozen
class AskedBefore:
    """A question of an earlier run."""

    key: str
    beside: frozenset[str]
    """Keys of earlier questions that were open at that time, or that another task had asked with the same text."""
    answer: Any = None
    """The answer, or the exception instead. `None` if there is no answer yet, or the question was abandoned."""
    is_open: bool = False
    """Whether the client still has the question."""


class AnswerLog:
    """The questions of one run, in the order of asking, and those of earlier runs from the point where this run starts.

    ``before``: the questions of earlier runs. ``run``: text that distinguishes the keys of this run from those of
    others; empty in the first run.
    """

    __slots__ = ("_askers", "_before", "_doubtful", "_forgotten", "_is_off", "_noted", "_size", "given_up", "run")

    def __init__(self, before: Sequence[AskedBefore] = (), run: str = "") -> None:
        self.run = run
        self._before = {each.key: each for each in before}
        """Questions of the earlier run that this run hasn't reached yet."""
        self._doubtful = frozenset(_in_the_same_words(before))
        self._forgotten: tuple[str, ...] = ()
        self._noted: list[Question] = []
        """Questions of this run since the last `drain`."""
        self._askers: dict[str, tuple[trio.lowlevel.Task, Question]] = {}
        """By text: the latest question with this text, and the task that asked it."""
        self.given_up: tuple[str, ...] = ()
        """Keys of abandoned questions that the record may still contain."""
        self._size = 0
        self._is_off = False

    def note(self, question: Question, others: Sequence[Question]) -> None:
        """Add ``question``, which the current task asks while ``others`` are open."""
        if self._is_off:
            return
        words, task = question_content(question.key), trio.lowlevel.current_task()
        asker, latest = self._askers.get(words, (task, question))
        self._askers[words] = (task, question)
        question.beside = tuple(others)
        if asker is not task and _runs(asker):
            question.beside = (*others, latest)  # two tasks that ask the same question have no fixed order
        self._noted.append(question)

    @property
    def noted(self) -> list[Question]:
        """The questions of this run that were sent, answered or abandoned since the last `drain`."""
        return [each for each in self._noted if each.failure is None and not each.is_waiting]

    def drain(self) -> list[Question]:
        """Return and remove `noted`, which are about to be stored in a record."""
        noted, self._noted = self.noted, [each for each in self._noted if each.is_waiting]
        return noted

    def give_up(self, question: Question) -> None:
        """Mark ``question`` as abandoned: no task waits for its answer any more."""
        self.forget_earlier_run()
        if question.sent:
            self.given_up += (question.key,)

    def count_bytes(self, size: int) -> None:
        """Count ``size`` bytes of answers that arrived before the task has a record."""
        self._size += size
        if self._size > _MOST:
            self.switch_off()

    def switch_off(self) -> None:
        """Stop keeping answers. A log without its beginning can't be used, since it would look like the log of a
        different run."""
        self._is_off = True
        self.forget()

    def forget(self) -> None:
        """Drop all questions asked so far, in this run and before. A later run starts after them."""
        self.forget_earlier_run()
        for question in self._noted:
            question.beside = None
        self._noted = []

    # The run before

    @property
    def has_more(self) -> bool:
        """Whether there are earlier questions that this run can still reach."""
        return bool(self._before)

    def recall(
        self, asked: Sequence[Question], waiting: Sequence[Question], handler: trio.lowlevel.Task
    ) -> Mapping[Question, AskedBefore]:
        """Return the earlier run's counterparts of the questions ``asked``, as far as they were asked at the same point
        and are answered or still open at the client.

        ``asked``: all questions asked at this moment. ``waiting``: all questions without an answer. ``handler``: the
        handler's task, which has started all other tasks.
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
        """Drop the earlier run's questions, because this run differs from here on, or has made a checkpoint."""
        self._forgotten += tuple(self._before)
        self._before = {}

    def take_forgotten(self) -> tuple[str, ...]:
        """Return the keys that were dropped since the last call."""
        forgotten, self._forgotten = self._forgotten, ()
        return forgotten


def _in_the_same_words(questions: Sequence[AskedBefore]) -> Iterator[str]:
    """Return the keys of questions that were open together with another question of the same text."""
    for question in questions:
        for key in question.beside:
            if question_content(key) == question_content(question.key):
                yield from (question.key, key)


def _line_of(question: Question, handler: trio.lowlevel.Task) -> list[trio.lowlevel.Task]:
    """Return the task that asks, and the tasks that started it, except the handler's task."""
    line, task = list[trio.lowlevel.Task](), question.asker.task
    while task is not None and task is not handler and task.parent_nursery is not None:
        line.append(task)
        task = task.parent_nursery.parent_task
    return line


def _is_only_one(line: Sequence[trio.lowlevel.Task], asking: Container[trio.lowlevel.Task]) -> bool:
    """Return whether only the asking task could have asked this question, and no other task of the same function. trio
    starts tasks in any order, so workers that share a queue swap roles from run to run. A task that is ``asking`` has a
    different question."""
    for task in line:
        assert task.parent_nursery is not None, "only the first task of trio has no nursery"
        if any(each.name == task.name and each not in asking for each in task.parent_nursery.child_tasks):
            return False
    return True


def _runs(task: trio.lowlevel.Task) -> bool:
    """Return whether a trio task has not ended yet."""
    return getattr(task.coro, "cr_frame", task) is not None
