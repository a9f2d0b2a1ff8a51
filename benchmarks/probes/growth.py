"""How cost grows: with requests in flight, with the size of a message, with connections."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median

from ..driver import messages
from ..driver.checks import check
from ..driver.session import Session, connected
from .cancelling import cancel_all, latencies, start_hanging
from .echoing import in_flight, sequential

__all__ = ["CONNECTIONS", "PAYLOADS", "WIDTHS", "connections", "crowded", "payloads", "widths"]

WIDTHS = (1, 10, 100, 1000, 10_000)
PAYLOADS = (100, 1000, 10_000, 100_000, 2**20)
CONNECTIONS = (1, 10, 100, 1000)


def widths(session: Session) -> dict[str, float]:
    """Echoes per second with so many in flight."""
    figures: dict[str, float] = {}
    for width in WIDTHS:
        count = max(2 * width, session.sized(5000))
        figures[f"echo_in_flight_{width}"] = count / in_flight(session, count, width)[0]
    return figures


def crowded(session: Session) -> dict[str, float]:
    """The latency of a cancel while so many other requests are in flight."""
    figures: dict[str, float] = {}
    for width in WIDTHS:
        others = start_hanging(session, width - 1)
        figures[f"cancel_among_{width}"] = median(latencies(session, 100)) * 1e6
        cancel_all(session, others)
    return figures


def payloads(session: Session) -> dict[str, float]:
    """Milliseconds of an echo of so many bytes, both ways."""
    figures: dict[str, float] = {}
    for size in PAYLOADS:
        texts = [f"{number:08}".ljust(size, "x") for number in range(20 if size > 10_000 else 200)]
        figures[f"echo_bytes_{size}"] = median(sequential(session, texts)[0]) * 1e3
    return figures


def connections(session: Session) -> dict[str, float]:
    """Echoes per second, one in flight on each of so many connections, and the server's memory for each."""
    figures: dict[str, float] = {}
    assert session.port is not None
    before = session.child.memory()
    with ExitStack() as stack:
        others: list[Session] = []
        for number in CONNECTIONS:
            while len(others) < number:
                others.append(stack.enter_context(connected(session.child, session.port, session.scale)))
            figures[f"echo_connections_{number}"] = _rounds(others, max(3, 2000 // number))
        figures["memory_per_connection"] = (session.child.memory() - before) / len(others) / 1024
    return figures


def _rounds(sessions: list[Session], rounds: int) -> float:
    began = time.perf_counter()
    for number in range(rounds):
        text = messages.echo(number)
        ids = [next(session.ids) for session in sessions]
        for session, request_id in zip(sessions, ids, strict=True):
            session.wire.send(messages.tool_call(request_id, "echo", {"text": text}))
        for session, request_id in zip(sessions, ids, strict=True):
            (reply,) = session.receive()
            check(messages.text(reply, request_id), text, "an echo")
    return rounds * len(sessions) / (time.perf_counter() - began)
