"""Handles messages that a server sends on its own: `ServerMessages` answers requests, and `Callbacks` handles
notifications.

OpenURLElicitations are the URL elicitations that the server hasn't reported as completed yet (2025-11-25 only).
QuestionTasks are sampling and elicitation requests that a server sends as tasks, to fetch the answers later (2025-11-25
only).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ..concurrency.bounded import BoundedDict
from ..concurrency.contexts import in_context
from ..jsonrpc.errors import PeerError
from ..protocol.converters import structure, structure_notification
from ..protocol.errors import URL_ELICITATION_REQUIRED, URLElicitationRequiredData
from ..protocol.fields import JSONObject
from ..protocol.meta import RELATED_TASK
from ..protocol.types.lifecycle import EmptyResult
from ..protocol.types.notifications import ElicitationCompleteParams, LogParams
from ..runtime.exchange import Exchange
from ..runtime.notifications import report_failure
from ..runtime.requests.host import LATER, Decision, Now
from ..runtime.requests.scope import RequestScope
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .answers import Answers, Relay
from .cache import Change, change_in
from .current_call import CallContexts, CallRecord, call_variable
from .options import ClientSettings

if TYPE_CHECKING:
    from ..runtime.outbound import Outbound
    from ..runtime.requests.host import RequestHost
    from ..tasks.records import TaskSettings
    from ..tasks.request_task import RequestTask

_COMPLETE: Final = "notifications/elicitation/complete"
_LOG: Final = "notifications/message"


_NO_CALL: Final = object()


class Callbacks:
    """Calls the callbacks that the user has passed to the client. Also calls functions of this package that watch for
    changes on the server.

    A plain callback for logs is called in the reader, as soon as its message is read: a queue and a task in between
    would double the cost of a log message. All other callbacks wait for their turn in a queue.
    """

    outbound: Outbound
    """Sends the client's calls. Log messages may belong to these calls. It is set once the connection exists."""

    def __init__(self, settings: ClientSettings, contexts: CallContexts) -> None:
        self._settings = settings
        self.contexts = contexts
        """Finds the call that a message of the server belongs to."""
        self._log_context = Context()
        """The context variables with which the reader task runs the callback for log messages."""
        self._call: Any = _NO_CALL
        """The only call in progress, to which the last log message belonged. As long as no call begins or ends, the
        next log messages belong to it too, so `_find_call` can be skipped."""
        self._on_log: Any = None
        """The callback for the log messages of the call that `_find_call` found last."""
        self.own_logs = 0
        """How many calls in progress have their own callback for log messages."""
        self._log_at_once = not inspect.iscoroutinefunction(settings.on_log)
        """True if the callback for log messages is called directly in the reader task. False for an async callback, and
        after the callback has returned an awaitable."""
        self._logging: tuple[NotificationReceived, Awaitable[Any]] | None = None
        """The log message for which the callback has returned an awaitable, and the awaitable, until it has been
        awaited."""
        self.urls = OpenURLElicitations()
        self.relay: Relay | None = None
        """Receives every notification of the server, if `forward_to` was called."""
        self.watchers: list[Callable[[Change], None]] = []
        """Functions that are called for each change on the server as soon as it is read, in all revisions: before any
        callback, any listener and any later reply. They must be quick, and must not raise."""

    def forward_to(self, relay: Relay) -> None:
        """Pass every notification of the server to ``relay`` from now on."""
        self.relay, self._call = relay, _NO_CALL

    def notify_watchers(self, change: Change) -> None:
        """Pass ``change`` to the functions of this package that watch for changes on the server."""
        for watcher in self.watchers:
            watcher(change)

    def wants(self, event: NotificationReceived) -> bool:
        """Handle the notification ``event`` as far as possible without waiting. Return true if the caller must also
        await `notified` to finish the handling."""
        # Handle log messages faster, because most notifications are log messages, often many for the same call.
        if event.method.name == _LOG:
            only: Any = self.outbound.only
            if only is not self._call or only.end is not None or "_meta" in event.params:
                wanted = self._find_call(event)
                if wanted is not None:
                    return wanted
            try:
                message = structure_notification(event.params, LogParams)
            except ValueError:
                return False  # ignore invalid parameters, because a notification gets no error reply
            try:
                pending = self._log_context.run(self._on_log, message)
            except Exception as error:
                report_failure(error)
                return False
            return pending is not None and self._is_pending(event, pending)
        change = change_in(event)
        if change is not None and event.revision.changes == "listen":
            # By MCP 2026-07-28 (subscriptions page), a notification outside of a stream belongs to no subscription.
            # Without a subscription, call no callback, but notify the cache: its copy of the data may be outdated.
            self.notify_watchers(change)
            return False
        return self._receive(event, change)

    def receive(self, event: NotificationReceived) -> bool:
        """Handle a notification from a ``subscriptions/listen`` stream, or one that the client creates itself after it
        may have missed changes.

        Unlike `wants`, pass changes to the callbacks even if the server is modern. Return true if `notified` must be
        called.
        """
        return self.wants(event) if event.method.name == _LOG else self._receive(event, change_in(event))

    def _receive(self, event: NotificationReceived, change: Change | None) -> bool:
        if self.relay is not None:
            self.relay.on_notification(event)
        if change is not None:
            self.notify_watchers(change)
            return self._change_callback(change) is not None
        if event.method.extension is not None:
            if event.method not in self._settings.on_notification:
                return False
            if event.method.of_request:
                event.note_call(self.contexts.call_of(event.params))
            return True
        if event.method.name != _COMPLETE or not self.urls.complete(event.params):
            return False
        return self._settings.on_elicitation_complete is not None

    def _find_call(self, event: NotificationReceived) -> bool | None:
        """Find the client's call that a log message belongs to.

        Return `None` if the log callback `_on_log` must be called at once, in `_log_context`. Otherwise, return whether
        `notified` must be called.
        """
        self._call = _NO_CALL
        if self.relay is not None:
            self.relay.on_notification(event)
        if self._settings.on_log is None and not self.own_logs:
            return False
        served = self.contexts.call_of(event.params)
        if not self._log_at_once:
            event.note_call(served)
            return True
        self._on_log = self._log_callback(served)
        if self._on_log is None:
            return False
        if call_variable not in self._log_context:
            self.contexts.copy_variables_to(self._log_context)
        self._log_context.run(call_variable.set, served)
        if self.relay is None and "_meta" not in event.params:
            self._call = self.outbound.only or _NO_CALL
        return None

    def _is_pending(self, event: NotificationReceived, pending: object) -> bool:
        """Return whether ``pending``, the value that the callback ``on_log`` has returned, is awaitable.

        If so, store the awaitable, so that `notified` awaits it.
        """
        if not inspect.isawaitable(pending):
            return False
        event.note_call(self._log_context[call_variable])
        self._log_at_once, self._logging, self._call = False, (event, pending), _NO_CALL
        return True

    def _log_callback(self, served: CallRecord | None) -> Callable[[LogParams], Any] | None:
        on_log = self._settings.on_log
        return on_log if served is None else served[3].get("on_log", on_log)

    def _change_callback(self, change: Change) -> Callable[[Any], Any] | None:
        settings = self._settings
        return settings.on_resource_updated if change.kind == "resource" else settings.on_list_changed

    async def notified(self, event: NotificationReceived) -> None:
        """Call the client's callback for the notification ``event``. See `RequestHandler.notified`."""
        if self._logging is not None:
            (begun, pending), self._logging = self._logging, None
            await in_context(self._context_of(begun), pending)
            if begun is event:
                return
        context = self._context_of(event)
        pending = context.run(self._called, event)
        if inspect.isawaitable(pending):
            await in_context(context, pending)

    def _context_of(self, event: NotificationReceived) -> Context:
        """Return the context variables with which a callback runs.

        The context contains the variables that the connection has set, and the call that the notification belongs to.
        """
        context = self.contexts.copy_variables_to(Context())
        context.run(call_variable.set, event.served)
        return context

    def _called(self, event: NotificationReceived) -> Any:
        if event.method.name == _LOG:
            on_log = self._log_callback(event.served)
            try:
                message = structure_notification(event.params, LogParams)
            except ValueError:
                return None  # as above
            return None if on_log is None else on_log(message)
        callback: Callable[[Any], Any] | None
        if event.method.extension is not None:
            try:
                params = structure(event.params, event.method.params)
            except ValueError:
                return None  # as above
            return cast("Any", self._settings.on_notification)[event.method](params)
        change = change_in(event)
        if change is None:
            callback, value = self._settings.on_elicitation_complete, event.params["elicitationId"]
        else:
            callback = self._change_callback(change)
            value = change.kind if change.uri is None else change.uri
        assert callback is not None, "it was there when this was wanted, and stays"
        return callback(value)


