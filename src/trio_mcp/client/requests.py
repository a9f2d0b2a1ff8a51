"""Builds and sends a client's requests, or uses cached responses that are still fresh."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast, overload

import trio

from ..jsonrpc.codec import canonical_value
from ..jsonrpc.errors import NotSerializable, PeerError
from ..protocol.converters import unstructure
from ..protocol.errors import MethodUnavailable
from ..protocol.fields import JSONObject
from ..protocol.meta import (
    BAGGAGE,
    CANCEL_TOKEN,
    CLIENT,
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    TRACEPARENT,
    TRACESTATE,
    check_meta_keys,
)
from ..protocol.methods import METHODS, ROWS
from ..protocol.revisions import LATEST_LEGACY, Revision
from ..protocol.types.lifecycle import ServerCapabilities
from ..protocol.types.notifications import ListenParams, SubscriptionFilter
from ..protocol.types.tools import CallToolResult
from ..runtime.calls import OnNotification, OnProgress
from ..runtime.outbound import Outbound
from ..tasks.remote_task import RemoteTask, task_params
from .answers import Answers, current_turn
from .cache import RequestKey
from .current_call import CallHandlers, CallRecord, call_variable, check_handlers, variable_set
from .options import ClientSettings
from .remote_tasks import RunningTask, TaskProgress
from .results import FaultLog, InputRounds, OutputSchemas, structured
from .server_messages import Callbacks
from .timeouts import UNLIMITED, CallTimeouts
from .tool_calls import ToolCalls

if TYPE_CHECKING:
    from ..protocol.extensions import ExtensionRequest
    from ..protocol.methods import Method
    from .confirming import ConfirmScope

T = TypeVar("T")
P = TypeVar("P")

_NO_HANDLERS: Final = CallHandlers()

confirming: ContextVar[ConfirmScope | None] = ContextVar("trio_mcp.confirming", default=None)
"""Context variable with the `confirm_cancels` block that the current task's calls belong to."""


