"""TaskContext: a handler's view of the task that its request is, or may become."""

from __future__ import annotations

from typing import Any

import trio


class TaskContext:
    """The task of a handler, ``ctx.task``. The class itself is passive: nothing is kept, and nobody is told.

    A request becomes a task when `start` is called, or after `TaskSettings.grace`; in revision 2025-11-25, where the
    requestor decides, before the handler runs. From then on the questions of the handler are questions of the task.
    """

    __slots__ = ()

    @property
    def id(self) -> str:
        """The unguessable name of the task, known before the start."""
        return ""

    @property
    def ttl(self) -> float | None:
        """Seconds from the start of the task until the task is cancelled and fails; `None`: never."""
        return None

    @property
    def requested_ttl(self) -> float | None:
        """Seconds for which the requestor wishes the task to exist; ``math.inf``: for ever; `None`: no wish. The
        requestor has a say in revision 2025-11-25 only. `ttl` holds in any case."""
        return None

    @property
    def has_started(self) -> bool:
        """True once the request was answered with the task."""
        return False

    @property
    def attempt(self) -> int:
        """The number of this run: more than 1 where a run before was cut off by the end of its process. Runs that were
        given up in good order, at a shutdown, do not count."""
        return 1

    @property
    def restored(self) -> Any:
        """The last value given to `checkpoint` by a run before; `None` in the first run, and for a tool that is not
        declared with ``on_restart="resume"``."""
        return None

    def status(self, message: str) -> None:
        """Tell the client how the task is: words for people, of which the latest are kept. Never waits."""

    async def start(self) -> None:
        """Answer the request with the task, now. The handler goes on afterwards, as long as it likes.

        Idempotent. While the request is answered with questions, waits until the client comes back. Raises `CodedError`
        (-31000) where there are too many tasks.
        """
        await trio.lowlevel.checkpoint_if_cancelled()

    async def checkpoint(self, value: Any) -> None:
        """Keep ``value``, JSON data, for a run after a restart: see `restored`. Raises `NotSerializable`.

        A run that starts from here asks, in the same order, what this run asks from here on, and gets no answer to what
        was asked before.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
