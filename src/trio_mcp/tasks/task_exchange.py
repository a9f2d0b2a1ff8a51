"""TaskExchange is where the lines of a request go that has become a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from ..runtime.exchange import Exchange, Held
from ..runtime.outbox import Outbox, Owner

if TYPE_CHECKING:
    import trio

    from ..runtime.peer import Peer
    from ..state.connection_state import ConnectionState
    from ..state.requests import InboundRequest


class Kept(Protocol):
    """A task whose outcome is kept: a `RequestTask`."""

    async def keep(self, line: bytes | None) -> None:
        """Keep the reply, or note that there is none."""
        ...

    def is_over(self) -> None:
        """Note that the handler has ended, with all child tasks."""
        ...


class TaskExchange(Exchange):
    """The exchange of one task, which is on no connection: nothing but a cancel or the end of the server ends the task,
    and its reply is kept. Notifications go to ``outbox``, and name ``related_task``."""

    __slots__ = ("_held_task", "_related_task", "_task")

    keeps_outcomes: ClassVar[bool] = True

    def __init__(
        self,
        state: ConnectionState,
        outbox: Outbox,
        peer: Peer,
        ending: trio.Event,
        related_task: str | None = None,
    ) -> None:
        # Nothing of an exchange that holds many requests is needed here: there may be ten thousand tasks.
        self.state = state
        self.outbox = outbox
        self.peer = peer
        self.ending = ending
        self._task: Kept | None = None
        self._held_task: Held | None = None
        self._related_task = related_task

    @property
    def related_task(self) -> str | None:
        return self._related_task

    def belong_to(self, task: Kept) -> None:
        """Have ``task`` keep the reply, and learn of the end."""
        self._task = task

    def hold(self, request: InboundRequest, held: Held) -> None:
        self._held_task = held

    def release(self, request: InboundRequest) -> None:
        if self._held_task is not None:
            task, self._task, self._held_task = self._task, None, None
            assert task is not None, "it was told before the handler ran"
            task.is_over()

    def find(self, request: InboundRequest) -> Held | None:
        return self._held_task

    async def keep(self, request: InboundRequest, line: bytes | None) -> None:
        assert self._task is not None, "it was told before the handler ran"
        await self._task.keep(line)

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Do nothing: the outcome is kept."""
