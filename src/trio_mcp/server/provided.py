"""Provide: parameters of handlers that the server provides, and that no caller sees.

`Provide` is the note of an author, `Provider` the function of the note, taken apart once, at the declaration of the
handler. `Provisions` run a handler with the values of its providers, in the place of the handler's function, so
a handler without provided parameters knows nothing of this module. `provide_instead` is for tests.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial, wraps
from inspect import Parameter
from types import TracebackType
from typing import Annotated, Any, Final, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import trio

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..concurrency.nurseries import only_member
from ..concurrency.workers import run_in_worker
from ..runtime.requests.host import RequestHost
from ..runtime.requests.scope import RequestScope, current_request
from .request_context import RequestContext
from .worker_context import WorkerContext, is_context

T = TypeVar("T")

CONTEXT: Final = "*context"
"""Argument by which `Provisions.call` gets the context; no parameter has such a name."""

_OPENERS: Final = frozenset(("contextlib", "trio_mcp.concurrency.contexts", "trio_mcp.concurrency.misuse"))
"""Modules with context managers for one block; context managers of others may be values that many share."""


class Provide:
    """A note in ``Annotated``: the server provides the parameter, by ``function``, and no caller sees the parameter.

        async def connect() -> AsyncGenerator[Database]:
            async with open_database() as database:
                yield database

        @server.tool
        async def count(table: str, database: Annotated[Database, Provide(connect)]) -> int:
            return await database.count(table)

    ``function`` gives the value in one of three ways:

    - an async function is awaited; a plain function runs in a worker thread, as a plain handler does;
    - a generator, async or plain, or a function under `contextlib.contextmanager` or `contextlib.asynccontextmanager`
      yields the value, and goes on after its handler: with the exception of the handler, which has to go on, too. A
      plain generator runs in worker threads, not always in the same thread;
    - a class is called, and, if its instances are context managers, entered.

    The function is entered in the task of the request, before the handler, in the order of the parameters, once for all
    parameters of a request with the same function; and left in reverse order when the handler has returned, raised, or
    was cancelled. The time limit of a tool counts the function in. While a user is asked, values stay; a handler
    that runs again (``replay=True``) gets new values. Cleanup under a cancel may wait, with a shield, for
    `Limits.cleanup_grace`, or `Limits.shutdown_grace`, in seconds, for all functions together.

    Parameters of the function are a `RequestContext` (a `WorkerContext` in a plain function), by which the function may
    ask the client, and provided parameters; others have defaults.

    ``once=True``: the function is entered once with the server, after its lifespan, and left before the end of the
    lifespan, by the rules of a lifespan: cleanup that waits under a cancel has a shield of its own. Such a
    function has no context, and its provided parameters are of ``once=True``, too.

    Raises `TypeError` for anything but a function. The declaration of the handler raises `TypeError` for parameters
    that nobody provides, and for functions that need each other.
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
        self.once = once

    def __repr__(self) -> str:
        return f"Provide({_name(self.function)}{', once=True' if self.once else ''})"


def provide_of(owner: str, parameter: Parameter, hint: Any) -> Provide | None:
    """Return the note of a parameter of ``owner``; `None` where there is none. Raises `TypeError` for a note in a
    place where nobody would look, and for two."""
    if not any(isinstance(note, Provide) or note is Provide for note in (parameter.default, *_notes_in(hint))):
        return None
    notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
    found = [note for note in notes if isinstance(note, Provide)]
    has_name = parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    if len(found) != 1 or isinstance(parameter.default, Provide) or not has_name:
        raise TypeError(
            f"{owner}: parameter {parameter.name!r} is provided by one Provide(...), around its whole annotation:\n"
            f"    wrong:  {parameter.name}: Database = Provide(connect)\n"
            f"    right:  {parameter.name}: Annotated[Database, Provide(connect)]"
        )
    return found[0]


