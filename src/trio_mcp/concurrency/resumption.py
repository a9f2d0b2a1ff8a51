"""ResumptionObserver tells when a coroutine takes its first step behind a cancel: there its ``finally`` begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

import trio


class ResumptionObserver:
    """An awaitable that runs ``answer``, and calls ``on_resumed`` at the first step of ``answer`` after the cancel of
    ``scope``, and ``on_returned`` when ``answer`` has returned or raised. Neither may raise."""

    __slots__ = ("_answer", "_on_resumed", "_on_returned", "_scope")

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

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._answer.__await__()
        is_told = False
        value: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                if not is_told and self._scope.cancel_called:
                    is_told = True
                    self._on_resumed()
                try:
                    trap = steps.send(value) if thrown is None else steps.throw(thrown)
                except StopIteration as end:
                    return end.value
                value = thrown = None
                try:
                    value = yield trap
                except BaseException as error:  # by trio itself, where it closes a task that is given up
                    thrown = error
        finally:
            thrown = None
            if self._on_returned is not None:
                self._on_returned()
