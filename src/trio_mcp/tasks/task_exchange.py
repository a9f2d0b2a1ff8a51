"""The exchange, the questions and the host of a request that has become a task, in place of its connection.

The lines of the request go to the `TaskExchange`, and its reply is kept as the outcome. `TaskQuestions` are kept in the
record of the task, as are the answers. `HostOfTasks` is the host of tasks, as a task sees the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeVar

from ..jsonrpc.codec import encode_value
from ..protocol.types.input_required import InputRequest
from ..runtime.exchange import Exchange, Held
from ..runtime.outbox import Outbox, Owner
from ..runtime.requests.questions import AnswerLog, AskedBefore
from .core_questions import answer_of
from .transitions import NO_LOG, Log, asked, withdrawn

if TYPE_CHECKING:
    import trio

    from ..runtime.peer import Peer
    from ..runtime.requests.questions import Question
    from ..runtime.requests.scope import RequestScope
    from ..state.connection import ConnectionState
    from ..state.requests import InboundRequest
    from ..stores.task_store import TaskRecord
    from .core_questions import CoreQuestions
    from .records import Transition
    from .settings import TaskSettings


class KeptTask(Protocol):
    """A task whose outcome is kept: a `RequestTask`."""

    async def keep(self, line: bytes | None) -> None:
        """Keep the reply, or note that there is none."""
        ...

    def is_over(self) -> None:
        """Note that the handler has ended, with all child tasks."""
        ...


class TaskExchange(Exchange):
    """The exchange of one task, which is on no connection: nothing but a cancel or the end of the server ends the task,
    and its reply is kept. Notifications go to ``outbox``, and name ``related_task``."""

    __slots__ = ("_held_task", "_related_task", "_task")

    keeps_outcomes: ClassVar[bool] = True

    def __init__(
        self,
        state: ConnectionState,
        outbox: Outbox,
        peer: Peer,
        ending: trio.Event,
        related_task: str | None = None,
    ) -> None:
        # Nothing of an exchange that holds many requests is needed here: there may be ten thousand tasks.
        self.state = state
        self.outbox = outbox
        self.peer = peer
        self.ending = ending
        self._task: KeptTask | None = None
        self._held_task: Held | None = None
        self._related_task = related_task

    @property
    def related_task(self) -> str | None:
        return self._related_task

    def belong_to(self, task: KeptTask) -> None:
        """Have ``task`` keep the reply, and learn of the end."""
        self._task = task

    def hold(self, request: InboundRequest, held: Held) -> None:
        self._held_task = held

    def release(self, request: InboundRequest) -> None:
        if self._held_task is not None:
            task, self._task, self._held_task = self._task, None, None
            assert task is not None, "it was told before the handler ran"
            task.is_over()

    def find(self, request: InboundRequest) -> Held | None:
        return self._held_task

    async def keep(self, request: InboundRequest, line: bytes | None) -> None:
        assert self._task is not None, "it was told before the handler ran"
        await self._task.keep(line)

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Do nothing: the outcome is kept."""


_IN_THE_RECORD: Final = InputRequest("roots/list")
"""Stands for the words of all questions that are kept: ten thousand tasks may wait."""
_RUN: Final = 8
"""Characters that tell the runs of a task from each other, since each claim has a token of its own."""


