"""Users: each goes round the shop on a connection of its own, and rests for a moment before the next round."""

from __future__ import annotations

import heapq
import json
import select
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from ..driver import messages
from ..driver.http import Connection, Response, size_of
from ..driver.http_session import HttpSession, Requests
from .catalog import priced, search

__all__ = ["Load", "measured"]

_REST = 0.05
_SEARCH = {"category": "Electronics", "min_price": 50.0, "max_price": 500.0, "limit": 10}
_ITEMS = [{"product_id": 42, "quantity": 2}, {"product_id": 1337, "quantity": 1}]
_OPEN, _NOTE, _LIST = "initialize", "initialized", "tools/list"
_TOOLS = ("search_products", "get_user_cart", "checkout")


@dataclass(frozen=True)
class Load:
    """So many users, for so many seconds after a warm-up."""

    users: int = 50
    warmup: float = 5.0
    seconds: float = 15.0


def _round(requests: Requests, user_id: str) -> list[tuple[str, bytes]]:
    """The requests of one round: each tool once, and the list of tools; in the legacy era in a session each."""
    arguments = (_SEARCH, {"user_id": user_id}, {"user_id": user_id, "items": _ITEMS})
    asked = [(tool, requests.call(1, tool, its)) for tool, its in zip(_TOOLS, arguments, strict=True)]
    asked.append((_LIST, requests.ask(1, _LIST)))
    if requests.era == "modern":
        return asked
    opening = [(_OPEN, requests.post(messages.initialize())), (_NOTE, requests.post(messages.initialized()))]
    return [step for each in asked for step in (*opening, each)]


@dataclass
class _User:
    connection: Connection
    steps: list[tuple[str, bytes]]
    at: int = 0
    began: float = 0.0

    def go(self) -> None:
        """Send the next request."""
        self.began = time.perf_counter()
        self.connection.send(self.steps[self.at][1])

    def is_round_complete(self) -> bool:
        """Go on to the next step. Whether that is the first one again."""
        self.at = (self.at + 1) % len(self.steps)
        return not self.at


@dataclass
class _Taken:
    """What came within the measured time: of each kind, the seconds that each answer took, and the answers."""

    took: dict[str, list[float]] = field(default_factory=dict)
    answers: list[tuple[str, bytes]] = field(default_factory=list)

    def add(self, kind: str, seconds: float, answer: bytes) -> None:
        self.took.setdefault(kind, []).append(seconds)
        self.answers.append((kind, answer))


def measured(session: HttpSession, load: Load) -> dict[str, float]:
    """The figures of one server under this load. An answer that is not right counts as an error."""
    with ExitStack() as stack:
        users = {}
        for number in range(1, load.users + 1):
            connection = stack.enter_context(session.connect())
            users[connection.socket.fileno()] = _User(connection, _round(session, f"user-{number:05}"))
        poll = stack.enter_context(select.epoll())
        for fd in users:
            poll.register(fd, select.EPOLLIN)
        if load.warmup:
            _drive(users, poll, load.warmup, lambda *_: None)
        taken = _Taken()
        cpu, start = session.child.cpu(), time.perf_counter()
        _drive(users, poll, load.seconds, taken.add)
        cpu, wall = session.child.cpu() - cpu, time.perf_counter() - start
        memory = session.child.memory()
    calls = [seconds for tool in _TOOLS for seconds in taken.took.get(tool, ())]
    counted = sum(len(its) for kind, its in taken.took.items() if kind != _NOTE)
    percentiles = quantiles(calls, n=100)
    return {
        "/s": counted / wall,
        "calls /s": len(calls) / wall,
        "p50, ms": percentiles[49] * 1e3,
        "p95, ms": percentiles[94] * 1e3,
        "p99, ms": percentiles[98] * 1e3,
        "errors": float(_wrong(taken.answers)),
        "processor, µs": cpu / counted * 1e6,
        "a core, /s": counted / cpu,
        "core busy, %": cpu / wall * 100,
        "MiB": memory / 2**20,
    }


def _drive(
    users: dict[int, _User], poll: select.epoll, seconds: float, add: Callable[[str, float, bytes], None]
) -> None:
    """Let all users go round for so long, and let each complete its last round."""
    clock = time.perf_counter
    end = clock() + seconds
    outstanding = len(users)
    resting: list[tuple[float, int]] = []
    for user in users.values():
        user.go()
    while (now := clock()) < end or outstanding:
        until = resting[0][0] if resting and now < end else end
        ready = poll.poll(max(0.0, until - now) if now < end else -1)
        now = clock()
        for fd, _ in ready:
            user = users[fd]
            user.connection.receive()
            if not size_of(user.connection.buffer):
                continue
            add(user.steps[user.at][0], now - user.began, user.connection.take())
            outstanding -= 1
            if user.is_round_complete():
                heapq.heappush(resting, (now + _REST, fd))
            else:
                user.go()
                outstanding += 1
        while resting and resting[0][0] <= now < end:
            users[heapq.heappop(resting)[1]].go()
            outstanding += 1


def _wrong(answers: list[tuple[str, bytes]]) -> int:
    """How many answers are not right. The first of each kind is shown, so that nobody has to guess."""
    found: Counter[str] = Counter()
    for kind, answer in answers:
        try:
            right = _is_right(kind, Response.of(answer))
        except (KeyError, IndexError, ValueError, TypeError):
            right = False
        if not right:
            if not found[kind]:
                print(f"a wrong answer to {kind}: {answer!r:.2000}", flush=True)
            found[kind] += 1
    return found.total()


def _is_right(kind: str, response: Response) -> bool:
    if kind == _NOTE:
        return response.status == 202
    result = response.messages()[-1]["result"]
    if response.status != 200 or result.get("isError"):
        return False
    if kind == _OPEN:
        return "serverInfo" in result
    if kind == _LIST:
        return {tool["name"] for tool in result["tools"]} == set(_TOOLS)
    return _EXPECTED[kind](json.loads(result["content"][0]["text"]))


def _is_found(said: dict[str, Any]) -> bool:
    expected = search("Electronics", 50.0, 500.0, 10)
    names = [product["name"] for product in said["products"]]
    ranked = len(said["top10_popular_ids"]) == 10
    return (
        ranked and said["total_found"] == expected["total_found"] and names == [p["name"] for p in expected["products"]]
    )


def _is_cart(said: dict[str, Any]) -> bool:
    cart = said["cart"]
    return cart["item_count"] == len(cart["items"]) >= 2 and len(said["recent_history"]) == 5


def _is_confirmed(said: dict[str, Any]) -> bool:
    bill = priced(said["user_id"], _ITEMS)
    return said["status"] == "confirmed" and said["total"] == bill["total"] and said["rate_limit_count"] > 0


_EXPECTED = {"search_products": _is_found, "get_user_cart": _is_cart, "checkout": _is_confirmed}
