"""Cancels, and requests that wait."""

from __future__ import annotations

import time
from itertools import islice
from statistics import median

from ..driver import messages
from ..driver.checks import check
from ..driver.marks import BEGAN, ENDED
from ..driver.session import Session

__all__ = ["cancel_500", "cancel_all", "cancel_one", "crowd", "crowd_of_all", "latencies", "start_hanging"]


def start_hanging(session: Session, count: int) -> list[int]:
    """Start ``count`` handlers that wait to be cancelled, and return their ids when all have begun."""
    ids = list(islice(session.ids, count))
    calls = (messages.tool_call(request_id, "hang", {"number": request_id}) for request_id in ids)
    session.wire.write(session.wire.frame(*calls))
    check(sorted(session.child.marks.wait(BEGAN, count)), ids, "the handlers that began")
    return ids


def cancel_all(session: Session, ids: list[int]) -> float:
    """Cancel all of them at once: seconds until the last ``finally`` block in the other process has run."""
    data = session.wire.frame(*map(messages.cancel, ids))
    began = time.perf_counter()
    session.wire.write(data)
    ended = session.child.marks.wait(ENDED, len(ids))
    wall = time.perf_counter() - began
    check(sorted(ended), ids, "the handlers that ended")
    _check_unanswered(session)
    return wall


def latencies(session: Session, count: int) -> list[float]:
    """Cancel one handler at a time, ``count`` times: the seconds from the write to its ``finally`` block."""
    took: list[float] = []
    for _ in range(count):
        (request_id,) = start_hanging(session, 1)
        data = session.wire.frame(messages.cancel(request_id))
        began = time.perf_counter()
        session.wire.write(data)
        ended = session.child.marks.wait(ENDED)
        took.append(time.perf_counter() - began)
        check(ended, [request_id], "the handler that ended")
    _check_unanswered(session)
    return took


def _check_unanswered(session: Session) -> None:
    """No cancelled call has a result. Some peers answer with an error, against the specification."""
    check([message for message in session.settle() if "error" not in message], [], "replies to cancelled calls")


def cancel_one(session: Session) -> dict[str, float]:
    """One handler, waiting."""
    return {"cancel_p50": median(latencies(session, session.sized(1000, least=50))) * 1e6}


def cancel_500(session: Session) -> dict[str, float]:
    """500 handlers, waiting; all cancels in one write."""
    return {"cancel_500": cancel_all(session, start_hanging(session, 500)) * 1e3}


def crowd(session: Session) -> dict[str, float]:
    """Many requests in flight at once, of peers fewer. All are cancelled afterwards."""
    return _crowd(session, 10_000 if session.scale == 1 else 2000)


def crowd_of_all(session: Session) -> dict[str, float]:
    """The same many, whoever serves them; a peer takes up to a minute."""
    return _crowd(session, 10_000)


def _crowd(session: Session, count: int) -> dict[str, float]:
    memory, began = session.child.memory(), time.perf_counter()
    ids = start_hanging(session, count)
    wall, memory = time.perf_counter() - began, session.child.memory() - memory
    cancel_all(session, ids)
    return {"crowd_memory": memory / count / 1024, "crowd_accept": wall / count * 1e6}
