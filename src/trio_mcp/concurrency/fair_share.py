"""leaves_enough decides how much one connection gets of what is bounded for the whole server."""

from __future__ import annotations

__all__ = ["leaves_enough"]


def leaves_enough(held: int, free: int, more: int = 1) -> bool:
    """Return whether a connection that holds ``held`` may take ``more`` of ``free``.

    A connection gets no more than it leaves for others: half of all where no other wants any, a third where two want
    all they can get. So there is some left for the next one, and what one connection took while it was alone comes
    back as its requests end.
    """
    return held + more <= free
