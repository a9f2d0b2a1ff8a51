"""`ServerConnection`: a running server's connection to one client."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs
import trio

from ..jsonrpc.errors import METHOD_NOT_FOUND, CodedError
from ..protocol.converters import structure_params
from ..protocol.fields import JSONObject
from ..protocol.revisions import MODERN_REVISIONS, Revision
from ..protocol.types.lifecycle import (
    CacheScope,
    DiscoverResult,
    EmptyResult,
    InitializeResult,
    ResourcesCapability,
    ServerCapabilities,
)
from ..protocol.types.notifications import SetLevelParams
from ..protocol.types.offers import ListPromptsResult, ListResourcesResult, ListResourceTemplatesResult, PageParams
from ..protocol.types.tools import TASKS_EXTENSION, ListToolsResult
from ..runtime.connection import Connection
from ..runtime.exchange import Exchange
from ..runtime.outbox import Outbox
from ..runtime.peer import UNKNOWN_PEER, CheckScopes, Peer
from ..runtime.requests.host import LATER, Decision, Now
from ..runtime.requests.scope import RequestScope
from ..runtime.transport import FramedTransport
from ..state.connection import ConnectionState
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .connected_clients import ConnectedClient
from .offering import all_exist, required_scopes
from .offers.registration import Registry
from .request_state import RemoteRetry, RoundStates
from .server import RunningServer, Server
from .subscriptions import ClientSubscriptions

if TYPE_CHECKING:
    from ..runtime.requests.endings import Endings
    from .calling.extension_handlers import ExtensionHandlers

_DONE: Final = EmptyResult()


class ServerConnection:
    """Serves one client of the running server ``running`` over ``transport``, until the transport closes.

    ``state`` validates the client's messages. ``check_scopes`` is called with the OAuth scopes that each request needs.
    """

    def __init__(
        self,
        running: RunningServer,
        transport: FramedTransport | Outbox,
        peer: Peer = UNKNOWN_PEER,
        state: ConnectionState | None = None,
        check_scopes: CheckScopes | None = None,
    ) -> None:
        server = running.server
        self._check_scopes = check_scopes
        self._server = server
        self._lifespan = running.lifespan
        self._middleware = running.middleware
        self._fleet = running.fleet
        self.state = state or ConnectionState(
            "server", server._vocabulary, require_initialized=server.require_initialized
        )
        # Don't use a bound method here: only the garbage collector could free the resulting reference cycle.
        replica = running.host.replica
        name, exists = "" if replica is None else replica.id, partial(all_exist, server)
        self._round_states = RoundStates(running.cipher, running.limits.retry_timeout, exists, name)
        self.seal = self._round_states.seal
        """Function that encrypts ``requestState``. See `RequestHandler.seal`."""
        self.connection = Connection(transport, self.state, self, running.host, peer=peer, replies=running.replies)
        self._tasks = running.tasks
        self._task_host = running.tasks.host if running.tasks.are_stored else None
        self.subscriptions = ClientSubscriptions(server, self.connection, running.tasks)
        """The changes that the client has subscribed to."""
        self._client = ConnectedClient(self.connection, running.lifespan)
        self._roots_changed = False
        """True from the arrival of a ``notifications/roots/list_changed`` until `notified` handles it."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the client until the connection ends. See `Connection.run`."""
        server = self._server
        server._observers.add(self.subscriptions)
        server._load.connections += 1
        try:
            await self.connection.run(task_status=task_status)
        finally:
            server._load.connections -= 1
            server._observers.discard(self.subscriptions)
            self.subscriptions.close()

    def everything_changed(self) -> None:
        """Notify the client that every list and subscribed resource may have changed. See
        `ServedConnection.everything_changed`."""
        self.subscriptions.everything_changed()

    # Methods that answer requests at once, in the task that reads messages

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        """Answer a request at once, if the server can compute the result without waiting.

        Otherwise, let the runtime start a task for the request. See `RequestHandler.answer_now`.
        """
        if self._check_scopes is not None:
            needed = required_scopes(self._server, request.method.name, request.params, exchange.peer.auth)
            self._check_scopes(needed)
        answer = self._immediate_answers.get(request.method.name)
        if answer is not None:
            result = answer(self, request, exchange)
            return LATER if result is LATER else Now(result)
        if request.method.extension is not None:
            handlers = extension_handlers(self._server)
            if not request.method.is_request:  # without a session, the server doesn't know the client's extensions
                return LATER if handlers.wants(request.method) else Now(_DONE)
            handlers.check(request)
            if request.method.ahead:
                return self._cancel_abandoned(request, exchange)
        if request.method.may_ask and not request.revision.server_requests:
            return self._round_states.read(request, exchange.peer)
        return LATER

    def _initialize(self, request: InboundRequest, exchange: Exchange) -> InitializeResult:
        server = self._server
        declared = self._declared(request.revision)
        if self.connection.stateless and declared.resources is not None:
            declared = attrs.evolve(declared, resources=ResourcesCapability(list_changed=True))
        if declared.tasks is not None and not exchange.peer.is_distinguishable:
            # By MCP 2025-11-25 (tasks page), servers that cannot identify requestors SHOULD NOT declare tasks.list.
            declared = attrs.evolve(declared, tasks=attrs.evolve(declared.tasks, list=None))
        self.subscriptions.declared = declared
        return InitializeResult(request.revision.name, declared, server.info, server.instructions)

    def _discover(self, request: InboundRequest, _: Exchange) -> DiscoverResult:
        server = self._server
        versions = [row.name for row in MODERN_REVISIONS]
        return DiscoverResult(versions, self._declared(request.revision), server.instructions, *self._hints(request))

    def _declared(self, revision: Revision) -> ServerCapabilities:
        declared = self._server._capabilities_in(revision)
        if self._tasks.are_stored or declared.tasks is None:
            return declared
        others = {name: settings for name, settings in (declared.extensions or {}).items() if name != TASKS_EXTENSION}
        return attrs.evolve(declared, tasks=None, extensions=others or None)

    def _hints(self, request: InboundRequest) -> tuple[int, CacheScope]:
        hints = self._server._cache_hints[request.method.name]
        return hints.ttl_ms, hints.scope

    def _set_level(self, request: InboundRequest, _: Exchange) -> EmptyResult:
        params = structure_params(request.params, SetLevelParams, request.revision)
        if not self._server.logging:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})
        self.state.set_log_level(params.level.value)
        return _DONE

    def _cancel_abandoned(self, request: InboundRequest, exchange: Exchange) -> Decision:
        """Cancel the earlier call of the client that ``request`` names. The reply to ``request`` says how that call
        ended."""
        found = self._endings.cancel(request, exchange.peer.principal)
        return LATER if found is None else Now(found)

    @property
    def _endings(self) -> Endings:
        endings = self.connection.host.endings
        assert endings is not None, "the server has the extension of the request"
        return endings

    def _has_tasks(self, request: InboundRequest, _: Exchange) -> Decision:
        if not (self._server._tools.has_tasks and self._tasks.are_stored):
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})
        return LATER

    # Methods that answer requests in a trio task of their own

    def answer(self, scope: RequestScope, arguments: JSONObject | None = None) -> Awaitable[Any]:
        """Answer a request, in the trio task that runs the request.

        See `RequestHandler.answer`. If ``arguments`` are given, they replace the arguments of a tool call or prompt.

        This method and its callees return the coroutine instead of awaiting it: Python walks every frame between the
        runtime and the author's function each time the task resumes.
        """
        if (name := scope.request.method.name) == "tools/call":
            return self._server._tools.call(scope, self._lifespan, self._task_host, arguments)
        server = self._server
        match name:
            case "resources/read":
                return server._resources.read(scope, self._lifespan)
            case "prompts/get":
                return server._prompts.get(scope, self._lifespan, arguments)
            case "completion/complete":
                return server._completions.complete(scope, self._lifespan)
            case "subscriptions/listen":
                return self.subscriptions.listen(scope)
            case "tools/list":
                return self._list(scope, server._tools.listed, ListToolsResult)
            case "resources/list":
                return self._list(scope, server._resources.registry, ListResourcesResult)
            case "resources/templates/list":
                return self._list(scope, server._resources.templates, ListResourceTemplatesResult)
            case "prompts/list":
                return self._list(scope, server._prompts.registry, ListPromptsResult)
            case "tasks/get" | "tasks/result" | "tasks/list" | "tasks/update" | "tasks/cancel":
                methods = self._tasks.core if scope.request.revision.tasks == "core" else self._tasks.extension
                if scope.exchange.peer.check_scopes is None and not server._tools.registry.depends_on_caller:
                    return methods.answer(scope)
                return self._tasks.answer_checked(methods, scope)
            case unknown:
                if scope.request.method.extension is not None:
                    return self._answer_of_extension(scope)
                raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": unknown})

    def _answer_of_extension(self, scope: RequestScope) -> Awaitable[Any]:
        if not scope.request.method.is_request:
            return self._notify_without_connection(scope)
        if scope.request.method.ahead:
            return self._endings.over(scope.request, scope.exchange.peer.principal)
        handlers = extension_handlers(self._server)
        if self._middleware is None:
            return handlers.answer(scope, handlers.call_handler(scope, self._lifespan))
        # Middleware gets the parameters and the result as instances of the extension's classes.
        call = partial(handlers.call_handler, lifespan=self._lifespan)
        return handlers.answer(scope, self._middleware.answer(call, scope, self._lifespan, self._task_host))

    async def _list(self, scope: RequestScope, registry: Registry[Any], result: Callable[..., Any]) -> Any:
        """Return one page of a list of tools, resources, resource templates or prompts."""
        cursor = structure_params(scope.request.params, PageParams, scope.request.revision).cursor
        peer, method = scope.exchange.peer, scope.request.method.name
        # Middleware may change the entries, so the cached JSON of the page can't be used.
        if self._middleware is not None and self._middleware.applies_to(method):
            entries, following = registry.page(cursor, peer)
            page = [entry.listed for entry in entries]
        else:
            page, following = registry.listing(cursor, peer)
        ttl_ms, cache_scope = self._hints(scope.request)
        if registry.depends_on_caller:
            cache_scope = "private"
        return result(page, following, ttl_ms, cache_scope)

    # Notifications

    def wants(self, event: NotificationReceived) -> bool:
        """Return true if this class handles the notification ``event``: changed roots, or an extension notification
        with a registered handler.

        `ConnectionState` handles all other notifications.
        """
        if event.method.extension is not None:
            return extension_handlers(self._server).wants(event.method) and self._has_scopes(event)
        if event.method.name != "notifications/roots/list_changed" or self._server._roots_changed is None:
            return False
        if self.state.revision is None or self._roots_changed:
            return False  # a call of the author's function for an earlier change of the roots is still due
        self._roots_changed = True
        return True

    async def notified(self, event: NotificationReceived) -> None:
        """Call the function that the server's author registered for the notification: for changed roots, or for an
        extension notification."""
        if event.method.extension is not None:
            pending = extension_handlers(self._server).call_notification_handler(
                event.method, event.params, self._client
            )
        else:
            self._roots_changed = False
            tell = self._server._roots_changed
            assert tell is not None, "it was there when this was wanted, and stays"
            pending = tell(self._client)
        if inspect.isawaitable(pending):
            await pending

    def _has_scopes(self, event: NotificationReceived) -> bool:
        if self._check_scopes is not None:
            needed = required_scopes(self._server, event.method.name, event.params, self.connection.peer.auth)
            try:
                self._check_scopes(needed)
            except CodedError:  # a notification has no response, so no error can be sent
                return False
        return True

    async def _notify_without_connection(self, scope: RequestScope) -> EmptyResult:
        """Call the registered handler of an extension notification that the client sent without a session. See
        `NotificationExchange`."""
        request, client = scope.request, ConnectedClient(self.connection, self._lifespan, scope.exchange.peer)
        pending = extension_handlers(self._server).call_notification_handler(request.method, request.params, client)
        if inspect.isawaitable(pending):
            await pending
        return _DONE

    # For each protocol request, the method of this class that answers it

    _immediate_answers: ClassVar[dict[str, Callable[[ServerConnection, InboundRequest, Exchange], Any]]] = {
        "ping": lambda _, __, ___: _DONE,
        "initialize": _initialize,
        "server/discover": _discover,
        "logging/setLevel": _set_level,
        "resources/subscribe": lambda self, request, at: self.subscriptions.subscribe(request, at.peer.auth),
        "resources/unsubscribe": lambda self, request, _: self.subscriptions.unsubscribe(request),
        **dict.fromkeys(("tasks/get", "tasks/result", "tasks/list", "tasks/update", "tasks/cancel"), _has_tasks),
    }


