"""Errors that show the correct code, for users who await a context manager or run trio-mcp with asyncio."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from functools import cache, wraps
from inspect import Parameter, signature, unwrap
from types import CoroutineType, TracebackType
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, get_args

import trio

P = ParamSpec("P")
T = TypeVar("T")


def async_with_only(
    what: str,
) -> Callable[[Callable[P, AbstractAsyncContextManager[T]]], Callable[P, AbstractAsyncContextManager[T]]]:
    """Return a decorator for ``open_*`` functions, which return async context managers. If a user awaits the result,
    the error shows the correct ``async with`` statement.

    The decorated function raises helpful errors if it is misused. Awaiting the result then raises `TypeError` with the
    correct code, and so does an unknown option. ``what`` names the value of the block, for example ``"client"``; pass
    an empty string for no value.
    """

    def decorate(function: Callable[P, AbstractAsyncContextManager[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
        @wraps(function)
        def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
            if kwargs:
                check_keywords(function, kwargs)
            return _AsyncWithOnly(function(*args, **kwargs), function.__name__, what)

        return opened

    return decorate


def check_keywords(function: Callable[..., Any], given: Iterable[str], name: str | None = None) -> None:
    """Raise `TypeError` if one of the keywords in ``given`` isn't a parameter of ``function``.

    The error message calls the function ``name``, by default the function's qualified name.
    """
    check_options(name or function.__qualname__.removesuffix(".__init__"), given, _keywords_of(function))


def check_options(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise `TypeError` if one of the ``given`` option names of ``function`` isn't in ``known``."""
    for name in given:
        if name not in known:
            from ..mistakes import options_of, raise_no_option

            raise_no_option(function, name, options_of(function), known)


_OF_NOBODY: Final = ("self", "task_status")
"""Parameters that Python or trio passes to the function, and that users can't pass."""


@cache
def _keywords_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the keyword arguments that ``function`` accepts.

    They include the keys of the `TypedDict` that describes its options.
    """
    known: list[str] = []
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            documented = eval(parameter.annotation, unwrap(function).__globals__)  # noqa: S307, our own ``Unpack[...]``
            known += get_args(documented)[0].__optional_keys__
        elif parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) and name not in _OF_NOBODY:
            known.append(name)
    return tuple(sorted(known))


class _AsyncWithOnly(AbstractAsyncContextManager[T]):
    """Enters and exits ``inner`` without a stack frame of its own, because Ctrl-C in such a frame would leave the
    connection open."""

    def __init__(self, inner: AbstractAsyncContextManager[T], name: str, what: str) -> None:
        self._inner = inner
        self._name = name
        self._what = what

    def __aenter__(self) -> CoroutineType[Any, Any, T]:
        return self._inner.__aenter__()

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> CoroutineType[Any, Any, bool | None]:
        return self._inner.__aexit__(kind, error, trace)

    def __await__(self) -> NoReturn:
        raise TypeError(
            f"{self._name}(...) is an async context manager and can't be awaited: write "
            f"async with {self._name}(...){f' as {self._what}' if self._what else ''}:"
        )


def check_served_under_trio(name: str) -> None:
    """Raise `RuntimeError` if a ``serve_*`` function isn't called under trio.

    A ``serve_*`` function calls this with the function's ``name``, so that the error shows the correct call.
    """
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            f"{name} runs only under trio:\n"
            f"    wrong:  asyncio.run({name}(server))\n"
            f"    right:  trio.run({name}, server)"
        )


def check_opened_under_trio(name: str) -> None:
    """Raise `RuntimeError` if an ``open_*`` function isn't called under trio.

    An ``open_*`` function calls this with the function's ``name``, so that the error shows the correct call.
    """
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            f"{name} runs only under trio. Start the function that contains async with {name}(...) like this:\n"
            "    wrong:  asyncio.run(main())\n"
            "    right:  trio.run(main)\n"
            f"In a program that runs asyncio, use {name} from trio_mcp.aio instead."
        )
