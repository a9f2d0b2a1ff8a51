"""Forwards a client's request to the upstream server, and the result back to the client, converting both between
protocol revisions.

Fields that describe one connection are replaced by those of the other. If client and server use the same form of tasks,
tasks are passed on, each to its owner alone; otherwise the proxy waits for the task.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final, cast

import attrs

from ..auth.credentials import AuthorizationError
from ..client.requests import forward_request, meta_in
from ..jsonrpc.codec import frame_notification
from ..jsonrpc.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, CodedError, PeerError, ProtocolViolation
from ..protocol.converters import NotExpressible, repaired_result, unstructure
from ..protocol.errors import MISSING_REQUIRED_CLIENT_CAPABILITY, UPSTREAM_LOST, CapabilityMissing
from ..protocol.fields import JSONObject
from ..protocol.meta import (
    CLIENT,
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    RELATED_TASK,
)
from ..protocol.methods import next_cursor
from ..protocol.types.lifecycle import ServerCapabilities
from ..protocol.types.notifications import ProgressParams
from ..protocol.types.tools import TASKS_CAPABILITY, TASKS_EXTENSION, is_task
from ..runtime.calls import OnProgress, Progress
from ..runtime.requests.scope import RequestScope
from ..runtime.transport import ConnectionLost, HTTPError
from ..state.requests import InboundRequest
from ..tasks.record_views import TASK_LOST
from ..tasks.task_methods import unknown_task
from ..tasks.task_state import TaskCancelled
from .downstream import Downstream, ForwardedCall
from .extensions import asking_behind, is_unknown, with_cancels
from .server_requests import translated_params, translated_result, without_meta
from .tasks import LONGEST_TASK_ID, Owner
from .upstream import Upstream

logger = logging.getLogger("trio_mcp")

UPSTREAM_ERRORS: Final = (PeerError, ConnectionLost, HTTPError, ProtocolViolation, AuthorizationError, TaskCancelled)
"""The exceptions of a request to the upstream server that `upstream_error` converts."""

_AS_ASKED: Final[JSONObject] = {}
_MAX_PAGES: Final = 1000
_OF_ONE_CONNECTION: Final = frozenset(
    (PROGRESS_TOKEN, PROTOCOL_VERSION, CLIENT, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL)
)
_META: Final = frozenset(("_meta",))
_OF_A_ROUND: Final = frozenset(("_meta", "inputResponses", "requestState"))


async def forward(
    scope: RequestScope, downstream: Downstream, upstream: Upstream, named: JSONObject = _AS_ASKED
) -> JSONObject:
    """Forward the client's request to the upstream server, and return the result, converted to the client's protocol
    revision.

    ``named`` contains parameters that replace those of the request.

    When this returns, the notifications that preceded the result have been sent to the client. If the result is a task
    that the client can't handle, this waits for the task. Raises `CodedError` for an error reply.
    """
    request, spoken = scope.request, upstream.revision
    method = request.method.name
    if method not in spoken._methods and not (
        is_unknown(method) and upstream.passage_to(downstream).forwards(method, request.revision)
    ):
        raise scope.exchange.method_not_found(request)
    check_task(scope, downstream, upstream)
    params = {**_params(scope, downstream, upstream), **named}
    if request.log_level is not None:
        await upstream.admit_level(request.log_level)
    waits = method == "tools/call" and not upstream.passes_tasks(request.revision)
    with upstream.parties.calling(scope), downstream.calling(scope, upstream.calls) as call:
        try:
            with asking_behind(scope):
                if waits:
                    result = await _call_until_done(call, params, upstream)
                else:
                    result = await upstream.request(method, params, _reporter(scope))
        except UPSTREAM_ERRORS as error:
            if isinstance(error, PeerError):
                downstream.urls.add_required(error)
            raise upstream_error(error) from None
        finally:
            request = scope.request  # if the client has retried the request meanwhile, use the latest retry
        await call.caught_up()
    if not isinstance(result, dict):
        raise CodedError(INTERNAL_ERROR, "Internal error: the upstream server returned an invalid result")
    result = cast("JSONObject", result)
    if waits:
        # The client has made an ordinary call, so it must not see the task's data in the result.
        result = without_meta(result, RELATED_TASK)
    else:
        record_task_owner(scope, downstream, upstream, result)
    if method == "tasks/list":
        result = only_own_tasks(scope, downstream, upstream, result)
    try:
        mend = partial(repaired_result, method, report=upstream.client._faults)
        return translated_result(result, request.method.result, spoken, request.revision, mend)
    except NotExpressible as error:
        raise CodedError(INTERNAL_ERROR, f"Internal error: {error}") from None
    except (ValueError, ProtocolViolation):
        raise CodedError(INTERNAL_ERROR, "Internal error: the upstream server returned an invalid result") from None


async def _call_until_done(call: ForwardedCall, params: JSONObject, upstream: Upstream) -> Any:
    """Call a tool of the upstream server, and return the result. If the call becomes an MCP task, wait for the task.

    An ordinary call is tried first, since it has progress and logs. A tool that requires a task refuses such a call
    without running.
    """
    on_progress = _reporter(call.scope)
    params = {name: value for name, value in params.items() if name != "task"}
    if upstream.client.settings.forwards is not None and not upstream.revision.handshake:
        meta: JSONObject = params["_meta"]
        declared: JSONObject = meta[CLIENT_CAPABILITIES]
        extensions: JSONObject = dict(declared.get("extensions") or {})
        if TASKS_EXTENSION in extensions:
            del extensions[TASKS_EXTENSION]
            params = {**params, "_meta": {**meta, CLIENT_CAPABILITIES: {**declared, "extensions": extensions.copy()}}}
        try:
            result = await upstream.request("tools/call", params, on_progress)
        except PeerError as error:
            if not (upstream.client.settings.tasks and _requires_tasks(error)):
                raise
        else:
            if is_task(result):
                # Tasks extension, Capability Negotiation: only clients that have declared the extension may get a task.
                raise ProtocolViolation("tools/call: the server returned a task that was not requested")
            return result
        extensions[TASKS_EXTENSION] = {}
        params = {**params, "_meta": {**meta, CLIENT_CAPABILITIES: {**declared, "extensions": extensions}}}
    with upstream.tasks.waiting_in(call) as on_task:
        return await forward_request(upstream.client, "tools/call", params, on_progress, on_task)


def _requires_tasks(error: PeerError) -> bool:
    """Return whether ``error`` means that the upstream server refuses a request whose sender doesn't declare the tasks
    extension."""
    if error.code != MISSING_REQUIRED_CLIENT_CAPABILITY:
        return False
    try:
        return TASKS_EXTENSION in error.data["requiredCapabilities"]["extensions"]
    except (KeyError, TypeError):
        return False


async def check_headers(scope: RequestScope, downstream: Downstream, upstream: Upstream) -> None:
    """Raise `CodedError` if the HTTP headers of a ``tools/call`` contradict its arguments.

    If the tool isn't known yet, the upstream server's tools are listed first.

    2026-07-28 streamable HTTP, Server Validation: a server that processes the body MUST check.
    """
    request = scope.request
    if request.method.name != "tools/call" or request.revision.handshake or not scope.exchange.has_headers:
        return
    name, known = request.params.get("name"), upstream.listed_tools
    if not isinstance(name, str):
        return  # forward the request: the upstream server will respond with an error
    if upstream.capabilities.tools is not None and not known.has(name):
        meta = per_request_fields(request, downstream, upstream)
        async with known.turn:
            if not known.has(name):
                await _list_tools(upstream, {"_meta": meta} if meta else {})
    scope.exchange.check_headers(request, known.headers_of(name))


async def _list_tools(upstream: Upstream, params: JSONObject) -> None:
    """List all tools of the upstream server, so that `Upstream.listed_tools` knows which headers they require.

    If this fails, the call fails too: it must not be forwarded unchecked. A server without ``tools/list`` requires no
    headers.
    """
    try:
        await upstream.follow_lists()
        listing, seen = upstream.listed_tools.listing(), set[int]()
        for _ in range(_MAX_PAGES):
            result = await upstream.request("tools/list", params, None)
            cursor = next_cursor(result, seen)
            if cursor is None:
                break
            params = {**params, "cursor": cursor}
    except UPSTREAM_ERRORS as error:
        if not (isinstance(error, PeerError) and error.code == METHOD_NOT_FOUND):
            raise upstream_error(error) from None
        listing = upstream.listed_tools.listing()
    upstream.listed_tools.listed(listing)


def upstream_error(
    error: PeerError | ConnectionLost | HTTPError | ProtocolViolation | AuthorizationError | TaskCancelled,
) -> CodedError:
    """Return the error that the client gets because a request to the upstream server has failed.

    An error response of that server is returned unchanged, other errors without internal details. Authorization errors
    are also logged for the proxy's operators.
    """
    behind = "The server behind this proxy"
    match error:
        case PeerError():
            return CodedError(error.code, error.message, error.data)
        case ConnectionLost():
            return CodedError(UPSTREAM_LOST, f"{behind} is gone")
        case HTTPError(status=None):
            return CodedError(UPSTREAM_LOST, f"{behind} cannot be reached")
        case HTTPError():
            return CodedError(UPSTREAM_LOST, f"{behind} answered with HTTP status {error.status}")
        case AuthorizationError():
            logger.warning("the upstream server refused the proxy's authorization: %s", error)
            return CodedError(UPSTREAM_LOST, f"{behind} refused the proxy's authorization")
        case TaskCancelled():
            return CodedError(TASK_LOST, f"{behind} has ended the call: {error}")
        case ProtocolViolation():
            return CodedError(INTERNAL_ERROR, "Internal error: the upstream server's answer is invalid")


def _reporter(scope: RequestScope) -> OnProgress | None:

    def report_of_task(told: Progress) -> None:
        scope.progress(told.progress, told.total, told.message)

    if scope.task is not None:
        return report_of_task
    if scope.request.progress_token is None:
        return None

    async def report(told: Progress) -> None:
        # Don't limit the rate of progress reports here, because the upstream client has already limited it.
        await scope.outbox.room()
        request = scope.request  # if the client has retried the request meanwhile, use the latest retry
        if request.progress_token is not None:
            params = ProgressParams(request.progress_token, told.progress, told.total, told.message)
            line = frame_notification("notifications/progress", unstructure(params, request.revision))
            scope.put(line + b"\n")

    return report


def _params(scope: RequestScope, downstream: Downstream, upstream: Upstream) -> JSONObject:
    """Return the parameters of the client's request, converted for the upstream server.

    The fields that describe the client's connection are replaced.

    If several clients share that connection, the request names its client, so that the upstream server can divide its
    limits among them.
    """
    request, caller = scope.request, scope.ticket.caller
    not_own = _OF_A_ROUND if request.method.may_ask else _META
    own = {name: value for name, value in request.params.items() if name not in not_own}
    params = translated_params(own, request.method.params, request.revision, upstream.revision)
    meta = {name: value for name, value in request.meta.items() if name not in _OF_ONE_CONNECTION}
    meta |= per_request_fields(request, downstream, upstream)
    if (upstream.shared or downstream.is_connectionless) and not caller.alone:
        meta[CLIENT] = caller.tag
    if request.continuation is not None and not upstream.revision.server_requests:
        # The upstream server has chosen the keys of the client's responses, so don't convert the keys.
        params = {**params, "inputResponses": request.continuation.responses}
    return {**params, "_meta": meta} if meta else params


def per_request_fields(request: InboundRequest, downstream: Downstream, upstream: Upstream) -> JSONObject:
    """Return the ``_meta`` fields that describe the client in a request to the upstream server (modern protocol
    revisions).

    Returns an empty result for a legacy server.

    See 2026-07-28 basic, Per-request protocol fields.
    """
    spoken, client = upstream.revision, upstream.client
    if spoken.handshake:
        return {}
    fields: JSONObject = meta_in(client, spoken)
    if client.settings.forwards is not None:  # declare the capabilities of the client that made the call
        declared: Any = (
            unstructure(request.capabilities, spoken)
            if request.revision.handshake
            else request.meta[CLIENT_CAPABILITIES]
        )
        fields[CLIENT_CAPABILITIES] = upstream.passage_to(downstream).with_part(declared, request.revision)
        if request.client_info is not None:
            fields[CLIENT_INFO] = unstructure(request.client_info, spoken)
    level: Any = downstream.log_level if request.revision.handshake else request.log_level
    if level is not None and upstream.capabilities.logging is not None:
        fields[LOG_LEVEL] = level
    return fields


_NAMES_A_TASK: Final = frozenset(("tasks/get", "tasks/result", "tasks/update", "tasks/cancel"))


def offered_capabilities(upstream: Upstream, downstream: Downstream, request: InboundRequest) -> ServerCapabilities:
    """Return the upstream server's capabilities, as the proxy declares them to the client of ``request``.

    They include tasks if both sides use the same form of tasks, and the extensions that the proxy forwards or handles
    itself.
    """
    declared, revision = upstream.capabilities, request.revision
    tasks = declared.tasks if upstream.passes_tasks(revision) else None
    extensions = upstream.passage_to(downstream).part_of(declared.extensions or {}, revision)
    return attrs.evolve(declared, tasks=tasks, extensions=with_cancels(extensions or None, request))


def check_task(scope: RequestScope, downstream: Downstream, upstream: Upstream) -> None:
    """Raise `CodedError` if a client's request about an MCP task must not be forwarded.

    It must not if the upstream server has tasks in another form, or if the task belongs to another caller.

    A client without a principal that waits for a task becomes its owner, so that it gets the task's server-to-client
    requests.
    """
    request = scope.request
    method = request.method.name
    if method.startswith("tasks/") and not upstream.passes_tasks(request.revision):
        raise scope.exchange.method_not_found(request)
    if method in _NAMES_A_TASK:
        principal = scope.exchange.peer.principal
        task_id = request.params.get("taskId")
        if not upstream.tasks.of_server.exists_for(principal, task_id):
            raise unknown_task()
        if method == "tasks/result" and isinstance(task_id, str):
            upstream.tasks.of_server.add(task_id, _owner(scope, downstream))


def record_task_owner(scope: RequestScope, downstream: Downstream, upstream: Upstream, result: JSONObject) -> None:
    """If ``result`` describes an MCP task, record the client as the task's owner.

    Raises `CodedError` if the client can't handle this form of tasks.
    """
    request = scope.request
    method = request.method.name
    told: Any = result
    if is_task(result):
        if method != "tools/call" or request.missing((TASKS_CAPABILITY,)):
            raise CodedError(INTERNAL_ERROR, "Internal error: the upstream server returned an invalid result")
        created = result.get("taskId")
    elif method == "tools/call" and request.revision.tasks == "core" and isinstance(task := result.get("task"), dict):
        told = cast("JSONObject", task)
        created = told.get("taskId")
    elif method in _NAMES_A_TASK:
        created = request.params.get("taskId")
    else:
        return
    if isinstance(created, str):
        upstream.tasks.of_server.add(created, _owner(scope, downstream))
        if method == "tasks/result":
            upstream.working.remove(created)
        elif "status" in told:
            upstream.working.update(created, told)
        if method == "tools/call" and not downstream.is_connectionless and request.progress_token is not None:
            upstream.tasks.add_token(created, downstream, request.progress_token)


def only_own_tasks(scope: RequestScope, downstream: Downstream, upstream: Upstream, result: JSONObject) -> JSONObject:
    """Return ``result``, a result of ``tasks/list``, without the tasks of other callers.

    A client without a principal also sees tasks of unknown owners (from before the proxy started), but only if no other
    client can connect.
    """
    tasks = result.get("tasks")
    if not isinstance(tasks, list):
        return result
    owner, owners = _owner(scope, downstream), upstream.tasks.of_server
    seen: list[Owner | None] = [owner, None] if scope.exchange.peer.alone and not upstream.shared else [owner]
    kept: list[Any] = [
        task
        for task in cast("list[Any]", tasks)
        if isinstance(task, dict) and owners.owner(cast("JSONObject", task).get("taskId")) in seen
    ]
    return {**result, "tasks": kept}


def tasks_to_listen_for(scope: RequestScope, upstream: Upstream, asked: list[str] | None) -> list[str]:
    """Return the task ids in ``asked`` that belong to the caller. Only a task's owner may be notified of its changes.

    Raises `CapabilityMissing` if the client hasn't declared the tasks extension.
    """
    request, declared = scope.request, upstream.capabilities.extensions or {}
    if asked is None or not upstream.passes_tasks(request.revision) or TASKS_EXTENSION not in declared:
        return []
    if missing := request.missing((TASKS_CAPABILITY,)):
        # Tasks extension, Task Status Notifications: clients that haven't declared the capability get an error.
        raise CapabilityMissing(missing, request.revision)
    owners, principal = upstream.tasks.of_server, scope.exchange.peer.principal
    return [
        task_id
        for task_id in dict.fromkeys(asked)
        if len(task_id) <= LONGEST_TASK_ID and owners.exists_for(principal, task_id)
    ]


def _owner(scope: RequestScope, downstream: Downstream) -> Owner:
    return scope.exchange.peer.principal or downstream
