"""A server in memory under inspection, as a page sees it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from tests.patience import PATIENCE

from trio_mcp import InMemory, Server
from trio_mcp.inspecting.inspection import Inspection

__all__ = ["Opened", "inspected"]


@attrs.define
class Opened:
    """An inspection, and what its one page was told."""

    inspection: Inspection
    told: list[dict[str, Any]] = attrs.field(factory=list)
    _more: trio.Event = attrs.field(factory=trio.Event)

    def hear(self, events: bytes) -> None:
        self.told += [json.loads(line[6:]) for line in events.decode().splitlines() if line.startswith("data: ")]
        self._more.set()
        self._more = trio.Event()

    async def until(self, test: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first thing told that ``test`` is true of."""
        while True:
            for thing in self.told:
                if test(thing):
                    return thing
            await self._more.wait()

    async def heard(self, what: str, **part: Any) -> dict[str, Any]:
        return await self.until(lambda thing: thing["what"] == what and part.items() <= thing.items())

    async def do(self, do: str, **asked: Any) -> Any:
        return await self.inspection.do({"do": do, **asked})

    async def start(self, kind: str, name: str, arguments: Any = None) -> int:
        return (await self.do("start", kind=kind, name=name, arguments=arguments))["run"]

    async def ended(self, run: int) -> dict[str, Any]:
        return await self.until(
            lambda thing: thing["what"] == "run" and thing["id"] == run and thing["seconds"] is not None
        )

    def result(self, run: int) -> Any:
        return json.loads(self.inspection.result(run))


@asynccontextmanager
async def inspected(server: Server | InMemory, era: Any = "auto") -> AsyncIterator[Opened]:
    """``server`` under inspection, with one page."""
    opened = Opened(Inspection(InMemory(server) if isinstance(server, Server) else server, era=era))

    async def read() -> None:
        with opened.inspection.feed.opened() as stream:
            while True:
                opened.hear(await stream.next_events())

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(opened.inspection.run)
            nursery.start_soon(read)
            yield opened
            nursery.cancel_scope.cancel(reason="the test is over")
