"""A handler can poll for its cancel, be stopped at a checkpoint, or ask to be."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CancelCause, Cancellation, RequestContext, Server, open_memory
from trio_mcp.jsonrpc.codec import encode
from trio_mcp.jsonrpc.messages import Request
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from trio_mcp.server.connection import ServerConnection
from trio_mcp.transports.lines import memory_transport_pair


async def cancelled_handler(server: Server, name: str) -> None:
    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, name)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel(reason="enough")


async def test_cancelled_handler_can_read_the_cause_and_reason() -> None:
    server, seen, reasons = Server("s"), list[Cancellation | None](), list[str | None]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        assert not ctx.is_cancelled
        assert ctx.cancellation is None
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            seen.append(ctx.cancellation)
            reasons.append(cancelled.reason)
            assert ctx.is_cancelled
            assert ctx.cancelled.is_set()
            raise

    await cancelled_handler(server, "work")
    assert seen[0] is not None
    assert (seen[0].cause, seen[0].reason) == (CancelCause.PEER, "enough")
    assert reasons == ["enough"]


async def test_method_check_cancelled_raises_only_after_the_request_was_cancelled() -> None:
    server, steps = Server("s"), list[str]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        await ctx.check_cancelled()
        steps.append("not yet")
        with trio.CancelScope(shield=True):
            while not ctx.is_cancelled:
                await trio.lowlevel.checkpoint()
        with pytest.raises(trio.Cancelled):
            await ctx.check_cancelled()
        steps.append("raised")

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "work")
        while not steps:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert steps == ["not yet", "raised"]


async def test_handler_sees_cancel_cause_parent_if_a_scope_around_the_server_is_cancelled() -> None:
    server, seen = Server("s"), list[Cancellation | None]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.append(ctx.cancellation)

    ours, theirs = memory_transport_pair()
    meta = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}
    async with server._running() as running, trio.open_nursery() as nursery:
        await nursery.start(ServerConnection(running, theirs).run)
        await ours.send(encode(Request(1, "tools/call", {"name": "work", "_meta": meta})) + b"\n")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel(reason="not for the peer")
    assert seen[0] is not None
    assert seen[0].cause is CancelCause.PARENT
