"""Log notifications on the stream of one POST."""

from __future__ import annotations

import time

from ..driver import messages
from ..driver.checks import check
from ..driver.http import Response
from ..driver.http_session import HttpSession
from .notifying import check_rows

__all__ = ["streamed"]


def streamed(session: HttpSession) -> dict[str, float]:
    """``await ctx.log.info(...)`` in a loop."""
    count = session.sized(100_000)
    request_id = next(session.ids)
    call = session.call(request_id, "notify", {"count": count})
    with session.connect() as connection:
        session.echo(connection)
        cpu, began = session.child.cpu(), time.perf_counter()
        connection.send(call)
        response = connection.whole()
        wall, cpu = time.perf_counter() - began, session.child.cpu() - cpu
    *rows, reply = Response.of(response).messages()
    check_rows(rows, count)
    check(messages.text(reply, request_id), f"{count} rows", "the result")
    return {"streamed": count / wall, "streamed_cpu": cpu / count * 1e6}
