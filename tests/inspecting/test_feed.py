"""The event feed of the web inspector: bounded, and merged for slow readers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.patience import LONG

from trio_mcp.inspecting.runs import MOST_PAGES, PageFeed
from trio_mcp.transports.sse import KEEP_ALIVE


def told(events: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in events.decode().splitlines() if line.startswith("data: ")]


def feed(*things: dict[str, Any]) -> PageFeed:
    return PageFeed(lambda: [((each["what"], 0), each) for each in things])


async def test_inspector_page_receives_the_full_state_first(autojump_clock: trio.testing.MockClock) -> None:
    with feed({"what": "server"}).opened() as page:
        assert told(await page.next_events()) == [{"what": "everything"}, {"what": "server"}]


async def test_inspector_page_that_has_not_read_an_update_gets_only_the_latest_update(
    autojump_clock: trio.testing.MockClock,
) -> None:
    news = feed()
    with news.opened() as page:
        await page.next_events()
        for progress in range(10_000):
            news.publish("run", {"what": "run", "progress": progress})
        assert told(await page.next_events()) == [{"what": "run", "progress": 9_999}]


async def test_inspector_page_that_reads_too_slowly_receives_the_full_state_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    news = feed({"what": "server"})
    with news.opened() as page:
        await page.next_events()
        for number in range(100_000):
            news.publish(("log", number), {"what": "log", "n": number})
        found = told(await page.next_events())
        assert found[:2] == [{"what": "everything"}, {"what": "server"}]
        count = len(found)
        with trio.move_on_after(LONG):
            while (events := await page.next_events()) != KEEP_ALIVE:
                count += len(told(events))
        assert count <= 2002


async def test_inspector_sends_keep_alives_to_a_page_without_events(autojump_clock: trio.testing.MockClock) -> None:
    with feed().opened() as page:
        await page.next_events()
        begun = trio.current_time()
        assert await page.next_events() == KEEP_ALIVE
        assert trio.current_time() - begun == pytest.approx(15)


async def test_inspector_page_that_waits_for_events_receives_a_new_event(
    autojump_clock: trio.testing.MockClock,
) -> None:
    news = feed()
    with news.opened() as page:
        await page.next_events()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def tell() -> None:
                await trio.sleep(1)
                news.publish("log", {"what": "log"})

            assert told(await page.next_events()) == [{"what": "log"}]


def test_inspector_limits_the_number_of_open_pages() -> None:
    from contextlib import ExitStack

    news = feed()
    with ExitStack() as stack:
        for _ in range(MOST_PAGES):
            assert not news.is_full
            stack.enter_context(news.opened())
        assert news.is_full
    assert not news.is_full
