"""Journals: what happened inside a child process, read from outside."""

from __future__ import annotations

import time
from pathlib import Path

from tests.patience import PATIENCE

__all__ = ["Journal"]

_POLL = 0.01


class Journal:
    """A file to which a child appends lines. The child finds its path in the variable JOURNAL."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path
        self.env = {"JOURNAL": str(path)}

    @property
    def lines(self) -> list[str]:
        """All of it."""
        return self._path.read_text().splitlines()

    def note(self, line: str) -> None:
        """Append ``line``, for the child to read."""
        with self._path.open("a") as journal:
            journal.write(f"{line}\n")

    def wait_for(self, line: str, *, after: int = 0) -> None:
        """Return when ``line`` stands below the first ``after`` lines. For use outside of trio: it blocks."""
        # A file cannot be waited for, only looked at.
        deadline = time.monotonic() + PATIENCE
        while line not in self.lines[after:]:
            assert time.monotonic() < deadline, f"{line!r} never came; the journal is {self.lines}"
            time.sleep(_POLL)
