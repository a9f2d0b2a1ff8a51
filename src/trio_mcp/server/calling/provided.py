"""Dependency injection: call a handler with the values of its provided parameters.

An `InjectedHandler` replaces the handler's function, so handlers without dependencies don't need this module.
`open_server_providers` opens dependencies that live as long as the server. `provide_instead` replaces them in tests.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial, wraps
from typing import Any, Final, TypeVar

import trio

from ...concurrency.contexts import asynccontextmanager, contextmanager
from ...concurrency.nurseries import sole_exception
from ...concurrency.time_limits import Graces
from ...concurrency.workers import await_result, run_in_worker
from ...runtime.requests.host import RequestHost
from ...runtime.requests.scope import RequestScope, current_request
from ..context.request_context import RequestContext
from ..context.worker_context import WorkerContext, run_on_asyncio
from .provider import Provide, Provider, name_of

T = TypeVar("T")

CONTEXT: Final = "*context"
"""Name of the argument in which `InjectedHandler.call` gets the context. No parameter can have this name."""

_OPENERS: Final = frozenset(("contextlib", "trio_mcp.concurrency.contexts", "trio_mcp.concurrency.misuse"))
"""Modules whose context managers are always made for a single ``with`` block, so that the request may enter them.
Context managers of other modules may be shared by several requests, so they aren't entered."""