def _notes_in(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for member in get_args(hint):
        yield from _notes_in(member)


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


@frozen(eq=False)
class Provider:
    """The function of a `Provide`, taken apart. ``open`` calls the function; a generator becomes a context manager."""

    function: Callable[..., Any]
    open: Callable[..., Any]
    in_thread: bool
    """True when ``open`` is to be called in a worker thread."""
    is_entered: bool
    """True when ``open`` returns a context manager to enter."""
    context_name: str | None
    needs: Mapping[str, Provider]
    """The providers of its own parameters."""
    once: bool

    @classmethod
    def of(cls, note: Provide, path: tuple[Callable[..., Any], ...] = ()) -> Provider:
        """Take the function of ``note`` apart, which the functions of ``path`` need. Raises `TypeError`."""
        function, name = note.function, _name(note.function)
        if function in path:
            circle = " → ".join(map(_name, (*path[path.index(function) :], function)))
            raise TypeError(f"{name} provides a value that needs itself: {circle}")
        context_name: str | None = None
        needs: dict[str, Provider] = {}
        for parameter, hint in _parameters(name, function):
            if is_context(hint) or (parameter.name == "ctx" and parameter.annotation is parameter.empty):
                context_name = parameter.name
            elif (needed := provide_of(name, parameter, hint)) is not None:
                needs[parameter.name] = cls.of(needed, (*path, function))
            elif parameter.default is parameter.empty and parameter.kind not in _STARRED:
                raise TypeError(
                    f"{name}: nobody provides the parameter {parameter.name!r}. A provider has provided parameters, a "
                    "RequestContext, and parameters with defaults; arguments of callers are for the handler:\n"
                    f"    right:  {parameter.name}: Annotated[..., Provide(function)]"
                )
        brief = [_name(each.function) for each in needs.values() if not each.once]
        if note.once and (context_name is not None or brief):
            lacking = f"{', '.join(brief)}, of a request" if brief else "the context of a request"
            raise TypeError(f"{name} is provided once for the server, and needs {lacking}: leave out once=True")
        written: Any = inspect.unwrap(cast("Any", _callee(function)))
        is_async = inspect.iscoroutinefunction(written) or inspect.isasyncgenfunction(written)
        is_generator = inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written)
        is_class = isinstance(function, type)
        return cls(
            function,
            _opening(function),
            not (is_async or is_generator),
            is_generator or (is_class and (hasattr(function, "__aenter__") or hasattr(function, "__enter__"))),
            context_name,
            needs,
            note.once,
        )


