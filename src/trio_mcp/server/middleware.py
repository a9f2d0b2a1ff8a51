"""Middleware: functions that run around requests, to check, change or observe them.

`MiddlewareChains` composes the functions once for each method. A server without middleware doesn't import this module.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, Final, Protocol, TypeAlias

import attrs

from ..classes import frozen
from ..concurrency.threads import loop_calls
from ..jsonrpc.errors import clean
from ..protocol.converters import structure_params, structure_result
from ..protocol.fields import JSONObject
from ..protocol.methods import METHODS
from ..protocol.types.offers import GetPromptParams, ReadResourceParams
from ..protocol.types.tools import CallToolParams
from ..runtime.peer import Auth
from ..runtime.requests.scope import RequestScope
from ..stores.shared import RateLimits
from .context.input_required import Forwarded
from .context.request_context import GetTaskHost, LiveContext, RequestContext
from .context.worker_context import WorkerContext, run_on_asyncio
from .offers.prompts import Prompts
from .offers.resources import Resources
from .offers.tools import Tools
from .options import can_be_called

MIDDLEWARE_METHODS: Final = frozenset(
    (
        *("tools/call", "tools/list", "prompts/get", "prompts/list", "completion/complete"),
        *("resources/read", "resources/list", "resources/templates/list", "subscriptions/listen"),
        *("tasks/get", "tasks/result", "tasks/list", "tasks/update", "tasks/cancel"),
    )
)
"""The specification's methods that middleware can apply to. Each of their requests runs in its own trio task."""


@frozen(eq=False)
class ServerRequest:
    """A client's request, which middleware gets as its first argument. Read-only. See `Server.middleware`."""

    method: str
    """The method, for example ``"tools/call"``."""
    params: Any = attrs.field(repr=False)
    """The parameters that the client sent, as an instance of the method's parameter class. A tool call or prompt
    request has ``name`` and ``arguments``, a resource request ``uri``, a list request ``cursor``. Names aren't
    validated: see `offer`."""
    ctx: RequestContext = attrs.field(repr=False)
    """The context of the request, which the handler also gets."""
    arguments: JSONObject = attrs.field(repr=False)
    """The arguments of a tool call or prompt request. Empty in other requests. Use `with_arguments` to replace them."""
    _scope: RequestScope = attrs.field(repr=False)
    _answer: Callable[..., Awaitable[Any]] = attrs.field(repr=False)
    _offer: Callable[[Any, Auth | None], str | None] = attrs.field(repr=False)

    @property
    def auth(self) -> Auth | None:
        """The authenticated caller. `None` if authentication isn't configured."""
        return self.ctx.auth

    @property
    def caller(self) -> Hashable:
        """A key that identifies the caller.

        The server's limits apply to each key separately. The key is the first available of these: principal, creator of
        the session, network address, process on a Unix socket, connection.
        """
        caller = self._scope.ticket.caller.whole
        return caller if caller.key is None else caller.key

    @property
    def caller_name(self) -> str | None:
        """A readable name of the caller, without control characters: the subject of its principal or, without a
        principal, its network address. `None` if both are unknown."""
        name = self._scope.exchange.peer.name
        return None if name is None else clean(name)

    @property
    def offer(self) -> str | None:
        """The name under which the server registered the tool or prompt that the request names. For a resource, the
        registered URI or URI template.

        `None` if the request names nothing that is registered. Clients can't create new values, so you can use this
        value as a metric label.
        """
        return self._offer(self.params, self.auth)

    @property
    def _rates(self) -> RateLimits | None:
        """The rate limits that all replicas share. `None` if the server shares no storage."""
        replica = self._scope.runner.host.replica
        return None if replica is None else replica.rate_limits

    @property
    def _streams(self) -> bool:
        """True for a request that opens a stream of notifications. Such a request ends only when its client closes the
        stream."""
        return self._scope.request.method.streams

    @property
    def _has_arguments(self) -> bool:
        """True for a request that calls a tool or gets a prompt."""
        return isinstance(self.params, CallToolParams | GetPromptParams)

    def move_on_after(self, seconds: float) -> AbstractContextManager[None, bool | None]:
        """Cancel the ``with`` block after ``seconds``, like `trio.move_on_after`.

        Time spent waiting for the user in `RequestContext.elicit` doesn't count. `RequestContext.cancellation` reports
        the cancellation, also in threads.
        """
        return self._scope.move_on_after(seconds)

    def with_arguments(self, arguments: Mapping[str, Any]) -> ServerRequest:
        """Return a copy of the request with other arguments.

        The new arguments are validated like arguments from a client. Raises `TypeError` if the request's method takes
        no arguments.
        """
        if not self._has_arguments:
            raise TypeError(
                f"{self.method} has no arguments to replace: only tools/call and prompts/get have arguments"
            )
        return attrs.evolve(self, arguments=dict(arguments))


