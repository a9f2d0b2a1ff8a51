"""Connections break at every byte of a request and of an answer. Nothing is left behind, and nothing said twice."""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from tests.patience import PATIENCE
from tests.serving.http.raw_http import Endpoint, Wire, modern, open_endpoint

from trio_mcp import CancelCause, RequestContext, Server
from trio_mcp.transports.event_stream.reading import Event, EventReader


@attrs.define
class Counted:
    """A server that counts the handlers that began and those that ended, and why."""

    server: Server[Any] = attrs.field(factory=lambda: Server("counted"))
    began: int = 0
    ended: list[CancelCause | None] = attrs.field(factory=list[Any])

    async def until(self, ended: int) -> None:
        with trio.fail_after(PATIENCE):
            while len(self.ended) < ended:
                await trio.lowlevel.checkpoint()


@asynccontextmanager
async def counting() -> AsyncGenerator[tuple[Endpoint, Counted]]:
    counted = Counted()

    @counted.server.tool
    async def hang(ctx: RequestContext) -> None:
        counted.began += 1
        ctx.progress(1, 2)
        try:
            await trio.sleep_forever()
        finally:
            counted.ended.append(None if ctx.cancellation is None else ctx.cancellation.cause)

    @counted.server.tool
    async def tell(ctx: RequestContext) -> str:
        counted.began += 1
        for number in range(3):
            await ctx.log.info(f"number {number}")
        counted.ended.append(None)
        return "told"

    async with open_endpoint(counted.server) as endpoint:
        yield endpoint, counted


async def read_bytes(wire: Wire, count: int) -> bytes:
    """The first bytes of an answer, as many as asked for, or all until the end of the connection."""
    read = b""
    with trio.fail_after(PATIENCE):
        while len(read) < count and (some := await wire.stream.receive_some(count - len(read))):
            read += some
    return read


HANG = modern("tools/call", {"name": "hang", "arguments": {}}, progressToken=1)


async def test_a_request_that_breaks_off_at_any_byte_reaches_no_handler() -> None:
    async with counting() as (endpoint, counted):
        request = (await endpoint.wire()).request(HANG)
        for cut in range(len(request)):
            wire = await endpoint.wire()
            await wire.send(request[:cut])
            await wire.close()
        wire = await endpoint.wire()
        await wire.send(request)
        await wire.head()
        assert counted.began == 1, "the whole one"
        await wire.close()
        await counted.until(1)


async def test_a_modern_client_that_leaves_at_any_byte_of_the_answer_cancels_its_request() -> None:
    async with counting() as (endpoint, counted):
        wire = await endpoint.wire()
        request = wire.request(HANG)
        await wire.send(request)
        length = 0
        while b"data:" not in (part := bytes(await wire.stream.receive_some())):
            length += len(part)
        length += len(part)
        await wire.close()
        await counted.until(1)
        for cut in range(length):
            wire = await endpoint.wire()
            await wire.send(request)
            await read_bytes(wire, cut)
            if cut == 0:  # else the answer has begun, and so has the handler
                with trio.fail_after(PATIENCE):
                    while counted.began < 2:
                        await trio.lowlevel.checkpoint()
            await wire.close()
            await counted.until(cut + 2)
        assert counted.ended == [CancelCause.DISCONNECT] * (length + 1)


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_what_was_read_before_a_break_and_what_is_replayed_make_up_the_whole(revision: str) -> None:
    async with counting() as (endpoint, _):
        session = await endpoint.session(revision)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "tell", "arguments": {}}}
        wire = await endpoint.wire()
        request = wire.request(body, {**session, "Connection": "close"})
        await wire.send(request)
        whole = await read_bytes(wire, 1 << 20)
        said = said_in(EventReader(1 << 20).feed(without_chunks(whole)))
        assert len(said) == 4
        resumed = 0
        for cut in range(len(whole)):
            wire = await endpoint.wire()
            await wire.send(request)
            read = await read_bytes(wire, cut)
            await wire.close()
            reader = EventReader(1 << 20)
            events = reader.feed(without_chunks(read))
            if reader.last_event_id:
                resumed += 1
                again = await endpoint.ask(
                    None,
                    {**session, "Accept": "text/event-stream", "Last-Event-ID": reader.last_event_id},
                    method="GET",
                )
                assert again.status == 200, again
                events += EventReader(1 << 20).feed(again.body)
                assert said_in(events) == said, cut
        assert resumed > 50


def said_in(events: list[Event]) -> list[Any]:
    messages = [json.loads(event.data) for event in events if event.data]
    return [message.get("params", message.get("result")) for message in messages]


def without_chunks(read: bytes) -> bytes:
    """The part of a body that a cut answer in chunks has brought."""
    _, _, rest = read.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, end, rest = rest.partition(b"\r\n")
        if not end or not (length := int(size, 16)):
            break
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


async def test_exchanges_and_sessions_leave_nothing_behind() -> None:
    async with counting() as (endpoint, counted):
        found = list[dict[str, int]]()
        for _ in range(3):
            for number in range(100):
                session = await endpoint.session()
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "tell", "arguments": {}}}
                await endpoint.ask(body, session)
                listening = await endpoint.wire()
                await listening.send(listening.request(None, {**session, "Accept": "text/event-stream"}, method="GET"))
                await listening.head()
                await endpoint.call("tell")
                wire = await endpoint.wire()
                await wire.send(wire.request(HANG))
                if number % 2:
                    await wire.head()
                await wire.close()
                await endpoint.ask(None, session, method="DELETE")
                await listening.close()
            await trio.testing.wait_all_tasks_blocked(0.05)
            await counted.until(counted.began)
            endpoint.wires.clear()
            found.append(living())
        assert found[2] == found[1], {name: (found[1].get(name), found[2].get(name)) for name in found[2]}


def living() -> dict[str, int]:
    """How many there are of the things that connections are made of."""
    gc.collect()
    kinds = Counter(
        f"{type(each).__module__}.{type(each).__qualname__}"
        for each in gc.get_objects()
        if str(type(each).__module__).startswith(("trio_mcp.serving", "trio_mcp.transports", "trio_mcp.runtime"))
    )
    tasks = trio.lowlevel.current_statistics().tasks_living
    return {**kinds, "tasks": tasks, "descriptors": len(os.listdir("/proc/self/fd"))}