_STARRED: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _callee(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that runs when ``function`` is called, which may be an object or a partial call."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__


def _parameters(name: str, function: Callable[..., Any]) -> list[tuple[Parameter, Any]]:
    """Return the parameters of a function, with their annotations. Builtin functions may tell of none."""
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


class _InThreads(Generic[T]):
    """A plain context manager with its steps run in threads, by ``run``. Left without having been entered, the context
    manager does nothing: a cancel may end the wait for a thread, before or after the thread has entered."""

    def __init__(self, manager: Any, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._manager = manager
        self._run = run
        self._was_entered = False

    async def enter(self) -> T:
        """Enter in a thread, and return the value."""
        return await self._run(self._enter)

    def _enter(self) -> T:
        value = self._manager.__enter__()
        self._was_entered = True
        return value

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Leave in a thread. Return true for an exception that the manager has swallowed."""
        if not self._was_entered:
            return None
        return await self._run(partial(self._manager.__exit__, kind, error, trace))


class _Values:
    """The values of one request, or of a server, which has no ``scope``: each entered at its first use, and left
    with ``stack``."""

    def __init__(self, stack: AsyncExitStack, context: RequestContext, scope: RequestScope | None = None) -> None:
        self._stack = stack
        self._context = context
        self._scope = scope
        self.by_function: dict[Callable[..., Any], Any] = {}
        self.cleanup = trio.CancelScope()
        """Scope around all that is entered, for the grace of its cleanup."""

    async def value(self, provider: Provider) -> Any:
        """Return the value of ``provider``, or of its replacement."""
        used = _instead.get(provider.function, provider)
        if provider.once and self._scope is not None:
            shared = _shared.get(self._scope.runner.host, {})
            if used.function in shared:
                return shared[used.function]
            if used is provider:
                raise RuntimeError(
                    f"{_name(used.function)} is provided once, with the server, and what needs it was added while the "
                    "server ran: add it before, or leave out once=True"
                )
        if used.function not in self.by_function:
            self.by_function[used.function] = await self._enter(used)
        return self.by_function[used.function]

    async def _enter(self, provider: Provider) -> Any:
        bound = {name: await self.value(needed) for name, needed in provider.needs.items()}
        if provider.context_name is not None:
            bound[provider.context_name] = WorkerContext(self._context) if provider.in_thread else self._context
        open_value = partial(provider.open, **bound)
        made = await self.in_thread(open_value) if provider.in_thread else open_value()
        if inspect.iscoroutine(made):
            made = await made
        if not (provider.is_entered or type(made).__module__ in _OPENERS):
            return made
        if hasattr(made, "__aenter__"):
            value = await self._stack.enter_async_context(made)
        else:
            steps = _InThreads[Any](made, self.in_thread)
            self._stack.push_async_exit(steps.leave)
            self._stack.callback(self.begin_grace)
            return await steps.enter()
        self._stack.callback(self.begin_grace)
        return value

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a worker thread and return its result."""
        scope = self._scope
        if scope is None:
            return await trio.to_thread.run_sync(call)
        return await run_in_worker(call, scope.runner.workers.share(scope.ticket.caller), lambda: scope.runner.graces)

    def begin_grace(self) -> None:
        """Let the cleanup wait where the request was cancelled. Called before each value is left, since a cancel
        may come in between."""
        if self._scope is None or self.cleanup.shield:
            return
        if trio.current_effective_deadline() <= trio.current_time():
            self._scope.runner.graces.begin(self.cleanup)

    def end_grace(self) -> None:
        """Note that all is left."""
        if self._scope is not None:
            self._scope.runner.graces.end(self.cleanup)


class Provisions:
    """The handler ``function``, and the providers of its parameters by their names. ``call`` takes its place."""

    def __init__(self, function: Callable[..., Any], notes: Mapping[str, Provide], context_name: str | None) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._context_name = context_name
        self._providers = {name: Provider.of(note) for name, note in notes.items()}
        self.once = tuple(dict.fromkeys(_once_in(self._providers.values())))
        """The providers that are entered with the server, but for providers that others need."""

        @wraps(function)
        async def call(**bound: Any) -> Any:
            return await self._call(bound.pop(CONTEXT), bound)

        self.call = call

    async def _call(self, context: RequestContext, bound: dict[str, Any]) -> Any:
        ends: list[Any] = []
        failure: BaseException | None = None
        stack = AsyncExitStack()
        values = _Values(stack, context, current_request.get())
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
            if failure is None or only_member(group) is not failure:
                raise
            raise failure from None  # a provider has a nursery, which puts what leaves it into a group
        finally:
            values.end_grace()
            del failure  # its traceback refers to this frame: only the garbage collector could free the two
        if values.cleanup.cancelled_caught:
            await trio.lowlevel.checkpoint_if_cancelled()  # the cancel of the request, which the scope has caught too
        if not ends:
            raise RuntimeError(
                f"{_name(self._function)} raised, and one of its providers swallowed the exception: raise it again"
            )
        return ends.pop()

    async def _run(self, context: RequestContext, bound: dict[str, Any], values: _Values) -> Any:
        if self._context_name is not None:
            bound[self._context_name] = context if self._is_async else WorkerContext(context)
        if self._is_async:
            return await self._function(**bound)
        return await values.in_thread(partial(self._function, **bound))


def _once_in(providers: Any) -> Iterator[Provider]:
    for provider in providers:
        yield from (provider,) if provider.once else _once_in(provider.needs.values())


_shared: dict[RequestHost, Mapping[Callable[..., Any], Any]] = {}
"""Values that are provided once, by the homes of the handlers of the servers that run."""


@asynccontextmanager
async def entered_once(providers: Sequence[Provider], host: RequestHost) -> AsyncGenerator[None]:
    """Enter ``providers`` for the server that runs with ``host``, and leave in reverse order."""
    async with AsyncExitStack() as stack:
        values = _Values(stack, RequestContext())
        for provider in providers:
            await values.value(provider)
        _shared[host] = values.by_function
        try:
            yield
        finally:
            del _shared[host]


_instead: dict[Callable[..., Any], Provider] = {}


@contextmanager
def provide_instead(replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> Generator[None]:
    """Have each function of a `Provide` that is a key of ``replacements`` replaced by its value, in all servers of this
    process, until the block is left.

        with provide_instead({connect: lambda: FakeDatabase()}):
            async with open_memory(server) as client:
                ...

    A replacement is any function that `Provide` takes, with provided parameters of its own. A value that is provided
    once, with a server, is replaced for servers that start in the block; in others the replacement is entered for each
    request. Raises as `Provide` and as the declaration of a handler.
    """
    before = dict(_instead)
    _instead.update({function: Provider.of(Provide(fake)) for function, fake in replacements.items()})
    try:
        yield
    finally:
        _instead.clear()
        _instead.update(before)