class Requests:
    """Base class of `Client`: sends the client's requests.

    Each request carries the ``_meta`` of its revision and has the timeouts of calls. It is answered from the cache if
    possible; otherwise it is sent, and sent again as often as the server requires input.
    """

    def __init__(self, outbound: Outbound, answers: Answers, callbacks: Callbacks) -> None:
        settings = answers.settings
        self.settings: ClientSettings = settings
        """The settings that the client was opened with."""
        self._timeouts: CallTimeouts = answers.timeouts
        """The timeouts of all calls, and for connecting."""
        self._callbacks = callbacks
        self._urls = callbacks.urls
        self._outbound = outbound
        """Sends the requests to the server over the connection."""
        self._answers = answers
        """Answers the server's requests to the client (sampling, elicitation, roots)."""
        self._rounds = InputRounds(outbound, answers)
        """Sends a request again with the user's answers, if a modern server requires input for it."""
        self._tool_calls = ToolCalls(outbound, self._rounds, answers, callbacks.contexts)
        """Calls tools, which may become tasks of the server."""
        self._output_schemas = OutputSchemas()
        """The output schemas of the tools that the client has listed."""
        self.revision: Revision = LATEST_LEGACY
        """The protocol revision of the connection."""
        self.server_capabilities = ServerCapabilities()
        """The capabilities that the server has declared."""
        rows = [row for extension in settings.extensions for row in extension._rows]
        self._cacheable = CACHEABLE.union(row.name for row in rows if row.cacheable) if rows else CACHEABLE
        self._tag: str | None = None
        """A random name for this client, sent in each modern request. `None` if the connection identifies the client,
        as on all transports but HTTP. See `trio_mcp.protocol.meta.CLIENT`."""
        self._faults = FaultLog()
        """Logs which parts of the server's results the client couldn't read."""
        self._meta: JSONObject = {}
        """The ``_meta`` that each request has in a modern revision."""
        self._log_level: JSONObject = {}

    async def _check_declared(self, row: Method) -> None:
        """Raise `MethodUnavailable` if the method belongs to an extension that the server hasn't declared."""
        assert row.extension is not None, "the methods of the specification are given by their names"
        declared = self.server_capabilities.extensions or {}
        # If an extension's value isn't an object, the extension isn't declared.
        if type(declared.get(row.extension)) is not dict:
            raise MethodUnavailable(row.name, self.revision, row.extension)

    @overload
    async def request(
        self,
        method: ExtensionRequest[P, T],
        params: P,
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
        refresh: bool = False,
    ) -> T: ...
    @overload
    async def request(
        self,
        method: str,
        params: Any,
        result_type: type[T],
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
        refresh: bool = False,
    ) -> T: ...
    async def request(
        self,
        method: str | ExtensionRequest[Any, T],
        params: Any,
        result_type: type[T] | None = None,
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
        refresh: bool = False,
    ) -> T:
        """Send any request to the server, and return its result.

        For a method of an extension, ``params`` and the result are instances of the method's classes. If a fresh
        response to the same request is cached, it is returned and nothing is sent: see `ClientSettings.cache`. Raises
        the errors described at `Client`.

        Args:
            method: The method's name, or a request of an extension.
            params: A parameter class of the specification, a plain dict, or `None`.
            on_progress: See `Client.call_tool`.
            meta: Additional keys of the request's ``_meta``.
            refresh: True sends the request even if a response is cached.

        Raises:
            MethodUnavailable: The server hasn't declared the extension; nothing is sent.
        """
        if not isinstance(method, str):
            await self._check_declared(method)
            method, result_type = method.name, method.result
        data: JSONObject = {} if params is None else unstructure(params, self.revision)
        call: CallRecord = (method, data, None, _NO_HANDLERS)
        result = await self._request_plain(call, on_progress=on_progress, meta=meta, refresh=refresh)
        if method == "tools/list":
            if self.revision.structured_content != "none":
                self._output_schemas.add_page(result)
            if self._tool_calls.supports is not None:
                self._tool_calls.supports.add_page(result)
        return structured(method, result, cast("type[T]", result_type), self._faults)

    async def _request_plain(
        self,
        call: CallRecord,
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
        refresh: bool = False,
        on_task: Callable[[str], None] | None = None,
    ) -> Any:
        """Send a request as `request` does, and return its result as plain data. The parameters in ``call`` are already
        plain data, as the protocol revision requires.

        For ``on_task``, see `Client.call_tool`.
        """
        method, data, _, _ = call
        revision, turn = self.revision, current_turn.get()
        if turn is not None:
            turn.yield_turn()
        token = call_variable.set(call)
        try:
            confirmation, scope = None, confirming.get()
            if scope is not None and (confirmation := scope.track(self, method, data)) is not None:
                meta = confirmation.meta(meta)
            if self._meta or meta:
                data = self._with_meta(data, meta)
            if revision.cache_hints and method in self._cacheable:
                sent = self._send_unless_kept(method, data, revision, on_progress, refresh=refresh)
            elif self._tool_calls.may_become_tasks and method == "tools/call":
                sent = self._tool_calls.call(data, revision, on_progress, on_task)
            elif revision.result_type:
                sent = self._rounds.result(method, data, revision, on_progress)
            else:
                sent = self._outbound.request(method, data or None, revision, on_progress)
            if confirmation is not None:
                sent = confirmation.follow(sent)
            limits = self._timeouts.around_call()
            if limits is UNLIMITED:
                return await sent
            with limits:
                return await sent
        except PeerError as error:
            self._urls.add_required(error)
            raise
        finally:
            call_variable.reset(token)
            if turn is not None:
                await turn.resume()

    def _with_meta(self, data: JSONObject, meta: JSONObject | None = None) -> JSONObject:
        check_meta_keys(meta)
        whole = {**self._log_level, **data.get("_meta", {}), **(meta or {}), **self._meta}
        return {**data, "_meta": whole} if whole else data

    async def _waited_for(self, sent: Awaitable[T], limits: AbstractContextManager[Any]) -> T:
        """Await ``sent`` within the time ``limits``. ``sent`` waits for a task's result, or starts a task.

        If the caller is a handler, another handler may run meanwhile. `_request_plain` contains the same code, to save
        a coroutine.
        """
        turn = current_turn.get()
        if turn is not None:
            turn.yield_turn()
        try:
            with limits:
                return await sent
        except PeerError as error:
            self._urls.add_required(error)
            raise
        finally:
            if turn is not None:
                await turn.resume()

    async def _send_unless_kept(
        self, method: str, params: JSONObject, revision: Revision, on_progress: OnProgress | None, *, refresh: bool
    ) -> Any:
        """Return the result of a cacheable request, from the cache or from the server. The result is plain data that
        the caller may change.

        With ``refresh``, send the request in any case, and cache its response.

        A cached response is returned only if the connection is alive, after a checkpoint. A result for which the server
        required input isn't cached, because it depends on the answers (2026-07-28 caching, Cache Key: MUST NOT).
        """
        partition = self.settings.cache
        key = None if partition is None else _key_of(method, params)
        if partition is None or key is None:
            return (await self._rounds.request(method, params, revision, on_progress)).result
        cache = partition._cache
        if len(cache) and not refresh:
            with self._outbound.while_connected():
                await trio.lowlevel.checkpoint()
            kept = cache._find(partition, key, trio.current_time())
            if kept is not None:
                return kept
        with cache._fetching(partition, key) as fetch:
            try:
                completed = await self._rounds.request(method, params, revision, on_progress)
            except PeerError as error:
                fetch.record_error(error.code)
                raise
            if completed.rounds == 1:
                fetch.store(completed.result, completed.received)
            return completed.result

    # Tasks

    async def start_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: float | None = None,
        meta: JSONObject | None = None,
        value: Any = None,
        **handlers: Unpack[CallHandlers],
    ) -> RunningTask:
        """Call a tool as a task, and return as soon as the server has accepted the call.

        The task outlives this call and this client: a timeout around this call doesn't cancel the task, and neither
        does closing the client.

        If the server doesn't run the call as a task, the returned `RunningTask` has no ``id``, and its `result` returns
        the call's result. Raises the same errors as `call_tool`.

        Args:
            name: Name of the tool.
            arguments: Arguments of the tool, as JSON data.
            ttl: For how many seconds the server should keep the task and its result; only sent to servers of revision
                2025-11-25.
            meta: Additional keys of the request's ``_meta``.
            value: See `call_tool`; also applies to `RunningTask.result`.
            handlers: See `call_tool`; also apply to `RunningTask.result`.
        """
        if handlers:
            check_handlers(Requests.start_task, handlers, self.settings)
        data = self._with_meta({"name": name, "arguments": dict(arguments) if arguments else {}}, meta)
        call: CallRecord = ("tools/call", data, value, handlers)
        wait = partial(self._result_of, call)
        with variable_set(call_variable, call):
            started = self._tool_calls.start(data, self.revision, task_params(ttl))
            waiting = self._waited_for(started, self._timeouts.around_call())
            made = await (self._with_handlers(handlers, waiting) if handlers else waiting)
        if isinstance(made, RemoteTask):
            return RunningTask(made, None, wait)
        return RunningTask(None, self._tool_result(call, made), wait)

    async def _with_handlers(self, handlers: CallHandlers, called: Awaitable[T]) -> T:
        """Wait for the result of a call for which the caller has passed ``handlers``."""
        own_logs = "on_log" in handlers
        self._callbacks.own_logs += own_logs
        try:
            return await called
        finally:
            self._callbacks.own_logs -= own_logs

    def resume_task(self, task_id: str) -> RunningTask:
        """Return the task with the id ``task_id``, which another client or process may have started.

        No request is sent: if the id is unknown, the first use of the task raises an error.
        """
        task = self._tool_calls.known(task_id, self._with_meta({}), self.revision)
        return RunningTask(task, None, partial(self._result_of, None))

    async def _result_of(
        self, call: CallRecord | None, task: RemoteTask, on_progress: OnProgress | None
    ) -> CallToolResult:
        handlers = _NO_HANDLERS if call is None else call[3]
        with variable_set(call_variable, call):
            finish = self._tool_calls.finish(task, TaskProgress(on_progress), self._with_meta({}), cancels=False)
            waiting = self._waited_for(finish, self._timeouts.around_wait())
            result = await (self._with_handlers(handlers, waiting) if handlers else waiting)
        return self._tool_result(call, result)

    def _tool_result(self, call: CallRecord | None, plain: Any) -> CallToolResult:
        result = structured("tools/call", plain, CallToolResult, self._faults)
        return result if call is None else self._output_schemas.checked(call[1]["name"], result)


