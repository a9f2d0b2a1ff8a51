"""The context of a request that came over a connection."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Mapping
from typing import Any

import trio

from ...jsonrpc.messages import RequestId
from ...protocol.errors import MethodUnavailable, NoWayBack
from ...protocol.fields import JSONObject
from ...protocol.meta import TraceContext
from ...protocol.revisions import Revision, declares, lacks_notification
from ...runtime.cancellation import Cancellation
from ...runtime.principal import Auth
from ...runtime.requests.logs import RequestLog
from ...runtime.requests.request_scope import RequestScope
from ...tasks.host import TaskHost
from ...tasks.request_task import RequestTask
from ..context.caller_tasks import CallerTasks
from ..context.elicit_answer import COMPLETE, tells_completion
from ..context.task_context import TaskContext
from .asking_context import AskingContext
from .client_tasks import ask_as_task
from .input_required import no_way_back_when_stateless
from .live_task import LiveTask


class LiveContext(AskingContext):
    """A view of one `RequestScope`."""

    __slots__ = ("_lifespan", "_scope", "_tasks")

    def __init__(self, scope: RequestScope, lifespan: Any, tasks: TaskHost | None = None) -> None:
        self._scope = scope
        self._lifespan = lifespan
        self._tasks = tasks

    # Identity

    @property
    def request_id(self) -> RequestId:
        return self._scope.request.id

    @property
    def revision(self) -> Revision:
        return self._scope.request.revision

    @property
    def session_id(self) -> str | None:
        return self._scope.exchange.peer.session_id

    @property
    def meta(self) -> Mapping[str, Any]:
        request = self._scope.request
        request.unpack()
        return request.meta

    @property
    def trace(self) -> TraceContext | None:
        return self._scope.trace

    @property
    def headers(self) -> Mapping[str, str] | None:
        return self._scope.exchange.peer.headers

    @property
    def auth(self) -> Auth | None:
        return self._scope.exchange.peer.auth

    @property
    def stateless(self) -> bool:
        # 2026-07-28 basic, Statelessness: each request is processed by itself.
        return self._scope.runner.stateless or not self._scope.request.revision.handshake

    @property
    def lifespan(self) -> Any:
        return self._lifespan

    @property
    def task(self) -> TaskContext | None:
        task = self._scope.task
        return LiveTask(task) if isinstance(task, RequestTask) else None

    @property
    def task_store(self) -> CallerTasks | None:
        return None if self._tasks is None else CallerTasks(self._tasks, self._scope)

    # Cancellation

    @property
    def nursery(self) -> trio.Nursery:
        nursery = self._scope.abort.nursery
        assert nursery is not None, "a handler runs inside the nursery"
        return nursery

    @property
    def cancel_scope(self) -> trio.CancelScope:
        return self.nursery.cancel_scope

    @property
    def is_cancelled(self) -> bool:
        return self._scope.is_cancelled

    @property
    def cancellation(self) -> Cancellation | None:
        return self._scope.cancellation

    @property
    def cancelled(self) -> threading.Event:
        return self._scope.abort.event

    # Telling the client

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        return self._scope.progress(progress, total, message)

    @property
    def log(self) -> RequestLog:
        return self._scope.log

    async def send_notification(self, method: str, params: JSONObject | None = None) -> None:
        scope = self._scope
        if lacks_notification(method, "server", scope.request.revision):
            raise MethodUnavailable(method, scope.request.revision)
        line = scope.notification(method, params)
        await trio.lowlevel.checkpoint()
        await scope.outbox.room()
        scope.put(line)

    async def elicitation_complete(self, elicitation_id: str) -> bool:
        request, scope = self._scope.request, self._scope
        told = tells_completion(elicitation_id, request.revision, request.capabilities)
        line = scope.notification(COMPLETE, {"elicitationId": elicitation_id})
        await trio.lowlevel.checkpoint()
        if not told:
            return False
        outbox = scope.outbox if scope.sends else scope.exchange.lasting.outbox
        await outbox.room()
        if outbox.over:
            return False
        outbox.put_sealed(line)
        return True

    def close_stream(self, retry: float = 1.0) -> bool:
        return self._scope.exchange.close_stream(retry)

    # Rounds

    @property
    def input_responses(self) -> Mapping[str, JSONObject]:
        continuation = self._scope.request.continuation
        return {} if continuation is None else continuation.responses

    @property
    def request_state(self) -> str:
        continuation = self._scope.request.continuation
        return "" if continuation is None else continuation.state

    # Asking the client

    def _declares(self, capability: str) -> bool:
        request = self._scope.request
        return declares(request.capabilities, capability, request.revision)

    def _deliver(self, method: str, params: JSONObject | None) -> Awaitable[Any]:
        ask = self._scope.ask_client(method, params)
        return self._in_time(ask) if method == "elicitation/create" else ask

    def _deliver_as_task(self, method: str, params: JSONObject | None, ttl: float) -> Awaitable[Any]:
        ask = ask_as_task(self._scope, method, params, ttl)
        return self._in_time(ask) if method == "elicitation/create" else ask

    def _in_time(self, ask: Awaitable[Any]) -> Awaitable[Any]:
        """Let the time limit of the handler stand still while the user is asked."""
        abort = self._scope.abort
        return abort.standing_still(ask) if abort.has_time_limit else ask

    def _no_way_back(self) -> NoWayBack | None:
        scope = self._scope
        method, revision = scope.request.method, scope.request.revision
        if not revision.server_requests and not method.may_ask:
            return NoWayBack(f"{method.name} cannot ask its client in revision {revision}")
        is_told = scope.rounds is not None or (scope.task is not None and scope.task.has_started)
        if scope.runner.stateless and (revision.server_requests or not is_told):
            return no_way_back_when_stateless(method, revision)
        return None
