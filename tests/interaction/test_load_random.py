"""SV: under random load of several clients, each request is answered once or cancelled, and all counters return to
zero.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp import ConnectionLost, InputRequired, Limits, RequestContext, Server
from trio_mcp.protocol.types.input_required import InputRequest
from trio_mcp.runtime.limits import Load
from trio_mcp.server.connection import ServerConnection
from trio_mcp.server.server import RunningServer
from trio_mcp.transports.lines import memory_transport_pair

from .conversation import ANSWERS, MODERN, Conversation

CLIENTS = 3
LIMITS = Limits(
    max_in_flight=3,
    max_queued=2,
    max_parked=1,
    max_subscriptions=2,
    max_inbound_bytes=2500,
    max_server_bytes=6000,
    max_server_requests=8,
    retry_timeout=3,
    cleanup_grace=0.5,
    deadline_grace=0.1,
    drain_timeout=1,
)
WORDS = ["work", "burst", "in haste", "run again", "return", "listen", "retry", "retry", "say nothing", "cancel"]
WORDS += ["same id", "change", "wait", "hang up", "shut down"]
steps = st.tuples(st.sampled_from(WORDS), st.integers(0, CLIENTS - 1), st.integers(0, 15))


def make_server() -> Server:
    server = Server("s", limits=LIMITS)

    @server.resource("mem:///x")
    async def x() -> str:
        return "x"

    @server.tool
    async def work(number: int, ctx: RequestContext) -> str:
        """Ask up to twice, work a while, clean up for a while, shielded."""
        try:
            for _ in range(number % 3):
                await ctx.list_roots()
            await trio.sleep(number / 4)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + number % 4):
                await trio.sleep_forever()
        return "done"

    @server.tool(replay=True, timeout=2, max_concurrency=2)
    async def again(number: int, ctx: RequestContext) -> str:
        await ctx.list_roots()
        await trio.sleep(number / 4)
        return "done"

    @server.tool
    async def returned(number: int, ctx: RequestContext) -> Any:
        await trio.sleep(number / 4)
        return "done" if ctx.is_resubmit else InputRequired({"where": InputRequest("roots/list")}, "s")

    return server


class Client(Conversation):
    """One modern client, which waits for nothing."""

    def __init__(self, running: RunningServer) -> None:
        super().__init__()
        self.revision, self.capabilities = MODERN, {"roots": {}}
        self.channel, theirs = memory_transport_pair()
        self.connection = ServerConnection(running, theirs)
        self.over = False
        self.sent: list[dict[str, Any]] = []
        self.cancelled: dict[Any, int] = {}
        """How many replies there were when it was cancelled."""
        self.unsure: set[Any] = set()
        """Ids of what need not be answered: streams, and calls that have a deadline."""

    async def read(self) -> None:
        try:
            while True:
                self.keep(json.loads(await self.channel.receive()))
        except trio.EndOfChannel:
            self.over = True

    async def send(self, message: dict[str, Any]) -> None:
        try:
            await self.channel.send(json.dumps(message).encode() + b"\n")
        except ConnectionLost:
            self.over = True

    def replies(self, request_id: Any) -> list[dict[str, Any]]:
        return [m for m in self.messages if "method" not in m and m.get("id") == request_id]

    async def request(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        await self.send(message)

    def call(self, tool: str, number: int, **meta: Any) -> dict[str, Any]:
        return self.message("tools/call", {"name": tool, "arguments": {"number": number}}, meta=meta)

    # The steps

    async def work(self, number: int) -> None:
        await self.request(self.call("work", number, progressToken=number))

    async def burst(self, number: int) -> None:
        for more in range(4):
            await self.request(self.call("work", number + more))

    async def in_haste(self, number: int) -> None:
        message = self.call("work", number, **{"trio-mcp/remainingMs": number * 100})
        self.unsure.add(message["id"])
        await self.request(message)

    async def run_again(self, number: int) -> None:
        await self.request(self.call("again", number))

    async def return_(self, number: int) -> None:
        await self.request(self.call("returned", number))

    async def listen(self, number: int) -> None:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["mem:///x"]}
        message = self.message("subscriptions/listen", {"notifications": wanted})
        self.unsure.add(message["id"])
        await self.request(message)

    async def retry(self, number: int) -> None:
        await self.come_back(number, ANSWERS["roots/list"])

    async def say_nothing(self, number: int) -> None:
        await self.come_back(number, None)

    async def come_back(self, number: int, answer: Any) -> None:
        results = {m["id"]: m["result"] for m in self.messages if "result" in m}
        asked = [(m, r) for m in self.sent if "requestState" in (r := results.get(m["id"], {}))]
        if asked:
            first, result = asked[-1 - number % len(asked)]
            responses = {} if answer is None else dict.fromkeys(result["inputRequests"], answer)
            await self.request(self.retry_message(first, result, responses))

    async def cancel(self, number: int) -> None:
        if self.sent:
            request_id = self.sent[-1 - number % len(self.sent)]["id"]
            await self.send(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
            )
            await trio.testing.wait_all_tasks_blocked()
            self.cancelled.setdefault(request_id, len(self.replies(request_id)))

    async def same_id(self, number: int) -> None:
        """An id that is in flight, or free again; each is answered, and nobody knows which of the two it was."""
        if self.sent:
            message = self.sent[-1 - number % len(self.sent)]
            self.sent = [one for one in self.sent if one["id"] != message["id"]]
            self.cancelled.pop(message["id"], None)
            await self.send(message)

    async def wait(self, number: int) -> None:
        await trio.sleep(number / 4)

    async def hang_up(self, number: int) -> None:
        if number % 4 == 0:
            await self.channel.aclose()

    async def shut_down(self, number: int) -> None:
        if number % 4 == 0:
            self.connection.connection.shut_down("enough", drain_timeout=number / 8)
            self.unsure |= {message["id"] for message in self.sent}

    # What must hold

    def check(self) -> None:
        for message in self.sent:
            request_id = message["id"]
            count = len(self.replies(request_id))
            if request_id in self.cancelled:
                assert count == self.cancelled[request_id], "no reply follows a cancel"
            assert count <= 1
            if not self.over and request_id not in self.cancelled and request_id not in self.unsure:
                assert count == 1, message


async def play(script: list[tuple[str, int, int]], hang_up: bool) -> None:
    server = make_server()
    async with server._running() as running, trio.open_nursery() as nursery:
        clients = [Client(running) for _ in range(CLIENTS)]
        for client in clients:
            await nursery.start(client.connection.run)
            nursery.start_soon(client.read)
        for word, place, number in script:
            client = clients[place]
            if word == "change":
                server.resource_updated("mem:///x")
            elif not client.over:
                await getattr(client, "return_" if word == "return" else word.replace(" ", "_"))(number)
            check_gauges(server._load)
            if number % 2:
                await trio.testing.wait_all_tasks_blocked()
        if not hang_up:
            await trio.sleep(60)
            for client in clients:
                client.check()
            assert (server._load.in_flight, server._load.queued, server._load.parked) == (0, 0, 0)
        for client in clients:
            await client.channel.aclose()
    assert {gauge: getattr(server._load, gauge) for gauge in GAUGES} == dict.fromkeys(GAUGES, 0)


GAUGES = ("connections", "in_flight", "queued", "listening", "parked", "inbound_bytes")


def check_gauges(load: Load) -> None:
    assert all(getattr(load, gauge) >= 0 for gauge in GAUGES), attrs.asdict(load)
    assert load.queued <= CLIENTS * LIMITS.max_queued
    assert load.parked <= CLIENTS * LIMITS.max_parked
    assert load.in_flight <= CLIENTS * (LIMITS.max_in_flight + LIMITS.max_parked + LIMITS.max_queued)


@settings(max_examples=examples(120))
@given(script=st.lists(steps, min_size=10, max_size=40), hang_up=st.booleans())
def test_server_under_random_load_ends_each_request_and_then_counts_no_request_in_flight(
    script: list[tuple[str, int, int]], hang_up: bool
) -> None:
    trio.run(play, script, hang_up, clock=trio.testing.MockClock(autojump_threshold=0))
