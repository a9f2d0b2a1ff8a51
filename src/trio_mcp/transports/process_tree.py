"""run_process_tree: a process that a handler runs, which ends with the handler, together with its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from inspect import signature
from typing import Any, cast

import trio

from ..concurrency.misuse import check_options
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from .process import ProcessGroup


async def run_process_tree(
    command: Sequence[str | os.PathLike[str]],
    *,
    grace: float = 2.0,
    task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED,
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``command`` as `trio.run_process` does, with the same ``options``, and leave no process running.

    The process has a session of its own, and so a process group, to which its descendants belong. When
    this function is cancelled, by the end of the request for example, the group gets SIGTERM, and SIGKILL ``grace``
    seconds later. When the process ends by itself, its descendants get the same, and this function returns
    after their end: up to twice ``grace`` seconds later. A descendant in another session (a daemon) is not found.

    Started by ``process = await ctx.nursery.start(run_process_tree, command)``, the function gives the `trio.Process`.
    Raises as `trio.run_process`, and `ValueError` for a ``grace`` that is no positive number of seconds.
    """
    check_options("run_process_tree", options, _known_options())
    if not grace > 0:
        raise ValueError(f"the grace is a positive number of seconds, not {grace!r}")
    pipes = [name for name in ("stdin", "stdout", "stderr") if options.get(name) is subprocess.PIPE]
    if pipes and task_status is trio.TASK_STATUS_IGNORED:
        raise ValueError(f"{pipes[0]}=PIPE is for nursery.start, which gives the process that has the pipe")
    async with open_service_nursery("the process has ended") as nursery:
        tree = _Tree(task_status, grace, nursery)
        try:
            return await trio.run_process(
                command, start_new_session=True, deliver_cancel=tree.terminate, task_status=cast("Any", tree), **options
            )
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * grace):
                await tree.terminate()
            tree.kill()


@cache
def _known_options() -> tuple[str, ...]:
    known = {*signature(trio.run_process).parameters, *signature(subprocess.Popen).parameters}
    return tuple(sorted(known - {"command", "args", "options", "task_status", "deliver_cancel", "start_new_session"}))


class _Tree:
    """A process with its descendants, and a `trio.TaskStatus` that tells ``status`` of the process."""

    def __init__(self, status: trio.TaskStatus[trio.Process], grace: float, nursery: ServiceNursery) -> None:
        self._status = status
        self._grace = grace
        self._nursery = nursery
        self._group: ProcessGroup | None = None

    def started(self, value: trio.Process) -> None:
        self._group = ProcessGroup(value.pid)
        self._nursery.start_soon(self._terminate_after, value)
        self._status.started(value)

    async def _terminate_after(self, process: trio.Process) -> None:
        """End the rest of the group after ``process``: the rest may hold pipes that are read to the end."""
        await process.wait()
        await self.terminate()

    async def terminate(self, _: trio.Process | None = None) -> None:
        """End the group."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._group is None or not self._group.signal(number):
                return
            with trio.move_on_after(self._grace):
                await self._group.wait_gone()

    def kill(self) -> None:
        """Send SIGKILL to the rest. Nothing is sent later, when the number may be that of another group."""
        if self._group is not None:
            self._group.kill()
