"""Tools: how functions are registered as tools, and how ``tools/call`` is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import attrs
import trio

from ...classes import frozen
from ...jsonrpc.codec import decode_value
from ...jsonrpc.errors import INVALID_PARAMS, CodedError, NotSerializable, UnsendableResult
from ...lazy import lazy_pattern
from ...protocol.converters import structure, structure_params
from ...protocol.errors import CapabilityMissing
from ...protocol.fields import JSONObject
from ...protocol.meta import check_meta_keys
from ...protocol.param_headers import ParamHeader, param_headers
from ...protocol.types.input_required import InputRequiredResult
from ...protocol.types.tools import CallToolParams, CallToolResult, Tool, ToolError, ToolExecution
from ...runtime.peer import Auth
from ...runtime.requests.scope import RequestScope
from ...tasks.task_state import TaskState
from ..calling.results import ToResult, UnreadMedia, error_result, result_maker, unstructured_result
from ..calling.signature import BadArguments, UserFunction
from ..calling.tool_tasks import (
    TaskSupport,
    check_declaration,
    hand_over_task,
    missing_task_hint,
    run_task,
    run_within,
    task_of_call,
)
from ..context.input_required import FINISHED, InputRequired, replay, settle
from ..context.request_context import GetTaskHost
from ..options import ToolOptions, Visible, check_apps, checked_access
from .registration import Offer, Registry

if TYPE_CHECKING:
    from ...protocol.schema_validator import SchemaValidator
    from ...stores.task_store import OnRestart, TaskRecord
    from ..calling.results import Encoders

_NAME: Final = lazy_pattern(r"[A-Za-z0-9_.-]{1,128}")
_LARGE: Final = 1024 * 1024
"""Requests' arguments larger than this number of bytes are freed once they are converted for the handler."""


class Validator(Protocol):
    """Interface of objects that validate values against a JSON Schema."""

    def faults(self, value: Any) -> str | None:
        """Return what is wrong with ``value``, in one line. Return `None` if ``value`` is valid."""
        ...


@frozen(eq=False)
class RegisteredTool(Offer):
    """A registered tool with its function, its limits, and the HTTP headers that repeat its arguments."""

    listed: Tool
    handler: UserFunction
    bind: Callable[[JSONObject], dict[str, Any]]
    """Function that converts the arguments of a call. See `UserFunction.bind`."""
    param_headers: tuple[ParamHeader, ...] = ()
    to_result: ToResult = unstructured_result
    timeout: float | None = None
    slots: _ConcurrencyLimit | None = None
    requires: tuple[str, ...] = ()
    whole_arguments: bool = False
    replay: bool = False
    input_validator: Validator | None = None
    output_validator: SchemaValidator | None = None
    scopes: frozenset[str] = frozenset()
    visible: Visible | None = None
    tags: frozenset[str] = frozenset()
    task: TaskSupport | None = None
    on_restart: OnRestart = "fail"
    has_view: bool = False
    is_checked: bool = False
    """True if results are validated, because the tool has an output schema or a view."""
    is_lenient: bool = False

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        options: ToolOptions,
        encoders: Encoders | None = None,
        validator: Validator | None = None,
    ) -> RegisteredTool:
        """Return a `RegisteredTool` that calls ``function``.

        See `ToolOptions` for the keywords, and `Server.tool` for the errors. ``validator`` validates arguments against
        ``input_schema``. By default, the validator is created from the schema.
        """
        check_meta_keys(options.get("meta"))
        handler = UserFunction.of(function, asyncio=options.get("asyncio", False))
        output, to_result = _results_of(handler, options.get("output_schema"), encoders)
        tool = _described(handler, output, options)
        try:
            mirrored = param_headers(tool.input_schema)
        except ValueError as error:
            raise ValueError(f"tool {tool.name!r}: {error}") from None
        schema, slots, ui = options.get("input_schema"), options.get("max_concurrency"), options.get("ui")
        is_lenient = options.get("lenient", False)
        has_view = ui is not None and ui.view is not None
        return cls(
            tool,
            handler,
            partial(handler.bind, strict=False) if is_lenient else handler.bind,
            mirrored,
            to_result,
            options.get("timeout"),
            None if slots is None else _ConcurrencyLimit(slots),
            tuple(options.get("requires", ())),
            schema is not None and handler.names == ("arguments",),
            options.get("replay", False),
            validator or _validator(schema),
            _validator(output) if options.get("check_output") else None,
            *checked_access(tool.name, options),
            options.get("task") or None,
            options.get("on_restart", "fail"),
            has_view,
            has_view or output is not None,
            is_lenient,
        )


