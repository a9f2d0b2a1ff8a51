"""Types for tools, and for background tasks: those of 2025-11-25, and those of the tasks extension."""

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
"""The status of a background task, as in revision 2025-11-25."""


@value
class TaskMetadata:
    """Parameter of a request that should run as a background task (2025-11-25)."""

    ttl: float | None = None
    """Milliseconds to keep the task after its creation; `None` lets the server choose."""


@value
class Task:
    """The state of a background task (2025-11-25).

    Times are in ISO 8601, and ``poll_interval`` is in milliseconds.
    """

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    """Milliseconds for which the task's result is stored. Null means for ever, so the member is always written."""
    status_message: str | None = None
    poll_interval: int | None = None
    meta: JSONObject | None = None


@value
class CreateTaskResult:
    """The response to a request that runs as a background task (2025-11-25).

    Get the task's result with ``tasks/result``.
    """

    task: Task
    meta: JSONObject | None = None


@value
class TaskParams:
    """Parameters of ``tasks/get``, ``tasks/result`` and ``tasks/cancel``: the task's id.

    They are the same in 2025-11-25 and in the tasks extension.
    """

    task_id: str


@value
class ListTasksResult:
    """Result of ``tasks/list``: a page of background tasks."""

    tasks: list[Task]
    next_cursor: str | None = None
    meta: JSONObject | None = None


TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
TASKS_CAPABILITY: Final = f"extensions.{TASKS_EXTENSION}"
"""Path of the tasks extension in the capabilities of a client or server."""


@value
class CreatedTask:
    """The response to a request that the server continues as a background task (tasks extension).

    Times are in ISO 8601.
    """

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    """Milliseconds for which the task exists after its creation. Null means for ever, so the member is always
    written."""
    status_message: str | None = None
    poll_interval_ms: int | None = None
    meta: JSONObject | None = None


@value
class DetailedTask:
    """The state of a background task (tasks extension), with its result, its error, or its unanswered input requests.

    It is the result of ``tasks/get``, and the parameters of ``notifications/tasks``.
    """

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
    """Parameters of ``tasks/update``: the answers to a task's input requests.

    Each answer has the key of its input request.
    """

    task_id: str
    input_responses: dict[str, Any]


def is_task(result: object) -> bool:
    """Return true if ``result``, JSON data in a modern protocol revision, is a `CreatedTask`.

    This includes invalid ones.
    """
    return isinstance(result, dict) and cast("JSONObject", result).get("resultType") == "task"


def created_id(result: object, *, is_flat: bool) -> str | None:
    """Return the id of the background task that a request has created.

    ``result`` is the response to the request, as JSON data. Return `None` if the response has created no task. With
    ``is_flat``, the response is a `CreatedTask`, otherwise a `CreateTaskResult`.
    """
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
    """A server's hints about a tool, such as ``read_only_hint``.

    If you don't trust the server, don't base decisions on them. A tool without hints counts as not read-only,
    destructive, not idempotent, and open world: see `resolved`. ``destructive_hint`` and ``idempotent_hint`` apply only
    to tools that aren't read-only.
    """

    title: str | None = None
    """Display name of the tool, for people."""
    read_only_hint: bool | None = None
    """True if the tool changes nothing; `None` means false."""
    destructive_hint: bool | None = None
    """True if the tool may delete or overwrite things, false if it only adds; `None` means true."""
    idempotent_hint: bool | None = None
    """True if another call with the same arguments has no further effect; `None` means false."""
    open_world_hint: bool | None = None
    """True if the tool interacts with external entities, such as the web; `None` means true."""

    def resolved(self) -> ToolAnnotations:
        """Return these annotations with the specification's defaults filled in.

        They are never sent in this form.
        """
        return ToolAnnotations(
            self.title,
            self.read_only_hint if self.read_only_hint is not None else False,
            self.destructive_hint if self.destructive_hint is not None else True,
            self.idempotent_hint if self.idempotent_hint is not None else False,
            self.open_world_hint if self.open_world_hint is not None else True,
        )


