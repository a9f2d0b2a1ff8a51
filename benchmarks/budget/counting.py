"""Counting what trio-mcp executes: the same on every machine and in every run."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import trio_mcp

__all__ = ["Count", "counting", "kept_bytes"]

_PACKAGE = str(Path(trio_mcp.__file__).parent)


@dataclass
class Count:
    """``instructions``: bytecode executed in trio-mcp's own files. ``calls``: how often one of its functions was
    entered or resumed, or called another package's Python function. What the others do inside does not count: it is not
    for our budget when they change."""

    instructions: int = 0
    calls: int = 0


@contextmanager
def counting() -> Iterator[Count]:
    """Count what this thread executes inside."""
    count = Count()
    ours: dict[CodeType, bool] = {}

    def is_ours(frame: FrameType | None) -> bool:
        if frame is None:
            return False
        code = frame.f_code
        if code not in ours:
            ours[code] = code.co_filename.startswith(_PACKAGE)
        return ours[code]

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            count.instructions += 1
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        if is_ours(frame):
            count.calls += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return local
        count.calls += is_ours(frame.f_back)
        return None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield count
    finally:
        sys.settrace(before)


def kept_bytes() -> int:
    """Bytes allocated by trio-mcp's own lines since `tracemalloc.start` and not yet freed."""
    kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{_PACKAGE}/*")])
    return sum(trace.size for trace in kept.traces)
