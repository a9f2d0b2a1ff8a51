"""Functions that run a coroutine step by step: in another context, or with callbacks at certain steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

import trio

from ..classes import define

T = TypeVar("T")


def _run_steps(work: Awaitable[T], run: Callable[..., Any]) -> Generator[Any, Any, T]:
    """Run the awaitable ``work`` by calling ``run(method, argument)`` for each of its steps."""
    steps: Any = work.__await__()
    value: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            try:
                trap = run(steps.send, value) if thrown is None else run(steps.throw, thrown)
            except StopIteration as end:
                return end.value
            value = thrown = None
            try:
                value = yield trap
            except BaseException as error:  # catch everything, even GeneratorExit
                thrown = error
    finally:
        value = thrown = None  # break the reference cycle: the traceback of a thrown exception refers to this frame


@define(eq=False)
class in_context(Generic[T]):
    """An awaitable that runs ``work`` in the current task, with the context variables of ``context``.

    Tasks and threads that ``work`` starts get copies of the context. Until ``work`` ends, nothing else may run in
    ``context``.
    """

    context: Context
    work: Awaitable[T]

    def __await__(self) -> Generator[Any, Any, T]:
        return _run_steps(self.work, self.context.run)


class ResumptionObserver:
    """An awaitable that wraps the awaitable ``answer`` and observes it. It calls one function when ``answer`` first
    continues after a cancellation, and another function when ``answer`` ends.

    ``on_resumed`` is called at the first step of ``answer`` after ``scope`` was cancelled, where its ``finally``
    begins. ``on_returned`` is called when ``answer`` has returned or raised. Neither may raise.
    """

    __slots__ = ("_answer", "_is_resumed", "_on_resumed", "_on_returned", "_scope")

    def __init__(
        self,
        answer: Awaitable[Any],
        scope: trio.CancelScope,
        on_resumed: Callable[[], object],
        on_returned: Callable[[], object] | None = None,
    ) -> None:
        self._answer = answer
        self._scope = scope
        self._on_resumed = on_resumed
        self._on_returned = on_returned
        self._is_resumed = False

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            return (yield from _run_steps(self._answer, self._step))
        finally:
            if self._on_returned is not None:
                self._on_returned()

    def _step(self, method: Callable[[Any], Any], argument: Any) -> Any:
        if not self._is_resumed and self._scope.cancel_called:
            self._is_resumed = True
            self._on_resumed()
        return method(argument)
