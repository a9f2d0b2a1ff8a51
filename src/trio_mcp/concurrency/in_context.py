"""in_context runs a coroutine with the variables of another context than its task has."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

from ..classes import define

T = TypeVar("T")


@define(eq=False)
class in_context(Generic[T]):
    """An awaitable that runs ``work`` in this task, with the variables of ``context``.

    Tasks and threads that ``work`` starts have copies. Nothing else may run in ``context`` meanwhile.
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
                except BaseException as error:  # by trio itself, where it closes a task that is given up
                    thrown = error
        finally:
            value = thrown = None  # an exception there refers to this frame