# Functions with which other code of this package opens clients and forwards requests


def meta_in(requests: Requests, revision: Revision) -> JSONObject:
    """Return the ``_meta`` that each request of a client has in protocol revisions from 2026-07-28 (basic, Per-request
    protocol fields)."""
    meta: JSONObject = {
        PROTOCOL_VERSION: revision.name,
        CLIENT_INFO: unstructure(requests.settings.info, revision),
        CLIENT_CAPABILITIES: unstructure(requests._answers.capabilities_in(revision), revision),
    }
    if requests._tag is not None:
        meta[CLIENT] = requests._tag
    return meta


async def forward_request(
    requests: Requests,
    method: str,
    params: JSONObject,
    on_progress: OnProgress | None = None,
    on_task: Callable[[str], None] | None = None,
) -> Any:
    """Send a request that a proxy, for example, has received from another client. The result is returned unchanged, and
    never comes from the cache.

    ``params`` are complete: in modern revisions they have all fields of `meta_in`. Without ``on_task``, the result of a
    tool may be a task. With ``on_task``, which gets the id of the task, it isn't: see `ToolCalls.call`. The result of
    an extension's method may have any type.
    """
    confirmation = None if (scope := confirming.get()) is None else scope.track(requests, method, params)
    if confirmation is not None and (meta := confirmation.meta(params.get("_meta"))):
        params = {**params, "_meta": meta}
    revision = requests.revision
    with requests._timeouts.around_call():
        if on_task is not None:
            sent = requests._tool_calls.call(params, revision, on_progress, on_task)
        elif revision.result_type and method == "tools/call":
            sent = requests._tool_calls.send(params, revision, on_progress)
        elif revision.result_type:
            of_any_type = method not in METHODS
            sent = requests._rounds.result(method, params, revision, on_progress, of_any_type=of_any_type)
        else:
            sent = requests._outbound.request(method, params or None, revision, on_progress)
        return await (sent if confirmation is None else confirmation.follow(sent))


