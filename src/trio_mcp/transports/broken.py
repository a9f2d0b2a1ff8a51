"""Handling of errors of broken or closed streams, whose tracebacks would keep frames and errors alive."""

from __future__ import annotations

from collections.abc import Generator

import trio

from ..concurrency.contexts import contextmanager


def let_go_of_cause(error: trio.BrokenResourceError | trio.ClosedResourceError) -> None:
    """Drop the tracebacks of the errors that trio has translated into ``error``; their texts stay.

    The function is for callers that catch ``error``. trio's sockets translate errors in a generator whose frame, from
    CPython 3.12 on, leads to a frame that holds the system's error, and to all frames that waited for the stream. Only
    the garbage collector could free such a cycle.
    """
    translated: BaseException = error
    while translated.__suppress_context__ and translated.__context__ is not None:
        translated = translated.__context__
        translated.__traceback__ = None


@contextmanager
def until_broken() -> Generator[None]:
    """End the block quietly when a stream turns out to be broken or closed."""
    try:
        yield
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        let_go_of_cause(error)
