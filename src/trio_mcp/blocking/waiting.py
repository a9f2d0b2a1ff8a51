"""The side of threads that wait: context managers that any thread enters and leaves, iterators, and handlers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

import trio

from ..bridging.calls import (
    CALLBACKS,
    METHOD_TABLES,
    BridgedCall,
    Callback,
    OpenContext,
    StartWork,
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
from ..bridging.wrappers import Wrapper

T = TypeVar("T")
V = TypeVar("V", bound=Wrapper)


class BridgedContext(AbstractContextManager[V]):
    """A context manager of trio's that any threads enter and leave, with a ``view`` of its value.

    ``start`` begins its life in the trio thread. An object that nobody refers to any more is closed, and so are all at
    the end of the interpreter. A first interrupt is raised when nothing is left, a second one at once.
    """

    _call: BridgedCall[None]
    _context: OpenContext[Any] | None = None

    def __init__(
        self, manager: Callable[[], AbstractAsyncContextManager[Any]], view: type[V], start: StartWork
    ) -> None:
        self._manager = manager
        self._view = view
        self._start = start
        self._finished = threading.Event()

    def __enter__(self) -> V:
        check_may_block()
        news, ended = threading.Event(), self._finished

        def tell(_: Callback | None) -> None:  # without this object, which is closed when nobody else refers to it
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
        """Begin ``work`` in the trio thread; at the latest the end of this context manager ends it."""
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


class BridgedIterator(Iterator[T], Generic[T]):
    """An iterator of trio's, which ``make`` returns, as a plain one. One thread at a time; an interrupted step loses
    nothing."""

    def __init__(self, start: StartWork, make: Callable[[], AsyncIterator[T]]) -> None:
        self._start = start
        self._make = make
        self._made: AsyncIterator[T] | None = None
        self._items: deque[T] = deque()

    def __next__(self) -> T:
        if not self._items:
            try:
                run_blocking(self._start, self._fetch)
            except StopAsyncIteration:
                raise StopIteration from None
        return self._items.popleft()

    async def _fetch(self, _: BridgedCall[Any]) -> None:
        if self._made is None:
            self._made = self._make()
        self._items.append(await anext(self._made))


_HANDLERS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots", "on_unreadable"})


def with_threaded_handlers(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` of a client whose callbacks run in worker threads, as plain handlers do in any case. Raises
    `TypeError` for async functions."""
    for name in options.keys() & (CALLBACKS | _HANDLERS):
        if is_async(options[name]):
            raise TypeError(f"write {name} with def, not with async def: no event loop runs in a program that waits")
    return {key: _threaded(key, value) for key, value in options.items()}


def _threaded(key: str, value: Any) -> Any:
    if key in CALLBACKS and value is not None:
        return partial(_in_thread, value)
    if key in METHOD_TABLES and value is not None:
        return with_contained(value)
    return with_contained({key: value})[key] if key in _HANDLERS else value


async def _in_thread(callback: Callable[..., Any], *args: Any) -> None:
    await trio.to_thread.run_sync(partial(call_contained, callback, *args), abandon_on_cancel=True)