_MOST_URLS: Final = 1000
_LONGEST_ID: Final = 1000


class OpenURLElicitations:
    """The ids of URL elicitations that the user hasn't completed: at most the last 1,000 ids, with up to 1,000
    characters each.

    2025-11-25 elicitation, Completion Notifications: clients MUST ignore notifications referencing unknown or
    already-completed ids.
    """

    def __init__(self) -> None:
        self._ids = BoundedDict[str, None](_MOST_URLS)

    def add_question(self, params: JSONObject) -> None:
        """If a request of the server is a URL elicitation, record the elicitation's id. ``params`` may be
        unvalidated."""
        if params.get("mode") == "url":
            self._add(params.get("elicitationId"))

    def add_required(self, error: PeerError) -> None:
        """If the server requires URL elicitations with ``error``, record their ids."""
        if error.code != URL_ELICITATION_REQUIRED:
            return
        try:
            required = structure(error.data, URLElicitationRequiredData)
        except ValueError:
            return  # ignore a malformed error here, because the call raises the error anyway
        for each in required.elicitations:
            self._add(each.elicitation_id)

    def _add(self, elicitation_id: Any) -> None:
        if isinstance(elicitation_id, str) and 0 < len(elicitation_id) <= _LONGEST_ID:
            self._ids[elicitation_id] = None

    def complete(self, params: JSONObject) -> bool:
        """If a notification completes an open URL elicitation, forget the elicitation's id and return true. ``params``
        may be unvalidated."""
        try:
            elicitation_id = structure(params, ElicitationCompleteParams).elicitation_id
        except ValueError:
            return False
        return self._ids.pop(elicitation_id, self) is None