class TaskQuestions:
    """The questions of the handler of ``scope``, from `take` on. ``change`` carries out a transition on the record."""

    __slots__ = ("_change", "_scope")

    def __init__(self, scope: RequestScope, change: Callable[[Transition], Awaitable[None]]) -> None:
        self._scope = scope
        self._change = change

    def take(self) -> None:
        """Have questions kept in the record from now on."""
        self._scope.collect_questions(self._send, self._given_up)

    def take_again(self, record: TaskRecord) -> None:
        """Have questions kept in the ``record`` of a run before, which has answers to the same questions."""
        self._scope.replay(self._send, None, _log_in(record))
        self.take()

    def before_start(self, most: int) -> Log:
        """Return the questions and answers so far, for the record that is about to be made. None are kept if the
        answers have more than ``most`` bytes."""
        log = self._log
        if log is None:
            return NO_LOG
        kept = _log_of(log.noted)
        if sum(map(len, kept.answers.values())) <= most:
            return kept
        log.switch_off()
        return NO_LOG

    def let_go(self) -> None:
        """Drop the way to the record: the task is over."""
        del self._change

    def deliver(self, answers: Mapping[str, bytes]) -> None:
        """Give the handler the expected ones of ``answers``."""
        rounds = self._scope.rounds
        if rounds is not None:
            rounds.deliver({key: answer_of(text) for key, text in answers.items() if rounds.waits_for(key)})

    def forget(self) -> None:
        """Keep nothing that was asked so far for a further run, which starts from a checkpoint."""
        if self._scope.rounds is not None:
            self._scope.rounds.forget()

    def awaits(self, key: str) -> bool:
        """Return whether the handler waits for the answer to the question ``key``."""
        return self._scope.rounds is not None and self._scope.rounds.waits_for(key)

    def _send(self, questions: Sequence[Question]) -> None:
        nursery = self._scope.abort.nursery
        assert nursery is not None, "who asks has a nursery"
        nursery.start_soon(self._publish, questions)

    async def _publish(self, questions: Sequence[Question]) -> None:
        texts = {
            each.key: encode_value({"method": each.request.method, "params": each.request.params or {}})
            for each in questions
        }
        for each in questions:
            each.request = _IN_THE_RECORD
        log = self._log
        if log is None:
            await self._change(lambda record, now: asked(record, now, texts))
        else:
            # All in one write: a later question is not kept without its past.
            noted, given_up, forgotten = log.take(), log.given_up, log.take_forgotten()
            await self._change(lambda record, now: asked(record, now, texts, _log_of(noted), given_up, forgotten))
            for question in noted:
                question.beside = ()
        given_up_meanwhile = [each.key for each in questions if each.is_open and not self.awaits(each.key)]
        await self._withdraw(given_up_meanwhile)

    @property
    def _log(self) -> AnswerLog | None:
        """The log of a task that may run again."""
        rounds = self._scope.rounds
        return rounds.log if rounds is not None and self._scope.keeps_answers else None

    def _given_up(self, key: str) -> None:
        nursery = self._scope.abort.nursery
        if nursery is not None:
            nursery.start_soon(self._withdraw, [key])

    async def _withdraw(self, keys: Sequence[str]) -> None:
        if keys:
            log = self._log
            forgotten = () if log is None else log.take_forgotten()
            await self._change(lambda record, now: withdrawn(record, now, keys, forgotten))
            if log is not None:
                log.given_up = tuple(key for key in log.given_up if key not in keys)


def _log_of(questions: Sequence[Question]) -> Log:
    """Return the part of ``questions`` that a record keeps for a further run, as things are now."""
    kept = {each.key: each for each in questions if each.beside is not None}
    return Log(
        {key: tuple(other.key for other in each.beside or ()) for key, each in kept.items()},
        {key: encode_value(each.answer) for key, each in kept.items() if each.answer is not None},
    )


def _log_in(record: TaskRecord) -> AnswerLog:
    """Return the log of a run that starts from ``record``."""
    before = [
        AskedBefore(
            key,
            frozenset(beside),
            answer_of(record.answers[key]) if key in record.answers else None,
            is_open=key in record.questions,
        )
        for key, beside in record.asked.items()
    ]
    return AnswerLog(before, hashlib.sha256((record.holder or "").encode()).hexdigest()[:_RUN])


T_contra = TypeVar("T_contra", contravariant=True)


class HostOfTasks(Protocol[T_contra]):
    """The host of tasks of the type ``T_contra``, as a task sees the host: a `TaskHost`."""

    ending: trio.Event
    settings: TaskSettings
    state: ConnectionState
    """State of requests that are tasks and belong to no connection."""
    silence: Outbox
    """Outbox of tasks without notifications."""
    questions: CoreQuestions
    """The asking of questions in the form of 2025-11-25."""

    async def create(self, task: T_contra) -> TaskRecord:
        """Keep the record of a new task."""
        ...

    async def abandon(self, task: T_contra, record: TaskRecord) -> None:
        """Cancel a task that was kept, and that its requestor never learns of."""
        ...

    def adopt(self, task: T_contra, record: TaskRecord) -> None:
        """Answer the request of the task, and let its handler go on."""
        ...

    async def change(self, task: T_contra, transition: Transition) -> TaskRecord | None:
        """Carry out ``transition`` on the record, as soon as the store works."""
        ...

    def has_words(self, task: T_contra) -> None:
        """Have the message of the task written before long."""
        ...

    async def keep(self, task: T_contra, line: bytes | None) -> None:
        """Keep the reply to the request as the outcome."""
        ...

    def expire(self, task: T_contra) -> None:
        """End the task, since its time to live is over."""
        ...

    def forget(self, task: T_contra) -> None:
        """Note that the handler has ended, with all child tasks."""
        ...
