"""Handles the protocol methods for background tasks, those of the extension ``io.modelcontextprotocol/tasks`` and those
of 2025-11-25.

Only 2025-11-25 has listings of tasks and times to live that requestors choose. For listings, `OwnTasks` records which
tasks a connection without a principal has created.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from ..classes import frozen
from ..concurrency.bounded import BoundedDict
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, TOO_BUSY, CodedError
from ..lazy import lazy_pattern
from ..protocol.converters import structure_params
from ..protocol.errors import CapabilityMissing
from ..protocol.types.lifecycle import EmptyResult
from ..protocol.types.offers import PageParams
from ..protocol.types.tools import TASKS_CAPABILITY, ListTasksResult, Task, TaskParams, UpdateTaskParams
from ..runtime.requests.scope import RequestScope
from ..stores.task_store import TaskRecord, UnknownForm, UnreadableRecord
from .core_questions import CoreQuestions, TaskClientChannel
from .record_views import core_result, core_task, extension_task, store_unreachable
from .records import TaskRecords

if TYPE_CHECKING:
    from ..runtime.outbox import Owner
    from .records import TaskSettings

_DONE = EmptyResult()

logger = logging.getLogger("trio_mcp")

T = TypeVar("T")


def scope_of(scope: RequestScope) -> str:
    """Return the owner's scope: the key for all tasks that the caller of a request may access.

    It is the caller's principal as JSON text, or an empty string without authentication.
    """
    principal = scope.exchange.peer.principal
    return "" if principal is None else principal.to_json()


def unknown_task() -> CodedError:
    """Return the error for a task id that is unknown, or that belongs to another caller."""
    return CodedError(INVALID_PARAMS, "Invalid params: unknown task: it never existed, or has expired")


def _known(found: T | None) -> T:
    """Return the task record ``found``. If it is `None`, raise `CodedError` for an unknown task."""
    if found is None:
        raise unknown_task()
    return found


def _store_error(error: OSError) -> Exception:
    """Return the error for the client because the task store has failed. The failure was already logged."""
    if isinstance(error, UnknownForm):  # during a rolling upgrade
        logger.warning("a task cannot be read here: %s", error)
        return CodedError(TOO_BUSY, "Another version of this server has the task, or one of these tasks; try again")
    if isinstance(error, UnreadableRecord):
        logger.warning("a task cannot be read: %s", error)
        return CodedError(
            INTERNAL_ERROR, "Internal error: the record of this task, or of one of these tasks, cannot be read"
        )
    return store_unreachable()


class ExtensionMethods:
    """Handles ``tasks/get``, ``tasks/update`` and ``tasks/cancel`` of the tasks extension, based on the task
    ``records``."""

    def __init__(self, records: TaskRecords) -> None:
        self._records = records

    async def answer(self, scope: RequestScope) -> Any:
        """Return the result of a request about tasks. Raises `CodedError` if the request fails.

        Raises `CapabilityMissing` if the request doesn't declare the tasks extension.
        """
        request = scope.request
        if missing := request.missing((TASKS_CAPABILITY,)):
            raise CapabilityMissing(missing, request.revision)
        try:
            match request.method.name:
                case "tasks/get":
                    record = await self._records.read(scope_of(scope), _task_id(scope))
                    return extension_task(_known(record), request.revision)
                case "tasks/update":
                    return await self._update(scope)
                case "tasks/cancel":
                    _known(await self._records.cancel(scope_of(scope), _task_id(scope), None))
                    return _DONE  # tasks extension, Task Cancellation: succeed even for an ended task
                case name:
                    raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": name})
        except OSError as error:
            raise _store_error(error) from None

    async def _update(self, scope: RequestScope) -> EmptyResult:
        params = structure_params(scope.request.params, UpdateTaskParams, scope.request.revision)
        for key, response in params.input_responses.items():
            if not isinstance(response, dict):
                raise CodedError(INVALID_PARAMS, f"Invalid params: inputResponses[{key[:100]!r}] must be an object")
        answers = {key: encode_value(response) for key, response in params.input_responses.items()}
        _known(await self._records.answer(scope_of(scope), params.task_id, answers))
        return _DONE


def _task_id(scope: RequestScope) -> str:
    return structure_params(scope.request.params, TaskParams, scope.request.revision).task_id


_PAGE: Final = 100


@frozen(eq=False)
class CoreMethods:
    """Handles ``tasks/get``, ``tasks/result``, ``tasks/list`` and ``tasks/cancel`` of 2025-11-25, based on the task
    ``records``.

    While a client waits for a result, ``questions`` sends it the task's elicitation and sampling requests. The function
    ``may_see`` decides which tasks the caller's list contains.
    """

    _records: TaskRecords
    _questions: CoreQuestions
    _own: OwnTasks
    _may_see: Callable[[RequestScope, TaskRecord], bool] = lambda _, __: True

    async def answer(self, scope: RequestScope) -> Any:
        """Return the result of a request about tasks. Raises `CodedError` if the request fails."""
        try:
            match scope.request.method.name:
                case "tasks/get":
                    record = _known(await self._records.read(scope_of(scope), _task_id(scope)))
                    self._questions.remind(record)
                    return core_task(record)
                case "tasks/result":
                    return await self._result(scope)
                case "tasks/list" if scope.exchange.peer.is_distinguishable:
                    return await self._list(scope)
                case "tasks/cancel":
                    return await self._cancel(scope)
                case name:
                    raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": name})
        except OSError as error:
            raise _store_error(error) from None

    async def _result(self, scope: RequestScope) -> Any:
        way = TaskClientChannel(scope.request, scope.runner, scope.exchange)
        record = _known(await self._questions.until_final(scope_of(scope), _task_id(scope), way))
        if record.outcome is None:
            raise CodedError(INVALID_PARAMS, "Invalid params: the task was cancelled, and has no result")
        return core_result(record, record.outcome, scope.request.revision)

    async def _list(self, scope: RequestScope) -> ListTasksResult:
        cursor = structure_params(scope.request.params, PageParams, scope.request.revision).cursor
        if self._own.are_all_of(scope):
            return await self._list_own(scope, cursor)
        page, following = await self._records.page(scope_of(scope), cursor, _PAGE)
        return ListTasksResult([core_task(record) for record in page if self._may_see(scope, record)], following)

    async def _list_own(self, scope: RequestScope, cursor: str | None) -> ListTasksResult:
        """Return the tasks that this connection has created. The other tasks in the store may belong to other
        clients."""
        tasks = list[Task]()
        for task_id, behind in self._own.after(scope, cursor):
            record = await self._records.read(scope_of(scope), task_id)
            if record is None:
                self._own.remove(scope, task_id)
                continue
            tasks.append(core_task(record))
            if len(tasks) == _PAGE:
                return ListTasksResult(tasks, behind)
        return ListTasksResult(tasks)

    async def _cancel(self, scope: RequestScope) -> Task:
        record, is_first = _known(await self._records.cancel(scope_of(scope), _task_id(scope), None))
        task = core_task(record)
        if not is_first:
            # 2025-11-25 tasks, Task Cancellation 1: refuse the request if the task has ended.
            raise CodedError(INVALID_PARAMS, f"Invalid params: the task is already {task.status}")
        return task


_CURSOR: Final = lazy_pattern(r"own\.([0-9]{1,15})")


class OwnTasks:
    """The ids of the tasks that each connection has created (2025-11-25 tasks, Task Isolation).

    They are needed without authentication, because the records in a shared store don't show to which client they
    belong.
    """

    def __init__(self, settings: TaskSettings) -> None:
        self._is_shared = settings.store is not None
        self._limit = settings.max_kept_of_caller
        self._made: WeakKeyDictionary[Owner, BoundedDict[str, int]] = WeakKeyDictionary()
        """Task ids with their numbers, in order of creation, by connection."""
        self._numbers = count(1)

    def are_all_of(self, scope: RequestScope) -> bool:
        """Return whether a caller's ``tasks/list`` request must list only the tasks that the caller's own connection
        has created.

        Otherwise the tasks are listed from the store.
        """
        peer = scope.exchange.peer
        return self._is_shared and peer.principal is None and peer.is_distinguishable

    def add(self, scope: RequestScope, task_id: str) -> None:
        """Add a task to the list of tasks that were created by requests on the same connection as this request.

        Do nothing unless `are_all_of` is true.
        """
        if self.are_all_of(scope):
            made = self._made.setdefault(scope.exchange.at_once, BoundedDict(self._limit))
            made[task_id] = next(self._numbers)

    def after(self, scope: RequestScope, cursor: str | None) -> Iterator[tuple[str, str]]:
        """Yield the ids of the caller's tasks after ``cursor``, oldest first, each with the cursor for the next page.

        Raises `CodedError` (-32602) for an invalid cursor.
        """
        match = _CURSOR.fullmatch("own.0" if cursor is None else cursor)
        if match is None:
            raise CodedError(INVALID_PARAMS, "Invalid params: unknown cursor")
        start = int(match[1])
        made = self._made.get(scope.exchange.at_once, dict[str, int]())
        return iter([(task_id, f"own.{number}") for task_id, number in made.items() if number > start])

    def remove(self, scope: RequestScope, task_id: str) -> None:
        """Remove a task, whose record was deleted, from the list of tasks that were created by requests on the same
        connection as this request."""
        self._made.get(scope.exchange.at_once, dict[str, int]()).pop(task_id, None)


_MILLISECONDS: Final = 1000


def asked_ttl(scope: RequestScope, settings: TaskSettings) -> int | None:
    """Return the time to live, in milliseconds, of the task for a request: the requested time, within the server's
    limit.

    Returns `None` for no limit.

    The parameters were already validated. Raises `CodedError` (-32602) unless the time is positive.
    """
    asked = scope.request.params["task"].get("ttl", settings.ttl * _MILLISECONDS)
    if asked is None:
        return milliseconds(settings.max_ttl)
    if not asked > 0:
        raise CodedError(INVALID_PARAMS, "Invalid params: task.ttl must be greater than 0")
    # 2025-11-25 tasks, TTL 3: the server may replace the requested time.
    return milliseconds(min(asked / _MILLISECONDS, settings.max_ttl))


def milliseconds(seconds: float) -> int | None:
    """Convert a time to live from seconds to milliseconds, at least 1. `None` means no limit."""
    return None if seconds == math.inf else max(1, int(seconds * _MILLISECONDS))