def open_stream(
    requests: Requests, asked: SubscriptionFilter, on_notification: OnNotification, meta: JSONObject | None = None
) -> Awaitable[Any]:
    """Send ``subscriptions/listen``, and wait until the stream that the request opens has ended.

    The timeouts of calls don't apply to the stream, and its messages aren't stored.

    ``on_notification``: see `Outbound.request`. ``meta``: the fields of `meta_in`, for code that forwards.
    """
    params = {**unstructure(ListenParams(asked), requests.revision), "_meta": meta or requests._meta}
    return requests._outbound.request(
        "subscriptions/listen", params, requests.revision, on_notification=on_notification
    )


CACHEABLE: Final = frozenset(row.name for row in ROWS if row.cacheable)
"""The methods whose responses may be cached."""

_WITHOUT_EFFECT: Final = frozenset({BAGGAGE, CANCEL_TOKEN, LOG_LEVEL, PROGRESS_TOKEN, TRACEPARENT, TRACESTATE})
"""Keys of ``_meta`` that don't affect the result of a request. All other keys are part of the cache key: for example, a
server may list other tools for a client with more capabilities."""


def _key_of(method: str, params: JSONObject) -> RequestKey | None:
    """Return the cache key of a request; `None` if the response must not be cached."""
    if "inputResponses" in params or "requestState" in params:
        return None  # by MCP 2026-07-28 (caching page), results of retried requests MUST NOT be cached
    meta = {key: value for key, value in params.get("_meta", {}).items() if key not in _WITHOUT_EFFECT}
    try:
        text = canonical_value({**params, "_meta": meta})
    except NotSerializable:
        return None  # sending the request raises `NotSerializable`, so don't raise it here
    uri, cursor = params.get("uri"), params.get("cursor")
    return RequestKey(method, text, uri if isinstance(uri, str) else None, cursor if isinstance(cursor, str) else None)