Next: TypeAlias = Callable[[ServerRequest], Awaitable[Any]]
"""The function that middleware calls to continue: it runs the rest of the middleware and the handler, and returns the
result."""


class MiddlewareFunction(Protocol):
    """A middleware function: takes the request and the next function in the chain, and returns the result."""

    def __call__(self, request: ServerRequest, next: Next, /) -> Awaitable[Any]:
        """Return the result of ``request``, usually by calling ``await next(request)``."""
        ...


DeclaredMiddleware: TypeAlias = tuple[frozenset[str], MiddlewareFunction]
"""A middleware function, after the names of the MCP methods whose requests the function handles."""


class PositionedMiddleware(ABC):
    """Base class of middleware whose state is shared by all replicas, such as the buckets of `rate_limit`.

    The state is identified by the middleware's position in the server's list of middleware, because the position is the
    same on all replicas.
    """

    @abstractmethod
    def __call__(self, request: ServerRequest, next: Next, /) -> Awaitable[Any]:
        """Return the result of ``request``. See `MiddlewareFunction`."""

    @abstractmethod
    def at_position(self, position: int) -> MiddlewareFunction:
        """Return a copy of this middleware for the given ``position`` in the server's list of middleware."""


def methods_of(names: Iterable[str], of_extensions: frozenset[str]) -> frozenset[str]:
    """Return the request methods to which middleware applies: the methods ``names`` or, without names, all methods.

    Without names, return all request methods, including the methods of extensions. Raises `ValueError` for a method
    that middleware cannot apply to.
    """
    known = MIDDLEWARE_METHODS | of_extensions
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - for untyped code
            raise TypeError(
                "server.middleware takes method names, and returns a decorator:\n"
                '    wrong:  server.middleware("tools/call", function), server.middleware(["tools/call"])\n'
                '    right:  server.middleware("tools/call")(function)'
            )
        if name in known:
            continue
        words = "is answered without starting a task" if name in METHODS else "is not a request from clients"
        methods = ", ".join(sorted(known))
        raise ValueError(
            f"middleware cannot apply to the method {name!r}, because it {words}. Allowed methods: {methods}"
        )
    return frozenset(names) or known


def check_middleware(function: object) -> None:
    """Raise `TypeError` unless ``function`` can be used as middleware."""
    name = getattr(function, "__qualname__", repr(function)[:200])
    # Exclude functools.partial, for which inspect.isroutine() is true from CPython 3.14 on.
    is_function = inspect.isroutine(function) or issubclass(type(function), partial)
    called: Any = function if is_function else getattr(function, "__call__", function)  # noqa: B004
    if not (inspect.iscoroutinefunction(called) and can_be_called(called, 2)):
        raise TypeError(
            f"{name} cannot be used as middleware. Write\n"
            "    async def around(request: ServerRequest, next: Next) -> Any:\n"
            "        return await next(request)"
        )


