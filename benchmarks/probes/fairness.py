"""What one request does to another, and what follows a cancel."""

from __future__ import annotations

import time
from statistics import median

from ..driver import messages
from ..driver.checks import check
from ..driver.marks import BEGAN, ENDED
from ..driver.session import Session
from .notifying import check_rows

__all__ = ["flood"]

_ROW = b'"notifications/message"'


def flood(session: Session) -> dict[str, float]:
    """Echoes while another request floods; then a cancel of that one."""
    flooding = session.begin("flood", {"number": 1})
    check(session.child.marks.wait(BEGAN), [1], "the handler that began")
    echoes: dict[int, str] = {}
    took: list[float] = []
    for _ in range(session.sized(200)):
        request_id = next(session.ids)
        echoes[request_id] = text = messages.echo(request_id)
        call = session.wire.frame(messages.tool_call(request_id, "echo", {"text": text}))
        began = time.perf_counter()
        session.wire.write(call)
        session.wire.read_until(text.encode())
        took.append(time.perf_counter() - began)
    session.wire.send(messages.cancel(flooding))
    before = session.wire.count_arrived(_ROW)  # what lay in the pipe by then was not written after it
    received = session.settle()
    check(session.child.marks.wait(ENDED), [1], "the handler that ended")
    rows = check_rows([message for message in received if message.get("method") == "notifications/message"])
    for message in received:
        if "result" in message:
            check(messages.text(message, message["id"]), echoes.pop(message["id"], None), "an echo")
    check(echoes, {}, "echoes without a reply")
    return {"flood_echo": median(took) * 1e6, "flood_after_cancel": rows - before}