@value
class ToolExecution:
    """Says whether a call of the tool may, must or must not run as a background task (2025-11-25 only)."""

    task_support: Literal["forbidden", "optional", "required"] | None = None
    """Whether calls can't (``forbidden``), may (``optional``) or must (``required``) run as tasks; `None` means
    ``forbidden``."""


@value
class Tool:
    """A tool, as a server lists it in ``tools/list``.

    Its schemas are kept unchanged.
    """

    name: str
    """Unique name of the tool, for programs."""
    input_schema: JSONObject
    """JSON Schema of the arguments, with the type ``object``."""
    title: str | None = since("2025-06-18")
    """Display name, for people; `None` to show ``annotations.title`` or ``name``."""
    description: str | None = None
    """What the tool does, as a hint for the model."""
    output_schema: JSONObject | None = since("2025-06-18")
    """JSON Schema of the structured content of results; `None` if there is no schema."""
    annotations: ToolAnnotations | None = since("2025-03-26")
    """Hints about the tool's behavior, which are untrusted unless the server is trusted."""
    icons: list[Icon] | None = since("2025-11-25")
    """Icons that a client can show to the user."""
    execution: ToolExecution | None = since("2025-11-25", until="2025-11-25")
    """Whether calls of the tool can run as background tasks (2025-11-25 only)."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""

    if not TYPE_CHECKING:  # define other SDKs' names only at run time: type checkers then suggest the names used here
        inputSchema = Renamed("input_schema")
        outputSchema = Renamed("output_schema")


class ToolError(MCPError):
    """Raise this in a tool to show the model why the tool failed.

    The error becomes a result with ``isError``. The message is shown to the model and the user. Any other exception is
    reported as an internal error in the tool, without its message, which may contain private data.
    """


@value
class ListToolsResult:
    """Result of ``tools/list``: a page of tools."""

    tools: list[Tool]
    next_cursor: str | None = None
    ttl_ms: int = since("2026-07-28", default=0)
    cache_scope: CacheScope = since("2026-07-28", default="private")
    meta: JSONObject | None = None


@value
class CallToolParams:
    """Parameters of ``tools/call``: the tool to call, and its arguments."""

    name: str
    arguments: JSONObject | None = None
    task: TaskMetadata | None = since("2025-11-25", until="2025-11-25")
    input_responses: JSONObject | None = since("2026-07-28")
    request_state: str | None = since("2026-07-28")


@value
class CallToolResult:
    """Result of ``tools/call``: the output of the tool, or the reason why it failed.

    If ``is_error`` is true, the tool failed, and ``content`` explains the failure to the model. ``structured_content``
    is omitted if it is `None`. In legacy revisions it must be an object. Other values are sent only as ``content``.
    """

    content: list[ContentBlock] = attrs.field(factory=list[ContentBlock])
    """Output of the tool as content blocks, for the model."""
    structured_content: Any = since("2025-06-18")
    """Output of the tool as JSON data; `None` if there is no structured output."""
    is_error: bool | None = None
    """True if the tool failed, so that ``content`` explains the failure; `None` means false."""
    meta: JSONObject | None = None
    """The ``_meta`` object, for metadata."""
    schema_error: str | None = local()
    """Description of the fault if the structured content doesn't match the output schema that the server listed for the
    tool. The client sets this field, which is never sent. `None` if the content matches, or if the client hasn't listed
    the tool."""

    if not TYPE_CHECKING:  # define other SDKs' names only at run time: type checkers then suggest the names used here
        isError = Renamed("is_error")
        structuredContent = Renamed("structured_content")
        data = Renamed("structured_content")

    @property
    def text(self) -> str:
        """The texts of the text blocks in ``content``, joined with newlines. Empty if there are no text blocks."""
        return text_in(self.content)

    def as_(self, kind: type[T]) -> T:
        """Parse the data of the tool's result as a value of the type ``kind``.

        The data is the structured content or, if there is none, the text, which is parsed as JSON unless ``kind`` is
        `str`. Servers wrap a value that isn't an object as ``{"result": …}``. If the wrapped data isn't a valid
        ``kind``, it is unwrapped.

        Raises:
          ToolError: the tool failed. The message is its text.
          ValueError: the data isn't a valid ``kind``. The message contains the place.
        """
        from ..user_types import convert  # import this function only here, because few clients need it

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
