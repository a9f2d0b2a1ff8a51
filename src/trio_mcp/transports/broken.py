"""What a stream raises when it is broken or closed, and what is left of it afterwards: nothing."""

from __future__ import annotations

from collections.abc import Generator

import trio

from ..jsonrpc.contexts import contextmanager

__all__ = ["let_go_of_cause", "until_broken"]


def let_go_of_cause(error: trio.BrokenResourceError | trio.ClosedResourceError) -> None:
    """Take the traceback from what trio has translated into ``error``; its text stays. For whoever catches ``error``.

    trio's sockets translate in a generator whose frame, from CPython 3.12 on, leads to one that knows the error of the
    system, and to all that waited for the stream. Only the garbage collector could part them.
    """
    translated: BaseException = error
    while translated.__suppress_context__ and translated.__context__ is not None:
        translated = translated.__context__
        translated.__traceback__ = None


@contextmanager
def until_broken() -> Generator[None]:
    """The block ends quietly where a stream turns out to be broken or closed."""
    try:
        yield
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        let_go_of_cause(error)
