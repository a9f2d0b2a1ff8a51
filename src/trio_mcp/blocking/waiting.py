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
    TABLES,
    Begin,
    BridgedCall,
    Errand,
    Hold,
    begin,
    check_may_wait,
    contained,
    interrupts_held,
    is_async,
    run_blocking,
    wait_for,
    with_contained,
    words_of,
)
from ..bridging.thread import ThreadWork, TrioThread
from ..bridging.views import View

T = TypeVar("T")
V = TypeVar("V", bound=View)


class Opened(AbstractContextManager[V]):
    """A context manager of trio's that any threads enter and leave, with a ``view`` of its value.

    ``by`` begins its life in the trio thread. An object that nobody refers to any more is closed, and so are all at the
    end of the interpreter. A first interrupt is raised when nothing is left, a second one at once.
    """

    _call: BridgedCall[None]
    _hold: Hold[Any] | None = None

    def __init__(self, manager: Callable[[], AbstractAsyncContextManager[Any]], view: type[V], by: Begin) -> None:
        self._manager = manager
        self._view = view
        self._by = by
        self._ended = threading.Event()

    def __enter__(self) -> V:
        check_may_wait()
        news, ended = threading.Event(), self._ended

        def tell(_: Errand | None) -> None:  # without this object, which is closed when nobody else refers to it
            ended.set()
            news.set()

        hold = Hold(self._manager(), news.set)
        self._call = call = BridgedCall(hold.run, tell)
        try:
            with interrupts_held():
                hold.thread = begin(call, self._by)
                self._hold = hold
            wait_for(news)
        except BaseException as error:
            if call.has_begun:
                call.cancel(words_of(error))
                self._close(hold)
            raise
        if ended.is_set():
            hold.thread.join()
            call.result()
        return self._view(hold.value, self.begin)

    def begin(self, work: ThreadWork) -> TrioThread:
        """Begin ``work`` in the trio thread; at the latest the end of this context manager ends it."""
        assert self._hold is not None, "it was entered"
        return self._hold.begin(work)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._hold is not None, "it was entered"
        self._close(self._hold)
        self._call.raise_failure()

    def __del__(self) -> None:
        if self._hold is not None:
            self._hold.close()

    def _close(self, hold: Hold[Any]) -> None:
        hold.close()
        if hold.thread.is_inherited:
            return
        try:
            wait_for(self._ended)
        except KeyboardInterrupt:
            wait_for(self._ended)
            hold.thread.join()
            raise
        hold.thread.join()


class Steps(Iterator[T], Generic[T]):
    """An iterator of trio's, which ``make`` returns, as a plain one. One thread at a time; an interrupted step loses
    nothing."""

    def __init__(self, by: Begin, make: Callable[[], AsyncIterator[T]]) -> None:
        self._by = by
        self._make = make
        self._made: AsyncIterator[T] | None = None
        self._taken: deque[T] = deque()

    def __next__(self) -> T:
        if not self._taken:
            try:
                run_blocking(self._by, self._take)
            except StopAsyncIteration:
                raise StopIteration from None
        return self._taken.popleft()

    async def _take(self, _: BridgedCall[Any]) -> None:
        if self._made is None:
            self._made = self._make()
        self._taken.append(await anext(self._made))


_HANDLERS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots", "on_unreadable"})


def in_threads(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` of a client whose callbacks run in worker threads, as plain handlers do in any case. Raises
    `TypeError` for async functions."""
    for name in options.keys() & (CALLBACKS | _HANDLERS):
        if is_async(options[name]):
            raise TypeError(f"write {name} with def, not with async def: no event loop runs in a program that waits")
    return {key: _threaded(key, value) for key, value in options.items()}


def _threaded(key: str, value: Any) -> Any:
    if key in CALLBACKS and value is not None:
        return partial(_in_thread, value)
    if key in TABLES and value is not None:
        return with_contained(value)
    return with_contained({key: value})[key] if key in _HANDLERS else value


async def _in_thread(callback: Callable[..., Any], *args: Any) -> None:
    await trio.to_thread.run_sync(partial(contained, callback, *args), abandon_on_cancel=True)
