"""``python -m benchmarks.endurance [http|client] [--calls N]``: ten million calls, and what memory they leave.

``http``: a server answers clients of both eras. Of each thousand calls, eight log, eight ask their client, and eight
are abandoned: modern clients disconnect, legacy clients send a cancel. ``client``: a client makes such calls of a
server over pipes.

Each answer is checked, and each abandoned handler has to end. Twenty times, the program prints the memory of the
process that is measured. It fails if a call isn't answered as expected, or if the memory grows after the first tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from .driver import messages
from .driver.checks import check
from .driver.child import Child
from .driver.cores import DRIVER_CORES
from .driver.http import Response
from .driver.http_session import HttpSession, open_modern
from .driver.marks import BEGAN, ENDED

__all__ = ["Memory", "main"]

_HERE = Path(__file__).parent
_CONNECTIONS = 8
"""Connections of each era."""
_LOTS = 5
"""Lots of echoes, one on each connection, between two calls of other kinds."""
_READINGS = 20
_GROWTH = 0.05
"""The largest growth after the first tenth that counts as flat, as a share. Fragments of memory come and go."""
_ROWS = 5


@dataclass
class Memory:
    """Readings of the memory of a process, taken at even distances on the way to ``calls``."""

    calls: int
    readings: list[int] = field(default_factory=list[int])

    def read(self, calls: int, child: Child) -> None:
        """Take a reading if one is due after this number of calls."""
        if calls * _READINGS >= self.calls * (len(self.readings) + 1):
            self.add(child.memory())
            print(f"{calls:>12,} calls: {self.readings[-1] / 2**20:6.1f} MiB", flush=True)

    def add(self, size: int) -> None:
        self.readings.append(size)

    @property
    def growth(self) -> float:
        """The growth from the first tenth to the last, as a share."""
        tenth = max(len(self.readings) // 10, 1)
        return max(self.readings[-tenth:]) / max(self.readings[:tenth]) - 1


class _Clients:
    """Clients of one server over HTTP, of one era."""

    def __init__(self, session: HttpSession, stack: ExitStack) -> None:
        self.session = session
        self._stack = stack
        self._control = stack.enter_context(session.connect())
        self.connections = [stack.enter_context(session.connect()) for _ in range(_CONNECTIONS)]

    def echo(self) -> int:
        """Call on all connections at once, and check the answers. Returns how many calls that were."""
        ids = [next(self.session.ids) for _ in self.connections]
        for connection, request_id in zip(self.connections, ids, strict=True):
            connection.send(self.session.call(request_id, "echo", {"text": messages.echo(request_id)}))
        for connection, request_id in zip(self.connections, ids, strict=True):
            self._answered(connection.whole(), request_id, messages.echo(request_id))
        return len(ids)

    def log(self) -> None:
        request_id, connection = next(self.session.ids), self.connections[0]
        connection.send(self.session.call(request_id, "notify", {"count": _ROWS}))
        *rows, reply = Response.of(connection.whole()).messages()
        check([row["params"]["data"][:5] for row in rows], [f"row {number}" for number in range(_ROWS)], "the logs")
        check(messages.text(reply, request_id), f"{_ROWS} rows", "the result after logs")

    def ask(self) -> None:
        """Answer the sampling request of a handler: in a retry, or in a POST of its own while the call is open."""
        request_id, connection = next(self.session.ids), self.connections[0]
        call = self.session.call(request_id, "ask", {"count": 1})
        if self.session.era == "legacy":
            connection.send(call)
            connection.wait_for(b"sampling/createMessage")
            while not connection.buffer.endswith(b"\n\n\r\n"):
                connection.receive()
            asked = Response.of(bytes(connection.buffer)).messages()[-1]
            self._control.ask(self.session.post(messages.result(asked["id"], _answer(asked["params"]))), 202)
            reply = Response.of(connection.whole()).messages()[-1]
        else:
            (first,) = connection.ask(call).messages()
            requests = first["result"]["inputRequests"]
            answers = {key: _answer(each["params"]) for key, each in requests.items()}
            request_id = next(self.session.ids)
            retry = {"inputResponses": answers, "requestState": first["result"]["requestState"]}
            (reply,) = connection.ask(self.session.call(request_id, "ask", {"count": 1}, **retry)).messages()
        check(messages.text(reply, request_id), "1 answers", "the result after a question")

    def abandon(self) -> None:
        """Leave a call, and wait until its handler has ended."""
        request_id, marks = next(self.session.ids), self.session.child.marks
        connection = self.connections.pop()
        connection.send(self.session.call(request_id, "hang", {"number": request_id}))
        check(marks.wait(BEGAN), [request_id], "the handler that began")
        if self.session.era == "legacy":
            self._control.ask(self.session.post(messages.cancel(request_id)), 202)
            check(Response.of(connection.whole()).messages(), [], "the answer to a cancelled call")
        connection.close()
        check(marks.wait(ENDED), [request_id], "the handler that ended")
        self.connections.append(self._stack.enter_context(self.session.connect()))

    @staticmethod
    def _answered(data: bytes, request_id: int, text: str) -> None:
        """A fast check; a full one says what is wrong."""
        if b'"id":%d,' % request_id not in data or text.encode() not in data:
            check(messages.text(Response.of(data).messages()[-1], request_id), text, "an echo")


def _answer(params: dict[str, Any]) -> dict[str, Any]:
    question: str = params["messages"][0]["content"]["text"]
    content = {"type": "text", "text": question.replace("question", "answer")}
    return {"role": "assistant", "content": content, "model": "driver"}


def _over_http(memory: Memory) -> None:
    command = [sys.executable, str(_HERE / "servers/trio_mcp_http.py")]
    with open_modern(command, 1.0) as modern, ExitStack() as stack:
        modern.capabilities["sampling"] = {}
        connection = stack.enter_context(modern.connect())
        clients = [_Clients(each, stack) for each in (modern, modern.new_session(connection))]
        made = 0
        for kind in count():
            for each in clients:
                for _ in range(_LOTS):
                    made += each.echo()
                (each.log, each.ask, each.abandon)[kind % 3]()
                made += 1
            memory.read(made, modern.child)
            if made >= memory.calls:
                return


def _by_client(memory: Memory) -> None:
    cores = ",".join(map(str, sorted(DRIVER_CORES)))
    server = [sys.executable, str(_HERE / "servers/raw.py"), cores]
    command = [sys.executable, str(_HERE / "clients/enduring_client.py"), str(memory.calls), *server]
    with Child(command) as child:
        for made in _lines(child.output):
            memory.read(made, child)


def _lines(descriptor: int) -> Iterator[int]:
    """The numbers that a process writes, one on each line."""
    with os.fdopen(os.dup(descriptor)) as lines:
        yield from map(json.loads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make millions of calls, and watch the memory that they leave.")
    parser.add_argument("part", nargs="?", choices=["http", "client"], default="http")
    parser.add_argument("--calls", type=int, default=10_000_000)
    chosen = parser.parse_args()
    memory, began = Memory(chosen.calls), time.perf_counter()
    (_over_http if chosen.part == "http" else _by_client)(memory)
    check(len(memory.readings), _READINGS, "the number of readings")
    print(f"{chosen.calls:,} calls in {time.perf_counter() - began:,.0f} s; growth {memory.growth:+.1%}")
    sys.exit(memory.growth > _GROWTH)


if __name__ == "__main__":
    main()