class MiddlewareConnection(ServerConnection):
    """The class of a server's connections to clients, if the server has middleware."""

    def answer(self, scope: RequestScope, arguments: JSONObject | None = None) -> Awaitable[Any]:
        """Answer a request by calling the middleware, in the trio task that runs the request. See
        `ServerConnection.answer`."""
        if self._middleware is None or scope.request.method.extension is not None:
            return super().answer(scope, arguments)
        return self._middleware.answer(super().answer, scope, self._lifespan, self._task_host)


class SharedConnection(MiddlewareConnection):
    """The class of a server's connections to clients, if the server shares its state with other replicas.

    If a client retries a request whose handler is parked in another replica, the connection forwards the retry to that
    replica.
    """

    def answer(self, scope: RequestScope, arguments: JSONObject | None = None) -> Awaitable[Any]:
        """Answer a request, in the trio task that runs the request.

        See `ServerConnection.answer`. For a retry that is forwarded to another replica, the middleware doesn't run
        here, because it already runs in that replica.
        """
        before = scope.request.continuation
        if type(before) is RemoteRetry:
            assert self._fleet is not None, "it shares a storage with others"
            return self._fleet.forward(scope, before)
        return super().answer(scope, arguments)


def extension_handlers(server: Server) -> ExtensionHandlers:
    """Return the extension handlers of ``server``. Call this only for extension methods: only a server with extensions
    receives them."""
    assert server._extension_handlers is not None, "its vocabulary has a method of an extension"
    return server._extension_handlers
