"""Tasks that a server runs for a client.

`RunningTask` is the task as callers see it. `ExtensionRemoteTask` is a task in the form of the extension, whose
questions are answered here. `TaskProgress` reports a task's messages as progress of its call.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import attrs
import trio

from ..classes import define
from ..concurrency.nurseries import ServiceNursery
from ..concurrency.time_limits import call_limits
from ..jsonrpc.errors import MCPError, PeerError, ProtocolViolation
from ..protocol.fields import JSONObject
from ..protocol.revisions import Revision
from ..protocol.types.input_required import InputRequest
from ..protocol.types.tools import CallToolResult, DetailedTask
from ..runtime.calls import OnProgress, Progress
from ..tasks.remote_task import Ask, OnState, PollSchedule, RemoteTask, SendCancel
from ..tasks.task_state import TaskCancelled, TaskState, state_of
from .answers import Answers
from .results import AnswerQuestion, check_number, check_result_type, prepared

WaitForResult: TypeAlias = Callable[[RemoteTask, OnProgress | None], Awaitable[CallToolResult]]
"""Function that waits for the result of a task that the server runs."""


class RunningTask:
    """An MCP task on the server, created by `Client.start_task` or `Client.resume_task`.

    If the server has answered the call at once, there is no task: ``id`` is `None`, and `result` returns the answer.
    You may call methods from any task, any number concurrently. They raise the same errors as a call; for a task that
    is unknown, expired or another caller's, that is `PeerError` with code -32602.
    """

    def __init__(self, task: RemoteTask | None, answer: CallToolResult | None, wait: WaitForResult) -> None:
        self._task = task
        self._answer = answer
        self._wait = wait

    @property
    def id(self) -> str | None:
        """The id of the task; `None` if the server answered the call without a task.

        Save the id to resume the task with `Client.resume_task`, also from another process. Keep it secret: it may be
        all that somebody needs to read the result.
        """
        return None if self._task is None else self._task.id

    async def get(self) -> TaskState:
        """Request the state of the task from the server, and return the state. Raises `RuntimeError` if there is no
        task."""
        return await self._there_is().get()

    async def result(self, *, on_progress: OnProgress | None = None) -> CallToolResult:
        """Wait for the end of the task, and return its result. You may call this method several times.

        Meanwhile the client's handlers answer the task's questions, and ``on_progress`` gets its messages, as in
        `Client.call_tool`. Cancelling the wait doesn't cancel the task. ``call_timeout`` limits each request for the
        task's state, not the wait.

        Raises:
            PeerError: The task failed with this error.
            TaskCancelled: The task was cancelled.
        """
        if self._task is None:
            assert self._answer is not None, "a call has an answer or a task"
            return self._answer
        return await self._wait(self._task, on_progress)

    async def cancel(self) -> None:
        """Cancel the task, and wait until the server has confirmed the cancellation.

        A task that has already ended doesn't change. Raises `RuntimeError` if there is no task.
        """
        await self._there_is().cancel()

    def _there_is(self) -> RemoteTask:
        if self._task is None:
            raise RuntimeError("there is no task, because the server answered at once: call result() instead")
        return self._task


class ExtensionRemoteTask(RemoteTask):
    """An MCP task on a server, in the form that the tasks extension defines.

    The server's requests to the client (sampling, elicitation, roots) are part of the task's state.
    """

    def __init__(
        self,
        task_id: str,
        ask: Ask,
        forget: SendCancel,
        answers: Answers,
        revision: Revision,
        known: TaskState | None = None,
    ) -> None:
        super().__init__(task_id, ask, forget)
        self.answers = answers
        """Answers the server's requests (sampling, elicitation, roots) that belong to the task."""
        self.revision = revision
        self._known = known
        """The task's state in the server's response to the call, until `result` has passed it to the caller."""
        self.claimed: set[int] = set()
        """Hashes of the keys of the server's requests that are being answered or have been answered. The keys are
        hashed because a server may send keys of any length."""

    async def get(self) -> TaskState:
        return state_of(await self._get())

    async def cancel(self) -> None:
        await self._ask("tasks/cancel", {"taskId": self.id})
        self.is_over = True

    async def _get(self) -> DetailedTask:
        task = await self._fetch_state(DetailedTask)
        self._check(state_of(task))
        _check_parts(task)
        return task

    async def _poll_until_done(self, nursery: ServiceNursery, on_state: OnState) -> JSONObject:
        looks = PollSchedule()
        questions = _TaskQuestions(self, nursery, looks)
        state, self._known = self._known, None
        if state is not None and not state.is_final:
            looks.update(state)
            await on_state(state)
        try:
            while True:
                is_due = await looks.wait_until_due()
                given = questions.unsent_answers()
                try:
                    if given:
                        await self._update(given, looks)
                        questions.mark_sent(given)
                    if not is_due:
                        continue
                    task = await self._get()
                except MCPError as error:
                    looks.record_failure(error)
                    continue
                state = state_of(task)
                looks.update(state)
                await on_state(state)
                if state.is_final:
                    return _outcome(task)
                questions.update(task.input_requests or {})
        finally:
            questions.release()

    async def _update(self, given: dict[str, Any], schedule: PollSchedule) -> None:
        """Send answers to the task's requests (sampling, elicitation, roots) to the server with ``tasks/update``."""
        try:
            await self._ask("tasks/update", {"taskId": self.id, "inputResponses": given})
        except PeerError:
            if not (await self.get()).is_final:
                raise
            schedule.poll_now()  # the task has ended meanwhile, so fetch its last state