class QuestionTasks:
    """The MCP tasks in which a client answers sampling and elicitation requests of its server. ``host`` runs these
    tasks, and ``handler`` answers the requests."""

    def __init__(self, host: RequestHost, handler: ServerMessages, settings: TaskSettings) -> None:
        # Import tasks only in these methods, because few clients run tasks.
        from ..tasks.host import TaskHost
        from ..tasks.record_writers import OutcomeReplies
        from ..tasks.task_methods import CoreMethods

        # Pass an empty name, because sampling and elicitation requests have no names.
        self.host = TaskHost(host, handler, OutcomeReplies(), settings, lambda: ("",))
        self.methods = CoreMethods(self.host.records, self.host.questions, self.host.own_tasks)
        """Answers the server's requests about tasks, such as ``tasks/get``."""

    def task_for(self, scope: RequestScope) -> RequestTask | None:
        """Return the MCP task in which to answer a request of the server. Returns `None` if the server didn't request a
        task.

        The request's parameters have been checked. Raises `CodedError` if the task can't be created.
        """
        request, host = scope.request, self.host
        is_declared = request.revision.tasks == "core" and request.method.name != "roots/list"
        if not is_declared or request.params.get("task") is None:
            # By MCP 2025-11-25 (tasks page), the task parameter MUST be ignored if the client didn't declare tasks.
            return None
        from ..tasks.request_task import RequestTask
        from ..tasks.task_methods import asked_ttl

        return RequestTask(host, scope, ttl_ms=asked_ttl(scope, host.settings), on_restart="fail", must_be=True)


class ServerMessages:
    """Answers the server's requests with the client's handlers, and calls the client's callbacks for notifications."""

    seal = None
    """Always `None`, because clients don't answer a server's request with input requests. See `RequestHandler.seal`."""

    def __init__(self, answers: Answers, callbacks: Callbacks, host: RequestHost) -> None:
        self._answers = answers
        tasks = answers.settings.question_tasks
        self.tasks = None if tasks is None else QuestionTasks(host, self, tasks)
        """The tasks in which sampling and elicitation requests are answered; `None` if the client has no such tasks."""
        self._callbacks = callbacks
        self.wants = callbacks.wants
        """A function that returns whether `notified` must be called for a notification. See `RequestHandler.wants`."""
        self.notified = callbacks.notified
        """A function that calls the client's callback for a notification. See `RequestHandler.notified`."""

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        """Answer a ping at once, and decide how any other request of the server is answered. See
        `RequestHandler.answer_now`."""
        if request.method.name == "ping":
            return Now(EmptyResult())
        if request.method.name == "elicitation/create":
            # Record the elicitation's id before anything else: the next message may already say that it has ended.
            self._callbacks.urls.add_question(request.params)
        if self._callbacks.relay is not None:
            self._callbacks.relay.on_question(request)
        if not self._answers.forwards(request.method.name):
            self._callbacks.contexts.record_caller(request)
        return LATER

    async def answer(self, scope: RequestScope) -> Any:
        """Return the answer to a request of the server, from its handler or as a task. See `RequestHandler.answer`."""
        request, tasks = scope.request, self.tasks
        if tasks is not None and request.method.name.startswith("tasks/"):
            return await tasks.methods.answer(scope)
        of_task = RELATED_TASK in request.meta
        answer = self._answers.prepare(request.method.name, request.params, request.revision, of_task=of_task)
        # a proxy doesn't answer the server's request: it forwards the request to one of its clients
        if not self._answers.forwards(request.method.name):
            answer = self._callbacks.contexts.answering(request, answer)
        if tasks is not None and (task := tasks.task_for(scope)) is not None:
            scope.task = task  # which stores the answer
            await task.start()  # notify the server that the task was created
        return _related(await answer(), request)


def _related(result: Any, request: InboundRequest) -> Any:
    """Add to ``result`` the id of the server's task that the request belongs to.

    The id MUST be in responses (2025-11-25 tasks, Related Task Metadata).
    """
    related: Any = request.meta.get(RELATED_TASK)
    if not isinstance(related, dict):
        return result
    if type(result) is dict:  # a relay, such as a proxy, returns the plain data that another client has sent
        plain = cast("JSONObject", result)
        return {**plain, "_meta": _with(related, plain.get("_meta"))}
    return attrs.evolve(result, meta=_with(related, result.meta))


def _with(related: Any, meta: JSONObject | None) -> JSONObject:
    return {RELATED_TASK: related, **(meta or {})}
