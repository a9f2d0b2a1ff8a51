"""Wire: standard input and output, reserved for messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator

from ...concurrency.contexts import contextmanager


@contextmanager
def wire_held_back() -> Generator[Wire]:
    """Keep other code away from the wire while no server owns the wire: descriptor 1 is standard error and descriptor 0
    is empty, for this process and its children."""
    wire = Wire()
    wire.hold_back()
    try:
        yield wire
    finally:
        wire.give_back()
        wire.close()


class Wire:
    """Copies of descriptors 0 and 1, made at the creation of the object. Both must be open."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)

    def hold_back(self) -> None:
        """Put harmless descriptors in the place of the wire."""
        sys.stdout.flush()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2 if sys.__stderr__ is not None else null, 1)
        os.close(null)

    def give_back(self) -> None:
        """Put the wire back."""
        sys.stdout.flush()  # what was printed waits in the buffer, and would be written to the wire
        os.dup2(self._input, 0)
        os.dup2(self._output, 1)

    @contextmanager
    def given_back(self) -> Generator[None]:
        """Put the wire back, and hold it back again at the end."""
        self.give_back()
        try:
            yield
        finally:
            self.hold_back()

    def close(self) -> None:
        """Close the copies of both descriptors, and leave the descriptors unchanged."""
        os.close(self._input)
        os.close(self._output)
