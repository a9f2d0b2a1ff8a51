"""current_member: the member of a group that asks or tells, for handlers and callbacks that all members share."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

from ..client.current_call import CallHandlers
from ..client.options import ClientOptions
from ..concurrency.contexts import contextmanager

_current_member: ContextVar[str | None] = ContextVar("trio_mcp.member", default=None)


def current_member() -> str | None:
    """Return the name of the member whose question is answered here, or whose message is taken: in the handlers and
    callbacks that a group was opened with, their child tasks and threads included. `None` elsewhere."""
    return _current_member.get()


_MEMBER_CALLBACKS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots"})


Options = TypeVar("Options", ClientOptions, CallHandlers)


def options_for_member(name: str, options: Options) -> Options:
    """Return ``options`` with handlers and callbacks that run for the member ``name``."""
    return cast("Options", {key: _wrapped_option(name, key, value) for key, value in options.items()})


def _wrapped_option(name: str, key: str, option: Any) -> Any:
    if not callable(option) or not (key in _MEMBER_CALLBACKS or key.startswith("on_")):
        return option
    function = cast("Callable[..., Any]", option)

    async def run(*args: Any) -> Any:
        with _as_member(name):
            return await function(*args)

    def call(*args: Any) -> Any:
        with _as_member(name):
            answer = function(*args)
        return _await_as_member(name, answer) if inspect.isawaitable(answer) else answer

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return run if is_async else call


async def _await_as_member(name: str, answer: Awaitable[Any]) -> Any:
    with _as_member(name):
        return await answer


@contextmanager
def _as_member(name: str) -> Generator[None]:
    token = _current_member.set(name)
    try:
        yield
    finally:
        _current_member.reset(token)
