"""What a scenario may observe of a process from outside: its journal, and its rows in the process table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

__all__ = [
    "BOUND",
    "JOURNAL_VARIABLE",
    "Journal",
    "cpu_seconds",
    "descriptors_of",
    "is_alive",
    "is_stopped",
    "resident_bytes",
    "threads_of",
    "wait_until",
]

JOURNAL_VARIABLE = "TRIO_MCP_TEST_JOURNAL"
BOUND = PATIENCE
"""Where the scenarios say "promptly" they mean 1 s; this is for a machine that does something else, too."""

_LOOK_AGAIN = 0.004


def wait_until(holds: Callable[[], Any], *, bound: float = BOUND) -> Any:
    """What ``holds`` returns as soon as it is true. Fails after ``bound`` seconds."""
    give_up = time.monotonic() + bound
    while not (value := holds()):
        assert time.monotonic() < give_up, f"not within {bound} s: {holds}"
        time.sleep(_LOOK_AGAIN)
    return value


class Journal:
    """The events a fixture server wrote: ``{"call": id, "tool": name, "event": …, "t": …}`` and more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes
        self._entries: list[dict[str, Any]] = []

    def entries(self, event: str | None = None, *, call: Any = None, tool: str | None = None) -> list[dict[str, Any]]:
        """All entries so far, in order, that fit what is given."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole + newline)
            self._entries += map(json.loads, whole.splitlines())
        return [
            entry
            for entry in self._entries
            if (event is None or entry["event"] == event)
            and (call is None or (entry["call"] == call and type(entry["call"]) is type(call)))
            and (tool is None or entry["tool"] == tool)
        ]

    def events(self, call: Any) -> list[str]:
        """What happened to ``call``, in order."""
        return [entry["event"] for entry in self.entries(call=call)]

    def wait_for(
        self, event: str, *, call: Any = None, tool: str | None = None, count: int = 1, bound: float = BOUND
    ) -> list[dict[str, Any]]:
        """Wait for at least ``count`` such entries and return them."""

        def enough() -> list[dict[str, Any]] | None:
            found = self.entries(event, call=call, tool=tool)
            return found if len(found) >= count else None

        try:
            return wait_until(enough, bound=bound)
        except AssertionError:
            raise AssertionError(f"no {event!r} of {call!r} in the journal: {self.entries()[-20:]}") from None


def _stat(pid: int) -> list[str]:
    # The name in parentheses may hold anything, so what follows it is found from the right.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return _stat(pid)[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal: that takes a moment after the signal was sent."""
    return _stat(pid)[0] == "T"


def cpu_seconds(pid: int) -> float:
    """Processor time it has used, its own and the system's."""
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3), which Python lacks; /proc counts in steps of 10 ms
    return time.clock_gettime(clock)


def resident_bytes(pid: int, *, peak: bool = False) -> int:
    """Memory it holds, or the most it ever held."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def descriptors_of(pid: int) -> int:
    """How many files it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads_of(pid: int) -> int:
    """How many threads it has."""
    return len(os.listdir(f"/proc/{pid}/task"))