@define(eq=False)
class _TaskQuestions:
    """Answers the requests of a task (sampling, elicitation, roots) while a caller waits for the task's result.

    Each request is answered once, in a trio task of ``nursery``.
    """

    _task: ExtensionRemoteTask
    _nursery: ServiceNursery
    _schedule: PollSchedule
    _rounds: int = 0
    _open: dict[str, trio.CancelScope] = attrs.field(factory=dict[str, trio.CancelScope])
    _answers: dict[str, Any] = attrs.field(factory=dict[str, Any])
    _failure: Exception | None = None

    def update(self, questions: dict[str, InputRequest]) -> None:
        """Start to answer the task's new requests, and stop answering requests that the server has withdrawn."""
        for key, scope in list(self._open.items()):
            if key not in questions:
                scope.cancel(reason="the server does not ask any more")
        answers = self._task.answers
        check_number(answers, "tasks/get", questions)
        new = {key: each for key, each in questions.items() if hash(key) not in self._task.claimed}
        if not new:
            return
        if self._rounds >= answers.settings.max_rounds:
            raise ProtocolViolation(f"tasks/get: the server required input more than {self._rounds} times (max_rounds)")
        self._rounds += 1
        for key, give in prepared(answers, "tasks/get", new, self._task.revision, of_task=True).items():
            self._task.claimed.add(hash(key))
            scope = self._open[key] = trio.CancelScope()
            self._nursery.start_soon(self._answer, key, give, scope)

    async def _answer(self, key: str, give: AnswerQuestion, scope: trio.CancelScope) -> None:
        try:
            with scope:
                self._answers[key] = await give()
        except Exception as error:
            self._failure = self._failure or error
        finally:
            del self._open[key]
            if key not in self._answers:
                self._task.claimed.discard(hash(key))
        self._schedule.wake()

    def unsent_answers(self) -> dict[str, Any]:
        """Return the answers that haven't been sent to the server yet. If a handler has raised an exception, raise this
        exception instead."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return dict(self._answers)

    def mark_sent(self, given: dict[str, Any]) -> None:
        """Record that the answers in ``given`` were sent to the server."""
        for key in given:
            del self._answers[key]

    def release(self) -> None:
        """Stop answering the task's input requests. Another trio task or client that waits for this background task may
        then answer the requests whose answers weren't sent."""
        self._task.claimed.difference_update(map(hash, (*self._answers, *self._open)))


def _check_parts(task: DetailedTask) -> None:
    """Raise `ProtocolViolation` if a task's state lacks a field that its status requires (extension tasks, Task
    Polling: MUST)."""
    error = task.error
    match task.status:
        case "completed" if task.result is None:
            raise ProtocolViolation("tasks/get: the task is completed, but has no result")
        case "failed" if error is None or not (type(error.get("code")) is int and type(error.get("message")) is str):
            raise ProtocolViolation("tasks/get: the task has failed, but has no JSON-RPC error")
        case "input_required" if task.input_requests is None:
            raise ProtocolViolation("tasks/get: the task requires input, but has no inputRequests")
        case _:
            pass


def _outcome(task: DetailedTask) -> JSONObject:
    """Return the result of a task that has ended. Raises `PeerError` if the task failed, and `TaskCancelled` if it was
    cancelled."""
    if task.status == "cancelled":
        raise TaskCancelled(task.task_id, task.status_message)
    if task.error is not None and task.status == "failed":
        raise PeerError(task.error["code"], task.error["message"], task.error.get("data"))
    result = cast("JSONObject", task.result)
    check_result_type("tools/call", result)
    return result


class TaskProgress:
    """Passes the status messages of a task to ``on_progress``. The progress values continue those of the call that
    created the task.

    Each message restarts the `fail_after_silence` limits around the call.
    """

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._limits = tuple(limit for limit in call_limits() if limit.restarts_on_progress)
        self._progress = 0.0
        self._message: str | None = None
        self._last_state: object = None

    def of_call(self, progress: Progress) -> Awaitable[None] | None:
        """Pass on the progress of the call that may create the task. Only for a caller that has passed a callback."""
        assert self._on_progress is not None, "else nothing is given"
        self._progress, self._message = max(self._progress, progress.progress), progress.message
        return self._on_progress(progress)

    async def report_state(self, state: TaskState) -> None:
        """Pass the state of the task to ``on_progress``. MCP requires progress values to grow, so each new message
        counts as one more step."""
        heard = (state.status, state.message, state.updated_at)
        if heard == self._last_state:
            return
        self._last_state = heard
        for limit in self._limits:
            limit.restart()
        if state.message is None or state.message == self._message:
            return
        self._message = state.message
        self._progress = max(self._progress + 1, math.nextafter(self._progress, math.inf))
        if self._on_progress is not None:
            pending = self._on_progress(Progress(self._progress, None, state.message))
            if inspect.isawaitable(pending):
                await pending
