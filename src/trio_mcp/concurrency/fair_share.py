"""leaves_enough decides how much of a server's bound one connection gets."""

from __future__ import annotations

__all__ = ["leaves_enough"]


def leaves_enough(held: int, free: int, more: int = 1) -> bool:
    """Return whether a connection that holds ``held`` may take ``more`` of ``free``.

    A connection gets no more than it leaves for others: half of all if no other connection wants any, a third if two
    want as much as possible. Some is thus left for the next connection, and a connection that was alone gives its
    excess back as its requests end.
    """
    return held + more <= free
