"""GroupTask: a task that a member of a group runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from ..client.client import Client
from ..client.remote_tasks import RunningTask
from ..protocol.types.tools import CallToolResult
from ..runtime.on_progress import OnProgress
from ..tasks.task_state import TaskState
from .names import catalogue_uri


class GroupTask:
    """A task of a member, made by `Group.start_task` or `Group.resume_task`; a `RunningTask` whose member may be
    restarted meanwhile.

    Each method is for the connection that the member has at the time, and waits for a member that is starting or
    restarting. A wait that the member's end interrupts raises `ConnectionLost`; whether the task goes on is known to
    the server alone, and another call of the method asks the server when the member is back.
    """

    def __init__(
        self,
        member: str,
        own_id: str | None,
        client: Callable[[str], Awaitable[Client]],
        made: tuple[Client, RunningTask] | None = None,
    ) -> None:
        self.member = member
        """Name of the member."""
        self._own_id = own_id
        self._client = client
        self._last = made

    @property
    def id(self) -> str | None:
        """The id for `Group.resume_task`, which begins with ``member://`` and the name of the member. `None`: there is
        no task, since the server answered at once."""
        return None if self._own_id is None else catalogue_uri(self.member, self._own_id)

    async def get(self) -> TaskState:
        """Ask the member how the task is, as `RunningTask.get`. Raises `MemberUnavailable`, too."""
        state = await (await self._present()).get()
        return attrs.evolve(state, id=self.id)

    async def result(self, *, on_progress: OnProgress | None = None) -> CallToolResult:
        """Wait for the result, as `RunningTask.result`. Raises `MemberUnavailable`, too."""
        return await (await self._present()).result(on_progress=on_progress)

    async def cancel(self) -> None:
        """Cancel the task, as `RunningTask.cancel`. Raises `MemberUnavailable`, too."""
        await (await self._present()).cancel()

    async def _present(self) -> RunningTask:
        """Return the task on the present connection of the member."""
        if self._own_id is None:
            assert self._last is not None, "a call has an answer or a task"
            return self._last[1]
        client = await self._client(self.member)
        if self._last is None or self._last[0] is not client:
            self._last = (client, client.resume_task(self._own_id))
        return self._last[1]
