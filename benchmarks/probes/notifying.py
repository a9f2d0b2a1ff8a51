"""What a handler tells: log notifications and progress."""

from __future__ import annotations

import json
import time
from typing import Any

from ..driver import messages
from ..driver.checks import check
from ..driver.session import Session

__all__ = ["check_rows", "notifications", "progress"]


def check_rows(received: list[dict[str, Any]], count: int | None = None) -> int:
    """All of them log the rows from 0 on, in order, and there are ``count``. Gives how many there are."""
    for number, message in enumerate(received):
        check(message.get("method"), "notifications/message", f"notification {number}")
        data = message["params"]["data"]
        found = data["msg"] if isinstance(data, dict) else data  # fastmcp wraps it
        check(found, f"row {number} was read, checked and written", f"the data of notification {number}")
    if count is not None:
        check(len(received), count, "the number of notifications")
    return len(received)


def notifications(session: Session) -> dict[str, float]:
    """``await ctx.log.info(...)`` in a loop."""
    count = session.sized(200_000)
    cpu, began = session.child.cpu(), time.perf_counter()
    request_id = session.begin("notify", {"count": count})
    session.wire.read_until(b'"%d rows"' % count)
    wall, cpu = time.perf_counter() - began, session.child.cpu() - cpu
    *rows, reply = session.receive()
    check_rows(rows, count)
    check(messages.text(reply, request_id), f"{count} rows", "the result")
    return {"notifications": count / wall, "notifications_cpu": cpu / count * 1e6}


def progress(session: Session) -> dict[str, float]:
    """``ctx.progress(...)`` in a loop: what the handler waits for it, and what of it is written."""
    count = session.sized(300_000)
    request_id = session.begin("progress", {"count": count}, token=77)
    received: list[dict[str, Any]] = []
    while not received or "result" not in received[-1]:
        received += [json.loads(message) for message in session.wire.receive()]
    seconds = float(messages.text(received.pop(), request_id))
    values = [message["params"]["progress"] for message in received]
    check([message["params"]["progressToken"] for message in received], [77] * len(values), "the tokens")
    check(values, sorted(set(values)), "values that increase")
    check(values[-1:], [count], "the last value")
    return {"progress": seconds / count * 1e6, "progress_written": 100 * len(values) / count}
