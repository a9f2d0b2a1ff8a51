"""The server's side of stdio: this process's own standard input and output."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Generator
from contextlib import suppress
from typing import TextIO

from ..concurrency.contexts import contextmanager
from ..diagnostics.writer import takes_more
from .descriptors import DescriptorStream
from .lines import LineChannel


@contextmanager
def own_stdio(max_message_bytes: int) -> Generator[LineChannel]:
    """Take standard input and output for messages, and keep everybody else away from them.

    Inside, descriptor 1 is standard error and descriptor 0 is empty, for this process and its children: a stray
    ``print``, ``os.write(1, …)`` or a child's output cannot corrupt the wire, and no child consumes input (2025-11-25
    stdio: MUST NOT write anything to stdout that is not a message). Printed text is written line by line. Both
    descriptors are restored afterwards; but if nobody reads standard error, text printed from then on is dropped, so
    that the process can end. Raises `OSError` when standard input or output is not open.
    """
    _check_open()
    stream = DescriptorStream(0, 1)
    saved_input, saved_output = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(null, 0)
        os.dup2(null if sys.__stderr__ is None else 2, 1)
        with _printing_line_by_line():
            yield LineChannel(stream, max_message_bytes)
    finally:
        os.dup2(saved_input, 0)
        if takes_more(1):
            os.dup2(saved_output, 1)
        else:
            # A thread may stand in a print, and would go on with the rest of it where the descriptor leads then.
            os.dup2(null, 1)
        for fd in (saved_input, saved_output, null):
            os.close(fd)
        stream.close()


@contextmanager
def _printing_line_by_line() -> Generator[None]:
    """Have each line that is printed come out at once, though standard output was no terminal."""
    printing = sys.stdout
    if not (isinstance(printing, io.TextIOWrapper) and _is_standard_output(sys.stdout)):
        yield
        return
    before = printing.line_buffering
    printing.reconfigure(line_buffering=True)
    try:
        yield
    finally:
        if takes_more(1):
            with suppress(OSError, ValueError):  # it writes what print left in its buffer: to standard error
                printing.reconfigure(line_buffering=before)


def _is_standard_output(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except ValueError:  # it was closed or detached, or is one in memory (`io.UnsupportedOperation`)
        return False


def _check_open() -> None:
    # What was closed when Python started has been given to somebody else since, to trio's own poll for
    # example. The system would say that it is open, so Python's first look at it is what counts.
    for name, opened in (("input", sys.__stdin__), ("output", sys.__stdout__)):
        if opened is None:
            raise OSError(errno.EBADF, f"standard {name} is not open")
