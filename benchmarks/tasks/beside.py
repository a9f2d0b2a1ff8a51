"""What others notice of a caller that polls many tasks.

``python -m benchmarks.tasks.beside PORT TOOL_OR_METHOD``, with ids of tasks on standard input, is that caller: each
second it makes one request after another, for each of the ids.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles

from ..driver.checks import check
from ..driver.cores import DRIVER_CORES, on_cores
from ..driver.http import Connection
from ..driver.http_session import Requests
from . import messages
from .ways import Server

__all__ = ["noticed"]

_INTERVAL = 1.0


def _requests(requests: Requests, what: str, ids: list[str]) -> list[bytes]:
    framed: list[bytes] = []
    for number, task_id in enumerate(ids, start=1_000_000):
        if what == "tasks/get":
            body, name = messages.request("extension", number, what, {"taskId": task_id}), task_id
            framed.append(messages.post(requests, body, what, name))
        else:
            body = messages.call("extension", number, what, {"text": task_id}, task=False)
            framed.append(messages.post(requests, body, "tools/call", what))
    return framed


def _ask_for_ever(port: int, framed: list[bytes]) -> None:
    with Connection(port) as connection:
        due = time.monotonic()
        while True:
            for request in framed:
                connection.ask(request)
            print(flush=True)
            due += _INTERVAL
            time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def _asking(port: int, what: str, ids: list[str]) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.tasks.beside", str(port), what]
    pipe = subprocess.PIPE
    with on_cores(DRIVER_CORES), subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n".join(ids))
            process.stdin.close()
            process.stdout.readline()  # all were asked for once
            yield
        finally:
            process.kill()


def _echoes(server: Server, seconds: float) -> list[float]:
    """The times of one echo each five milliseconds."""
    took: list[float] = []
    clock, end = time.perf_counter, time.perf_counter() + seconds
    while clock() < end:
        request = server.call("echo", "a text")
        began = clock()
        reply = server.way.ask(request)
        took.append(clock() - began)
        check(b'"result"' in reply, True, "that a reply has a result")
        time.sleep(0.005)
    return took


def noticed(server: Server, tasks: int, seconds: float, rounds: int = 3) -> dict[str, tuple[float, float]]:
    """The median and the 99th percentile, in microseconds, of echoes on another connection: beside nothing, beside a
    caller that calls so often each second, and beside one that looks at so many ``tasks`` each second; by turns."""
    ids = [server.start("sleep") for _ in range(tasks)]
    port = server.port
    assert port is not None, "others come over HTTP"
    took: dict[str, list[float]] = {"nothing": [], "calls": [], "polls": []}
    for _ in range(rounds):
        took["nothing"] += _echoes(server, seconds / rounds)
        for name, what in (("calls", "echo"), ("polls", "tasks/get")):
            with _asking(port, what, ids):
                took[name] += _echoes(server, seconds / rounds)
    return {name: (median(times) * 1e6, quantiles(times, n=100)[98] * 1e6) for name, times in took.items()}


if __name__ == "__main__":
    _port, _what = sys.argv[1:]
    _ask_for_ever(int(_port), _requests(Requests(port=int(_port), era="modern"), _what, sys.stdin.read().split()))
