"""`OutcomeWriter` and `MessageWriter`: write the outcomes and status messages of background tasks into their records.
`change_with_retries` changes a record even if the store fails for a while.

`OutcomeReplies` encodes an outcome instead of a response.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from ..concurrency.wakeups import Sleeper
from ..jsonrpc.codec import encode_readable, encode_value
from ..jsonrpc.errors import CodedError, NotSerializable
from ..protocol.converters import unstructure
from ..protocol.meta import SERVER_INFO
from ..runtime.cancellation import CancelCause
from ..runtime.replies import Replies, log_invalid_keys
from .record_views import SERVER_STOPPED, TASK_LOST, bounded, error_text, failure
from .transitions import cancelled, released, with_message, with_outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..state.requests import InboundRequest
    from ..stores.task_store import Outcome, TaskRecord
    from .records import TaskRecords, Transition
    from .request_task import RequestTask

logger = logging.getLogger("trio_mcp")

_LAST_WRITES: Final = 2.0
"""Seconds allowed for writing the outcomes of all tasks that are cancelled by the end of the server."""

_AGAIN: Final = 0.5
"""Seconds between two attempts to change a record while the store fails."""

_STOPS: Final = (CancelCause.SHUTDOWN, CancelCause.PARENT)


class OutcomeReplies(Replies):
    """Encodes the results and errors of background tasks as JSON text to store in the task records.

    The text omits the JSON-RPC envelope, and members that are added to each response later.
    """

    def __init__(self, *, expose_errors: bool = False) -> None:
        super().__init__({}, expose_errors=expose_errors)

    def line(self, request: InboundRequest, result: Any) -> bytes:
        revision = request.revision
        data: dict[str, Any] = {**unstructure(result, revision)}
        data.pop("resultType", None)
        if meta := data.pop("_meta", None):
            log_invalid_keys(request, meta)
            if meta := {key: each for key, each in meta.items() if key != SERVER_INFO}:
                data["_meta"] = meta
        request.failed = data.get("isError") is True
        # The last argument is the number of JSON levels that surround the result in the response.
        return encode_readable(data, 1 if revision.tasks == "core" else 2)

    def error(self, request: InboundRequest, error: CodedError) -> bytes:
        code = request.revision.renamed_errors.get(error.code, error.code)
        request.error = CodedError(code, error.message, error.data)
        told: dict[str, Any] = {"code": code, "message": error.message}
        try:
            return encode_readable(told if error.data is None else {**told, "data": error.data}, 2)
        except NotSerializable:
            return encode_value({"code": code, "message": "Internal error: the error cannot be sent as JSON"})


class OutcomeWriter:
    """Writes the outcome of each background task into its record exactly once, even if the task is cancelled.

    While the store fails, it retries as long as the process lives and the task belongs to it. When the server ends
    (``ending`` is set), the time is limited. If the write fails then, the task's lease expires, and the task is lost or
    runs again, as after a crash.
    """

    def __init__(self, records: TaskRecords, ending: trio.Event) -> None:
        self._records = records
        self._ending = ending
        self._last_moment = math.inf
        self._writing = set[trio.CancelScope]()

    def limit_time(self, drain_timeout: float) -> None:
        """Limit the time of all writes to ``drain_timeout`` from now, because the server is shutting down.

        If this is called several times, the earliest limit applies.
        """
        self._last_moment = min(self._last_moment, trio.current_time() + drain_timeout + _LAST_WRITES)
        for scope in self._writing:
            scope.deadline = self._last_moment

    def goes_on_elsewhere(self, task: RequestTask) -> bool:
        """Return whether another process may run the handler of ``task`` again after this process ends."""
        return task.on_restart != "fail" and self._records.settings.store is not None

    async def persist(self, task: RequestTask, outcome: Outcome | None) -> None:
        """Write the ``outcome`` of ``task`` into the task record. `None` means that the task was cancelled."""
        with trio.CancelScope(deadline=self._last_moment, shield=True) as scope:
            self._writing.add(scope)
            try:
                most = self._records.settings.max_record_bytes
                await self._write(task, None if outcome is None else bounded(outcome, most))
            finally:
                self._writing.discard(scope)
        if scope.cancelled_caught:
            logger.error("the outcome of task %s was not stored in time", task.id)

    async def write_cut_off(self, tasks: Iterable[RequestTask]) -> None:
        """Store the outcomes of ``tasks``, which didn't finish because the server ends."""
        self.limit_time(0.0)
        if self._records.settings.store is None:
            return  # records in memory end with the server, so writing their outcomes would be useless
        with trio.CancelScope(deadline=self._last_moment, shield=True):
            # Write all outcomes concurrently, because stores combine concurrent changes in one batch.
            async with trio.open_nursery() as nursery:
                for task in tasks:
                    nursery.start_soon(self._write, task, None)

    async def _write(self, task: RequestTask, outcome: Outcome | None) -> None:
        transition = self._cut_off(task) if outcome is None else _ending_with(outcome, task)
        record = await change_with_retries(self._records, task, transition)
        if record is not None and task.client is not None:
            task.client.notify(record)

    def _cut_off(self, task: RequestTask) -> Transition:
        """Return the function that changes the record of a task that was cancelled before it ended.

        The record doesn't show the cancellation yet.
        """
        cancellation = task.scope.cancellation
        cause = CancelCause.SHUTDOWN if cancellation is None else cancellation.cause
        is_given_up = cause is CancelCause.LEASE or (self._ending.is_set() and cause in _STOPS)
        if is_given_up and self.goes_on_elsewhere(task):
            # Don't count runs that a graceful shutdown or an outage of the store has ended.
            # If a run counted although a shutdown has ended it, frequent deployments would make long tasks fail.
            return lambda record, _: released(record, counts=False)
        # The client has cancelled the task, but the record couldn't be changed at that time, so change it now.
        if cause is CancelCause.TASK and cancellation is not None:
            return lambda record, now: cancelled(record, now, cancellation.reason)
        words = SERVER_STOPPED if cancellation is None else cancellation.text
        return _ending_with(failure(TASK_LOST, f"the task did not run to its end: {words}"), task)


