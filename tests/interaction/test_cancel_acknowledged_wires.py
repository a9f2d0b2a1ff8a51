"""trio-mcp/cancelAcknowledged over the other transports, with tasks, in groups, and with nonconforming servers."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tests.forked import forked_command
from tests.interaction import cancel_server

from trio_mcp import (
    CancelAcknowledged,
    Client,
    InMemory,
    Server,
    aio,
    confirm_cancels,
    open_memory,
    open_stdio,
    open_tcp,
    open_unix,
    open_websocket,
    serve_tcp,
    serve_unix,
    serve_websocket,
)
from trio_mcp.client.tool_calls import _meta_of
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import CallEnding, Extension

Era = Literal["modern", "legacy"]
PROGRAM = str(Path(cancel_server.__file__))


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


async def left(client: Any, arguments: dict[str, Any], *, within: float = 20.0, tool: str = "slow") -> CallEnding:
    """How a call ends that is left once its handler has begun."""
    begun = trio.Event()
    call = partial(client.call_tool, tool, arguments, on_progress=lambda _: begun.set())  # pyright: ignore[reportUnknownLambdaType]
    with confirm_cancels(within=within) as endings:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await begun.wait()
            nursery.cancel_scope.cancel(reason="enough")
    (ending,) = endings
    return ending


def options(era: Era) -> dict[str, Any]:
    return {"era": era, "extensions": [CancelAcknowledged()]}


async def stops(opened: AbstractAsyncContextManager[Client]) -> None:
    async with opened as client:
        first = await left(client, {"cleanup": 0.3})
        assert first.state == "stopped"
        assert first.cleanup is not None
        assert first.cleanup >= 0.3
        assert (await left(client, {"cleanup": 1.5}, within=0.3)).state == "overran"


async def test_cancelled_call_is_confirmed_as_stopped_over_stdio(era: Era) -> None:
    async with open_stdio(forked_command([PROGRAM]), **options(era)) as client:
        first = await left(client, {"cleanup": 0.3})
        assert first.state == "stopped"


async def test_cancelled_call_is_confirmed_as_stopped_over_tcp(era: Era) -> None:
    async with trio.open_nursery() as nursery:
        serving = partial(serve_tcp, cancel_server.server, "127.0.0.1", 0, handle_signals=False)
        [listener] = await nursery.start(serving)
        port = listener.socket.getsockname()[1]
        await stops(open_tcp("127.0.0.1", port, **options(era)))
        nursery.cancel_scope.cancel()


async def test_cancelled_call_is_confirmed_as_stopped_over_a_unix_socket(era: Era, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_unix, cancel_server.server, path, handle_signals=False))
        await stops(open_unix(path, **options(era)))
        nursery.cancel_scope.cancel()


async def test_cancelled_call_is_confirmed_as_stopped_over_websocket(era: Era) -> None:
    async with trio.open_nursery() as nursery:
        serving = partial(serve_websocket, cancel_server.server, "127.0.0.1", 0, handle_signals=False)
        [listener] = await nursery.start(serving)
        port = listener.socket.getsockname()[1]
        await stops(open_websocket(f"ws://127.0.0.1:{port}/mcp", **options(era)))
        nursery.cancel_scope.cancel()


async def test_confirm_cancels_reports_state_lost_if_the_server_dies_before_it_confirms_a_cancel(era: Era) -> None:
    async with open_stdio(forked_command([PROGRAM]), **options(era)) as client:
        ending = await left(client, {"cleanup": 0.2, "dies": True}, within=60)
    assert ending.state == "lost"
    assert 0.2 <= ending.seconds < 50


async def test_cancel_of_a_call_to_a_server_in_a_client_group_is_confirmed(era: Era) -> None:
    member = MemberDescription(InMemory(cancel_server.server))
    async with open_group({"one": member}, **options(era)) as group:
        client = await group.client("one")
        assert (await left(client, {"cleanup": 0.1})).state == "stopped"


def test_asyncio_client_gets_confirmation_that_its_cancelled_call_stopped(era: Era) -> None:
    async def main() -> list[CallEnding]:
        async with aio.open_memory(cancel_server.server, **options(era)) as client:
            begun = asyncio.Event()
            with confirm_cancels(within=20) as endings:
                call = asyncio.create_task(
                    client.call_tool("slow", {"cleanup": 0.2}, on_progress=lambda _: begun.set())
                )
                await begun.wait()
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            return endings

    (ending,) = asyncio.run(main())
    assert ending.state == "stopped"
    assert (ending.cleanup or 0) >= 0.2


# Tasks


async def test_cancelled_call_that_runs_as_a_task_waits_for_the_cleanup_of_the_task(
    era: Era, autojump_clock: Any
) -> None:
    server = Server("worker", extensions=[CancelAcknowledged()])
    begun, lines = trio.Event(), list[str]()

    @server.tool(task="required")
    async def work() -> str:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
            lines.append("cleaned up")
        return ""

    async with open_memory(server, **options(era)) as client:
        with confirm_cancels(within=30) as endings:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "work")
                await begun.wait()
                await trio.sleep(3)
                nursery.cancel_scope.cancel()
        assert lines == ["cleaned up"]
    (ending,) = endings
    assert ending.state == "stopped"
    assert ending.cleanup == pytest.approx(2, abs=0.2)


async def test_confirm_cancels_reports_state_finished_for_a_call_whose_task_has_completed(autojump_clock: Any) -> None:
    """Its client, which has not asked yet, does not know."""
    server = Server("worker", extensions=[CancelAcknowledged()])

    @server.tool(task="required")
    async def work() -> str:
        await trio.sleep(2.5)
        return "done"

    async with open_memory(server, **options("modern")) as client:
        with confirm_cancels() as endings, trio.move_on_after(2.8):
            await client.call_tool("work")
    assert [(each.state, each.outcome) for each in endings] == [("finished", "result")]


def test_requests_about_an_mcp_task_send_the_meta_of_its_call_without_the_cancel_token() -> None:
    """Else the server would take them for the call, once the task is over."""
    meta = {"trio-mcp/cancelToken": "t" * 22, "com.example/a": 1}
    assert _meta_of({"name": "work", "_meta": meta}) == {"_meta": {"com.example/a": 1}}


# Servers that do not do as they should


def server_that_says(answer: dict[str, Any] | None) -> Server:
    """A server with the same extension, which says of each call the same, or nothing."""
    other = Extension("trio-mcp/cancelAcknowledged")
    row = other.method("trio-mcp/cancel", dict[str, Any], dict[str, Any])
    server = Server("other", extensions=[other])

    @server.handles(row)
    async def say(params: dict[str, Any]) -> dict[str, Any]:
        if answer is None:
            await trio.sleep_forever()
        return answer or {}

    server.tool(cancel_server.slow)
    return server


async def test_confirm_cancels_reports_state_silent_if_the_server_does_not_answer_the_cancel_request(
    era: Era, autojump_clock: Any
) -> None:
    async with open_memory(server_that_says(None), **options(era)) as client:
        ending = await left(client, {}, within=3)
    assert ending.state == "silent"
    assert ending.seconds == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"state": "weird"}, "unknown"),
        ({"state": 5}, "unknown"),
        ({}, "unknown"),
        ({"state": "silent"}, "unknown"),
        ({"state": "stopped", "cleanupMs": "long"}, "unknown"),
        ({"state": "finished", "outcome": "maybe"}, "finished"),
        ({"state": "relayed", "behind": "anything"}, "relayed"),
    ],
)
async def test_confirm_cancels_reports_state_unknown_for_a_malformed_cancel_acknowledgement(
    era: Era, answer: dict[str, Any], state: str
) -> None:
    async with open_memory(server_that_says(answer), **options(era)) as client:
        ending = await left(client, {})
    assert (ending.state, ending.outcome, ending.behind) == (state, None, None)


async def test_client_reads_the_state_reported_by_the_backend_in_the_cancel_acknowledgement_of_a_proxy(
    era: Era,
) -> None:
    async with open_memory(server_that_says({"state": "relayed", "behind": "unknown"}), **options(era)) as client:
        ending = await left(client, {})
    assert (ending.state, ending.behind) == ("relayed", "unknown")


# On the wire


@pytest.mark.parametrize("within", [6.0, 0.2])
async def test_cancel_notification_and_cancel_request_are_sent_together(within: float, autojump_clock: Any) -> None:
    from trio_mcp.client.opening import open_client
    from trio_mcp.server.servable import connection_to

    ours, theirs = memory_transport_pair()
    written: list[bytes] = []
    send = ours.send

    async def noting(messages: bytes | bytearray) -> None:
        written.append(bytes(messages))
        await send(messages)

    ours.send = noting  # type: ignore[method-assign]
    ours.send_nowait = lambda message: 0  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery, cancel_server.server._running() as running:
        nursery.start_soon(connection_to(running, theirs).run)
        async with open_client(ours, **options("legacy")) as client:
            ending = await left(client, {}, within=within)
            assert ending.state == "stopped"
        nursery.cancel_scope.cancel()
    (last,) = [batch for batch in written if b'trio-mcp/cancel"' in batch]
    assert last.count(b"\n") == 2
    assert b"notifications/cancelled" in last
