"""ExtensionMethods answers the methods of the extension ``io.modelcontextprotocol/tasks``."""

from __future__ import annotations

from typing import Any

from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, CodedError
from ..protocol.converters import structure_params
from ..protocol.errors import CapabilityMissing
from ..protocol.types.lifecycle import EmptyResult
from ..protocol.types.tasks import TASKS_CAPABILITY, DetailedTask, TaskParams, UpdateTaskParams
from ..runtime.requests.request_scope import RequestScope
from .outcomes import telling_of_the_store
from .projections import extension_task
from .records import TaskRecords

_DONE = EmptyResult()


def scope_of(scope: RequestScope) -> str:
    """Return the scope of the tasks that the caller of a request may see: the principal as JSON, or nothing."""
    principal = scope.exchange.peer.principal
    return "" if principal is None else principal.to_json()


def unknown_task() -> CodedError:
    """Return the error for a task that does not exist, or not for this caller."""
    return CodedError(INVALID_PARAMS, "Invalid params: unknown task: there was none, or it is kept no longer")


class ExtensionMethods:
    """Answers ``tasks/get``, ``tasks/update`` and ``tasks/cancel`` from the ``records``."""

    def __init__(self, records: TaskRecords) -> None:
        self._records = records

    async def answer(self, scope: RequestScope) -> Any:
        """Answer a request. Raises `CapabilityMissing` where the request does not declare the extension, and
        `CodedError`."""
        request = scope.request
        if missing := request.missing((TASKS_CAPABILITY,)):
            raise CapabilityMissing(missing, request.revision)
        with telling_of_the_store():
            return await self._answer(scope)

    async def _answer(self, scope: RequestScope) -> Any:
        request = scope.request
        match request.method.name:
            case "tasks/get":
                return await self._get(scope)
            case "tasks/update":
                return await self._update(scope)
            case "tasks/cancel":
                return await self._cancel(scope)
            case name:
                raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": name})

    async def _get(self, scope: RequestScope) -> DetailedTask:
        record = await self._records.read(scope_of(scope), _task_id(scope))
        if record is None:
            raise unknown_task()
        return extension_task(record, scope.request.revision)

    async def _update(self, scope: RequestScope) -> EmptyResult:
        params = structure_params(scope.request.params, UpdateTaskParams, scope.request.revision)
        for key, response in params.input_responses.items():
            if not isinstance(response, dict):
                raise CodedError(INVALID_PARAMS, f"Invalid params: inputResponses[{key[:100]!r}] is an object")
        answers = {key: encode_value(response) for key, response in params.input_responses.items()}
        if await self._records.answer(scope_of(scope), params.task_id, answers) is None:
            raise unknown_task()
        return _DONE

    async def _cancel(self, scope: RequestScope) -> EmptyResult:
        if await self._records.cancel(scope_of(scope), _task_id(scope), None) is None:
            raise unknown_task()
        return _DONE  # also where the task has ended: an acknowledgement (extension tasks, Task Cancellation)


def _task_id(scope: RequestScope) -> str:
    return structure_params(scope.request.params, TaskParams, scope.request.revision).task_id
