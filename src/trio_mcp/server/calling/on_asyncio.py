"""Runs asyncio handlers in their server's asyncio event loop, by wrapping each handler in a trio function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, TypeVar

from ...runtime.requests.scope import current_request
from ..context.worker_context import WorkerContext

T = TypeVar("T")


def handler_on_asyncio(function: Callable[..., Any], context_name: str | None) -> Callable[..., Any]:
    """Return a trio function that runs the asyncio handler ``function`` in the server's asyncio event loop."""

    @wraps(function)
    async def call(**bound: Any) -> Any:
        if context_name is not None:
            bound[context_name] = WorkerContext(bound[context_name])
        return await run_on_asyncio(partial(function, **bound))

    return call


async def run_on_asyncio(function: Callable[[], Awaitable[T]]) -> T:
    """Run the asyncio function ``function`` in the server's asyncio event loop, and return its result. The call belongs
    to the current request."""
    scope = current_request.get()
    return await scope.runner.host.asyncio.run(function, scope.runner.graces, scope.thread_abandoned)