def _results_of(
    handler: UserFunction, output_schema: JSONObject | None, encoders: Encoders | None
) -> tuple[JSONObject | None, ToResult]:
    """Return the output schema of a tool, and the function that converts the tool's return values. See
    `result_maker`."""
    try:
        return result_maker(handler.returns, output_schema, encoders)
    except TypeError as error:
        raise TypeError(
            f"the return annotation of {handler.function.__name__} cannot be used: {error}. "
            "Annotate what is sent to clients, or leave the annotation out."
        ) from None


def _described(handler: UserFunction, output: JSONObject | None, options: ToolOptions) -> Tool:
    """Return the description of a tool that clients see. Raises `ValueError` if a schema is invalid."""
    name, title, description, icons = handler.listed(options)
    check_name(name)
    task, schema = options.get("task", False), options.get("input_schema")
    check_declaration(name, task, options.get("on_restart", "fail"))
    if schema is None:
        schema = handler.schema
    if schema.get("type") != "object":
        raise ValueError(f'tool {name!r}: an input schema must have "type": "object"')
    execution = ToolExecution(task) if task else None
    annotations, meta, ui = options.get("annotations"), options.get("meta"), options.get("ui")
    if ui is not None:
        meta = ui._in_meta(meta)
    return Tool(name, schema, title, description, output, annotations, icons, execution, meta=meta)


def check_name(name: str) -> None:
    """Raise `ValueError` unless ``name`` is a valid tool name."""
    if not _NAME.fullmatch(name):
        # MCP 2025-11-25 (tools page) restricts the characters in tool names.
        # If the name of one tool is invalid, some hosts reject the whole list of tools.
        raise ValueError(
            f"{name[:200]!r} is not a valid tool name: use 1 to 128 letters from A to Z, digits, _, - and .; "
            + ("set one with name=..." if name == "<lambda>" else "the name for people is title=...")
        )


CallResolver: TypeAlias = Callable[
    [str, Any, Callable[[str], RegisteredTool | None]], tuple[str, Any, RegisteredTool | None]
]
"""Function that resolves a call whose name isn't a registered tool, for tool search. It takes the name, the arguments,
and a function that finds tools by name. It returns the name, the arguments and the tool that are meant, with `None` for
an unknown tool."""


