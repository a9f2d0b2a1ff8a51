"""Dependency injection: `Provide` marks a handler's parameter as injected by the server.

`Provider` is the function of a `Provide`, inspected once when the handler is registered.

An `InjectedHandler` calls a handler with the values of its provided parameters, in place of the handler's function, so
handlers without dependencies don't need this module. `open_server_providers` opens dependencies that live as long as
the server. `provide_instead` replaces them in tests.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial, wraps
from inspect import Parameter
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

import attrs
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager, contextmanager
from ...concurrency.nurseries import sole_exception
from ...concurrency.time_limits import Graces
from ...concurrency.workers import await_result, run_in_worker
from ...runtime.requests.host import RequestHost
from ...runtime.requests.scope import RequestScope, current_request
from ..context.request_context import RequestContext
from ..context.worker_context import WorkerContext, run_on_asyncio
from ..options import is_context

T = TypeVar("T")

CONTEXT: Final = "*context"
"""Name of the argument in which `InjectedHandler.call` gets the context. No parameter can have this name."""

_OPENERS: Final = frozenset(("contextlib", "trio_mcp.concurrency.contexts", "trio_mcp.concurrency.misuse"))
"""Modules whose context managers are always made for a single ``with`` block, so that the request may enter them.
Context managers of other modules may be shared by several requests, so they aren't entered."""


class Provide:
    """Marks a handler parameter for dependency injection: use it in ``Annotated``, and the server passes the
    parameter's value to the handler. Clients don't see the parameter.

        async def connect() -> AsyncGenerator[Database]:
            async with open_database() as database:
                yield database

        @server.tool
        async def count(table: str, database: Annotated[Database, Provide(connect)]) -> int:
            return await database.count(table)

    Args:
        function: Returns or yields the value; see below.
        once: If true, the function is entered once with the server, after its lifespan, and closed before the lifespan
            ends. It has no context, and its own dependencies must also have ``once=True``. As in a lifespan, cleanup
            that waits under a cancel needs a shield of its own.

    ``function`` can be one of these:

    - A plain or async function returns the value. A plain function runs in a worker thread, like a plain handler.
    - A generator, or a function decorated with `contextlib.contextmanager` or `contextlib.asynccontextmanager`, yields
      the value and is resumed after the handler. It sees the handler's exception and must not suppress it. A plain
      generator runs in worker threads, not always in the same one.
    - A class is called. If its instances are context managers, they are entered.

    Its parameters can be a `RequestContext` (`WorkerContext` in a plain function), with which it may ask the client,
    and further dependencies. Other parameters need defaults.

    The function runs in the request's task, before the handler, and once per request even if several parameters use it.
    Dependencies are entered in the order of the parameters. They are closed in reverse order when the handler has
    returned, raised or was cancelled, before the tasks in the request's nursery end. Their time counts towards the
    tool's timeout. While the handler waits for the user, the values stay open; a handler that runs again
    (``replay=True``) gets new ones. After a cancel, cleanup of all dependencies together may wait, in a shield, for
    `Limits.cleanup_grace` or `Limits.shutdown_grace` seconds.

    Raises `TypeError` unless ``function`` is a function. The declaration of the handler raises `TypeError` if a
    parameter isn't provided or if functions depend on each other in a circle.
    """

    __slots__ = ("function", "once")

    def __init__(self, function: Callable[..., Any], *, once: bool = False) -> None:
        if not callable(function):
            if inspect.iscoroutine(function):
                function.close()
            raise TypeError(
                f"Provide takes the function, not its result, {type(function).__name__}:\n"
                "    wrong:  Provide(connect())\n"
                "    right:  Provide(connect)"
            )
        self.function = function
        """The function that returns or yields the dependency's value."""
        self.once = once
        """True if the function is called once per server start, not once per request."""

    def __repr__(self) -> str:
        return f"Provide({name_of(self.function)}{', once=True' if self.once else ''})"


def provide_of(owner: str, parameter: Parameter, hint: Any) -> Provide | None:
    """Return the `Provide` in the annotation of ``parameter``, a parameter of the function ``owner``.

    Return `None` if the parameter has no `Provide`. Raises `TypeError` if the parameter has two, or if the `Provide`
    has no effect because of its position.
    """
    if not any(isinstance(note, Provide) or note is Provide for note in (parameter.default, *_notes_in(hint))):
        return None
    notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
    found = [note for note in notes if isinstance(note, Provide)]
    has_name = parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    if len(found) != 1 or isinstance(parameter.default, Provide) or not has_name:
        raise TypeError(
            f"{owner}: parameter {parameter.name!r} needs exactly one Provide(...), around its whole annotation:\n"
            f"    wrong:  {parameter.name}: Database = Provide(connect)\n"
            f"    right:  {parameter.name}: Annotated[Database, Provide(connect)]"
        )
    return found[0]


