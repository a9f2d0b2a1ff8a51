"""A journal: what happened inside a server's process, for those outside to read."""

import os
import time
from pathlib import Path


def note(line: str) -> None:
    """Append ``line``. One write each, so that a reader never sees half of one."""
    with Path(os.environ["JOURNAL"]).open("a") as journal:
        journal.write(f"{line}\n")


def wait_for(line: str) -> None:
    """Return when somebody has appended ``line``; give up after a while, so that no process stays behind."""
    for _ in range(1000):
        if line in Path(os.environ["JOURNAL"]).read_text().splitlines():
            return
        time.sleep(0.01)
