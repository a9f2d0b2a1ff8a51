"""Signals that end a server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import trio

__all__ = ["may_handle_signals", "shut_down_at_signals"]


def may_handle_signals() -> bool:
    """Whether this is the main thread, the only one that can."""
    return threading.current_thread() is threading.main_thread()


async def shut_down_at_signals(
    shut_down: Callable[[str], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Call ``shut_down`` with the reason at each SIGTERM and SIGINT, until cancelled."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            shut_down(f"the server got {signal.Signals(number).name}")
