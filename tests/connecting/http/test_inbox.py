"""The queue of received messages, which slows down reading when it is full."""

from __future__ import annotations

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, modern, serving, text
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import ConnectionLost, KeepAlive, MCPError, open_http
from trio_mcp.connecting.http.endpoint import Inbox
from trio_mcp.jsonrpc.messages import Notification
from trio_mcp.runtime.transport import Frame, QuestionsLost, ReplyLost


def framed(data: bytes) -> Frame:
    return Frame(Notification("n"), data)


async def test_http_client_returns_messages_and_connection_failures_in_order_of_arrival() -> None:
    inbox = Inbox(100)
    lost, questions = ReplyLost(7, MCPError("gone")), QuestionsLost((1, "a"), "forgotten")
    for each in (framed(b"one"), lost, framed(b"two"), questions):
        inbox.put(each)
    assert await inbox.receive() == framed(b"one")
    assert await inbox.receive() is lost
    assert await inbox.receive() == framed(b"two")
    assert await inbox.receive() is questions


async def test_http_client_stops_reading_responses_while_too_many_messages_are_unread(nursery: trio.Nursery) -> None:
    inbox = Inbox(10)
    went_on = trio.Event()

    async def exchange() -> None:
        for _ in range(3):
            inbox.put(framed(b"12345"))
            await inbox.wait_for_room()
        went_on.set()

    nursery.start_soon(exchange)
    await wait_all_tasks_blocked()
    assert not went_on.is_set()
    for _ in range(3):
        assert await inbox.receive() == framed(b"12345")
        await wait_all_tasks_blocked()
    assert went_on.is_set()


async def test_http_client_stops_reading_responses_while_many_of_its_own_replies_are_undelivered(
    nursery: trio.Nursery,
) -> None:
    inbox = Inbox(10)
    went_on = trio.Event()

    async def exchange() -> None:
        await inbox.wait_for_room()
        went_on.set()

    for _ in range(1000):
        await inbox.wait_for_room()
        inbox.add_owed()
    nursery.start_soon(exchange)
    await wait_all_tasks_blocked()
    assert not went_on.is_set()
    inbox.remove_owed()
    await went_on.wait()


async def test_cancelled_receive_on_the_http_client_loses_no_message() -> None:
    inbox = Inbox(10)
    with trio.move_on_after(0):
        await inbox.receive()
    inbox.put(framed(b"one"))
    assert await inbox.receive() == framed(b"one")


async def test_http_client_reads_many_logs_of_a_call_only_as_fast_as_it_handles_them() -> None:
    """Each message waits for the callback's turn: nothing is lost, and the call ends after the last."""

    async def flood(got: Got, answer: Answer) -> None:
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 1000}}
        await answer.open()
        for _ in range(500):
            await answer.event(log)
        await answer.event(text(got))
        await answer.end()

    logs = list[object]()
    async with (
        serving(modern(flood)) as server,
        open_http(server.url, on_log=lambda told: logs.append(told.data)) as client,
    ):
        assert (await client.call_tool("any")).text == "done"
        assert len(logs) == 500


async def test_client_detects_a_stopped_http_server_by_keep_alive_pings() -> None:
    async def never(got: Got, answer: Answer) -> None:
        raise AssertionError

    keep_alive = KeepAlive(interval=0.05, timeout=1, misses=2)
    async with serving(modern(never)) as server, open_http(server.url, keep_alive=keep_alive) as client:
        await server.stop()
        with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost, match="did not answer 2 pings"):
            await client.until_lost()
