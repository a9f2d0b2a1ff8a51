"""Context managers that blocking code can enter and exit in any thread, and the matching iterators and handlers.

Each member of a wrapper is created from the member of trio's own class, by one line that defines how a blocking thread
calls it. Docstrings, parameters and types are those of the original.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import trio

from ..bridging.calls import (
    CALL_HANDLERS,
    CALLBACKS,
    ENTERED_TWICE,
    METHOD_TABLES,
    BridgedCall,
    BridgedItems,
    Callback,
    OpenContext,
    StartWork,
    Wrapper,
    call_contained,
    check_may_block,
    deferred_interrupts,
    is_async,
    reason_of,
    run_blocking,
    start_call,
    wait_for,
    with_contained,
)
from ..bridging.portal import ThreadWork, TrioPortal
from ..concurrency.misuse import check_keywords

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Wrapper)


class BridgedContext(AbstractContextManager[V]):
    """A context manager for threads around a trio context manager: one thread can enter it, and another thread can exit
    it. Entering returns the value of the trio context manager, wrapped in the class ``view``.

    ``start`` starts it in the trio thread. An object that is garbage-collected is closed, and so are all others at the
    end of the interpreter. A first Ctrl-C is raised when everything has ended, a second one at once.
    """

    _call: BridgedCall[None]
    _context: OpenContext[Any] | None = None
    _was_entered = False

    def __init__(
        self, manager: Callable[[], AbstractAsyncContextManager[Any]], view: type[V], start: StartWork
    ) -> None:
        self._manager = manager
        self._view = view
        self._start = start
        self._finished = threading.Event()

    def __enter__(self) -> V:
        check_may_block()
        if self._was_entered:  # the event `_finished` is set only once, so refuse to enter twice
            raise RuntimeError(ENTERED_TWICE)
        self._was_entered = True
        news, ended = threading.Event(), self._finished

        # This function must not refer to the context manager, so that garbage collection can close the manager.
        def tell(_: Callback | None) -> None:
            ended.set()
            news.set()

        hold = OpenContext(self._manager(), news.set)
        self._call = call = BridgedCall(hold.run, tell)
        try:
            with deferred_interrupts():
                hold.portal = start_call(call, self._start)
                self._context = hold
            wait_for(news)
        except BaseException as error:
            if call.has_started:
                call.cancel(reason_of(error))
                self._close(hold)
            raise
        if ended.is_set():
            hold.portal.join()
            call.result()
        return self._view(hold.value, self.start)

    def start(self, work: ThreadWork) -> TrioPortal:
        """Start ``work`` in the trio thread. The work ends at the latest when this context manager exits."""
        assert self._context is not None, "it was entered"
        return self._context.start(work)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._context is not None, "it was entered"
        self._close(self._context)
        self._call.raise_failure()

    def __del__(self) -> None:
        if self._context is not None:
            self._context.close()

    def _close(self, hold: OpenContext[Any]) -> None:
        hold.close()
        if hold.portal.is_inherited:
            return
        try:
            wait_for(self._finished)
        except KeyboardInterrupt:
            wait_for(self._finished)
            hold.portal.join()
            raise
        hold.portal.join()


class BridgedIterator(BridgedItems[T], Iterator[T]):
    """A plain iterator over the items of a trio iterator.

    Only one thread may use the iterator at a time. If fetching an item is interrupted, the item isn't lost.
    """

    def __next__(self) -> T:
        if not self.items:
            try:
                run_blocking(self.start, self.fetch)
            except StopAsyncIteration:
                raise StopIteration from None
        return self.items.popleft()


_HANDLERS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots", "on_unreadable"})


def with_threaded_handlers(options: dict[str, Any]) -> dict[str, Any]:
    """Return a client's ``options``, with the callbacks wrapped so that they run in worker threads.

    Handlers need no such wrapper, because the client always runs synchronous handlers in worker threads.

    Raises `TypeError` if an option is an async function.
    """
    for name in options.keys() & (CALLBACKS | _HANDLERS):
        if is_async(options[name]):
            raise TypeError(f"write {name} with def, not with async def: blocking programs have no event loop")
    return {key: _threaded(key, value) for key, value in options.items()}


def _threaded(key: str, value: Any) -> Any:
    if key in CALLBACKS and value is not None:
        return partial(_in_thread, value)
    if key in METHOD_TABLES and value is not None:
        return with_contained(value)
    return with_contained({key: value})[key] if key in _HANDLERS else value


async def _in_thread(callback: Callable[..., Any], *args: Any) -> None:
    await trio.to_thread.run_sync(partial(call_contained, callback, *args), abandon_on_cancel=True)


def blocking_method(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking version of an async trio method. The blocking version runs the trio method in the trio thread,
    and waits until it returns."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(self._original, method.__name__)
        if not CALL_HANDLERS.isdisjoint(kwargs):
            kwargs = with_threaded_handlers(kwargs)
        return run_blocking(self._begin, lambda call: original(*args, **call.with_callbacks(kwargs)))

    return cast("Any", call)


def wrapped_method(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], V]:
    """Return a blocking version of an async trio method, like `blocking_method`. In addition, the result is wrapped in
    the class ``view``."""
    call = blocking_method(method)

    @wraps(method)
    def call_for_view(self: Any, *args: Any, **kwargs: Any) -> V:
        return view(cast("Any", call)(self, *args, **kwargs), self._begin)

    return cast("Any", call_for_view)


def iterator_method(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return a blocking version of a trio method that returns an async iterator. The blocking version returns a plain
    iterator.

    The original is called when the first item is requested.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return BridgedIterator(self._begin, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return cast("Any", call)


def context_method(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], AbstractContextManager[V]]:
    """Return a blocking version of a trio method that returns an async context manager. The blocking version returns a
    plain context manager.

    It enters the trio context manager that the original method returns, and wraps its value with ``view``.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self._original, method.__name__)(*args, **kwargs)
        return BridgedContext(lambda: manager, view, self._begin)

    return cast("Any", call)


def open_function(
    function: Callable[P, AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[P, AbstractContextManager[V]]:
    """Return a blocking version of ``function``, which opens a client or a group. The blocking version yields the
    client or group wrapped in the class ``view``."""

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[V]:
        check_keywords(function, kwargs)
        open_in_trio = cast("Callable[..., AbstractAsyncContextManager[Any]]", function)
        return BridgedContext(lambda: open_in_trio(*args, **with_threaded_handlers(kwargs)), view, TrioPortal.start)

    return opened
