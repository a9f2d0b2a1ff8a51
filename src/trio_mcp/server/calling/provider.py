"""Provide is an author's note that the server provides a parameter; a Provider is the function of the note, taken apart
once, where the handler is declared.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

import attrs

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager, contextmanager
from ..options import is_context


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
    was cancelled, before tasks in the nursery of the request end. The time limit of a tool counts the function in.
    While a user is asked, values stay; a handler that runs again (``replay=True``) gets new values. Cleanup under a
    cancel may wait, with a shield, for `Limits.cleanup_grace`, or `Limits.shutdown_grace`, in seconds, for all
    functions together.

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
        return f"Provide({name_of(self.function)}{', once=True' if self.once else ''})"


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


def name_of(function: Any) -> str:
    """Return the name of a function, for errors."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


@frozen(eq=False)
class Provider:
    """The function of a `Provide`, taken apart. ``open`` calls the function; a generator becomes a context manager."""

    function: Callable[..., Any]
    open: Callable[..., Any]
    in_thread: bool
    """True when the function runs in a worker thread, and gets a `WorkerContext`."""
    is_entered: bool
    """True when ``open`` returns a context manager to enter."""
    context_name: str | None
    needs: Mapping[str, Provider]
    """The providers of its own parameters."""
    once: bool
    in_loop: bool = False
    """True when the function belongs to a handler that runs on asyncio."""

    def on_asyncio(self) -> Provider:
        """Return the provider for a handler that runs on asyncio, with those of its parameters."""
        needs = {name: needed.on_asyncio() for name, needed in self.needs.items()}
        return attrs.evolve(self, needs=needs, in_loop=True)

    @classmethod
    def of(cls, note: Provide, path: tuple[Callable[..., Any], ...] = ()) -> Provider:
        """Take the function of ``note`` apart, which the functions of ``path`` need. Raises `TypeError`."""
        function, name = note.function, name_of(note.function)
        if function in path:
            circle = " → ".join(map(name_of, (*path[path.index(function) :], function)))
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
        brief = [name_of(each.function) for each in needs.values() if not each.once]
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
            not is_async,
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
