"""Child: a process that is measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from .cores import MEASURED_CORES, on_cores
from .marks import Marks

__all__ = ["Child"]

_PATIENCE = 60


class Child:
    """A process on the measured core, with pipes for standard input and output, and a third one for its `Marks`."""

    def __init__(self, command: Sequence[str]) -> None:
        marks, theirs = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self.started = time.perf_counter()
        with on_cores(MEASURED_CORES):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                pass_fds=[theirs],
                env={**os.environ, "BENCHMARK_MARKS": str(theirs)},
            )
        os.close(theirs)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        self.marks = Marks(marks)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._errors.close)
            stack.callback(self.marks.close)
            stack.enter_context(self._process)
            stack.callback(self._process.kill)
            if error is not None:
                error.add_note(f"the last it said on standard error:\n{self._last_words()}")
                return
            self._process.communicate(timeout=_PATIENCE)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace")

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def cpu(self) -> float:
        """Seconds of processor time it has used, all threads, as the system's own clock of the process says."""
        return time.clock_gettime((~self.pid << 3) | 2)  # what clock_getcpuclockid(3) gives on Linux

    def memory(self) -> int:
        """Bytes of memory it holds now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
