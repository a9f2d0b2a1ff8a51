"""Legacy clients of a simulated fleet: their sessions are served by any replica, and their streams resumed by any.

A client that comes back to a stream gets each event once and in order, and at the end the reply of its call, or that
its process has ended.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import h11
import trio
from tests.serving.http.raw import BASE, INITIALIZE, Answer, Connection, Event, message
from tests.simulation.clients import BOUND, SOON, Clients, Lost
from tests.simulation.fleet import SimulatedReplica

UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE
GONE = HTTPStatus.NOT_FOUND
ENDED = -31003
_BROKEN = (h11.RemoteProtocolError, trio.BrokenResourceError, AssertionError)


class SessionEnded(Exception):
    """The session does not exist any more."""


class Sessions:
    """The sessions of ``clients``."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._fleet = clients.fleet
        self._chance = clients.chance

    async def act(self) -> None:
        """Open a session, and use it for a while."""
        try:
            session = await self._open()
            for _ in range(self._chance.randint(1, 5)):
                await self._chance.choice((self._echo, self._resume, self._resume, self._answer, self._cancel))(session)
                await trio.sleep(self._chance.uniform(0, 1))
            await self._send("DELETE", session)
        except (Lost, SessionEnded):
            return

    async def _open(self) -> dict[str, str | None]:
        params = {**INITIALIZE["params"], "capabilities": {"elicitation": {"form": {}}}}
        answer = await self._send("POST", {**BASE}, {**INITIALIZE, "params": params})
        if "mcp-session-id" not in answer.headers:
            raise Lost
        session: dict[str, str | None] = {**BASE, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        await self._send("POST", session, message("notifications/initialized"))
        self._clients.outcomes["sessions"] += 1
        return session

    # Requests

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[SimulatedReplica, Connection]]:
        replica = self._fleet.any_replica()
        async with self._fleet.connection(replica) as connection:
            yield replica, connection

    async def _send(
        self, method: str, session: dict[str, str | None], body: Any = None, *, asked_in: int | None = None
    ) -> Answer:
        """Return the whole answer to a request that ends soon. Raises `Lost` and `SessionEnded`. ``asked_in``: the
        number of disturbances when a question was asked that ``body`` answers, and who asked may be gone since."""
        async with self._connected() as (replica, connection):
            stops, answer = replica.stops, None
            with trio.move_on_after(BOUND):
                try:
                    answer = await connection.ask(method, session, body)
                except _BROKEN:
                    raise Lost from None
            if answer is None:
                if replica.is_well and replica.stops == stops:
                    self._clients.faults.append(f"a request of a session did not end: {method} {body}")
                raise Lost
        if answer.status == HTTPStatus.BAD_REQUEST and asked_in not in (None, self._fleet.disturbances):
            self._clients.outcomes["answers to the dead"] += 1
            raise Lost
        return self._checked(answer, f"{method} {body}")

    def _checked(self, answer: Answer, asked: str) -> Answer:
        if answer.status == GONE:
            if not self._fleet.failures_of_storage:
                self._clients.faults.append(f"a session was lost: {asked}: {answer}")
            raise SessionEnded
        if answer.status == UNAVAILABLE:
            self._clients.outcomes["unavailable"] += 1
            raise Lost
        if answer.status >= HTTPStatus.BAD_REQUEST:
            if not self._fleet.failures_of_storage:
                self._clients.faults.append(f"a request of a session was refused: {asked}: {answer}")
            raise Lost
        return answer

    # Acts

    async def _echo(self, session: dict[str, str | None]) -> None:
        call = message("tools/call", {"name": "echo", "arguments": {"text": "x"}}, self._id())
        answer = await self._send("POST", session, call)
        reply = answer.events[-1].data if "event-stream" in answer.headers["content-type"] else answer.json
        if "result" not in reply and reply["error"]["code"] not in (-31000, ENDED):
            self._clients.faults.append(f"a call of a session that needs nothing of others failed: {reply}")
        self._clients.outcomes["session echo"] += 1

    def _id(self) -> int:
        return next(self._clients.names)

    async def _resume(self, session: dict[str, str | None]) -> None:
        """Call a tool that tells, leave the stream, and come back to it through other replicas."""
        name, times = f"told {self._id()}", self._chance.randint(3, 12)
        arguments = {"name": name, "times": times, "seconds": self._chance.choice((0.01, 0.3))}
        heard: list[Any] = []
        cursor = await self._read(
            heard, "POST", session, message("tools/call", {"name": "tell", "arguments": arguments}, name)
        )
        for _ in range(100):
            if cursor is None or (heard and "id" in heard[-1]):
                break
            await trio.sleep(self._chance.uniform(0, 1.5))
            cursor = await self._read(heard, "GET", {**session, "Last-Event-ID": cursor}) or cursor
        self._judge(name, times, heard)

    async def _read(
        self, heard: list[Any], method: str, session: dict[str, str | None], body: Any = None
    ) -> str | None:
        """Read events for a while, and return the id of the last one."""
        cursor = None
        with trio.move_on_after(self._chance.choice((0.2, 1, 5, BOUND))):
            async with self._connected() as (_, connection):
                try:
                    await connection.send(method, session, body)
                    head = await connection.head()
                    if "event-stream" not in head.headers.get("content-type", ""):
                        self._checked(head, method)
                        raise Lost
                    while True:
                        event: Event = await connection.event()
                        cursor = event.id or cursor
                        if event.data is not None:
                            heard.append(event.data)
                            if "id" in event.data:
                                return cursor
                except _BROKEN:
                    return cursor
        return cursor

    def _judge(self, name: str, times: int, heard: list[Any]) -> None:
        told = [each["params"]["data"] for each in heard if each.get("method") == "notifications/message"]
        ends = [each for each in heard if "id" in each]
        if told != [f"number {number}" for number in range(len(told))]:
            self._clients.faults.append(f"{name} was not told in order: {heard}")
        if not ends:
            return
        self._clients.outcomes["resumed to the end"] += 1
        is_result = "result" in ends[0]
        if is_result and len(told) != times:
            self._clients.faults.append(f"{name} missed events: {heard}")
        if not is_result and ends[0]["error"]["code"] != ENDED:
            self._clients.faults.append(f"{name} ended otherwise: {ends}")

    async def _answer(self, session: dict[str, str | None]) -> None:
        """Answer a question through another replica than the one that asks."""
        name, before = f"questioned {self._id()}", self._fleet.disturbances
        call = message("tools/call", {"name": "ask", "arguments": {"name": name}}, name)
        async with self._connected() as (replica, connection):
            stops = replica.stops
            with trio.move_on_after(BOUND):
                try:
                    await connection.send("POST", session, call)
                    head = await connection.head()
                    if "event-stream" not in head.headers.get("content-type", ""):
                        self._checked(head, "a call that asks")
                        return
                    question = await self._message(connection)
                    if "method" not in question:
                        return
                    result = {"action": "accept", "content": {"name": name}}
                    answer = {"jsonrpc": "2.0", "id": question["id"], "result": result}
                    await self._send("POST", session, answer, asked_in=before)
                    reply = await self._message(connection)
                    while "id" not in reply:
                        reply = await self._message(connection)
                except _BROKEN:
                    return
                self._clients.outcomes["session asked"] += 1
                if "result" in reply and reply["result"]["content"][0]["text"] != name:
                    self._clients.faults.append(f"{name} heard {reply}")
                return
            if replica.is_well and replica.stops == stops and not self._fleet.failures_of_storage:
                self._clients.faults.append(f"{name} was answered, and did not end")

    async def _message(self, connection: Connection) -> dict[str, Any]:
        data = None
        while data is None:
            data = (await connection.event()).data
        return data

    async def _cancel(self, session: dict[str, str | None]) -> None:
        """Cancel a call through another replica than the one that runs it."""
        name, before = f"cancelled {self._id()}", self._fleet.disturbances
        call = message("tools/call", {"name": "wait", "arguments": {"name": name}}, name)
        async with self._connected() as (_, connection):
            try:
                await connection.send("POST", session, call)
                await trio.sleep(0.3)
                await self._send("POST", session, message("notifications/cancelled", {"requestId": name}))
            except _BROKEN:
                return
            await trio.sleep(SOON)
        if self._fleet.disturbances == before and self._clients.is_calm:
            self._clients.outcomes["session cancelled"] += 1
            if self._fleet.journal.running[name] or name not in self._fleet.journal.cancelled:
                self._clients.faults.append(f"{name} runs on: {json.dumps(call)}")
