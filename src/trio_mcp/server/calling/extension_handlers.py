"""`ExtensionHandlers`: the handlers of a server's extension methods.

They run like all other handlers, except that parameters and results are instances of the extension's classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_origin

from ...jsonrpc.errors import METHOD_NOT_FOUND, CodedError
from ...protocol.converters import structure, structure_params, unstructure
from ...protocol.errors import CapabilityMissing
from ...protocol.extensions import declared_in
from ...protocol.fields import JSONObject
from ...protocol.revisions import Revision
from ..context.input_required import FINISHED, InputRequired, settle
from .signature import UserFunction

if TYPE_CHECKING:
    from ...protocol.extensions import Extension
    from ...protocol.methods import Method
    from ...runtime.requests.scope import RequestScope
    from ...state.requests import InboundRequest
    from ..connected_clients import ConnectedClient
    from ..options import CacheHints

F = TypeVar("F", bound=Callable[..., Any])


class ExtensionHandlers:
    """The methods of a server's ``extensions``, and the functions that the server's author registered to handle these
    methods.

    ``hints`` say how clients may cache results of cacheable methods.
    """

    def __init__(self, extensions: Collection[Extension[Any, Any]], hints: CacheHints) -> None:
        self._extensions = extensions
        self._rows = {row.name: row for extension in extensions for row in extension._rows}
        self._hints = hints
        self._handlers: dict[Method, UserFunction] = {}
        self._notification_handlers: dict[Method, Callable[..., Any]] = {}
        self.middleware_methods = frozenset(
            row.name for row in self._rows.values() if row.is_request and row.sent_by("client") and not row.ahead
        )
        """The extension methods that middleware can apply to: requests that have a handler."""
        self.broadcast_rows = {
            row.name: row
            for row in self._rows.values()
            if not (row.is_request or row.of_request or row.sender == "client")
        }
        """The extension notifications that can be sent to all clients, by name. See `Server.notify`."""
        self.scopes = {name: row.scopes for name, row in self._rows.items() if row.scopes}
        """The OAuth scopes that extension messages need, by method."""

    def declared_in(self, revision: Revision) -> JSONObject:
        """Return the settings of the extensions that the server declares in the protocol ``revision``. The keys are
        extension names."""
        return declared_in(revision, self._extensions, "server")

    def registration(self, row: Method, *, asyncio: bool = False) -> Callable[[F], F]:
        """Return a decorator that registers a function as the handler of an extension's method, which ``row``
        describes. See `Server.handles`."""
        if self._rows.get(row.name) is not row:
            raise ValueError(f"{row.name} belongs to an extension that this server lacks: use Server(extensions=[...])")
        if not row.sent_by("client"):
            raise ValueError(
                f"a server cannot handle {row.name}, because servers send it: pass handlers={{...}} to the "
                "client's open_* function"
            )
        if row in self._handlers or row in self._notification_handlers:
            raise ValueError(f"{row.name} already has a handler")

        def register(function: F) -> F:
            if row.is_request:
                self._handlers[row] = _parsed_handler(
                    function, row, asyncio=asyncio and inspect.iscoroutinefunction(function)
                )
            else:
                self._notification_handlers[row] = function
            return function

        return register

    def check_complete(self, server: Any) -> None:
        """Raise `RuntimeError` if an extension's request has no handler, or if an extension rejects a tool, resource or
        prompt of ``server``."""
        asked = self.middleware_methods
        if missing := [name for name, row in self._rows.items() if name in asked and row not in self._handlers]:
            raise RuntimeError(f"no handler for the extension request {', '.join(missing)}: add @server.handles(...)")
        for extension in self._extensions:
            extension._check(server)

    # Requests

    def check(self, request: InboundRequest) -> None:
        """Raise `CapabilityMissing` if the requested extension method needs the client's support, but the client didn't
        declare the extension."""
        name, declared = request.method.extension, request.capabilities.extensions or {}
        # If the client declared a value that isn't an object, the extension counts as undeclared.
        if name is not None and request.method.requires_client and type(declared.get(name)) is not dict:
            raise CapabilityMissing(f"extensions.{name}", request.revision)

    async def answer(self, scope: RequestScope, value: Awaitable[Any]) -> Any:
        """Answer a request of an extension: run its handler, and return the result as plain data.

        Awaiting ``value`` runs the handler and any middleware, and returns the result. If the result has the wrong
        class, raise `TypeError`; the client gets only "internal error".
        """
        row, revision = scope.request.method, scope.request.revision
        result = await value
        if isinstance(result, FINISHED):
            return result
        if not isinstance(result, get_origin(row.result) or row.result):
            raise TypeError(f"the handler of {row.name} must return {row.result!r}, not {type(result).__name__}")
        plain = unstructure(result, revision)
        if row.cacheable and revision.cache_hints:
            plain = {"ttlMs": self._hints.ttl_ms, "cacheScope": self._hints.scope, **plain}
        return plain

    async def call_handler(self, scope: RequestScope, lifespan: Any) -> Any:
        """Call the handler of an extension request, in the request's trio task, and return the handler's result.

        Raises `CodedError` (-32602) if the parameters don't fit the handler's parameter class.
        """
        request = scope.request
        row, revision = request.method, request.revision
        handler = self._handlers.get(row)
        if handler is None:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": row.name})
        params = structure_params(request.params, row.params, revision)
        run = partial(handler.call, scope, lifespan, dict.fromkeys(handler.names, params))
        value = await run()
        if isinstance(value, InputRequired) and row.may_ask:
            value = await settle(value, scope, run)
        return value

    # Notifications

    def check_broadcast(self, row: Method) -> None:
        """Raise `ValueError` if an extension's notification, which ``row`` describes, cannot be sent to all clients.
        See `Server.notify`."""
        if self._rows.get(row.name) is not row:
            raise ValueError(f"{row.name} belongs to an extension that this server lacks: use Server(extensions=[...])")
        if row.is_request or not row.sent_by("server"):
            raise ValueError(f"server.notify cannot send {row.name}: it must be a notification from servers to clients")
        if row.of_request:
            raise ValueError(
                f"server.notify cannot send {row.name}, which belongs to a request: use ctx.send_notification(...)"
            )

    def wants(self, row: Method) -> bool:
        """Return whether a handler is registered for an extension's notification, which ``row`` describes."""
        return row in self._notification_handlers

    def call_notification_handler(self, row: Method, given: JSONObject, client: ConnectedClient) -> Any:
        """Call the handler of an extension notification, and return its result.

        If the parameters are invalid, do nothing, because the client gets no error response to a notification.
        """
        tell = self._notification_handlers[row]
        try:
            params = structure(given, row.params)
        except ValueError:
            return None
        return tell(params, client) if len(inspect.signature(tell).parameters) > 1 else tell(params)


def _parsed_handler(function: Callable[..., Any], row: Method, *, asyncio: bool) -> UserFunction:
    """Wrap ``function`` as the handler of an extension's method, which ``row`` describes. Raises `TypeError` if the
    signature of ``function`` doesn't fit."""
    handler = UserFunction.of(function, asyncio=asyncio)
    if len(handler.names) > 1:
        raise TypeError(
            f"{function.__qualname__}: a handler of {row.name} takes one {_name(row.params)} and, optionally, a "
            f"RequestContext, not {', '.join(handler.names)}"
        )
    if handler.names:
        said = inspect.get_annotations(function, eval_str=True).get(handler.names[0], row.params)
        if said is not row.params and said != row.params:
            raise TypeError(
                f"{function.__qualname__}: the parameter of {row.name} must be a {_name(row.params)}, not {said!r}"
            )
    return handler


def _name(kind: Any) -> str:
    return cast("str", getattr(kind, "__name__", repr(kind)))