class Tools:
    """The tools of one server."""

    def __init__(self, page_size: int | None, encoders: Encoders | None = None) -> None:
        self.registry: Registry[RegisteredTool] = Registry("tool", page_size)
        self.listed = self.registry
        """The registry of the tools that clients see in lists."""
        self._call_resolver: CallResolver = lambda name, arguments, _: (name, arguments, None)
        self._encoders = encoders
        self.has_tasks = False
        """True once a tool was added whose calls may become tasks. It stays true after the tool is removed, because
        tasks can outlive their tool."""
        self.has_apps = False
        """True if tools may have views. See `Apps`."""

    def add(self, function: Callable[..., Any], options: ToolOptions, validator: Validator | None = None) -> None:
        """Register ``function`` as a tool. See `RegisteredTool.of`."""
        if options.get("ui") is not None:
            check_apps("ui=", self.has_apps)
        entry = RegisteredTool.of(function, options, self._encoders, validator)
        self.registry.add(entry.listed.name, entry)
        self.record_task_support(entry.task)

    def record_task_support(self, task: TaskSupport | None) -> None:
        """Record whether calls of a newly added tool may become MCP tasks."""
        self.has_tasks = self.has_tasks or task is not None

    def names(self) -> Collection[str]:
        """Return the names of all tools that clients can call."""
        return self.registry.names() | self.listed.names()

    def replace_listing(self, listed: Registry[RegisteredTool], call_resolver: CallResolver) -> None:
        """Show clients the tools in ``listed`` instead of all tools. If a client calls a name that no tool has,
        ``call_resolver`` finds the tool to call."""
        self.listed, self._call_resolver = listed, call_resolver

    def call(
        self, scope: RequestScope, lifespan: Any, tasks: GetTaskHost, arguments: JSONObject | None = None
    ) -> Awaitable[CallToolResult | InputRequiredResult]:
        """Answer ``tools/call``: call the tool's function, and return its result.

        Errors of the tool itself become a result with ``isError``, here or in `Replies.failure`. An unknown tool, and
        invalid arguments before 2025-11-25, raise `CodedError` (-32602). ``tasks`` returns the host that runs tasks; it
        is `None` if the server has none. ``arguments`` replace those of the request.
        """
        request = scope.request
        params = structure_params(request.params, CallToolParams, request.revision)
        entry = self.registry.get_for_all(params.name)
        if entry is None:
            params, entry = self._find(params, scope)
        if entry is None:
            raise CodedError(INVALID_PARAMS, f"Unknown tool: {params.name[:200]}")
        if entry.requires and (missing := request.missing(entry.requires)):
            raise CapabilityMissing(missing, request.revision)
        task = None
        if entry.task is not None or params.task is not None:
            # By MCP 2025-11-25 (tasks page), servers without tasks MUST ignore the ``task`` parameter.
            task = task_of_call(entry.task, entry.on_restart, params, scope, tasks if self.has_tasks else None)
        if is_own := arguments is None:
            arguments = params.arguments or {}
        fault = None if entry.input_validator is None else entry.input_validator.faults(arguments)
        if fault is not None and entry.is_lenient:
            arguments, fault = _read_leniently(entry, arguments)
        bound: dict[str, Any] = {}
        if entry.whole_arguments:
            bound["arguments"] = arguments
        elif fault is None:
            try:
                bound = entry.bind(arguments)
            except BadArguments as error:
                fault = str(error)
            # Free large arguments before the handler runs.
            # If there is middleware, keep the arguments, because middleware may call the tool again.
            if request.size > _LARGE and is_own and arguments and fault is None and task is None:
                request.put_away("arguments")
        if fault is not None:
            if request.revision.invalid_arguments == "error":
                raise CodedError(INVALID_PARAMS, f"Invalid params: {fault}")
            refusal = partial(_completed, error_result(f"Invalid arguments for {params.name}: {fault}"))
            return refusal() if task is None else run_task(task, scope, refusal)
        if entry.replay and scope.rounds is None and not (task is not None and task.has_started):
            replay(scope)
        host = tasks if self.has_tasks else None
        if task is not None:
            return run_task(task, scope, partial(self._run, entry, scope, lifespan, bound, host))
        return self._run(entry, scope, lifespan, bound, host)

    def call_within(
        self, run: Callable[[], Awaitable[Any]], scope: RequestScope, params: CallToolParams, tasks: GetTaskHost
    ) -> Awaitable[Any]:
        """Answer ``tools/call`` with the result of ``run``, which runs the request's middleware. The middleware then
        runs `call`.

        If the call is or becomes a task, the middleware is part of the task, and runs again if the tool runs again.
        """
        entry, task = self._find(params, scope)[1], scope.task
        if entry is not None and not scope.request.missing(entry.requires):
            if task is None and (entry.task is not None or params.task is not None):
                task = task_of_call(entry.task, entry.on_restart, params, scope, tasks if self.has_tasks else None)
            if entry.replay and not (task is not None and task.has_started):
                replay(scope)
        return run() if task is None else run_within(task, scope, run)

    def _find(self, params: CallToolParams, scope: RequestScope) -> tuple[CallToolParams, RegisteredTool | None]:
        """Return the tool to call, and ``params`` with the name and arguments of this tool. The tool is `None` if it
        doesn't exist for the caller.

        If a task runs again, the caller isn't checked. The caller was authorized before, with a token that isn't
        stored.
        """
        find = self.registry.get if scope.task is not None else partial(self.registry.get_for, scope.exchange.peer.auth)
        if (entry := find(params.name)) is not None:
            return params, entry
        name, arguments, entry = self._call_resolver(params.name, params.arguments or {}, find)
        return attrs.evolve(params, name=name, arguments=arguments), entry

    def resolve_call(self, params: CallToolParams, scope: RequestScope) -> CallToolParams:
        """Return the call ``params`` with the name and arguments of the tool that is really called. With tool search,
        the client may call the tool through ``call_tool``."""
        return self._find(params, scope)[0]

    def named(self, params: JSONObject, auth: Auth | None) -> RegisteredTool | None:
        """Return the tool that a call names, even if the tool is disabled. Return `None` if this caller can't see the
        tool.

        The parameters of the call aren't validated yet.
        """
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            return None
        if (entry := self.registry.get_for_all(name)) is not None:
            return entry
        find = partial(self.registry.get_for, auth, disabled=True)
        return find(name) or self._call_resolver(name, arguments or {}, find)[2]

    def _tool_of(self, record: TaskRecord) -> RegisteredTool | None:
        """Return the tool whose call created the MCP task of ``record``. Return `None` if the tool was removed."""
        if (entry := self.registry.known(record.name)) is not None or record.name not in self.listed.names():
            return entry
        params = structure(decode_value(record.params), CallToolParams)
        name, _, _ = self._call_resolver(params.name, params.arguments or {}, self.registry.known)
        return self.registry.known(name)

    def task_exists(self, scope: RequestScope, record: TaskRecord) -> bool:
        """Return whether an MCP task exists for a request's caller. It exists if the caller can see the tool that
        created the task.

        If this tool was removed, its scopes are unknown. If any tools depend on the caller, the task is then hidden
        from callers whose scopes are checked.
        """
        peer, entry = scope.exchange.peer, self._tool_of(record)
        if entry is None:
            return peer.check_scopes is None or not self.registry.depends_on_caller
        return self.registry.get_for(peer.auth, entry.listed.name, disabled=True) is not None

    def check_scopes(self, scope: RequestScope, record: TaskRecord) -> None:
        """Raise `CodedError` if an MCP task doesn't exist for a request's caller, or if the caller lacks an OAuth scope
        of the task's tool.

        So a task's result is protected like the tool itself.
        """
        if not self.task_exists(scope, record):
            from ...tasks.task_methods import unknown_task  # lazy import: most servers have no MCP tasks

            raise unknown_task()
        if (entry := self._tool_of(record)) is not None:
            scope.exchange.check_scopes(entry.scopes)

    def has_task_scopes(self, scope: RequestScope, record: TaskRecord) -> bool:
        """Return whether an MCP task may be in the list of tasks for a request's caller: this is the case if
        `check_scopes` raises no error."""
        try:
            self.check_scopes(scope, record)
        except CodedError:
            return False
        return True

    async def _run(
        self, entry: RegisteredTool, scope: RequestScope, lifespan: Any, bound: dict[str, Any], tasks: GetTaskHost
    ) -> CallToolResult | InputRequiredResult:
        try:
            value = await self._call_function(entry, scope, lifespan, bound, tasks)
            if isinstance(value, InputRequired):
                value = await settle(value, scope, partial(self._call_function, entry, scope, lifespan, bound, tasks))
        except ToolError as error:
            return error_result(str(error))
        except AttributeError as error:
            if (words := missing_task_hint(error, scope)) is not None:
                error.add_note(words)
            raise
        if isinstance(value, TaskState):
            return hand_over_task(value, scope, entry.listed.name)
        if isinstance(value, FINISHED):
            return value
        try:
            try:
                value = value if isinstance(value, CallToolResult) else entry.to_result(value)
            except UnreadMedia as media:
                value = entry.to_result(await self._read_media(entry, media.args[0], scope))
        except NotSerializable as error:
            raise UnsendableResult(str(error)) from None
        if entry.is_checked and not value.is_error and (fault := _fault_of(entry, value)) is not None:
            return error_result(f"{entry.listed.name} {fault}")
        return value

    def _call_function(
        self, entry: RegisteredTool, scope: RequestScope, lifespan: Any, bound: dict[str, Any], tasks: GetTaskHost
    ) -> Awaitable[Any]:
        """Call the function of a tool, within the tool's timeout and concurrency limit."""
        if entry.timeout is entry.slots is None:
            return entry.handler.call(scope, lifespan, bound, tasks)
        return self._call_limited(entry, partial(entry.handler.call, scope, lifespan, bound, tasks), scope)

    async def _read_media(self, entry: RegisteredTool, value: Any, scope: RequestScope) -> Any:
        from ..calling.media import read_media  # lazy import: few tools return media

        read = partial(read_media, value, scope)
        return await (read() if entry.timeout is None else self._call_limited(entry, read, scope))

    async def _call_limited(self, entry: RegisteredTool, call: Callable[[], Any], scope: RequestScope) -> Any:
        # Start the timeout only here, so that the wait for other calls of the tool doesn't count.
        async with entry.slots or nullcontext():
            if entry.timeout is None:
                return await call()
            with scope.move_on_after(entry.timeout):
                return await call()
        raise ToolError(f"{entry.listed.name} took longer than its limit of {entry.timeout:g} seconds")


