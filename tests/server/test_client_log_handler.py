"""The standard library's logging, sent to the client."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import trio

from trio_mcp import ClientLogHandler, Limits, Server, open_memory
from trio_mcp.types import LogParams


@pytest.fixture
def bridged() -> Iterator[tuple[logging.Logger, ClientLogHandler]]:
    logger, handler = logging.getLogger("bridged"), ClientLogHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger, handler
    logger.removeHandler(handler)


Bridged = tuple[logging.Logger, ClientLogHandler]


async def test_log_record_is_sent_to_the_client_of_its_request(bridged: Bridged) -> None:
    server, seen = Server("s"), list[LogParams]()

    @server.tool
    async def work() -> None:
        bridged[0].warning("disk %s", "full")
        bridged[0].debug("below the default level")

    async with open_memory(server, era="legacy", on_log=seen.append) as client:
        await client.call_tool("work")
    assert seen == [LogParams("warning", "disk full", "bridged")]


async def test_log_record_from_a_worker_thread_is_sent_to_the_client_of_its_request(bridged: Bridged) -> None:
    server, seen = Server("s"), list[LogParams]()

    @server.tool
    def work() -> None:
        bridged[0].error("from a thread")

    async with open_memory(server, era="legacy", on_log=seen.append) as client:
        await client.call_tool("work")
    assert [log.data for log in seen] == ["from a thread"]


async def test_log_record_written_outside_a_request_is_sent_to_no_client(bridged: Bridged) -> None:
    async with open_memory(Server("s"), era="legacy", on_log=lambda _: pytest.fail("nobody asked")) as client:
        bridged[0].error("not in a request")
        await client.ping()
    assert bridged[1].dropped == 0


async def test_log_record_is_dropped_and_counted_if_the_outbox_is_full(bridged: Bridged) -> None:
    server = Server("s", limits=Limits(high_water=1000))

    @server.tool
    async def flood() -> None:
        for _ in range(100):
            bridged[0].error("x" * 100)

    async with open_memory(server, era="legacy") as client:
        await client.call_tool("flood")
    assert 80 < bridged[1].dropped < 100


async def test_log_record_below_the_log_level_of_the_client_is_not_counted_as_dropped(bridged: Bridged) -> None:
    server = Server("s")

    @server.tool
    async def work() -> None:
        bridged[0].info("quiet")

    async with open_memory(server, era="legacy") as client:
        await client.set_log_level("error")
        await client.call_tool("work")
    assert bridged[1].dropped == 0


async def test_log_record_with_a_lone_unicode_surrogate_is_sent_with_an_escape(bridged: Bridged) -> None:
    server = Server("s")

    @server.tool
    async def work() -> str:
        # To the handler alone: what pytest captures must be text that can be written.
        bridged[1].handle(bridged[0].makeRecord("bridged", logging.ERROR, __file__, 1, "\ud800", (), None))
        await trio.lowlevel.checkpoint()
        return "fine"

    seen = list[LogParams]()
    async with open_memory(server, era="legacy", on_log=seen.append) as client:
        await client.call_tool("work")
    assert (bridged[1].dropped, [message.data for message in seen]) == (0, ["\\ud800"])
