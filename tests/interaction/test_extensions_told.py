"""Extension notifications outside of a request: legacy clients get them directly, modern clients on a stream that they
open.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Literal

import attrs
import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, Limits, Server, open_memory, proxy
from trio_mcp.testing import open_scripted_client
from trio_mcp.types import Extension

Era = Literal["modern", "legacy"]
LISTEN = "subscriptions/listen"


@attrs.frozen
class Grown:
    size: int
    text: str = ""


search = Extension("com.example/search")
grown = search.notification("notifications/com.example/search/grown", Grown)
modern_only = search.notification("notifications/com.example/search/modern", Grown, since="2026-07-28")
of_request = search.notification("notifications/com.example/search/hit", Grown, of_request=True)
from_client = search.notification("notifications/com.example/search/added", Grown, sender="client")


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


class Heard:
    """What a client was told."""

    def __init__(self) -> None:
        self.all: list[Grown] = []
        self._news = trio.lowlevel.ParkingLot()

    async def take(self, told: Grown) -> None:
        self.all.append(told)
        self._news.unpark_all()

    async def has(self, count: int) -> None:
        with trio.fail_after(PATIENCE):
            while len(self.all) < count:
                await self._news.park()


def listening(server: Any, heard: Heard, **options: Any) -> AbstractAsyncContextManager[Client]:
    return open_memory(server, extensions=[search], on_notification={grown: heard.take}, **options)


async def test_extension_notification_reaches_every_client_with_the_extension(era: Era) -> None:
    server, first, second = Server("s", extensions=[search]), Heard(), Heard()
    async with AsyncExitStack() as stack:
        for heard in (first, second):
            client = await stack.enter_async_context(listening(server, heard, era=era))
            await client.ping()  # a legacy client is told from the end of its handshake on
        for size in (1, 1, 2):
            server.notify(grown, Grown(size))
        for heard in (first, second):
            await heard.has(3)
            assert heard.all == [Grown(1), Grown(1), Grown(2)]


async def test_extension_notification_is_forwarded_by_a_proxy(era: Era) -> None:
    server, heard = Server("s", extensions=[search]), Heard()
    async with listening(proxy(partial(open_memory, server), passes=[search]), heard, era=era) as client:
        await client.ping()
        for size in (1, 1, 2):
            server.notify(grown, Grown(size))
        await heard.has(3)
    assert heard.all == [Grown(1), Grown(1), Grown(2)]


@pytest.mark.parametrize("declared", [None, {}, {"com.example/search": 7}])
async def test_legacy_client_without_the_extension_gets_no_extension_notification(
    declared: Any, autojump_clock: MockClock
) -> None:
    server = Server("s", extensions=[search])
    capabilities = {} if declared is None else {"extensions": declared}
    async with open_scripted_client(server, "2025-11-25", capabilities) as client:
        await wait_all_tasks_blocked()
        server.notify(grown, Grown(1))
        await client.expect_silence(1)


async def test_extension_notification_declared_only_for_modern_revisions_is_not_sent_to_legacy_clients(
    autojump_clock: MockClock,
) -> None:
    server = Server("s", extensions=[search])
    async with open_scripted_client(server, "2025-11-25", {"extensions": {search.name: {}}}) as client:
        await wait_all_tasks_blocked()
        server.notify(modern_only, Grown(1))
        server.notify(grown, Grown(2))
        await client.expect({"method": grown.name, "params": {"size": 2, "text": ""}})


@pytest.mark.parametrize(
    ("declared", "asked", "honoured"),
    [
        ({"com.example/search": {}}, {"com.example/search": True}, {"com.example/search": True}),
        ({"com.example/search": {}}, {"com.example/search": True, "com.example/x": True}, {"com.example/search": True}),
        ({"com.example/search": {}}, {"com.example/search": False}, {}),
        ({"com.example/search": {}}, {"com.example/search": "yes"}, {}),
        ({}, {"com.example/search": True}, {}),
        ({f"com.example/e{n}": {} for n in range(1000)}, {f"com.example/e{n}": True for n in range(1000)}, {}),
    ],
)
async def test_modern_client_gets_extension_notifications_only_on_the_listen_stream_that_requested_them(
    autojump_clock: MockClock, declared: Any, asked: Any, honoured: Any
) -> None:
    server = Server("s", extensions=[search])
    async with open_scripted_client(server, capabilities={"extensions": declared}) as client:
        stream = await client.request(LISTEN, {"notifications": asked}, id="mine")
        acknowledged = await client.expect({"method": "notifications/subscriptions/acknowledged", "params": ...})
        assert acknowledged["params"]["notifications"] == honoured
        server.notify(grown, Grown(1))
        if honoured:
            meta = {"io.modelcontextprotocol/subscriptionId": stream}
            await client.expect({"method": grown.name, "params": {"size": 1, "text": "", "_meta": meta}})
        await client.cancel(stream)
        await wait_all_tasks_blocked()
        server.notify(grown, Grown(2))
        await client.expect_silence(1)


async def test_server_queues_a_limited_number_of_extension_notifications_for_a_client_that_does_not_read(
    era: Era, autojump_clock: MockClock
) -> None:
    server = Server("s", extensions=[search], limits=Limits(high_water=1000))
    revision = "2026-07-28" if era == "modern" else "2025-11-25"
    async with open_scripted_client(server, revision, {"extensions": {search.name: {}}}) as client:
        if era == "modern":
            await client.request(LISTEN, {"notifications": {search.name: True}})
            await client.receive()
        await wait_all_tasks_blocked()
        for size in range(5000):
            server.notify(grown, Grown(size, "x" * 1000))
        await wait_all_tasks_blocked()
        sizes = [(await client.receive())["params"]["size"]]
        while len(sizes) < 10:
            sizes.append((await client.receive())["params"]["size"])
        assert sizes == list(range(10))
        count = 0
        while (await client.receive())["params"]["size"] < 5000:
            count += 1
            if count < 1000:
                server.notify(grown, Grown(5000, "last"))
        assert count < 200


def test_notify_method_of_a_server_rejects_notifications_that_belong_to_requests_or_to_clients() -> None:
    server = Server("s", extensions=[search])
    for row, words in ((of_request, "belongs to a request"), (from_client, "must be a notification from servers")):
        with pytest.raises(ValueError, match=words):
            server.notify(row, Grown(1))
    other = Extension("com.example/other").notification(grown.name, Grown)
    for stranger in (server, Server("plain")):
        with pytest.raises(ValueError, match="belongs to an extension that"):
            stranger.notify(other, Grown(1))


async def test_notification_of_mounted_server_is_not_sent_to_clients_of_outer_server() -> None:
    inner, outer, heard = Server("inner", extensions=[search]), Server("outer", extensions=[search]), Heard()
    outer.mount(inner, prefix="inner")
    async with listening(outer, heard):
        inner.notify(grown, Grown(1))
        outer.notify(grown, Grown(2))
        await heard.has(1)
        await wait_all_tasks_blocked()
    assert heard.all == [Grown(2)]
