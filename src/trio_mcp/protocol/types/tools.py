"""Tools, and the tasks that run their calls: in the form of 2025-11-25, and in that of the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

import attrs
import msgspec

from ...classes import Renamed, value
from ...jsonrpc.errors import MCPError
from ..fields import JSONObject, as_object, local, since
from .content import ContentBlock, text_in
from .input_required import InputRequest
from .lifecycle import CacheScope, Icon

T = TypeVar("T")

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""The status of a task, as in revision 2025-11-25."""


@value
class TaskMetadata:
    """A request for a task. ``ttl`` in milliseconds."""

    ttl: float | None = None


@value
class Task:
    """State of a task. Times in ISO 8601, ``poll_interval`` in milliseconds."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    """Milliseconds for which the result is kept; null means for ever, and is therefore always written."""
    status_message: str | None = None
    poll_interval: int | None = None
    meta: JSONObject | None = None


@value
class CreateTaskResult:
    """The answer to a request that asked for a task. The result itself comes with ``tasks/result``."""

    task: Task
    meta: JSONObject | None = None


@value
class TaskParams:
    """The task of ``tasks/get``, ``tasks/result`` and ``tasks/cancel``, in both forms of tasks."""

    task_id: str


@value
class ListTasksResult:
    """A page of tasks."""

    tasks: list[Task]
    next_cursor: str | None = None
    meta: JSONObject | None = None


TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
TASKS_CAPABILITY: Final = f"extensions.{TASKS_EXTENSION}"
"""The path of the extension among the capabilities of a client or server."""


@value
class CreatedTask:
    """The result of a request that goes on as a task (``resultType`` is ``task``). Times in ISO 8601."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    """Milliseconds from the creation for which the task exists; null means for ever, and is therefore always
    written."""
    status_message: str | None = None
    poll_interval_ms: int | None = None
    meta: JSONObject | None = None


@value
class DetailedTask:
    """The state of a task, with its result, its error, or all questions without an answer. Result of ``tasks/get`` and
    parameters of ``notifications/tasks``."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    status_message: str | None = None
    poll_interval_ms: int | None = None
    result: JSONObject | None = None
    error: JSONObject | None = None
    input_requests: dict[str, InputRequest] | None = None
    meta: JSONObject | None = None


@value
class UpdateTaskParams:
    """Parameters of ``tasks/update``: answers to questions of the task, by their keys."""

    task_id: str
    input_responses: dict[str, Any]


def is_task(result: object) -> bool:
    """Return whether a plain result of a modern revision is a `CreatedTask`, well made or not."""
    return isinstance(result, dict) and cast("JSONObject", result).get("resultType") == "task"


def created_id(result: object, *, is_flat: bool) -> str | None:
    """Return the id of the task that a plain ``result`` creates: of a `CreatedTask` where results are ``is_flat``, else
    of a `CreateTaskResult`; `None` where ``result`` tells of no task."""
    if not isinstance(result, dict):
        return None
    task: Any = cast("JSONObject", result)
    if not is_flat:
        task = task.get("task")
    elif not is_task(task):
        return None
    task_id: Any = as_object(task).get("taskId")
    return task_id if isinstance(task_id, str) else None


@value
class ToolAnnotations:
    """Hints about a tool. Clients never base decisions on hints from servers they do not trust.

    Absent hints mean: not read-only, destructive, not idempotent, open world (`resolved`).
    ``destructive_hint`` and ``idempotent_hint`` mean something only where the tool is not read-only.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None

    def resolved(self) -> ToolAnnotations:
        """Return the same hints with the specification's defaults filled in. Never written to the wire."""
        return ToolAnnotations(
            self.title,
            self.read_only_hint if self.read_only_hint is not None else False,
            self.destructive_hint if self.destructive_hint is not None else True,
            self.idempotent_hint if self.idempotent_hint is not None else False,
            self.open_world_hint if self.open_world_hint is not None else True,
        )


@value
class ToolExecution:
    """The ways in which a tool may be run (2025-11-25 only)."""

    task_support: Literal["forbidden", "optional", "required"] | None = None


@value
class Tool:
    """A tool as clients see it. The schemas are kept verbatim."""

    name: str
    input_schema: JSONObject
    title: str | None = since("2025-06-18")
    description: str | None = None
    output_schema: JSONObject | None = since("2025-06-18")
    annotations: ToolAnnotations | None = since("2025-03-26")
    icons: list[Icon] | None = since("2025-11-25")
    execution: ToolExecution | None = since("2025-11-25", until="2025-11-25")
    meta: JSONObject | None = since("2025-06-18")

    if not TYPE_CHECKING:  # type checkers know what there is
        inputSchema = Renamed("input_schema")
        outputSchema = Renamed("output_schema")


class ToolError(MCPError):
    """Raised in a tool to tell the model the reason of a failure: the error becomes a result with ``isError``.

    The message is shown to the model and to the user. Any other exception is reported as an internal error in the tool,
    without the exception's text, since the text may hold private data.
    """


@value
class ListToolsResult:
    """A page of tools."""

    tools: list[Tool]
    next_cursor: str | None = None
    ttl_ms: int = since("2026-07-28", default=0)
    cache_scope: CacheScope = since("2026-07-28", default="private")
    meta: JSONObject | None = None


@value
class CallToolParams:
    """The tool to call, and its arguments."""

    name: str
    arguments: JSONObject | None = None
    task: TaskMetadata | None = since("2025-11-25", until="2025-11-25")
    input_responses: JSONObject | None = since("2026-07-28")
    request_state: str | None = since("2026-07-28")


@value
class CallToolResult:
    """The result of a tool. ``is_error``: the tool failed, and ``content`` tells the model why.

    ``structured_content`` of `None` is left out. Legacy revisions carry objects only; anything else is left
    to ``content`` there.
    """

    content: list[ContentBlock] = attrs.field(factory=list[ContentBlock])
    structured_content: Any = since("2025-06-18")
    is_error: bool | None = None
    meta: JSONObject | None = None
    schema_error: str | None = local()
    """What is wrong if the structured content doesn't fit the output schema that the server listed for the tool. A
    client sets it; it is never sent. `None` if the content fits, or if the client hasn't listed the tool."""

    if not TYPE_CHECKING:  # type checkers know what there is
        isError = Renamed("is_error")
        structuredContent = Renamed("structured_content")
        data = Renamed("structured_content")

    @property
    def text(self) -> str:
        """The text blocks of ``content``, joined by newlines; empty when there are none."""
        return text_in(self.content)

    def as_(self, kind: type[T]) -> T:
        """Return the data of the result as a ``kind``: the structured content, or, where there is none, the text, as
        JSON unless ``kind`` is `str`. A value that the server has wrapped as ``{"result": …}``, since it is no object,
        is unwrapped where the whole does not fit.

        Raises `ToolError` with the text when the tool failed, and `ValueError`, naming the place, for data that does
        not fit.
        """
        from ..plain_classes import convert  # late: only clients that want objects need it

        if self.is_error:
            raise ToolError(self.text)
        data = self.structured_content
        if data is None:
            if kind is str:
                return cast("T", self.text)
            data = msgspec.json.decode(self.text)
        try:
            return convert(data, kind)
        except ValueError:
            if not (isinstance(data, dict) and cast("JSONObject", data).keys() == {"result"}):
                raise
        return convert(cast("JSONObject", data)["result"], kind)
