"""Tasks on the page of ``trio-mcp inspect --web`` in Chromium."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.interaction.browser.chromium import needs_chromium
from tests.page.devtools import Browser, Page
from tests.page.inspected import chosen, inspected

from trio_mcp import CancelCause, RequestContext, Server, TaskSettings

pytestmark = [needs_chromium, pytest.mark.parametrize("era", ["modern", "legacy"])]


class Digging:
    """A server whose tool ends when it may, and tells why it was cancelled."""

    def __init__(self) -> None:
        self.server = Server("garden", tasks=TaskSettings(poll_interval=0.05))
        self.may_end = trio.Event()
        self.ended = trio.Event()
        self.causes = list[Any]()

        @self.server.tool(task="optional")
        async def dig(ctx: RequestContext) -> str:
            if ctx.task is not None:
                await ctx.task.start()
            try:
                await self.may_end.wait()
            finally:
                self.causes.append(ctx.cancellation)
                self.ended.set()
            return "dug"


async def waited_for(page: Page) -> None:
    """Start the tool as a task, and begin to wait for the result."""
    await chosen(page, "dig")
    await page.click("#detail button", "Start as a task")
    await page.shows(".card .result", "The server runs this as the task")
    await page.click("#tabs button", "Tasks")
    await page.click(".offer", "working")
    await page.click("#detail button", "Wait for the result")
    await page.shows(".card h3", "Wait for task")


async def test_inspector_page_starts_a_task_and_shows_its_result(browser: Browser, era: str) -> None:
    digging = Digging()
    async with inspected(browser, digging.server, era) as page:
        await waited_for(page)
        digging.may_end.set()
        await page.shows(".card .text", "dug")
        await page.click("#detail button", "Look again")
        await page.shows("#detail .message", "completed")
        await page.click("#refresh")
        await page.shows(".offer[aria-current]", "completed")


async def test_task_cancelled_on_the_inspector_page_is_cancelled_in_the_server(browser: Browser, era: str) -> None:
    digging = Digging()
    async with inspected(browser, digging.server, era) as page:
        await waited_for(page)
        await page.click("#detail button", "Cancel the task")
        await digging.ended.wait()
        await page.shows("#detail .message", "cancelled")
        await page.shows(".card[data-status=failed] .bad")
    assert [cause.cause for cause in digging.causes] == [CancelCause.TASK]
