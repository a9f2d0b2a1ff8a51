"""run_process_tree: runs a process on behalf of a handler. When the handler ends, the process and its descendants (its
`ProcessGroup`) end as well."""

from __future__ import annotations

import os
import signal
import subprocess
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, cast

import trio

from ..concurrency.misuse import check_options
from ..concurrency.nurseries import ServiceNursery, open_service_nursery


async def run_process_tree(
    command: Sequence[str | os.PathLike[str]],
    *,
    grace: float = 2.0,
    task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED,
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``command`` like `trio.run_process`. Before returning, end all processes that the command has started.

    The process is started in a new session, so that its process group includes its descendants. If this function is
    cancelled, for example because the request has ended, the group gets SIGTERM, and SIGKILL ``grace`` seconds later.
    If the process ends on its own, its descendants get the same signals, and this function returns after they have
    ended, which takes up to twice ``grace`` seconds. A descendant that starts a new session (a daemon) isn't ended.

    With ``process = await ctx.nursery.start(run_process_tree, command)``, you get the `trio.Process`. Raises the errors
    of `trio.run_process`, and `ValueError` unless ``grace`` is a positive number of seconds.
    """
    check_options("run_process_tree", options, _known_options())
    if not grace > 0:
        raise ValueError(f"grace must be a positive number of seconds, not {grace!r}")
    pipes = [name for name in ("stdin", "stdout", "stderr") if options.get(name) is subprocess.PIPE]
    if pipes and task_status is trio.TASK_STATUS_IGNORED:
        raise ValueError(
            f"{pipes[0]}=PIPE needs `await nursery.start(run_process_tree, ...)`, which returns the process with the "
            "pipe"
        )
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
    """Tracks a process and its descendants, to end them together.

    When the process has started, it is passed on to ``status.started``.
    """

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
        """Wait for ``process`` to end, then terminate the rest of its process group.

        The other processes of the group could keep the pipes of ``process`` open.
        """
        await process.wait()
        await self.terminate()

    async def terminate(self, _: trio.Process | None = None) -> None:
        """End all processes of the process group: send SIGTERM, and after the grace period SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._group is None or not self._group.signal(number):
                return
            with trio.move_on_after(self._grace):
                await self._group.wait_gone()

    def kill(self) -> None:
        """Send SIGKILL to all remaining processes of the process group. Don't send signals to the group afterwards.

        The system may reuse the number of the group.
        """
        if self._group is not None:
            self._group.kill()


class ProcessGroup:
    """The process group of a child that was started in a new session. It contains the child and its descendants.

    The group gets SIGKILL at the latest when this object is garbage-collected or our process ends, because an interrupt
    between two lines may have prevented anything earlier.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.kill = weakref.finalize(self, _kill_group, number, os.getpid())
        """Finalizer that sends SIGKILL to the processes that are left in the group. Synchronous and idempotent."""

    def signal(self, number: int) -> bool:
        """Send a signal to the remaining processes of the process group. Return false if no process remains."""
        try:
            os.killpg(self._number, number)
        except (ProcessLookupError, PermissionError):  # on macOS, PermissionError means that only zombies are left
            return False
        return True

    async def wait_gone(self) -> None:
        """Wait until no process of the process group is running."""
        # Poll, because this process can't wait for processes that aren't its children.
        while self.signal(0) and not _all_exited(self._number):  # noqa: ASYNC110 - there is no event to wait for
            await trio.sleep(0.01)


def _kill_group(group: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked process must not send signals to its parent's group
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _all_exited(group: int) -> bool:
    """Return whether all remaining processes of a process group are zombies.

    The init process should reap them, but in many containers it doesn't. Without /proc, return false.
    """
    found = False
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group, *_ = path.read_bytes().rpartition(b") ")[2].split()
        except OSError:  # gone meanwhile
            continue
        if int(its_group) == group:
            if state != b"Z":
                return False
            found = True
    return found
