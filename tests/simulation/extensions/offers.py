"""What the servers of the simulation offer: an extension of both roles, and a tool that does the same work.

`Journal` is what all handlers write down, of servers and of clients, so that no fault of a wire reaches it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Literal

import attrs
import trio

from trio_mcp import CancelAcknowledged, CapabilityMissing, CodedError, Limits, PeerError, RequestContext, Server
from trio_mcp.types import ConnectedClient, Extension

LIMITS = Limits(cleanup_grace=2, retry_timeout=30, drain_timeout=2, ending_timeout=20, max_in_flight=8)
FAILED, UNANSWERED, REFUSED = -7, -8, -9
"""Error codes: of work that is to fail, of work whose question had no answer, and of clients that do not answer."""
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

Way = Literal["return", "fail", "hang"]
Answers = Literal["quick", "slow", "calls", "refuses", "hangs"]
"""What a client does with a question: ``calls`` calls the server meanwhile."""


@attrs.frozen
class Order:
    """Some work: it tells ``count`` steps, asks, works for some seconds in several tasks, ends in a ``way``, and cleans
    up for as long as it says."""

    name: str
    count: int = 0
    asks: int = 0
    answers: Answers = "quick"
    work: float = 0.0
    tasks: int = 0
    cleanup: float = 0.0
    way: Way = "return"


@attrs.frozen
class Done:
    name: str
    answers: list[str]


@attrs.frozen
class Step:
    name: str
    number: int


@attrs.frozen
class Question:
    name: str
    number: int
    answers: str


work = Extension("com.example/work")
run = work.method("com.example/work/run", Order, Done, may_ask=True)
confirm = work.method("com.example/work/confirm", Question, Step, sender="server", until="2025-11-25")
did = work.notification("notifications/com.example/work/did", Step, of_request=True)
grown = work.notification("notifications/com.example/work/grown", Step)
added = work.notification("notifications/com.example/work/added", Step, sender="client")


@attrs.define
class Life:
    """What happened to one order, in all its tasks."""

    started: int = 0
    running: int = 0
    lines: int = 0
    """Lines of its handler that have run, in the wide sense."""
    is_over: bool = False


@attrs.define
class Journal:
    """What happened in all handlers, by the names of orders and of clients."""

    orders: dict[str, Life] = attrs.Factory(lambda: defaultdict(Life))
    asked: dict[tuple[str, int], int] = attrs.Factory(lambda: defaultdict(int))
    """How often each question came to a client."""
    said: dict[str, list[str]] = attrs.Factory(lambda: defaultdict(list))
    """What clients have answered."""
    answering: int = 0
    """Functions of clients that answer now."""
    added: dict[str, list[int]] = attrs.Factory(lambda: defaultdict(list))
    """The numbers that came from each client."""
    stopped: dict[str, tuple[Order, int, int]] = attrs.Factory(dict)
    """Orders that were said to have stopped, each with how often it had started, and its lines by then."""
    grown: int = 0
    """Number of times that all clients were told."""


class Handlers:
    """The handlers of orders, for both ways in which orders come."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def handle(self, order: Order, ctx: RequestContext) -> Done:
        """Do the work of an order."""
        life = self._journal.orders[order.name]
        life.started += 1
        life.running += 1
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(order.tasks):
                    nursery.start_soon(self._task, order, life)
                answers = await self._work(order, life, ctx)
            return Done(order.name, answers)
        finally:
            await self._clean_up(order, life)
            life.running -= 1
            life.is_over = True

    async def _work(self, order: Order, life: Life, ctx: RequestContext) -> list[str]:
        for number in range(order.count):
            ctx.progress(number + 1)
            if ctx.client_extension(work) is not None:
                await ctx.send_notification(did, Step(order.name, number))
            life.lines += 1
        answers = [await self._ask(Question(order.name, number, order.answers), ctx) for number in range(order.asks)]
        life.lines += 1
        if order.work:
            await trio.sleep(order.work)
        life.lines += 1
        if order.way == "hang":
            await trio.sleep_forever()
        if order.way == "fail":
            raise CodedError(FAILED, order.name)
        return answers

    async def _ask(self, question: Question, ctx: RequestContext) -> str:
        try:
            if ctx.revision.server_requests and ctx.client_extension(work) is not None:
                step = await ctx.send_request(confirm, question)
                return f"{step.name} {step.number}"
            text = f"{question.name}|{question.number}|{question.answers}"
            answer = await ctx.elicit(text, NAME)
            return (answer.content or {}).get("name", "")
        except (PeerError, CapabilityMissing) as error:
            raise CodedError(UNANSWERED, f"{question.name}: {error}") from None

    async def _task(self, order: Order, life: Life) -> None:
        try:
            await trio.sleep(order.work)
        finally:
            await self._clean_up(order, life)

    async def _clean_up(self, order: Order, life: Life) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(order.cleanup)
        life.lines += 1


def new_server(journal: Journal) -> Server:
    """Return a server, whose handlers write into ``journal``."""
    server = Server("work", extensions=[work, CancelAcknowledged()], limits=LIMITS)
    handlers = Handlers(journal)

    @server.handles(run)
    async def running(params: Order, ctx: RequestContext) -> Done:
        return await handlers.handle(params, ctx)

    @server.tool(name="run")
    async def tool(order: dict[str, Any], ctx: RequestContext) -> dict[str, Any]:
        return attrs.asdict(await handlers.handle(Order(**order), ctx))

    @server.handles(added)
    async def adding(params: Step, client: ConnectedClient) -> None:
        journal.added[params.name].append(params.number)

    return server
