"""Create objects with which a worker thread can use objects of trio's thread: `WorkerAdapter` is their base class, and
`passthrough`, `in_trio`, `blocking` and `blocking_question` return their methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import trio

from ...concurrency.threads import loop_calls_here
from ...concurrency.workers import await_in_nursery, await_in_worker, in_worker_thread
from ...runtime.requests.scope import RequestScope, current_request

P = ParamSpec("P")
T = TypeVar("T")


class WorkerAdapter(Generic[T]):
    """Base class of objects for worker threads, such as `WorkerState`. They use the object ``original`` of trio's
    thread, for the request ``scope``."""

    def __init__(self, original: T, scope: RequestScope | None) -> None:
        self._original = original
        self._scope = scope


def passthrough(member: T) -> T:
    """Return a property or method that calls the original in the worker thread, without changing to trio's thread. Use
    this function only for thread-safe properties and methods."""
    if not isinstance(member, property):
        return cast("T", _calling(member, lambda _, call: call()))
    getter: Any = member.fget

    @wraps(getter)
    def read(self: Any) -> Any:
        return getattr(self._original, getter.__name__)

    return cast("T", property(read))


def in_trio(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the original synchronous method in trio's thread."""
    return _calling(method, run_in_trio)


def blocking(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the original async method in trio's thread, and blocks until that method returns."""
    return _calling(method, await_in_trio)


def blocking_question(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the original async method in trio's thread, and blocks until the client has answered.

    During the wait, another worker thread may run. Otherwise like `blocking`.
    """
    return _calling(method, partial(await_in_trio, asks=True))


def _calling(method: Any, run: Callable[[RequestScope | None, Callable[[], Any]], Any]) -> Any:
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self._scope, partial(getattr(self._original, name), *args, **kwargs))

    return call


def run_in_trio(scope: RequestScope | None, call: Callable[[], T]) -> T:
    """Call ``call`` in trio's thread, for the request ``scope``, and return its result.

    Raises the exceptions of ``call`` and of `TrioRun.call`, and `trio.Cancelled` in the thread of a cancelled handler.
    """
    if scope is None:  # a passive context, which tests create, needs no trio run
        return trio.from_thread.run_sync(call) if is_trios_thread() else call()
    if is_own := in_worker_thread():
        trio.from_thread.check_cancelled()
    return scope.runner.trio_run.call(call, wait_forever=is_own)


def await_in_trio(scope: RequestScope | None, call: Callable[[], Awaitable[T]], *, asks: bool = False) -> T:
    """Run the async function ``call`` in trio's thread, for the request ``scope``, and return its result.

    - In a thread other than the handler's own, ``call`` runs in the request's nursery.
    - In trio's thread, return an awaitable: a plain handler may wrap an async function, which has the context there.
    - In a handler on asyncio, return an asyncio awaitable.
    """
    if runs_in_trio(scope):
        return cast("T", call())
    if (calls := loop_calls_here()) is not None:
        return cast("T", calls.call(call))
    if scope is None or in_worker_thread():
        return await_in_worker(call, asks=asks)
    if (nursery := scope.nursery) is None:
        raise RuntimeError(
            "the request is over: its handler returned before this thread ended. Wait for the thread in the handler"
        )

    async def in_request() -> T:
        current_request.set(scope)
        return await call()

    return await_in_nursery(scope.runner.trio_run, nursery, in_request)


def runs_in_trio(scope: RequestScope | None) -> bool:
    """Return whether the current thread is the thread in which trio runs the request ``scope``."""
    return trio.lowlevel.in_trio_run() and (scope is None or scope.runner.trio_run.is_here)


def is_trios_thread() -> bool:
    """Return whether trio started the current thread. Raises `trio.Cancelled` if trio has cancelled the call that runs
    in the thread."""
    try:
        trio.from_thread.check_cancelled()
    except RuntimeError:  # trio didn't start this thread, so the handler did
        return False
    return True
