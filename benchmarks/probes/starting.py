"""Cold start, and what an idle server holds."""

from __future__ import annotations

from ..driver.http_session import HttpSession
from ..driver.session import Session

__all__ = ["cold_start"]


def cold_start(session: Session | HttpSession) -> dict[str, float]:
    """To be run before any other."""
    wall = session.opened - session.child.started
    return {"start": wall * 1e3, "idle_memory": session.child.memory() / 2**20}
