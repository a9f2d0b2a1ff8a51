"""Cancels over HTTP: in the modern era the client closes its connection, in the legacy era it POSTs the cancel."""

from __future__ import annotations

import time
from statistics import median, quantiles

from ..driver import messages
from ..driver.checks import Stuck, check, within
from ..driver.http import Connection
from ..driver.http_session import HttpSession
from ..driver.marks import BEGAN, ENDED

__all__ = ["leave"]

_LONG = 0.5
"""Seconds after which a handler is counted as one that is not stopped."""
_ENOUGH = 5
"""After so many that were not, no more are tried."""


def leave(session: HttpSession) -> dict[str, float]:
    """One handler at a time, waiting: from the cancel to its ``finally`` block."""
    count = session.sized(300, least=50)
    took: list[float] = []
    missed = 0
    with session.connect() as control:
        while len(took) + missed < count and missed < _ENOUGH:
            seconds = _stopped(session, control)
            if seconds is None:
                missed += 1
            else:
                took.append(seconds)
    with session.connect() as connection:
        session.echo(connection)
    figures = {"stopped": 100 * len(took) / (len(took) + missed)}
    if len(took) > 1:
        figures |= {"leave_p50": median(took) * 1e6, "leave_p99": quantiles(took, n=100)[98] * 1e6}
    return figures


def _stopped(session: HttpSession, control: Connection) -> float | None:
    """Cancel one handler: seconds until its ``finally`` block, `None` when that does not come."""
    request_id = next(session.ids)
    marks, clock = session.child.marks, time.perf_counter
    cancel = session.post(messages.cancel(request_id))
    with session.connect() as connection:
        connection.send(session.call(request_id, "hang", {"number": request_id}))
        check(marks.wait(BEGAN), [request_id], "the handler that began")
        try:
            with within(_LONG, "the end of the handler"):
                began = clock()
                if session.era == "modern":
                    connection.close()
                else:
                    control.send(cancel)
                ended = marks.wait(ENDED)
                took = clock() - began
        except Stuck:
            return None
        check(ended, [request_id], "the handler that ended")
    if session.era == "legacy":
        check(control.whole()[9:12], b"202", "the status of a cancel")
    return took
