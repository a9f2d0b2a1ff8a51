"""Errors with the correct code, for users who await what is entered, or who run trio-mcp with asyncio."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import CoroutineType, TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")


def entered(
    what: str,
) -> Callable[[Callable[P, AbstractAsyncContextManager[T]]], Callable[P, AbstractAsyncContextManager[T]]]:
    """Decorate a function ``open_*`` that returns a context manager: awaiting the result raises `TypeError` with the
    correct code. ``what`` is what the block gets, in a word, ``"client"`` for example; empty for nothing."""

    def decorate(function: Callable[P, AbstractAsyncContextManager[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
        @wraps(function)
        def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
            return _Entered(function(*args, **kwargs), function.__name__, what)

        return opened

    return decorate


class _Entered(AbstractAsyncContextManager[T]):
    """A context manager that enters and leaves ``inner`` without a frame of its own: an interrupt in such a frame would
    leave the connection open."""

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
            f"{self._name} is entered, not awaited, since what it opens is closed with the block: "
            f"async with {self._name}(...){f' as {self._what}' if self._what else ''}:"
        )


def check_served_under_trio(name: str) -> None:
    """Raise `RuntimeError` with the correct code unless trio runs the ``serve_*`` function ``name``."""
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            f"{name} is run by trio only. Write\n"
            f"    wrong:  asyncio.run({name}(server))\n"
            f"    right:  trio.run({name}, server)"
        )


def check_opened_under_trio(name: str) -> None:
    """Raise `RuntimeError` with the correct code unless trio runs the function that enters ``name``, an ``open_*``."""
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            f"{name} is entered under trio only. Run the function that contains async with {name}(...)\n"
            "    wrong:  asyncio.run(main())\n"
            "    right:  trio.run(main)\n"
            "or, in a program that runs asyncio, use the function of that name in trio_mcp.aio"
        )


def check_mounted_under_trio() -> None:
    """Raise `RuntimeError` with the correct command unless trio runs the server of an ASGI application."""
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "http_app is run by trio only, and this ASGI server runs asyncio. Start the application with\n"
            "    wrong:  uvicorn module:app\n"
            "    right:  hypercorn --worker-class trio module:app"
        )