class _ProvidedValues:
    """The dependencies that were opened for one request or, if ``scope`` is `None`, for the whole server.

    Each dependency is entered when it is first needed, and closed when ``stack`` closes.
    """

    def __init__(self, stack: AsyncExitStack, context: RequestContext, scope: RequestScope | None = None) -> None:
        self._stack = stack
        self._context = context
        self._scope = scope
        self.by_function: dict[Callable[..., Any], Any] = {}
        self.cleanup = trio.CancelScope()
        """Cancel scope around all dependencies, which limits the time for their cleanup."""

    async def value(self, provider: Provider) -> Any:
        """Return the value of the dependency ``provider``. If a test has replaced the dependency, the replacement
        provides the value."""
        used = _overrides.get(provider.function, provider)
        if provider.once and self._scope is not None:
            shared = _server_values.get(self._scope.runner.host, {})
            if used.function in shared:
                return shared[used.function]
            if used is provider:
                raise RuntimeError(
                    f"{name_of(used.function)} has once=True, so the server creates its value when it starts, but a "
                    "handler that uses it was added later. Add the handler before the server starts, or leave out "
                    "once=True"
                )
        if used.function not in self.by_function:
            self.by_function[used.function] = await self._enter(used)
        return self.by_function[used.function]

    async def _enter(self, provider: Provider) -> Any:
        bound = {name: await self.value(needed) for name, needed in provider.needs.items()}
        if provider.context_name is not None:
            bound[provider.context_name] = self._context_for(provider)
        open_value = partial(provider.open, **bound)
        made = await self.in_thread(open_value) if provider.in_thread else open_value()
        if inspect.iscoroutine(made):
            made = await made
        if not (provider.is_entered or type(made).__module__ in _OPENERS):
            return made
        if not hasattr(made, "__aenter__"):
            return await self._enter_in_thread(made)
        value = await self._stack.enter_async_context(made)
        self._stack.callback(self.begin_grace)
        return value

    async def _enter_in_thread(self, manager: Any) -> Any:
        """Enter a plain context manager in a worker thread, and let ``stack`` close it in a worker thread.

        The context manager is closed only if it was entered, because a cancellation may end the wait for the thread
        before the thread enters it.
        """
        entered: list[Any] = []

        async def leave(*error: Any) -> bool | None:
            return await self.in_thread(partial(manager.__exit__, *error)) if entered else None

        self._stack.push_async_exit(leave)
        self._stack.callback(self.begin_grace)
        await self.in_thread(lambda: entered.append(manager.__enter__()))
        return entered[0]

    def _context_for(self, provider: Provider) -> Any:
        return WorkerContext(self._context) if provider.in_thread else self._context

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run the blocking function ``call`` in a worker thread, and return its result."""
        scope = self._scope
        if scope is None:
            return await trio.to_thread.run_sync(call)
        threads = scope.runner.workers.share(scope.ticket.caller)
        return await run_in_worker(call, threads, lambda: scope.runner.graces, scope.thread_abandoned)

    def begin_grace(self) -> None:
        """If the request was cancelled, start a grace period, in which the cleanup of the request's dependencies may
        still wait.

        Called before each value is closed, because the cancellation may arrive between two closes.
        """
        if self._scope is not None and trio.current_effective_deadline() <= trio.current_time():
            self._scope.runner.graces.shield(self.cleanup)

    def end_grace(self) -> None:
        """End the grace period for the cleanup of the request's dependencies. Call this when all dependencies have been
        closed."""
        if self._scope is not None:
            self._scope.runner.graces.unshield(self.cleanup)


class _LoopValues(_ProvidedValues):
    """Opens and closes the dependencies of one request, or of the whole server, in a single asyncio task."""

    def _context_for(self, provider: Provider) -> Any:
        return WorkerContext(self._context)

    async def in_thread(self, call: Callable[[], T]) -> T:
        import asyncio  # lazy import: few servers use asyncio functions as dependencies

        running = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # Wait for the thread, because a context manager that it enters must be closed.
            await asyncio.wait([running])
            raise

    def begin_grace(self) -> None:
        """Do nothing: a cancelled asyncio task may still await in its cleanup, so it needs no grace period."""


class InjectedHandler:
    """A handler function with ``Provide`` parameters. `call` computes the values of these parameters, and calls the
    function with them.

    ``notes`` contains the `Provide` of each such parameter. If ``on_asyncio`` is true, the handler and its providers
    run in one asyncio task.
    """

    def __init__(
        self, function: Callable[..., Any], notes: Mapping[str, Provide], context_name: str | None, *, on_asyncio: bool
    ) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._context_name = context_name
        providers = {name: Provider.of(note) for name, note in notes.items()}
        self._providers = {name: each.on_asyncio() if on_asyncio else each for name, each in providers.items()}
        self.once = tuple(dict.fromkeys(_server_providers_in(self._providers.values())))
        """The ``once=True`` providers that the handler needs, without those needed only by other ``once=True``
        providers."""

        @wraps(function)
        async def call(**bound: Any) -> Any:
            context = bound.pop(CONTEXT)
            if on_asyncio:
                return await run_on_asyncio(partial(self._call_on_asyncio, context, bound))
            return await self._call(context, bound)

        self.call = call

    async def _call(self, context: RequestContext, bound: dict[str, Any]) -> Any:
        ends: list[Any] = []
        failure: BaseException | None = None
        stack = AsyncExitStack()
        values = _ProvidedValues(stack, context, current_request.get())
        try:
            with values.cleanup:
                async with stack:
                    for name, provider in self._providers.items():
                        bound[name] = await values.value(provider)
                    try:
                        ends.append(await self._run(context, bound, values))
                    except BaseException as error:
                        failure = error
                        raise
        except BaseExceptionGroup as group:
            if failure is None or sole_exception(group) is not failure:
                raise
            raise failure from None  # trio wraps the exception in a group if the provider has a nursery
        finally:
            values.end_grace()
            del failure  # break the reference cycle: the exception's traceback refers to this frame
        if values.cleanup.cancelled_caught:
            # The scope `values.cleanup` limits the cleanup time, and may catch the cancellation of the request.
            # If the request was cancelled, raise `trio.Cancelled` again.
            await trio.lowlevel.checkpoint_if_cancelled()
        if not ends:
            raise self._swallowed()
        return ends.pop()

    async def _call_on_asyncio(self, context: RequestContext, bound: dict[str, Any]) -> Any:
        async with AsyncExitStack() as stack:
            values = _LoopValues(stack, context, current_request.get())
            for name, provider in self._providers.items():
                bound[name] = await values.value(provider)
            if self._context_name is not None:
                bound[self._context_name] = WorkerContext(context)
            return await self._function(**bound)
        raise self._swallowed()

    def _swallowed(self) -> RuntimeError:
        return RuntimeError(
            f"{name_of(self._function)} raised, and one of its providers swallowed the exception: raise it again"
        )

    async def _run(self, context: RequestContext, bound: dict[str, Any], values: _ProvidedValues) -> Any:
        if self._context_name is not None:
            bound[self._context_name] = context if self._is_async else WorkerContext(context)
        if self._is_async:
            return await self._function(**bound)
        return await await_result(values.in_thread(partial(self._function, **bound)))


def _server_providers_in(providers: Any) -> Iterator[Provider]:
    for provider in providers:
        yield from (provider,) if provider.once else _server_providers_in(provider.needs.values())


_server_values: dict[RequestHost, Mapping[Callable[..., Any], Any]] = {}
"""Values of ``once=True`` providers, by the request host of each running server."""


@asynccontextmanager
async def open_server_providers(providers: Sequence[Provider], host: RequestHost) -> AsyncGenerator[None]:
    """Open the dependencies that all requests of a running server share: the providers with ``once=True``.

    The server's handlers run in ``host``. At the end of the ``async with`` block, the dependencies are closed in
    reverse order.
    """
    async with AsyncExitStack() as stack:
        values = _ProvidedValues(stack, RequestContext())
        for provider in providers:
            if not provider.in_loop:
                await values.value(provider)
        if in_loop := [provider for provider in providers if provider.in_loop]:
            manager = _open_in_loop(in_loop, values.by_function)
            await stack.enter_async_context(host.asyncio.opened(manager, Graces(host.limits.cleanup_grace)))
        _server_values[host] = values.by_function
        try:
            yield
        finally:
            del _server_values[host]


@asynccontextmanager
async def _open_in_loop(
    providers: Sequence[Provider], by_function: dict[Callable[..., Any], Any]
) -> AsyncGenerator[None]:
    """Open the dependencies ``providers`` in an asyncio task, and store their values in ``by_function``."""
    async with AsyncExitStack() as stack:
        values = _LoopValues(stack, RequestContext())
        values.by_function = by_function
        for provider in providers:
            await values.value(provider)
        yield


_overrides: dict[Callable[..., Any], Provider] = {}


@contextmanager
def provide_instead(replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> Generator[None]:
    """Replace dependencies in tests: in the ``with`` block, all servers of this process use the replacement.

        with provide_instead({connect: lambda: FakeDatabase()}):
            async with open_memory(server) as client:
                ...

    Each key of ``replacements`` is a function passed to `Provide`, and its value the function to use instead: any
    function that `Provide` accepts, with dependencies of its own. A ``once=True`` dependency is replaced for servers
    that start in the block; in a server that is already running, the replacement is entered for each request. Raises as
    `Provide` and as the declaration of a handler.
    """
    before = dict(_overrides)
    _overrides.update({function: Provider.of(Provide(fake)) for function, fake in replacements.items()})
    try:
        yield
    finally:
        _overrides.clear()
        _overrides.update(before)