class MiddlewareChains:
    """The middleware of a running server. ``declared`` contains the outermost middleware first."""

    def __init__(
        self, declared: Sequence[DeclaredMiddleware], tools: Tools, resources: Resources, prompts: Prompts
    ) -> None:
        self._tools = tools
        self._resources = resources
        self._prompts = prompts
        places = dict[int, int]()
        for place, (_, each) in enumerate(declared):
            places.setdefault(id(each), place)  # a function that is registered twice keeps its first position
        placed = [
            (methods, each.at_position(places[id(each)]) if isinstance(each, PositionedMiddleware) else each)
            for methods, each in declared
        ]
        self._chains = {
            method: _composed([each for methods, each in placed if method in methods])
            for method in frozenset[str]().union(*(methods for methods, _ in declared))
        }

    def answer(
        self, answer: Callable[..., Awaitable[Any]], scope: RequestScope, lifespan: Any, tasks: GetTaskHost
    ) -> Awaitable[Any]:
        """Run the middleware of a request, and return the result.

        The last middleware calls the function ``answer`` with the `RequestScope` and, if the middleware replaced them,
        the new arguments.
        """
        inbound = scope.request
        method, chain = inbound.method.name, self._chains.get(inbound.method.name)
        if chain is None:
            return answer(scope)
        params = structure_params(inbound.params, inbound.method.params, inbound.revision)
        if isinstance(params, CallToolParams):
            params = self._tools.resolve_call(params, scope)
        has_arguments = isinstance(params, CallToolParams | GetPromptParams)
        arguments: JSONObject = {**(params.arguments or {})} if has_arguments else {}
        context = LiveContext(scope, lifespan, tasks)
        request = ServerRequest(method, params, context, arguments, scope, answer, self._offer)
        run = partial(chain, request)
        return self._tools.call_within(run, scope, params, tasks) if isinstance(params, CallToolParams) else run()

    def applies_to(self, method: str) -> bool:
        """Return whether any middleware applies to requests of ``method``. If so, middleware may change their
        results."""
        return method in self._chains

    def _offer(self, params: Any, auth: Auth | None) -> str | None:
        """Return the registered name of the tool, prompt or resource to which the request parameters ``params`` refer.
        See `ServerRequest.offer`."""
        match params:
            case CallToolParams(name=name):
                return name if self._tools.registry.get(name) is not None else None
            case GetPromptParams(name=name):
                return name if self._prompts.registry.get(name) is not None else None
            case ReadResourceParams(uri=uri):
                found = self._resources.find(uri, auth)
                return None if found is None else found[0].uri
            case _:
                return None


def on_asyncio(middleware: MiddlewareFunction) -> MiddlewareFunction:
    """Wrap ``middleware`` so that it runs in the server's asyncio event loop. Its argument ``next`` still runs on trio.

    This package's own middleware is returned unwrapped.
    """
    module = getattr(middleware, "__module__", None) or type(middleware).__module__
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return middleware

    @wraps(middleware)
    async def run(request: ServerRequest, next: Next, /) -> Any:
        async def onward(request: ServerRequest) -> Any:
            return await loop_calls.get().call(partial(next, request))

        context: Any = request.ctx if isinstance(request.ctx, WorkerContext) else WorkerContext(request.ctx)
        return await run_on_asyncio(partial(middleware, attrs.evolve(request, ctx=context), onward))

    return run


def _composed(middleware: Sequence[MiddlewareFunction]) -> Next:
    chain: Next = _answer
    for each in reversed(middleware):
        chain = _within(each, chain)
    return chain


def _within(middleware: MiddlewareFunction, inner: Next) -> Next:
    async def run(request: ServerRequest) -> Any:
        result = await middleware(request, inner)
        if result is None or inspect.iscoroutine(result):
            name = getattr(middleware, "__qualname__", repr(middleware))
            raise TypeError(f"{name} returned no result for {request.method}. Write: return await next(request)")
        return result

    return run


async def _answer(request: ServerRequest) -> Any:
    if not isinstance(request, ServerRequest):  # pyright: ignore[reportUnnecessaryIsInstance] - for untyped code
        raise TypeError(f"next must be called with the request, not {request!r}: write await next(request)")
    scope = request._scope
    if request._has_arguments:
        result = await request._answer(scope, request.arguments)
    else:
        result = await request._answer(scope)
    method = scope.request.method
    return structure_result(method.name, dict(result), method.result) if isinstance(result, Forwarded) else result
