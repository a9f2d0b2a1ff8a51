"""Echoes over HTTP: each is a POST of its own, one outstanding on each of some connections, kept alive."""

from __future__ import annotations

import select
import time
from contextlib import ExitStack
from itertools import islice
from statistics import median, quantiles

from ..driver import messages
from ..driver.checks import check
from ..driver.http import Response, size_of
from ..driver.http_session import HttpSession

__all__ = ["post_1", "post_16", "post_64"]


def posts(session: HttpSession, count: int, width: int) -> tuple[list[float], float, float]:
    """``count`` echoes from ``width`` connections: the seconds of each; of all, by the wall and of the processor."""
    with ExitStack() as stack:
        connections = {}
        for _ in range(width):
            connection = stack.enter_context(session.connect())
            session.echo(connection)  # so that the server has accepted it
            connections[connection.socket.fileno()] = connection
        ids = list(islice(session.ids, count))
        calls = [session.call(request_id, "echo", {"text": messages.echo(request_id)}) for request_id in ids]
        began, ended = [0.0] * count, [0.0] * count
        replies = [b""] * count
        outstanding: dict[int, int] = {}
        poll = stack.enter_context(select.epoll())
        clock, sent, left = time.perf_counter, 0, count
        cpu, start = session.child.cpu(), clock()
        for fd, connection in connections.items():
            poll.register(fd, select.EPOLLIN)
            if sent < count:
                outstanding[fd], began[sent] = sent, clock()
                connection.send(calls[sent])
                sent += 1
        while left:
            for fd, _ in poll.poll():
                connection = connections[fd]
                connection.receive()
                if not size_of(connection.buffer):
                    continue
                number = outstanding[fd]
                ended[number], replies[number] = clock(), connection.take()
                left -= 1
                if sent < count:
                    outstanding[fd], began[sent] = sent, clock()
                    connection.send(calls[sent])
                    sent += 1
        wall, cpu = clock() - start, session.child.cpu() - cpu
    for request_id, reply in zip(ids, replies, strict=True):
        response = Response.of(reply)
        check(response.status, 200, "the status of an echo")
        (message,) = response.messages()
        check(messages.text(message, request_id), messages.echo(request_id), "an echo")
    return [after - before for before, after in zip(began, ended, strict=True)], wall, cpu


def post_1(session: HttpSession) -> dict[str, float]:
    """From one connection."""
    count = session.sized(2000, least=200)
    took, wall, _ = posts(session, count, 1)
    return {"post_1": count / wall, "post_1_p50": median(took) * 1e6}


def post_16(session: HttpSession) -> dict[str, float]:
    """From 16 connections."""
    count = session.sized(5000, least=320)
    _, wall, cpu = posts(session, count, 16)
    return {"post_16": count / wall, "post_16_cpu": cpu / count * 1e6}


def post_64(session: HttpSession) -> dict[str, float]:
    """From 64 connections."""
    count = session.sized(5000, least=640)
    took, wall, _ = posts(session, count, 64)
    return {"post_64": count / wall, "post_64_p99": quantiles(took, n=100)[98] * 1e3}
