"""Random calls, cancels and cut connections over HTTP: each call ends once with its own answer, no handler runs twice,
and nothing is left.
"""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp import Client, ConnectionLost, HTTPError, Limits, MCPError, RequestContext, Server, open_http, serve_http
from trio_mcp.types import ElicitFormParams, ElicitResult

URL = "http://127.0.0.1:1/mcp"
ERAS: list[Literal["modern", "legacy"]] = ["modern", "legacy", "legacy"]
LIMITS = Limits(session_timeout=300, retry_timeout=120, cleanup_grace=30, drain_timeout=1)
WORDS = ["call", "call", "call", "burst", "leave", "leave", "cut one", "cut all", "change", "wait", "wait"]
STEP = (WORDS, range(len(ERAS)), range(24))
"""What a step is drawn from: its name, the number of its client, and a number that the step interprets."""


class Network(trio.abc.Listener[trio.SocketStream]):
    """Pairs of sockets in place of TCP: what one end has written the other can read at once, so the virtual clock jumps
    only when nothing is under way."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.SocketStream](math.inf)
        self._ends: list[socket.socket] = []

    async def connect(self, *_: object, **__: object) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        ours, theirs = socket.socketpair()
        self._ends.append(ours.dup())
        self._send.send_nowait(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    async def accept(self) -> trio.SocketStream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()
        self._send.close()
        for end in self._ends:
            end.close()

    def cut(self, number: int | None) -> None:
        """Cut one of the last connections, or all of them: both ends see it."""
        ends = self._ends if number is None else self._ends[-1 - number % 6 :][:1]
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it was closed before


@attrs.define
class Story:
    """What the handlers went through, by the numbers of their calls."""

    started: Counter[int] = attrs.field(factory=Counter[int])
    ended: Counter[int] = attrs.field(factory=Counter[int])
    wrong: list[str] = attrs.field(factory=list[str])


def make_server(story: Story) -> Server:
    server = Server("s", limits=LIMITS)

    @server.resource("mem:///x")
    async def x() -> str:
        return "x"

    @server.tool
    async def work(serial: int, number: int, ctx: RequestContext) -> str:
        """Tell, ask up to twice, let the client come back later, work a while, and clean up for a while."""
        story.started[serial] += 1
        try:
            ctx.progress(serial)
            await ctx.log.warning(serial)
            for question in range(number % 3):
                form = {"type": "object", "properties": {"answer": {"type": "string"}}}
                answer = await ctx.elicit(f"{serial}.{question}", form)
                if answer.content != {"answer": f"to {serial}.{question}"}:
                    story.wrong.append(f"{serial}.{question} was answered by {answer.content}")
            if number % 5 == 4:
                ctx.close_stream(0.5)
            await trio.sleep(number / 4)
            return f"done {serial}"
        finally:
            with trio.move_on_after(number % 4, shield=True):
                await trio.sleep_forever()
            story.ended[serial] += 1

    return server


async def answer(question: ElicitFormParams) -> ElicitResult:
    await trio.sleep(len(question.message) % 2)
    return ElicitResult("accept", {"answer": f"to {question.message}"})


class Caller:
    """A client whose calls may be left. ``outcomes`` are their ends, by the numbers of the calls."""

    def __init__(self, client: Client, nursery: trio.Nursery) -> None:
        self.client = client
        self.scopes: dict[int, trio.CancelScope] = {}
        self.outcomes: dict[int, str | Exception] = {}
        self._nursery = nursery

    def call(self, serial: int, number: int) -> None:
        self.scopes[serial] = trio.CancelScope()
        self._nursery.start_soon(self._call, serial, number)

    async def _call(self, serial: int, number: int) -> None:
        outcome: str | Exception = "left"
        with self.scopes[serial]:
            try:
                outcome = (await self.client.call_tool("work", {"serial": serial, "number": number})).text
            except MCPError as error:
                outcome = error
        assert serial not in self.outcomes
        self.outcomes[serial] = outcome

    def leave(self, number: int) -> None:
        under_way = [serial for serial in self.scopes if serial not in self.outcomes]
        if under_way:
            self.scopes[under_way[number % len(under_way)]].cancel("the caller leaves")


async def play(script: Iterable[tuple[str, int, int]], *, cuts: bool) -> Story:
    story, network = Story(), Network()
    server = make_server(story)
    callers: list[Caller] = []
    serials = iter(range(10**6))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trio_mcp.transports.http_client.dialing.trio.open_tcp_stream", network.connect)
        async with trio.open_nursery() as nursery:

            async def serve(*, task_status: trio.TaskStatus[Any]) -> None:
                await serve_http(
                    server,
                    listeners=[network],
                    allowed_origins=[],
                    allowed_hosts=["127.0.0.1:1"],
                    task_status=task_status,
                )

            await nursery.start(serve)
            async with trio.open_nursery() as clients:
                for era in ERAS:
                    await clients.start(open_caller, era, callers)
                for word, place, number in script:
                    caller = callers[place]
                    match word:
                        case "call":
                            caller.call(next(serials), number)
                        case "burst":
                            for more in range(4):
                                caller.call(next(serials), number + more)
                        case "leave":
                            caller.leave(number)
                        case "cut one" if cuts:
                            network.cut(number)
                        case "cut all" if cuts and number % 4 == 0:
                            network.cut(None)
                        case "change":
                            server.resource_updated("mem:///x")
                        case _:
                            await trio.sleep(number / 8)
                    if number % 2:
                        await trio.testing.wait_all_tasks_blocked()
                await trio.sleep(1000)  # longer than any limit of either side
                check(story, callers, cuts=cuts)
                clients.cancel_scope.cancel("the story is over")
            await trio.sleep(1000)
            gauges = ("in_flight", "queued", "parked", "listening", "inbound_bytes")
            assert {gauge: getattr(server._load, gauge) for gauge in gauges} == dict.fromkeys(gauges, 0)
            nursery.cancel_scope.cancel("the story is over")
    return story


async def open_caller(
    era: Literal["modern", "legacy"], callers: list[Caller], *, task_status: trio.TaskStatus[None]
) -> None:
    async with open_http(URL, era=era, elicitation=answer) as client, trio.open_nursery() as nursery:
        callers.append(Caller(client, nursery))
        task_status.started()
        await trio.sleep_forever()


def check(story: Story, callers: list[Caller], *, cuts: bool) -> None:
    assert story.wrong == []
    for caller in callers:
        assert caller.outcomes.keys() == caller.scopes.keys(), "each call ends"
        for serial, outcome in caller.outcomes.items():
            assert story.started[serial] <= 1, "no handler runs twice"
            assert story.ended[serial] == story.started[serial], "each handler ends"
            if isinstance(outcome, Exception):
                assert cuts, f"{serial} failed without a cut: {outcome!r}"
                assert isinstance(outcome, HTTPError | ConnectionLost | MCPError), outcome
            else:
                assert outcome in ("left", f"done {serial}")


@settings(max_examples=examples(80))
@given(script=st.lists(st.tuples(*map(st.sampled_from, STEP)), min_size=10, max_size=40), cuts=st.booleans())
def test_each_call_ends_once_and_leaves_no_state_under_random_http_calls_and_disconnects(
    script: list[tuple[str, int, int]], cuts: bool
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(lambda: play(script, cuts=cuts), clock=clock)