def _fault_of(entry: RegisteredTool, result: CallToolResult) -> str | None:
    """Return why ``result`` contradicts the tool's declarations, such as its output schema. Return `None` if the result
    is valid."""
    if entry.has_view and not result.content:
        # By SEP-1865, tools MUST return meaningful content even when a user interface is available.
        return "has a view, but returned no content for other hosts"
    schema, data = entry.listed.output_schema, result.structured_content
    if schema is None:
        return None
    # By MCP 2025-06-18 (tools page), structured results MUST conform to the output schema.
    if data is None:
        return "declares an output schema, but returned no structured content"
    if not isinstance(data, dict) and schema.get("type") == "object":
        return "returned a result that does not fit its output schema: it is not an object"
    fault = None if entry.output_validator is None else entry.output_validator.faults(data)
    return None if fault is None else f"returned a result that does not fit its output schema: {fault}"


def _read_leniently(entry: RegisteredTool, arguments: JSONObject) -> tuple[JSONObject, str | None]:
    """Parse lists, objects and numbers that are strings in ``arguments``. Return the arguments, and what is still wrong
    with them (`None` if nothing is wrong)."""
    from ...protocol.schema_reading import read_leniently  # lazy import: only invalid arguments need it

    try:
        arguments = read_leniently(entry.listed.input_schema, arguments)
        return arguments, None if entry.input_validator is None else entry.input_validator.faults(arguments)
    except ValueError as error:
        return arguments, str(error)


async def _completed(result: CallToolResult) -> CallToolResult:
    return result


class _ConcurrencyLimit:
    """Limits the concurrent calls of a tool. Further calls wait in order of arrival."""

    def __init__(self, limit: int) -> None:
        self._limiter = trio.CapacityLimiter(limit)

    async def __aenter__(self) -> None:
        try:
            # First try without a checkpoint. During a checkpoint, calls of other tools could overtake this call.
            self._limiter.acquire_nowait()
        except trio.WouldBlock:
            await self._limiter.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._limiter.release()


def _validator(schema: JSONObject | None) -> SchemaValidator | None:
    if schema is None:
        return None
    from ...protocol.schema_validator import SchemaValidator  # lazy import: most schemas are generated from annotations

    return SchemaValidator(schema)
