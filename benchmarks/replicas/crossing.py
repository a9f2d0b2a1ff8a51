"""What finds its way from one replica to another: cancels, answers and changes, each beside the same in one process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from ..driver.checks import check, within
from ..driver.http import Connection, Response
from ..driver.http_session import HttpSession
from ..driver.marks import BEGAN, ENDED
from ..driver.messages import cancel, initialized, result, text
from ..tasks import messages
from . import ALONE
from .echoing import Figures, storages
from .fleet import replicas

__all__ = ["crossings"]

_PATIENCE = 30
_PAUSE = 0.02
"""Seconds between two at least, so that nothing of the one is under way when the other begins."""
_LOOK = 0.2
"""Seconds between two looks into a file that replicas share: no phase of them may be preferred."""


@dataclass(frozen=True)
class Pair:
    """The replica where the handler runs, and the one to which the client sends what comes next: may be the same."""

    owner: HttpSession
    taker: HttpSession
    looks: bool = False
    """True where the two learn of each other by looks into a file."""

    def pause(self) -> None:
        """Let everything that is under way end."""
        time.sleep(_PAUSE + random.uniform(0, _LOOK * self.looks))

    def call(self, number: int, tool: str, arguments: dict[str, Any], **more: Any) -> bytes:
        """A modern call, or with ``more`` the retry of one."""
        params = {"name": tool, "arguments": arguments, **more}
        body = messages.request("extension", number, "tools/call", params)
        return messages.post(self.owner, body, "tools/call", tool)

    def asked(self, control: Connection, tool: str, arguments: dict[str, Any]) -> tuple[int, bytes]:
        """Call a tool of the owner that asks: an id, and the retry under that id with the answer."""
        question = control.ask(self.call(next(self.owner.ids), tool, arguments)).messages()[-1]["result"]
        answers = {key: {"action": "accept", "content": {"name": "Ada"}} for key in question["inputRequests"]}
        number = next(self.owner.ids)
        more = {"requestState": question["requestState"], "inputResponses": answers}
        return number, self.call(number, tool, arguments, **more)

    def ended(self, began: int) -> float:
        """Wait for the end of the handler: microseconds since ``began``."""
        (ended,) = self.owner.child.marks.wait(ENDED)
        return (ended - began) / 1e3


def left(pair: Pair, count: int) -> Iterator[float]:
    """A modern client leaves a retry, by closing its connection: until the ``finally`` of the handler."""
    with pair.owner.connect() as control:
        for number in range(count):
            request_id, retry = pair.asked(control, "hang", {"number": number, "asks": True})
            with pair.taker.connect() as connection:
                connection.send(retry)
                check(pair.owner.child.marks.wait(BEGAN), [number], f"the handler of {request_id}")
                pair.pause()
                began = time.monotonic_ns()
                connection.close()
                yield pair.ended(began)


def cancelled(pair: Pair, count: int) -> Iterator[float]:
    """A legacy client posts ``notifications/cancelled``: until the ``finally`` of the handler."""
    session = _asking_session(pair.owner)
    with pair.taker.connect() as control:
        for number in range(count):
            request_id = next(session.ids)
            with session.connect() as connection:
                connection.send(session.call(request_id, "hang", {"number": number}))
                check(pair.owner.child.marks.wait(BEGAN), [number], f"the handler of {request_id}")
                pair.pause()
                began = time.monotonic_ns()
                control.send(session.post(cancel(request_id)))
                yield pair.ended(began)
                check(Response.of(control.whole()).status, 202, "the status of a cancel")


def answered(pair: Pair, count: int) -> Iterator[float]:
    """A modern client answers a question by a retry: until it has the result."""
    with pair.owner.connect() as control, pair.taker.connect() as other:
        for _ in range(count):
            request_id, retry = pair.asked(control, "greet", {})
            pair.pause()
            began = time.monotonic_ns()
            response = other.ask(retry)
            yield (time.monotonic_ns() - began) / 1e3
            check(text(response.messages()[-1], request_id), "hello Ada", "the result")


def answered_in_session(pair: Pair, count: int) -> Iterator[float]:
    """A legacy client posts its answer: until it has the result, on the stream of its call."""
    session = _asking_session(pair.owner)
    with session.connect() as connection, pair.taker.connect() as other:
        for _ in range(count):
            request_id = next(session.ids)
            connection.send(session.call(request_id, "greet", {}))
            connection.wait_for(b"elicitation/create")
            connection.wait_for(b"}\n\n")
            question = Response.of(bytes(connection.buffer)).messages()[-1]
            pair.pause()
            answer = session.post(result(question["id"], {"action": "accept", "content": {"name": "Ada"}}))
            began = time.monotonic_ns()
            other.send(answer)
            reply = connection.whole()
            yield (time.monotonic_ns() - began) / 1e3
            check(text(Response.of(reply).messages()[-1], request_id), "hello Ada", "the result")
            check(Response.of(other.whole()).status, 202, "the status of an answer")


def changed(pair: Pair, count: int) -> Iterator[float]:
    """A handler tells that a resource has changed: until a client that listens has read it."""
    uris = [f"note://{next(pair.owner.ids)}" for _ in range(count)]  # of no measure before, of which more may be told
    asked = {"notifications": {"resourceSubscriptions": uris}}
    with pair.taker.connect() as listener, pair.owner.connect() as control:
        body = messages.request("extension", next(pair.taker.ids), "subscriptions/listen", asked)
        listener.send(pair.taker.post(body, Mcp_Method="subscriptions/listen"))
        listener.wait_for(b"acknowledged")
        listener.wait_for(b"\n\n")
        listener.take()
        for uri in uris:
            pair.pause()
            request_id = next(pair.owner.ids)
            control.send(pair.owner.call(request_id, "change", {"uri": uri}))
            listener.wait_for(uri.encode())
            read = time.monotonic_ns()
            began = int(text(Response.of(control.whole()).messages()[-1], request_id))
            yield (read - began) / 1e3


def _asking_session(replica: HttpSession) -> HttpSession:
    """A new legacy session of a client that can be asked."""
    session = HttpSession(port=replica.port, era="legacy", child=replica.child, scale=1.0, ids=replica.ids)
    with replica.connect() as connection:
        session.session_id = connection.ask(session.post(messages.initialize())).headers["mcp-session-id"]
        connection.ask(session.post(initialized()), 202)
    return session


_WAYS: dict[str, Callable[[Pair, int], Iterator[float]]] = {
    "modern: a client leaves, to `finally`": left,
    "legacy: a cancel, to `finally`": cancelled,
    "modern: an answer, to the result": answered,
    "legacy: an answer, to the result": answered_in_session,
    "a change, to a listener": changed,
}


def crossings(rounds: int, count: int) -> Iterator[Figures]:
    """``count`` of each way, in a server alone, in one that shares, and from one replica to another, in turn."""
    with ExitStack() as stack:
        named, _ = stack.enter_context(storages())
        pairs: dict[str, Pair] = {}
        for storage, name in named.items():
            servers = stack.enter_context(replicas(*[name] * (1 if name == ALONE else 2)))
            pairs[f"{storage}, same process"] = Pair(servers[0], servers[0])
            if len(servers) > 1:
                pairs[f"{storage}, another"] = Pair(*servers, looks=storage == "SQLite")
        for _ in range(rounds):
            figures: Figures = {}
            for way, measure in _WAYS.items():
                for title, pair in pairs.items():
                    with within(_PATIENCE + count, f"{way}, {title}"):
                        took = list(measure(pair, count))
                    figures[f"{way}: {title}"] = {"p50": median(took), "p99": quantiles(took, n=100)[98]}
            yield figures