def _notes_in(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for member in get_args(hint):
        yield from _notes_in(member)


def name_of(function: Any) -> str:
    """Return the name of a function for error messages."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


@frozen(eq=False)
class Provider:
    """The function in a `Provide` annotation, with its inspected signature. ``open`` calls the function or, for a
    generator function, returns a context manager."""

    function: Callable[..., Any]
    open: Callable[..., Any]
    in_thread: bool
    """True if the function runs in a worker thread, and gets a `WorkerContext`."""
    is_entered: bool
    """True if ``open`` returns a context manager that must be entered."""
    context_name: str | None
    needs: Mapping[str, Provider]
    """The providers of the function's own parameters."""
    once: bool
    in_loop: bool = False
    """True if the function belongs to a handler that runs on asyncio."""

    def on_asyncio(self) -> Provider:
        """Return a copy of this provider for a handler that runs on asyncio. The providers of the function's parameters
        are copied as well."""
        needs = {name: needed.on_asyncio() for name, needed in self.needs.items()}
        return attrs.evolve(self, needs=needs, in_loop=True)

    @classmethod
    def of(cls, note: Provide, path: tuple[Callable[..., Any], ...] = ()) -> Provider:
        """Return the `Provider` for the function that ``note`` contains. ``note`` is the `Provide` object in the
        annotation of a parameter.

        ``path`` lists the functions that depend on this function, to detect cycles. Raises `TypeError` if the function
        can't be used.
        """
        function, name = note.function, name_of(note.function)
        if function in path:
            circle = " → ".join(map(name_of, (*path[path.index(function) :], function)))
            raise TypeError(f"{name} provides a value that depends on itself: {circle}")
        context_name: str | None = None
        needs: dict[str, Provider] = {}
        for parameter, hint in _parameters(name, function):
            if is_context(hint) or (parameter.name == "ctx" and parameter.annotation is parameter.empty):
                context_name = parameter.name
            elif (needed := provide_of(name, parameter, hint)) is not None:
                needs[parameter.name] = cls.of(needed, (*path, function))
            elif parameter.default is parameter.empty and parameter.kind not in _STARRED:
                raise TypeError(
                    f"{name}: the parameter {parameter.name!r} is not provided. Clients pass no arguments to "
                    "providers, so each parameter needs Provide, a RequestContext or a default:\n"
                    f"    right:  {parameter.name}: Annotated[..., Provide(function)]"
                )
        brief = [name_of(each.function) for each in needs.values() if not each.once]
        if note.once and (context_name is not None or brief):
            lacking = f"{', '.join(brief)}, which has no once=True" if brief else "a RequestContext"
            raise TypeError(
                f"{name} has once=True, so it is called without a request, but needs {lacking}: leave out once=True"
            )
        written: Any = inspect.unwrap(cast("Any", _callee(function)))
        is_async = inspect.iscoroutinefunction(written) or inspect.isasyncgenfunction(written)
        is_generator = inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written)
        is_class = isinstance(function, type)
        return cls(
            function,
            _opening(function),
            not is_async,
            is_generator or (is_class and (hasattr(function, "__aenter__") or hasattr(function, "__enter__"))),
            context_name,
            needs,
            note.once,
        )


_STARRED: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _callee(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function that runs when ``function`` is called. ``function`` may also be a callable object or a
    `functools.partial`."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__


def _parameters(name: str, function: Callable[..., Any]) -> list[tuple[Parameter, Any]]:
    """Return the parameters of a function with their annotations. Return an empty list for builtins without a
    signature."""
    callee = _callee(function)
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(callee.__init__ if isinstance(callee, type) else callee, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{name}: an annotation could not be resolved: {error}. Define the type at the top of its module."
        ) from None
    except (TypeError, ValueError):
        return []
    return [(parameter, hints.get(parameter.name, Any)) for parameter in parameters]


def _opening(function: Callable[..., Any]) -> Callable[..., Any]:
    callee: Any = _callee(function)
    if inspect.isasyncgenfunction(callee):
        return asynccontextmanager(cast("Callable[..., AsyncGenerator[Any]]", function))
    if inspect.isgeneratorfunction(callee):
        return contextmanager(cast("Callable[..., Generator[Any]]", function))
    return function


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
