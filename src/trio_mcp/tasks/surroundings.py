"""TaskSurroundings: the host of tasks, as a task sees the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import trio

    from ..runtime.outbox import Outbox
    from ..state.connection_state import ConnectionState
    from ..stores.task_store import TaskRecord
    from .core.questions import CoreQuestions
    from .records import Transition
    from .settings import TaskSettings

T = TypeVar("T", contravariant=True)


class TaskSurroundings(Protocol[T]):
    """The host of tasks of the type ``T``, as a task sees the host: a `TaskHost`."""

    ending: trio.Event
    settings: TaskSettings
    state: ConnectionState
    """State of requests that are tasks and belong to no connection."""
    silence: Outbox
    """Outbox of tasks without notifications."""
    questions: CoreQuestions
    """The asking of questions in the form of 2025-11-25."""

    async def create(self, task: T) -> TaskRecord:
        """Keep the record of a new task."""
        ...

    async def abandon(self, task: T, record: TaskRecord) -> None:
        """Cancel a task that was kept, and that its requestor never learns of."""
        ...

    def adopt(self, task: T, record: TaskRecord) -> None:
        """Answer the request of the task, and let its handler go on."""
        ...

    async def change(self, task: T, transition: Transition) -> TaskRecord | None:
        """Carry out ``transition`` on the record, as soon as the store works."""
        ...

    def has_words(self, task: T) -> None:
        """Have the message of the task written before long."""
        ...

    async def keep(self, task: T, line: bytes | None) -> None:
        """Keep the reply to the request as the outcome."""
        ...

    def expire(self, task: T) -> None:
        """End the task, since its time to live is over."""
        ...

    def forget(self, task: T) -> None:
        """Note that the handler has ended, with all child tasks."""
        ...
