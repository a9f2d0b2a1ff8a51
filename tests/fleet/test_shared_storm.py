"""Sessions at several replicas while connections break, hints and answers get lost, the storage goes away for a while,
and replicas die: each call ends, and no stream misses or repeats anything. Everything is drawn from a seed."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from typing import Any

import attrs
import h11
import pytest
import trio
from tests.fleet.replicas import FleetEndpoint, FleetScene, replicated
from tests.serving.http.raw import Connection, message
from tests.serving.http.scenes import MemoryEndpoint, call, cancel
from trio.testing import MockClock

from trio_mcp import RequestContext

_BROKEN = (h11.RemoteProtocolError, h11.LocalProtocolError, trio.BrokenResourceError, trio.ClosedResourceError)
REPLICA_LOST = -31003
_SEEDS = range(int(os.environ.get("STORM_FROM", "0")), int(os.environ.get("STORM_TO", "5")))

Session = dict[str, str | None]


@attrs.define(eq=False)
class Call:
    """What a client got of one call."""

    name: str
    count: int
    logged: list[int] = attrs.field(factory=list[int])
    reply: dict[str, Any] | None = None
    cursor: str | None = None
    refused: int | None = None
    """Status of the answer that told the client that its call is not served."""


class Client:
    """Calls `count` over and over, leaves its responses, and comes back for them to any replica."""

    def __init__(self, endpoint: FleetEndpoint, session: Session, draw: random.Random) -> None:
        self._endpoint = endpoint
        self._session = session
        self._draw = draw
        self.calls: list[Call] = []
        self.cancelled: list[str] = []

    def _replica(self) -> MemoryEndpoint:
        return self._draw.choice(self._endpoint._alive)

    async def act(self, prefix: str, calls: int) -> None:
        for number in range(calls):
            one = Call(f"{prefix}.{number}", self._draw.randrange(1, 12))
            self.calls.append(one)
            await self._call(one)
            if self._draw.random() < 0.2:
                await self._set_level()

    async def _set_level(self) -> None:
        body = message("logging/setLevel", {"level": "debug"}, f"level {self._draw.random()}")
        try:
            answer = await self._replica().ask("POST", self._session, body)
        except _BROKEN:
            return
        assert answer.status in (200, 503), answer

    async def _call(self, one: Call) -> None:
        connection = await self._replica().post(self._session, call("count", one.name, name=one.name, count=one.count))
        while one.reply is None and one.refused is None:
            with suppress(*_BROKEN):
                await self._read(one, connection)
            await connection.aclose()
            if one.reply is not None or one.refused is not None:
                return
            if one.cursor is None:  # nothing was learned of the call, which may run
                one.refused = 0
                return
            await trio.sleep(self._draw.choice((0, 0.01, 0.5, 1.5)))
            connection = await self._replica().get(self._session, one.cursor)

    async def _read(self, one: Call, connection: Connection) -> None:
        head = await connection.head()
        if head.status == 503 and one.cursor is not None:
            await trio.sleep(1)
            return
        if head.status != 200 or head.headers["content-type"] == "application/json":
            one.refused = head.status
            return
        left = self._draw.choice((1, 2, 5, 100))
        while left and one.reply is None:
            while b"\n\n" not in connection.received or b"data:" not in connection.received:
                more = await connection.more()
                if not more:
                    return
                connection.received += more
            event = await connection.event()
            one.cursor = event.id or one.cursor
            if event.data is None:
                continue
            left -= 1
            if "method" in event.data:
                one.logged.append(event.data["params"]["data"])
            else:
                one.reply = event.data


async def weather(endpoint: FleetEndpoint, draw: random.Random, kills: int) -> None:
    """Have things go wrong."""
    while True:
        await trio.sleep(draw.uniform(0.1, 1))
        link = draw.choice(endpoint.memory.links)
        kind = draw.choice(("hints", "answers", "down", "gap", "kill"))
        if kind == "hints":
            link.loses_hints = not link.loses_hints
        elif kind == "gap":
            endpoint.memory.lose_hints()
        elif kind == "kill" and kills:
            kills -= 1
            alive = [number for number, each in enumerate(endpoint.replicas) if each in endpoint._alive]
            endpoint.kill(draw.choice(alive))
        elif kind in ("answers", "down"):
            name = "loses_answers" if kind == "answers" else "is_down"
            if not link.is_down:
                setattr(link, name, True)
                await trio.sleep(draw.uniform(0, 2))
                setattr(link, name, False)


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("kills", [0, 2])
async def test_each_call_ends_and_no_stream_misses_or_repeats_events_if_replicas_fail_randomly(
    autojump_clock: MockClock, seed: int, kills: int
) -> None:
    draw, scene = random.Random(seed), FleetScene(replicas=4)

    @scene.server.tool
    async def count(name: str, count: int, ctx: RequestContext) -> str:
        for number in range(count):
            await ctx.log.error(number)
            await trio.sleep(draw.choice((0, 0.01, 0.3)))
        return name

    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize()
        clients = [Client(endpoint, session, draw) for _ in range(4)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(weather, endpoint, draw, kills)
            with trio.fail_after(3600):
                async with trio.open_nursery() as acting:
                    for number, client in enumerate(clients):
                        acting.start_soon(client.act, str(number), 15)
            nursery.cancel_scope.cancel(reason="all calls have ended")
        calls = [each for client in clients for each in client.calls]
        for one in calls:
            assert one.logged == list(range(len(one.logged))), one
            if one.reply is not None and "error" in one.reply:
                assert one.reply["error"]["code"] == REPLICA_LOST, one
                assert kills, one
            elif one.reply is not None:
                assert one.reply["id"] == one.reply["result"]["content"][0]["text"] == one.name
                assert len(one.logged) == one.count, one
            else:
                assert one.refused in (0, 503), one
        assert sum(one.reply is not None and "result" in one.reply for one in calls) > len(calls) / 2
        for replica, link in zip(endpoint.replicas, endpoint.memory.links, strict=True):
            link.loses_hints = link.loses_answers = False
            link.is_down = link.is_down and replica not in endpoint._alive
        await trio.sleep(10)
        assert (await endpoint.ask("DELETE", session)).status == 204
        await trio.sleep(1)
        for replica in endpoint._alive:
            sessions = replica.front._endpoint._sessions
            for left in (sessions._sessions, sessions._ended, sessions._services._signals, sessions._readings):
                assert not left
        kept = endpoint.memory.kept
        await trio.sleep(100)
        assert not len(kept.sessions._sessions)
        assert not len(kept.events._logs)


@pytest.mark.parametrize("seed", _SEEDS)
async def test_cancel_is_applied_as_long_as_the_replica_that_runs_the_call_is_alive(
    autojump_clock: MockClock, seed: int
) -> None:
    draw, scene = random.Random(seed), FleetScene(replicas=4)
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(weather, endpoint, draw, 0)
            for number in range(20):
                name = str(number)
                post = await draw.choice(endpoint.replicas).post(session, call("wait", number, name=name))
                with trio.move_on_after(20):
                    await scene[name].started.wait()
                if scene[name].started.is_set():
                    await trio.sleep(draw.choice((0, 0.1, 1)))
                    status = 503
                    for _ in range(60):  # the storage may be away
                        status = (await draw.choice(endpoint.replicas).ask("POST", session, cancel(number))).status
                        if status == 202:
                            break
                        await trio.sleep(0.5)
                    assert status == 202
                    with trio.fail_after(40):
                        await scene[name].ended.wait()
                await post.aclose()
            nursery.cancel_scope.cancel(reason="all calls have ended")


class Listener:
    """Listens to the own stream of a session, leaves its responses, and comes back with the last id to any replica.
    ``told`` are the times at which it was told of each resource."""

    def __init__(self, endpoint: FleetEndpoint, session: Session, draw: random.Random) -> None:
        self._endpoint = endpoint
        self._session = session
        self._draw = draw
        self._cursor: str | None = None
        self.told: dict[str, float] = {}
        self.statuses: set[int] = set()

    async def run(self) -> None:
        while True:
            replica = self._draw.choice(self._endpoint._alive)
            connection = await replica.get(self._session, self._cursor)
            with suppress(*_BROKEN), trio.move_on_after(self._draw.uniform(0.5, 8)):
                await self._read(connection)
            await connection.aclose()
            await trio.sleep(self._draw.choice((0, 0.2, 3)))

    async def _read(self, connection: Connection) -> None:
        status = (await connection.head()).status
        self.statuses.add(status)
        if status != 200:
            await trio.sleep(0.5)
            return
        while True:
            while b"\n\n" not in connection.received or b"data:" not in connection.received:
                more = await connection.more()
                if not more:
                    return
                connection.received += more
            event = await connection.event()
            self._cursor = event.id or self._cursor
            if event.data is not None and "params" in event.data:
                self.told[event.data["params"]["uri"]] = trio.current_time()


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("kills", [0, 2])
async def test_client_is_notified_of_each_change_at_any_replica_if_replicas_fail_randomly(
    autojump_clock: MockClock, seed: int, kills: int
) -> None:
    draw, scene = random.Random(seed), FleetScene(replicas=4)
    uris = [f"scene:{number}" for number in range(5)]
    for uri in uris:
        scene.server.resource(uri, name=uri)(trio.lowlevel.checkpoint)
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize()
        for number, uri in enumerate(uris):
            await endpoint.ask("POST", session, message("resources/subscribe", {"uri": uri}, number))
        listener, changed = Listener(endpoint, session, draw), dict[str, float]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run)
            async with trio.open_nursery() as bad:
                bad.start_soon(weather, endpoint, draw, kills)
                for _ in range(60):
                    await trio.sleep(draw.uniform(0, 1.5))
                    alive = [n for n, each in enumerate(endpoint.replicas) if each in endpoint._alive]
                    uri, number = draw.choice(uris), draw.choice(alive)
                    scene.server.servers[number].resource_updated(uri)
                    changed[uri] = trio.current_time()
                bad.cancel_scope.cancel(reason="it is enough")
            for replica, link in zip(endpoint.replicas, endpoint.memory.links, strict=True):
                link.loses_hints = link.loses_answers = False
                link.is_down = link.is_down and replica not in endpoint._alive
            await trio.sleep(60)
            nursery.cancel_scope.cancel(reason="all is told")
        for uri, at in changed.items():
            assert listener.told[uri] >= at
        assert listener.statuses <= {200, 503}
