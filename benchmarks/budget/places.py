"""Where the bytecode of a hot path runs: in which of our floors, and in which of the packages below them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import trio

import trio_mcp

__all__ = ["place_of", "placing", "shares"]

_OURS = Path(trio_mcp.__file__).parent
_TRIO = Path(trio.__file__).parent
_HARNESS = Path(__file__).parent.parent
_CLOCK = _TRIO / "_core" / "_mock_clock.py"


def place_of(filename: str) -> str | None:
    """The name of the part a file belongs to; `None` for what is not there outside of this measure."""
    path = Path(filename)
    if path.is_relative_to(_OURS):
        return f"trio_mcp.{path.relative_to(_OURS).parts[0]}"
    if path.is_relative_to(_HARNESS) or path.parent.name == "json" or path == _CLOCK:
        return None
    if path.is_relative_to(_TRIO) or "outcome" in filename or "trio." in filename:
        return "trio"
    return "trio_mcp.protocol, generated" if filename.startswith("<") else "standard library and others"


@contextmanager
def placing() -> Iterator[Counter[str]]:
    """Count the bytecode instructions that this thread executes inside, by place."""
    counts: Counter[str] = Counter()
    places: dict[str, str | None] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        place = places[frame.f_code.co_filename]
        if event == "opcode" and place is not None:
            counts[place] += 1
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        filename = frame.f_code.co_filename
        if filename not in places:
            places[filename] = place_of(filename)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield counts
    finally:
        sys.settrace(before)


def shares(counts: Counter[str], passages: int) -> list[str]:
    """One line for each place, most first."""
    total = sum(counts.values())
    return [f"{count / passages:9,.0f}  {count / total:4.0%}  {place}" for place, count in counts.most_common()]
