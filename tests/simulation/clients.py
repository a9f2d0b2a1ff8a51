"""Clients of a simulated fleet: they call, are asked, leave, listen and wait for tasks, through any replica.

Each call ends with an answer or an error that the protocol knows, within its bound; what may not happen becomes a line
of `Clients.faults`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import Any

import attrs
import h11
import trio
from tests.serving.http.raw import Answer, Connection, modern
from tests.simulation.fleet import Fleet, SimulatedReplica

BOUND = 30.0
"""Seconds within which each call ends, whatever happens to others than the replica that took it."""
SOON = 2.0
"""Seconds within which a cancel, or a change, arrives where nothing goes wrong."""
LATE = 15.0
"""Seconds within which a change arrives while calls and hints get lost."""
KNOWN_ERRORS = frozenset((-31000, -31003, -32602))
ASKS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
TASKS = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}


class Lost(Exception):
    """A call has no answer: its connection has ended, or the replica that took it is ending or stopped."""


@attrs.define(eq=False)
class Listener:
    """A client that listens to changes of resources."""

    replica: SimulatedReplica
    told: dict[str, float] = attrs.Factory(dict[str, float])
    """When the client was told last of each resource."""
    is_open: bool = True


@attrs.define(eq=False)
class AcceptedTask:
    """A task whose id its client knows."""

    id: str
    name: str
    is_cancelled: bool = False


class Clients:
    """Clients of ``fleet``, which do what ``chance`` says."""

    def __init__(self, fleet: Fleet, chance: Random) -> None:
        self.fleet = fleet
        self.chance = chance
        self.faults: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.tasks: list[AcceptedTask] = []
        self.listeners: set[Listener] = set()
        self.names = count(1)

    async def act_always(self, *more: Callable[[], Awaitable[None]]) -> None:
        """Do one thing after another, of what follows and ``more``."""
        acts = (
            *(self.echo, self.be_asked, self.be_asked, self.leave, self.leave, self.work, self.work, self.work),
            *(self.listen, self.listen, self.change, self.change, self.change),
        )
        while True:
            await self.chance.choice((*acts, *more))()
            await trio.sleep(self.chance.uniform(0, 0.5))

    # One request

    async def ask(self, connection: Connection, replica: SimulatedReplica, *request: Any) -> Any:
        """Return the reply to a request, which ends within its bound. Raises `Lost`."""
        await self.send(connection, *request)
        stops, reply = replica.stops, None
        with trio.move_on_after(BOUND) as scope:
            reply = self.reply_in(await self.whole(connection), replica)
        if reply is None and scope.cancelled_caught and replica.stops == stops and replica.is_well:
            self.faults.append(f"a call did not end: {request[:2]}")
        if reply is None:
            raise Lost
        return reply

    async def send(self, connection: Connection, *request: Any) -> None:
        headers, body = modern(*request)
        if "taskId" in body["params"]:
            headers["Mcp-Name"] = body["params"]["taskId"]
        try:
            await connection.send("POST", dict(headers), body)
        except trio.BrokenResourceError:
            raise Lost from None

    async def whole(self, connection: Connection) -> Answer:
        try:
            return await connection.answer()
        except (h11.RemoteProtocolError, trio.BrokenResourceError, AssertionError):
            raise Lost from None

    def reply_in(self, answer: Answer, replica: SimulatedReplica) -> dict[str, Any]:
        """Return the JSON-RPC reply; `Lost` where there is none, as only an ending replica may answer."""
        is_stream = answer.headers.get("content-type") == "text/event-stream"
        messages = [event.data for event in answer.events if event.data] if is_stream else []
        reply = (
            (messages[-1] if messages else None)
            if is_stream
            else json.loads(answer.body)
            if answer.body[:1] == b"{"
            else None
        )
        if reply is None or "method" in reply:
            if not (answer.status == 503 or replica.is_ending or replica.is_killed):
                self.faults.append(f"an answer has no reply: {answer}")
            raise Lost
        if "error" in reply:
            code = reply["error"]["code"]
            self.outcomes[f"error {code}"] += 1
            if code not in KNOWN_ERRORS:
                self.faults.append(f"an unknown error: {reply}")
        return reply

    # Acts

    async def echo(self) -> None:
        replica = self.fleet.any_replica()
        async with self.fleet.connection(replica) as connection:
            try:
                reply = await self.ask(connection, replica, "tools/call", {"name": "echo", "arguments": {"text": "x"}})
            except Lost:
                return
        self.outcomes["echo"] += 1
        if "result" not in reply:
            self.faults.append(f"a call that needs nothing of others failed: {reply}")

    async def be_asked(self) -> None:
        """Call, and answer each question through another replica."""
        name, rounds = f"asked {next(self.names)}", self.chance.randint(1, 3)
        params: dict[str, Any] = {"name": "ask", "arguments": {"name": name, "rounds": rounds}, "_meta": ASKS}
        said, more = list[str](), dict[str, Any]()
        try:
            for number in range(rounds + 1):
                replica = self.fleet.any_replica()
                async with self.fleet.connection(replica) as connection:
                    reply = await self.ask(connection, replica, "tools/call", {**params, **more})
                if "error" in reply:
                    return
                result = reply["result"]
                if number < rounds:
                    said.append(f"{name}, {number}")
                    more = answers(result, said[-1])
                    await trio.sleep(self.chance.choice((0, 0, 0, 3)))
        except Lost:
            return
        self.outcomes["asked"] += 1
        if result["content"][0]["text"] != " ".join(said):
            self.faults.append(f"{name} said {said}, and heard {result}")
        if self.fleet.journal.started[name] != 1:
            self.faults.append(f"{name} ran {self.fleet.journal.started[name]} times")

    async def leave(self) -> None:
        """Leave a call that was carried to its handler; where nothing goes wrong, the handler ends at once."""
        name = f"left {next(self.names)}"
        params = {"name": "ask", "arguments": {"name": name, "then": "wait"}, "_meta": ASKS}
        before, has_begun = self.fleet.disturbances, False
        try:
            replica = self.fleet.any_replica()
            async with self.fleet.connection(replica) as connection:
                reply = await self.ask(connection, replica, "tools/call", params)
            if "error" in reply:
                return
            replica = self.fleet.any_replica()
            async with self.fleet.connection(replica) as connection:
                await self.send(connection, "tools/call", {**params, **answers(reply["result"], name)})
                with trio.move_on_after(SOON):
                    has_begun = await self._hears(connection, "heard")
        except Lost:
            return
        await trio.sleep(SOON)
        if self.fleet.disturbances == before and self.is_calm:
            self.outcomes["left"] += 1
            if not has_begun:
                self.faults.append(f"{name} was not heard")
            if self.fleet.journal.running[name] or name not in self.fleet.journal.cancelled:
                self.faults.append(f"{name} was left, and runs on")

    async def _hears(self, connection: Connection, word: str) -> bool:
        try:
            if (await connection.head()).headers.get("content-type") != "text/event-stream":
                return False
            while word not in json.dumps((await connection.event()).data):
                pass
        except (h11.RemoteProtocolError, trio.BrokenResourceError, AssertionError):
            return False
        return True

    async def work(self) -> None:
        """Start a task, and look at it through other replicas, until it has ended or the client loses interest."""
        name, tool = f"work {next(self.names)}", self.chance.choice(("work", "work", "once"))
        arguments = {"name": name, "seconds": self.chance.choice((0.1, 1, 8))}
        try:
            reply = await self._ask_any("tools/call", {"name": tool, "arguments": arguments, "_meta": TASKS})
            if "error" in reply:
                return
            task = AcceptedTask(reply["result"]["taskId"], f"{tool} of {name}")
            self.tasks.append(task)
            self.outcomes["accepted"] += 1
            for _ in range(self.chance.randint(0, 6)):
                await trio.sleep(self.chance.uniform(0, 3))
                reply = await self._ask_any("tasks/get", {"taskId": task.id, "_meta": TASKS})
                if "error" in reply and reply["error"]["code"] != -31000 and task.id not in self.fleet.storage.excused:
                    self.faults.append(f"{task} was accepted, and is unknown: {reply}")
            if self.chance.random() < 0.2:
                task.is_cancelled = True
                await self._ask_any("tasks/cancel", {"taskId": task.id, "_meta": TASKS})
        except Lost:
            return

    async def _ask_any(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        replica = self.fleet.any_replica()
        async with self.fleet.connection(replica) as connection:
            return await self.ask(connection, replica, method, params)

    async def listen(self) -> None:
        """Open a stream of changes, which is read on while others act."""
        if len(self.listeners) < 6:
            self.fleet.nursery.start_soon(self._listen, self.fleet.any_replica(), self.chance.uniform(5, 60))

    async def _listen(self, replica: SimulatedReplica, seconds: float) -> None:
        wanted = {"notifications": {"resourceSubscriptions": [f"sim://{number}" for number in range(3)]}}
        listener = Listener(replica)
        with trio.move_on_after(seconds):
            async with self.fleet.connection(replica) as connection:
                try:
                    await self.send(connection, "subscriptions/listen", wanted)
                    if (await connection.head()).headers.get("content-type") != "text/event-stream":
                        return
                    while True:
                        message = (await connection.event()).data or {}
                        if message.get("method") == "notifications/subscriptions/acknowledged":
                            self.listeners.add(listener)
                        elif message.get("method") == "notifications/resources/updated":
                            self.outcomes["told"] += 1
                            listener.told[message["params"]["uri"]] = trio.current_time()
                        elif "id" in message:
                            return
                except (Lost, h11.RemoteProtocolError, trio.BrokenResourceError, AssertionError):
                    return
                finally:
                    listener.is_open = False
                    self.listeners.discard(listener)

    async def change(self) -> None:
        """Change a resource at one replica; the listeners of all are told."""
        replica = self.fleet.any_replica()
        if replica.machine.is_stopped:
            return
        uri, since = f"sim://{self.chance.randrange(3)}", trio.current_time()
        listeners = [each for each in self.listeners if each.replica.is_well]
        with replica.machine.current():
            replica.server.resource_updated(uri)
        self.outcomes["changed"] += 1
        self.fleet.nursery.start_soon(self._expect, replica, uri, since, listeners, self.fleet.disturbances)

    async def _expect(
        self, replica: SimulatedReplica, uri: str, since: float, listeners: list[Listener], before: int
    ) -> None:
        failures = self.fleet.failures_of_storage
        await trio.sleep(SOON)
        if self.fleet.disturbances != before or not self.is_calm:
            await trio.sleep(LATE - SOON)
        if (
            self.fleet.failures_of_storage != failures
            or not self.fleet.storage.weather.works
            or not replica.takes_requests
            or replica.stops
        ):
            return
        for listener in listeners:
            is_served = listener.is_open and listener.replica.is_well and not listener.replica.stops
            if is_served and listener.told.get(uri, -1.0) < since:
                self.faults.append(f"a listener was not told of a change of {uri} since {since:g}")

    @property
    def is_calm(self) -> bool:
        return self.fleet.storage.is_calm and all(each.is_well for each in self.fleet.replicas)

    # The end

    async def check(self) -> None:
        """Check what holds once all is well again, and the longest wait is over."""
        storage, journal = self.fleet.storage, self.fleet.journal
        self.faults += storage.faults
        self.faults += [f"{name} still runs" for name, runs in journal.running.items() if runs and " of " not in name]
        for task in self.tasks:
            if task.id in storage.excused:
                continue
            reply = await self._ask_any("tasks/get", {"taskId": task.id, "_meta": TASKS})
            state = reply.get("result", {}).get("status")
            if state not in ("completed", "failed", "cancelled"):
                self.faults.append(f"{task} never ended: {reply}")
            if state == "failed" and task.name.startswith("work"):
                self.faults.append(f"{task} was to run again, and failed: {reply}")
            if storage.ends[task.id] != 1:
                self.faults.append(f"{task} ended {storage.ends[task.id]} times")


def answers(result: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the parameters with which a client comes back."""
    answer = {"action": "accept", "content": {"name": name}}
    return {"requestState": result["requestState"], "inputResponses": dict.fromkeys(result["inputRequests"], answer)}
