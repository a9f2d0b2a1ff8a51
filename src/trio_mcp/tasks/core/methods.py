"""CoreMethods answers the methods of tasks in the form of 2025-11-25."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, CodedError
from ...protocol.converters import structure_params
from ...protocol.meta import with_related_task
from ...protocol.revisions import Revision
from ...protocol.types.resources import PageParams
from ...protocol.types.tasks import ListTasksResult, Task, TaskParams
from ...runtime.requests.request_scope import RequestScope
from ...stores.task_store import Outcome, TaskRecord
from ..extension_methods import scope_of, unknown_task
from ..outcomes import raised, telling_of_the_store
from ..projections import core_task, result_in
from ..records import TaskRecords
from .own_tasks import OwnTasks
from .questions import ClientWay, CoreQuestions

_PAGE: Final = 100


def _may_see_all(_: RequestScope, __: TaskRecord) -> bool:
    return True


class CoreMethods:
    """Answers ``tasks/get``, ``tasks/result``, ``tasks/list`` and ``tasks/cancel`` from the ``records``. While a client
    waits for a result, ``questions`` asks there. Lists show the tasks that the caller ``may_see``."""

    def __init__(
        self,
        records: TaskRecords,
        questions: CoreQuestions,
        own: OwnTasks,
        may_see: Callable[[RequestScope, TaskRecord], bool] = _may_see_all,
    ) -> None:
        self._records = records
        self._own = own
        self._questions = questions
        self._may_see = may_see

    async def answer(self, scope: RequestScope) -> Any:
        """Answer a request. Raises `CodedError`."""
        with telling_of_the_store():
            return await self._answer(scope)

    async def _answer(self, scope: RequestScope) -> Any:
        match scope.request.method.name:
            case "tasks/get":
                record = self._known(await self._records.read(scope_of(scope), _task_id(scope)))
                self._questions.remind(record)
                return core_task(record)
            case "tasks/result":
                return await self._result(scope)
            case "tasks/list" if scope.exchange.peer.is_told_apart:
                return await self._list(scope)
            case "tasks/cancel":
                return await self._cancel(scope)
            case name:
                raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": name})

    @staticmethod
    def _known(record: TaskRecord | None) -> TaskRecord:
        if record is None:
            raise unknown_task()
        return record

    async def _result(self, scope: RequestScope) -> dict[str, Any]:
        way = ClientWay(scope.request, scope.runner, scope.exchange)
        record = self._known(await self._questions.until_final(scope_of(scope), _task_id(scope), way))
        if record.outcome is None:
            raise CodedError(INVALID_PARAMS, "Invalid params: the task was cancelled, and has no result")
        return _result_of(record, record.outcome, scope.request.revision)

    async def _list(self, scope: RequestScope) -> ListTasksResult:
        cursor = structure_params(scope.request.params, PageParams, scope.request.revision).cursor
        if self._own.are_all_of(scope):
            return await self._list_own(scope, cursor)
        page = await self._records.page(scope_of(scope), cursor, _PAGE)
        tasks = [core_task(record) for record in page.records if self._may_see(scope, record)]
        return ListTasksResult(tasks, page.next_cursor)

    async def _list_own(self, scope: RequestScope, cursor: str | None) -> ListTasksResult:
        """List the tasks that the connection itself has made: the other tasks in the store may be anybody's."""
        tasks = list[Task]()
        for task_id, behind in self._own.after(scope, cursor):
            record = await self._records.read(scope_of(scope), task_id)
            if record is None:
                self._own.forget(scope, task_id)
                continue
            tasks.append(core_task(record))
            if len(tasks) == _PAGE:
                return ListTasksResult(tasks, behind)
        return ListTasksResult(tasks)

    async def _cancel(self, scope: RequestScope) -> Task:
        found = await self._records.cancel(scope_of(scope), _task_id(scope), None)
        if found is None:
            raise unknown_task()
        record, is_first = found
        task = core_task(record)
        if not is_first:
            # 2025-11-25 tasks, Task Cancellation 1: MUST be rejected.
            raise CodedError(INVALID_PARAMS, f"Invalid params: the task is {task.status} already")
        return task


def _result_of(record: TaskRecord, outcome: Outcome, revision: Revision) -> dict[str, Any]:
    """Return the result of the request that the task has run. Raises the error of the request as `CodedError`."""
    if outcome.is_error:
        raise raised(outcome)
    result = result_in(record, outcome, revision)
    # 2025-11-25 tasks, Related Task Metadata: MUST be in the response.
    return with_related_task(result, record.id)


def _task_id(scope: RequestScope) -> str:
    return structure_params(scope.request.params, TaskParams, scope.request.revision).task_id
