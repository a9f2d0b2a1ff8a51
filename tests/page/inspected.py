"""Pages of ``trio-mcp inspect --web`` that are open in Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.page.devtools import Browser, Page

from trio_mcp import InMemory, Server
from trio_mcp.inspecting.application import serve_page
from trio_mcp.inspecting.inspection import Inspection

__all__ = ["chosen", "inspected"]


@asynccontextmanager
async def inspected(browser: Browser, server: Any, era: Any = "auto", **look: Any) -> AsyncIterator[Page]:
    """The page of ``server``, or of a target. In the end nothing has violated its policy, and no script has failed."""
    target = InMemory(server) if isinstance(server, Server) else server
    async with trio.open_nursery() as nursery:
        inspection = Inspection(target, era=era)
        await nursery.start(inspection.run)
        page = await browser.open(await nursery.start(serve_page, inspection), **look)
        yield page
        assert await page.seen() == []
        nursery.cancel_scope.cancel(reason="the test is over")


async def chosen(page: Page, name: str) -> None:
    await page.click(f'.offer[data-name="{name}"]')
    await page.shows("#detail h2", name)
