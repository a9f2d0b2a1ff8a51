"""current_member: the member of a group that asks or tells, for handlers and callbacks that all members share."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

from ..client.current_call import CallHandlers
from ..client.options import ClientOptions
from ..concurrency.contexts import contextmanager

_speaker: ContextVar[str | None] = ContextVar("trio_mcp.member", default=None)


def current_member() -> str | None:
    """Return the name of the member whose question is answered here, or whose message is taken: in the handlers and
    callbacks that a group was opened with, their child tasks and threads included. `None` elsewhere."""
    return _speaker.get()


_SPOKEN_TO: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots"})


Options = TypeVar("Options", ClientOptions, CallHandlers)


def spoken_by(name: str, options: Options) -> Options:
    """Return ``options`` with handlers and callbacks that run for the member ``name``."""
    return cast("Options", {key: _spoken_by(name, key, value) for key, value in options.items()})


def _spoken_by(name: str, key: str, option: Any) -> Any:
    if not callable(option) or not (key in _SPOKEN_TO or key.startswith("on_")):
        return option
    function = cast("Callable[..., Any]", option)

    async def run(*args: Any) -> Any:
        with _speaking(name):
            return await function(*args)

    def call(*args: Any) -> Any:
        with _speaking(name):
            answer = function(*args)
        return _awaited(name, answer) if inspect.isawaitable(answer) else answer

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return run if is_async else call


async def _awaited(name: str, answer: Awaitable[Any]) -> Any:
    with _speaking(name):
        return await answer


@contextmanager
def _speaking(name: str) -> Generator[None]:
    token = _speaker.set(name)
    try:
        yield
    finally:
        _speaker.reset(token)
