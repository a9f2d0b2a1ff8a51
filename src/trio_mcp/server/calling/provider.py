"""`Provide` marks a handler's parameter as injected by the server. `Provider` is the function of a `Provide`, inspected
once when the handler is registered."""

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
