"""What a look at a task takes beside an ordinary call, and what a task takes from its creation to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from statistics import median

from ..driver.checks import check
from .ways import Server, over_http, over_pipes

__all__ = ["WAYS", "Figures", "lived", "looked_at"]

Figures = dict[str, tuple[float, float]]
"""By what was done: the median of the wall time, and the processor time of the server, in microseconds."""

Opened = Callable[[str | None], AbstractContextManager[Server]]

WAYS: dict[str, Opened] = {
    "stdio, 2025-11-25": partial(over_pipes, "core"),
    "stdio, 2026-07-28": partial(over_pipes, "extension"),
    "HTTP, 2026-07-28": over_http,
}
"""How the server is reached, given the file of its tasks or none."""

_BATCH = 50


def _timed(server: Server, framed: list[bytes]) -> tuple[list[float], float]:
    took: list[float] = []
    ask, clock, cpu = server.way.ask, time.perf_counter, server.child.cpu()
    for request in framed:
        began = clock()
        reply = ask(request)
        took.append(clock() - began)
        check(b'"result"' in reply, True, "that a reply has a result")
    return took, server.child.cpu() - cpu


def looked_at(server: Server, count: int) -> Figures:
    """``count`` of each, by turns of a few: an ordinary call; ``tasks/get`` of a task that sleeps, and of one that has
    ended with the result of such a call."""
    sleeping, ended = server.start("sleep"), server.start("echo_later")
    while server.status(ended) != "completed":
        pass
    requests: dict[str, Callable[[], bytes]] = {
        "call": partial(server.call, "echo", "a text"),
        "get, working": partial(server.about, "tasks/get", sleeping),
        "get, ended": partial(server.about, "tasks/get", ended),
    }
    for request in requests.values():
        _timed(server, [request() for _ in range(_BATCH)])
    took: dict[str, list[float]] = {name: [] for name in requests}
    cpu = dict.fromkeys(requests, 0.0)
    for _ in range(count // _BATCH):
        for name, request in requests.items():
            times, seconds = _timed(server, [request() for _ in range(_BATCH)])
            took[name] += times
            cpu[name] += seconds
    done = count // _BATCH * _BATCH
    return {name: (median(took[name]) * 1e6, cpu[name] / done * 1e6) for name in requests}


def lived(server: Server, count: int) -> Figures:
    """``count`` ordinary calls and ``count`` tasks that end at once, by turns: for the tasks, the median is of the
    answer with the task, and the processor time is of all until the last has ended."""
    figures: dict[str, tuple[list[float], float]] = {"call": ([], 0.0), "task": ([], 0.0)}
    for tool, name in (("echo", "call"), ("echo_later", "task")) * (count // _BATCH):
        cpu = server.child.cpu()
        times, _ = _timed(server, [server.call(tool, "a text") for _ in range(_BATCH)])
        server.way.ask(server.call("echo", "the end"))  # after which nothing is left to do for those before
        took, seconds = figures[name]
        figures[name] = (took + times, seconds + server.child.cpu() - cpu)
    done = count // _BATCH * _BATCH
    return {name: (median(took) * 1e6, seconds / done * 1e6) for name, (took, seconds) in figures.items()}
