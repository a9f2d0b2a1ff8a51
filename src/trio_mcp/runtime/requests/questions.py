"""Questions of a request to its client, and which answer, given before a restart, is the answer to one of them.

A handler that runs once more asks again, and no user should have to answer twice. But an answer to another question in
the same words is worse than a second question. So an answer counts only where both runs are at the same point: this run
has all answers that the run before had when the question was asked, and has asked no other question. The tasks of a
handler cannot be recognized after a restart: questions in the same words at the same time are asked anew.
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
    """A question of a request, from the asking until the answer has come or the question is given up."""

    key: str
    request: InputRequest
    sent: bool = False
    """True while the client knows of the question."""
    answer: JSONObject | None = None
    failure: Exception | None = None
    beside: tuple[Question, ...] | None = None
    """See `AskedBefore.beside`; `None` for a question that no other run is to know of."""
    asker: Sleeper = attrs.field(factory=Sleeper)
    """The task that waits for the answer."""

    @property
    def is_open(self) -> bool:
        """True until the answer has come, or the question has failed."""
        return self.answer is None and self.failure is None

    @property
    def is_waiting(self) -> bool:
        """True while the question waits for being sent."""
        return self.is_open and not self.sent

    def resolve(self, answer: JSONObject) -> None:
        """Take the answer of the client."""
        self.answer = answer
        self.asker.wake()

    def fail(self, failure: Exception) -> None:
        """Fail the question, which cannot be asked."""
        self.failure = failure
        self.asker.wake()


_MOST: Final = 4 * 1024 * 1024
"""Bytes of answers that are kept until the task has a record."""


def question_content(key: str) -> str:
    """Return the part of the key of a question that stands for its words."""
    return key.rpartition("-")[0]


@frozen
class AskedBefore:
    """A question of a run before."""

    key: str
    beside: frozenset[str]
    """Keys of earlier questions that were open at that time, or that another task had asked in the same words."""
    answer: Any = None
    """The answer, or the exception instead; `None` where there is none yet, or the question was given up."""
    is_open: bool = False
    """True where the client still has the question."""


class AnswerLog:
    """The questions of one run, and of runs ``before`` from the point on at which this run starts, in the order of
    asking. ``run``: a text that tells the keys of this run from those of others; empty in the first run."""

    __slots__ = ("_askers", "_before", "_doubtful", "_forgotten", "_is_off", "_noted", "_size", "given_up", "run")

    def __init__(self, before: Sequence[AskedBefore] = (), run: str = "") -> None:
        self.run = run
        self._before = {each.key: each for each in before}
        """Questions of the run before that this run has not come to."""
        self._doubtful = frozenset(_in_the_same_words(before))
        self._forgotten: tuple[str, ...] = ()
        self._noted: list[Question] = []
        """Questions of this run, until `drain`."""
        self._askers: dict[str, tuple[trio.lowlevel.Task, Question]] = {}
        """The latest question in the same words, with the task that has asked."""
        self.given_up: tuple[str, ...] = ()
        """Keys of questions that the record may still have, though nobody waits for the answers."""
        self._size = 0
        self._is_off = False

    def note(self, question: Question, others: Sequence[Question]) -> None:
        """Note that ``question`` is asked by the present task, while ``others`` are open."""
        if self._is_off:
            return
        words, task = question_content(question.key), trio.lowlevel.current_task()
        asker, latest = self._askers.get(words, (task, question))
        self._askers[words] = (task, question)
        question.beside = tuple(others)
        if asker is not task and _runs(asker):
            question.beside = (*others, latest)  # two tasks that ask the same have no order
        self._noted.append(question)

    @property
    def noted(self) -> list[Question]:
        """The questions of this run that were sent, answered or given up since the last `drain`."""
        return [each for each in self._noted if each.failure is None and not each.is_waiting]

    def drain(self) -> list[Question]:
        """Return `noted`, which are about to be kept in a record."""
        noted, self._noted = self.noted, [each for each in self._noted if each.is_waiting]
        return noted

    def give_up(self, question: Question) -> None:
        """Note that nobody waits for the answer any more."""
        self.forget_earlier_run()
        if question.sent:
            self.given_up += (question.key,)

    def count_bytes(self, size: int) -> None:
        """Note that ``size`` bytes came with answers, before the task has a record."""
        self._size += size
        if self._size > _MOST:
            self.switch_off()

    def switch_off(self) -> None:
        """Keep no answers: a log without its beginning would be that of another run."""
        self._is_off = True
        self.forget()

    def forget(self) -> None:
        """Forget all that was asked so far, in this run and before: a later run starts behind that."""
        self.forget_earlier_run()
        for question in self._noted:
            question.beside = None
        self._noted = []

    # The run before

    @property
    def has_more(self) -> bool:
        """True while there are questions that this run may come to."""
        return bool(self._before)

    def recall(
        self, asked: Sequence[Question], waiting: Sequence[Question], handler: trio.lowlevel.Task
    ) -> Mapping[Question, AskedBefore]:
        """Return the questions among ``asked``, all questions of this moment, that the run before has asked at the same
        point, and that have an answer, or are open at the client. ``waiting``: all questions without an answer;
        ``handler``: the task of the handler, which has started all other tasks."""
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
        """Forget the run before: this run goes another way from here on, or has made a checkpoint."""
        self._forgotten += tuple(self._before)
        self._before = {}

    def take_forgotten(self) -> tuple[str, ...]:
        """Return the keys that were forgotten since the last time."""
        forgotten, self._forgotten = self._forgotten, ()
        return forgotten


def _in_the_same_words(questions: Sequence[AskedBefore]) -> Iterator[str]:
    """Return the keys of the questions beside which another one was asked in the same words."""
    for question in questions:
        for key in question.beside:
            if question_content(key) == question_content(question.key):
                yield from (question.key, key)


def _line_of(question: Question, handler: trio.lowlevel.Task) -> list[trio.lowlevel.Task]:
    """Return the task that asks, and the tasks that have started it, without that of the handler."""
    line, task = list[trio.lowlevel.Task](), question.asker.task
    while task is not None and task is not handler and task.parent_nursery is not None:
        line.append(task)
        task = task.parent_nursery.parent_task
    return line


def _is_only_one(line: Sequence[trio.lowlevel.Task], asking: Container[trio.lowlevel.Task]) -> bool:
    """Return whether no other task of the same function could ask this question in place of the asking task: trio
    starts tasks in any order, so workers with one queue change places from run to run. A task that is ``asking`` has
    another question."""
    for task in line:
        assert task.parent_nursery is not None, "only the first task of trio has no nursery"
        if any(each.name == task.name and each not in asking for each in task.parent_nursery.child_tasks):
            return False
    return True


def _runs(task: trio.lowlevel.Task) -> bool:
    """Return whether a task of trio's has not ended."""
    return getattr(task.coro, "cr_frame", task) is not None