def _ending_with(outcome: Outcome, task: RequestTask) -> Transition:
    return lambda record, now: with_outcome(record, now, outcome, error_text(outcome) or task.message)


async def change_with_retries(records: TaskRecords, task: RequestTask, transition: Transition) -> TaskRecord | None:
    """Change the stored record of ``task`` with the function ``transition``. While the store fails, try again.

    If the record has another holder of the same process, continue the task under that holder, if possible.
    """
    has_failed = False
    while True:
        ours = task.holder
        try:
            record = await records.change(task.id, ours, transition)
        except OSError:  # already logged
            await trio.sleep(_AGAIN)
        except Exception as error:  # catch even bugs in the store, because they must not lose results
            if not has_failed:
                words = "a change of task %s cannot be stored; trying again every %g s: %r"
                # If the store fails, log the traceback once for the whole outage, not for each waiting task.
                logger.log(logging.ERROR, words, task.id, _AGAIN, error, exc_info=not records.store.failing_methods)
            has_failed = True
            await trio.sleep(_AGAIN)
        else:
            if record is not None:
                return record
            if ours == task.holder and not await _reacquire_kept(records, task) and ours == task.holder:
                # This process doesn't have the task any more. If it had claimed the task again, it would try again.
                return None


async def _reacquire_kept(records: TaskRecords, task: RequestTask) -> bool:
    """Read the stored record of ``task``, and continue the task under the record's holder, if possible.

    Returns false if another process has the task, or its record doesn't exist.
    """
    with suppress(OSError):  # already logged
        kept = await records.store.read(None, task.id)
        return kept is not None and task.reacquire(kept.record)
    # The record couldn't be read, so the next attempt to change it shows whether this process still has the task.
    return True


class MessageWriter:
    """Writes the latest status message of each background task into the task's record, at most once in ``interval``
    seconds.

    Handlers don't wait for these writes.
    """

    def __init__(self, records: TaskRecords, interval: float) -> None:
        self._records = records
        self._interval = interval
        self.unwritten: dict[str, RequestTask] = {}
        self._sleeper = Sleeper()

    def write_soon(self, task: RequestTask) -> None:
        """Schedule a write of the current status message of ``task``. Synchronous."""
        self.unwritten[task.id] = task
        self._sleeper.wake()

    async def run(self) -> None:
        """Write the scheduled status messages into the task records, until cancelled."""
        while True:
            while not self.unwritten:
                await self._sleeper.sleep()
            tasks, self.unwritten = list(self.unwritten.values()), {}
            for task in tasks:
                await self._write(task)
            await trio.sleep(self._interval)

    async def _write(self, task: RequestTask) -> None:
        message = task.message
        if message is None:
            return
        with suppress(Exception):  # already logged; the task's next status message replaces this message
            # If code other than the handler does the task's work, that code sets the status messages.
            await self._records.change(
                task.id,
                task.holder,
                lambda record, now: None if record.is_external else with_message(record, now, message),
            )
