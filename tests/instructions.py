"""Counting the instructions of Python that a call executes, in whatever file: the same in every run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

__all__ = ["instructions_of"]


def instructions_of(function: Callable[[], object]) -> int:
    """The instructions that ``function`` executes. What is written in C counts as the call alone."""
    return _traced(function) if sys.version_info < (3, 12) else _monitored(function)


def _traced(function: Callable[[], object]) -> int:
    count = 0

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def _monitored(function: Callable[[], object]) -> int:
    # From 3.12 on the events of `sys.settrace` are made of these ones, and in 3.13.0 some were missing.
    monitoring: Any = sys.monitoring  # pyright: ignore[reportAttributeAccessIssue] where the checker has Python 3.11
    tool, event = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION
    count, thread = 0, get_ident()

    def executed(*_: object) -> None:  # in all threads, that of a log or of pytest-xdist for example
        nonlocal count
        count += get_ident() == thread

    monitoring.use_tool_id(tool, "instructions")
    try:
        monitoring.register_callback(tool, event, executed)
        monitoring.set_events(tool, event)
        function()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
    return count
