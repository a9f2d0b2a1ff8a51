"""Several replicas of one server in one program, behind no balancer: tests choose who takes a request."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from tests.serving.http.raw import Answer, Connection, modern
from tests.serving.http.scenes import MemoryEndpoint

from trio_mcp import Cancellation, Limits, Server
from trio_mcp.auth.resource_server.protected import Protected
from trio_mcp.fleet.fleet import FleetStorage, ReplicaFleet
from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.server.servable import end_tasks
from trio_mcp.server.server import RunningServer
from trio_mcp.server.sharing import SharedStorage
from trio_mcp.serving.http.responses import EndpointSettings
from trio_mcp.serving.http.serve import HttpFront
from trio_mcp.stores.shared import Replica
from trio_mcp.stores.task_store import StoreDown
from trio_mcp.transports.host_checks import host_checks_for

ELICITATION = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


@attrs.define(eq=False)
class Journal:
    """What the handler of one call went through, on whichever replica."""

    asked: trio.Event = attrs.field(factory=trio.Event)
    resumed: trio.Event = attrs.field(factory=trio.Event)
    may_go_on: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    ran_at: list[int] = attrs.field(factory=list[int])
    cancellation: Cancellation | None = None
    seen: dict[str, Any] = attrs.field(factory=dict[str, Any])


class Ways:
    """What one replica has of the storage. Each use of a part is counted; while `are_cut`, all uses fail. Letters and
    their receipts are lost with the chance `loses`, and come twice with the chance `doubles`."""

    def __init__(self, seed: int = 0) -> None:
        self.uses = Counter[str]()
        self.are_cut = False
        self.loses = 0.0
        self.doubles = 0.0
        self.chance = random.Random(seed)

    def around(self, replica: Replica) -> Replica:
        parts = {
            each.name: _Counted(each.name, getattr(replica, each.name), self)
            for each in attrs.fields(Replica)
            if each.name not in ("id", "secret", "counts")
        }
        return attrs.evolve(replica, **parts)


class _Counted:
    """One part of a replica, whose methods are counted."""

    def __init__(self, name: str, part: Any, ways: Ways) -> None:
        self._name, self._part, self._ways = name, part, ways

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name in ("mailbox", "watch"):  # streams tell nothing of outages
            return found

        async def call(*args: Any, **options: Any) -> Any:
            self._ways.uses[f"{self._name}.{name}"] += 1
            if self._ways.are_cut:
                raise StoreDown("the storage is cut off")
            if name == "send":
                if self._ways.chance.random() < self._ways.loses:
                    return None
                if self._ways.chance.random() < self._ways.doubles:
                    await found(*args, **options)
            return await found(*args, **options)

        return call


class Storage(FleetStorage):
    """The `SharedStorage` of one replica: ``shared`` by ``ways``."""

    def __init__(self, shared: SharedStorage, ways: Ways) -> None:
        self._shared, self._ways = shared, ways
        self.replica: Replica | None = None

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        async with self._shared.join(name, secrets) as replica:
            self.replica = self._ways.around(replica)
            yield self.replica


@attrs.define(eq=False)
class Member:
    """One replica: its server, what it serves, and its ways to the storage."""

    server: Server
    endpoint: MemoryEndpoint
    ways: Ways
    storage: Storage
    scope: trio.CancelScope
    """The scope of all that the replica does: its cancel is a hard end."""
    ends: trio.Event
    """Event that ends the replica in good order."""
    over: trio.Event
    running: RunningServer

    @property
    def id(self) -> str:
        assert self.storage.replica is not None
        return self.storage.replica.id

    @property
    def fleet(self) -> ReplicaFleet:
        assert isinstance(self.running.fleet, ReplicaFleet)
        return self.running.fleet

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Answer:
        return await self.endpoint.modern("tools/call", call(tool, arguments, **more))

    async def begin(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Connection:
        """Return the connection on which a call was sent."""
        connection = await self.endpoint.connect()
        headers, body = modern("tools/call", call(tool, arguments, **more))
        await connection.send("POST", {**headers}, body)
        return connection


class Fleet(list[Member]):
    """The members, and the ``journals`` of their calls, by names."""

    def __init__(self) -> None:
        super().__init__()
        self.journals = defaultdict[str, Journal](Journal)


@asynccontextmanager
async def fleet(
    add_tools: Callable[[Server, Fleet, int], None],
    count: int = 2,
    *,
    make: Callable[[int], Server] = lambda _: Server("fleet"),
    auth: Callable[[int], Protected | None] = lambda _: None,
    shared: SharedStorage | None = None,
    **limits: Any,
) -> AsyncGenerator[Fleet]:
    """Run ``count`` replicas, which share ``shared``, by default a storage in memory. ``limits`` are fields of
    `Limits`."""
    storage, members = shared or MemoryStorage(), Fleet()
    async with trio.open_nursery() as nursery:
        for number in range(count):
            server = make(number)
            add_tools(server, members, number)
            members.append(await nursery.start(_serve, server, storage, auth(number), limits))
        yield members
        nursery.cancel_scope.cancel(reason="the test is over")


async def _serve(
    server: Server,
    shared: SharedStorage,
    auth: Protected | None,
    limits: dict[str, Any],
    *,
    task_status: trio.TaskStatus[Member],
) -> None:
    """Serve as `serve_http` does, without a listener and signals."""
    gate = None if auth is None else auth._gate()
    settings = EndpointSettings("/mcp", host_checks_for("127.0.0.1", None, None), gate)
    bounds = Limits(**limits) if limits else None
    ways, scope, over = Ways(), trio.CancelScope(), trio.Event()
    storage, ends = Storage(shared, ways), trio.Event()
    with scope:
        async with server._running(bounds, shared=storage) as running, trio.open_nursery() as nursery:
            front = HttpFront(running, nursery, settings, websocket=False)
            endpoint = MemoryEndpoint(front, nursery)
            task_status.started(Member(server, endpoint, ways, storage, scope, ends, over, running))
            await ends.wait()
            front.shut_down("the test ends the replica", hurry=False)
            end_tasks(running, hurry=False)
            await front.wait_closed()
            nursery.cancel_scope.cancel(reason="nothing is served any more")
    over.set()


def call(
    tool: str,
    arguments: dict[str, Any] | None = None,
    *,
    before: dict[str, Any] | None = None,
    answers: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the parameters of a call, or, with the result of the call ``before``, of its retry with ``answers``."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments or {}, "_meta": {**ELICITATION, **(meta or {})}}
    if before is not None:
        params["requestState"] = before["requestState"]
        params["inputResponses"] = answers or {}
    return params


def question_in(answer: Answer | dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call that was answered with a question."""
    reply = answer.json if isinstance(answer, Answer) else answer
    assert reply["result"]["resultType"] == "input_required", reply
    return reply["result"]


def accepted(result: dict[str, Any], **content: Any) -> dict[str, Any]:
    """Return the answers to all questions of a result."""
    return {key: {"action": "accept", "content": content} for key in result["inputRequests"]}
