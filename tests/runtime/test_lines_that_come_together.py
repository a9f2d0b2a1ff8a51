"""Lines that come in one read are handled in one pass, and exactly as lines that come one by one."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.runtime.hosted import HostedConnection
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Limits, MCPError
from trio_mcp.client.client import Client
from trio_mcp.client.opening import open_client
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.requests.host import LATER, Decision, Now, RequestHost
from trio_mcp.runtime.requests.scope import RequestScope
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import NotificationReceived
from trio_mcp.state.requests import InboundRequest
from trio_mcp.transports.lines import LineTransport
from trio_mcp.types import LogParams

_LONGEST = 2000


class Reads:
    """A stream. What is given to `give` comes in one read."""

    def __init__(self) -> None:
        self._give, self._given = trio.open_memory_channel[bytes](1000)
        self.written = bytearray()
        self.room = trio.Event()
        self.room.set()

    def give(self, *lines: bytes) -> None:
        self._give.send_nowait(b"".join(line + b"\n" for line in lines))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._given.receive()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.room.wait()
        self.written += data

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def taken(self) -> list[dict[str, Any]]:
        messages = [json.loads(line) for line in self.written.splitlines()]
        self.written.clear()
        return messages


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def log(data: Any) -> bytes:
    return message(method="notifications/message", params={"level": "info", "data": data})


def reply(request_id: int, text: str) -> bytes:
    return message(id=request_id, result={"content": [{"type": "text", "text": text}]})


@asynccontextmanager
async def opened(**options: Any) -> AsyncGenerator[tuple[Client, Reads]]:
    """A client of revision 2025-11-25, and the stream that it reads."""
    stream = Reads()

    async def handshake() -> None:
        await wait_all_tasks_blocked()
        (request,) = stream.taken()
        info = {"name": "scripted", "version": "1"}
        said = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}}, "serverInfo": info}
        stream.give(message(id=request["id"], result=said))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handshake)
            async with open_client(LineTransport(stream, _LONGEST), era="legacy", **options) as client:
                await wait_all_tasks_blocked()
                stream.taken()
                yield client, stream


async def outcomes_of(lines: list[bytes], together: bool) -> list[Any]:
    """What a client with two calls in flight makes of ``lines``: its logs and changes, how its calls ended, and what it
    has sent."""
    told, changed, ends = list[Any](), list[str](), dict[str, str]()

    def on_log(params: LogParams) -> None:
        told.append(params.data)

    async with opened(on_log=on_log, on_list_changed=changed.append) as (client, stream):

        async def call(name: str) -> None:
            try:
                ends[name] = (await client.call_tool(name)).text
            except MCPError as error:
                ends[name] = f"{type(error).__name__}: {error}"

        async with trio.open_nursery() as nursery:
            ids = list[int]()
            for name in ("one", "two"):
                nursery.start_soon(call, name)
                await wait_all_tasks_blocked()
                ids += [request["id"] for request in stream.taken()]
            assert ids == [2, 3]
            for part in [lines] if together else [[line] for line in lines]:
                stream.give(*part)
                await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return [
            told,
            changed,
            ends,
            [each for each in stream.taken() if each.get("method") != "notifications/cancelled"],
        ]


_ODD_LINES = {
    "blank": b"",
    "space": b" \t\r",
    "carriage return": log("r") + b"\r",
    "space before": b"  " + log("space"),
    "text": b"Listening on port 80",
    "no JSON": b'{"jsonrpc": "2.0", ',
    "bar": b"|",
    "brace": b"}",
    "not UTF-8": b'{"jsonrpc":"2.0","method":"\xff"}',
    "batch": b"[" + log("in a batch") + b"]",
    "no message": b'{"level": "info"}',
    "too long": log("x" * _LONGEST),
    "too long and no object": b"x" * (_LONGEST + 1),
    "too deep": message(method="notifications/message", params={"data": json.loads("[" * 300 + "]" * 300)}),
    "another version": json.dumps({"jsonrpc": "1.0", "method": "notifications/message"}).encode(),
    "method is a number": message(method=1),
    "parameters are a list": message(method="notifications/message", params=[]),
    "no parameters": message(method="notifications/message"),
    "bad parameters": message(method="notifications/message", params={"level": 1}),
    "another member": b'{"x":1,' + log("x")[1:],
    "meta": message(method="notifications/message", params={"level": "info", "data": "m", "_meta": {"a": 1}}),
    "unknown notification": message(method="notifications/unknown", params={}),
    "ping": message(id=9, method="ping"),
    "unknown request": message(id=9, method="unknown"),
    "progress": message(method="notifications/progress", params={"progressToken": 2, "progress": 1}),
    "cancel of no request": message(method="notifications/cancelled", params={"requestId": 77}),
    "reply to no call": reply(77, "no"),
    "error": message(id=3, error={"code": -1, "message": "no"}),
    "reply with another id": reply(2, "one")[:-1] + b',"id":"2"}',
    "change": message(method="notifications/tools/list_changed"),
}


@pytest.mark.parametrize("name", _ODD_LINES)
async def test_invalid_line_received_together_with_other_lines_is_handled_as_if_received_alone(
    autojump_clock: object, name: str
) -> None:
    lines = [log(1), log(2), _ODD_LINES[name], log(3), reply(2, "eins"), log(4), _ODD_LINES[name], log(5)]
    found = await outcomes_of(lines, together=True)
    assert found == await outcomes_of(lines, together=False)
    assert [each for each in found[0] if type(each) is int] == [1, 2, 3, 4, 5]


async def test_responses_received_together_with_notifications_reach_their_calls(autojump_clock: object) -> None:
    lines = [log(1), reply(3, "zwei"), log(2), log(3), reply(2, "eins"), log(4)]
    assert await outcomes_of(lines, together=True) == [[1, 2, 3, 4], [], {"one": "eins", "two": "zwei"}, []]


async def test_buffered_lines_are_handled_even_if_a_callback_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = list[Any]()

    def on_log(params: LogParams) -> None:
        told.append(params.data)
        if params.data == 2:
            raise RuntimeError("no")

    async with opened(on_log=on_log) as (client, stream), trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "one")
        await wait_all_tasks_blocked()
        stream.give(log(1), log(2), log(3), reply(2, "eins"))
    assert told == [1, 2, 3]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "a notification callback failed"
    ]


async def test_buffered_lines_are_handled_while_a_callback_blocks(autojump_clock: object) -> None:
    told = list[Any]()

    async def on_list_changed(kind: str) -> None:
        await trio.sleep_forever()

    async with opened(on_log=lambda params: told.append(params.data), on_list_changed=on_list_changed) as (
        client,
        stream,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "one")
            await wait_all_tasks_blocked()
            stream.give(_ODD_LINES["change"], log(1), _ODD_LINES["change"], reply(2, "eins"), log(2))
        assert told == [1, 2]


async def test_call_cancelled_by_a_log_callback_ends_after_all_buffered_lines_are_handled(
    autojump_clock: object,
) -> None:
    told = list[Any]()
    with trio.CancelScope() as scope:

        def on_log(params: LogParams) -> None:
            told.append(params.data)
            if params.data == 2:
                scope.cancel()

        async with opened(on_log=on_log) as (client, stream):
            stream.give(*[log(number) for number in range(1, 6)])
            await client.call_tool("one")
    assert scope.cancelled_caught
    assert told == [1, 2, 3, 4, 5]


# Servers


class Handler:
    """Answers pings at once; a call ends when it is cancelled."""

    seal = None

    def __init__(self) -> None:
        self.ran: list[Any] = []

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        return Now({}) if request.method.name == "ping" else LATER

    async def answer(self, scope: RequestScope) -> Any:
        self.ran.append(scope.request.id)
        if scope.request.id == 3:
            raise RuntimeError("no")
        if scope.request.params:
            await trio.sleep_forever()
        return {}

    def wants(self, event: NotificationReceived) -> bool:
        return False

    async def notified(self, event: NotificationReceived) -> None:
        raise AssertionError


@asynccontextmanager
async def serving(limits: Limits) -> AsyncGenerator[tuple[Reads, Handler]]:
    state = ConnectionState("server")
    state.revision, state.initialized = LATEST_LEGACY, True
    stream, handler = Reads(), Handler()
    connection = HostedConnection(LineTransport(stream, _LONGEST), state, handler, RequestHost(limits))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            stream.give(message(id=0, method="ping"))
            await wait_all_tasks_blocked()
            stream.taken()
            yield stream, handler
            nursery.cancel_scope.cancel()


async def test_requests_received_together_end_as_if_received_separately(caplog: pytest.LogCaptureFixture) -> None:
    """One is cancelled, one fails, one is refused, and one is a second of its id."""
    async with serving(Limits()) as (stream, handler):
        stream.give(
            message(id=1, method="tools/call", params={"name": "waits"}),
            message(id=2, method="tools/call"),
            message(id=1, method="ping"),
            message(method="notifications/cancelled", params={"requestId": 1}),
            message(id=3, method="tools/call"),
            message(id=4, method="unknown"),
            message(id=1, method="ping"),
        )
        await wait_all_tasks_blocked()
        replies = [(each["id"], "error" in each or "isError" in each["result"]) for each in stream.taken()]
    assert sorted(replies) == [(1, False), (1, True), (2, False), (3, True), (4, True)]
    assert set(handler.ran) <= {1, 2, 3}


async def test_connection_answers_buffered_requests_only_while_the_peer_reads_responses() -> None:
    async with serving(Limits(high_water=100)) as (stream, _):
        stream.room = trio.Event()
        for first in range(0, 5000, 1000):
            stream.give(*[message(id=number, method="ping") for number in range(first, first + 1000)])
        await wait_all_tasks_blocked()
        stuck = len(stream.taken())
        stream.room.set()
        await wait_all_tasks_blocked()
        assert [each["id"] for each in stream.taken()] == list(range(5000))
    assert stuck == 0
