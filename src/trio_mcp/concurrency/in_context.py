"""in_context runs a coroutine in another context than that of its task."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

from ..classes import define

T = TypeVar("T")


@define(eq=False)
class in_context(Generic[T]):
    """An awaitable that runs ``work`` in this task, with the variables of ``context``.

    Tasks and threads that ``work`` starts get copies. Nothing else may run in ``context`` meanwhile.
    """

    context: Context
    work: Awaitable[T]

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Any = self.work.__await__()
        value: Any = None
        thrown: BaseException | None = None
        run = self.context.run
        try:
            while True:
                try:
                    trap = run(steps.send, value) if thrown is None else run(steps.throw, thrown)
                except StopIteration as end:
                    return end.value
                value = thrown = None
                try:
                    value = yield trap
                except BaseException as error:  # from trio itself, if it closes an abandoned task
                    thrown = error
        finally:
            value = thrown = None  # a thrown exception refers to this frame
