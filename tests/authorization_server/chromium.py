"""A user at Chromium who presses a button with the mouse, by the DevTools protocol."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from tests.interaction.browser.chromium import CHROMIUM, OPTIONS
from trio_websocket import WebSocketConnection, open_websocket_url

__all__ = ["Chromium", "chromium"]


@attrs.define
class Chromium:
    """A browser without a window."""

    _connection: WebSocketConnection
    _session: dict[str, str] = attrs.field(factory=dict)
    _ids: Any = attrs.field(factory=lambda: itertools.count(1))
    _events: list[str] = attrs.field(factory=list)

    async def press(self, url: str, button: str = "allow") -> None:
        """Go to ``url`` in a new tab, and click on ``button`` once the page is there."""
        self._session = {}
        target = (await self._ask("Target.createTarget", url="about:blank"))["targetId"]
        self._session = await self._ask("Target.attachToTarget", targetId=target, flatten=True)
        await self._ask("Page.enable")
        await self._arrive(self._ask("Page.navigate", url=url))
        document = await self._ask("DOM.getDocument")
        node = await self._ask("DOM.querySelector", nodeId=document["root"]["nodeId"], selector=f"#{button}")
        left, top, _, _, right, bottom, *_ = (await self._ask("DOM.getBoxModel", nodeId=node["nodeId"]))["model"][
            "border"
        ]
        mouse = {"x": (left + right) / 2, "y": (top + bottom) / 2, "button": "left", "clickCount": 1}
        await self._ask("Input.dispatchMouseEvent", type="mousePressed", **mouse)
        await self._ask("Input.dispatchMouseEvent", type="mouseReleased", **mouse)

    async def _arrive(self, going: Any) -> None:
        self._events.clear()
        await going
        while "Page.loadEventFired" not in self._events:
            await self._hear()

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        await self._connection.send_message(
            json.dumps({"id": number, "method": method, "params": params, **self._session})
        )
        while (heard := await self._hear()).get("id") != number:
            pass
        assert "error" not in heard, heard
        return heard["result"]

    async def _hear(self) -> dict[str, Any]:
        message = json.loads(await self._connection.get_message())
        self._events.append(message.get("method", ""))
        return message


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Chromium]:
    """Chromium without a page. It and all its processes are gone afterwards."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = await trio.lowlevel.open_process(command, **pipes, start_new_session=True)
    assert process.stderr is not None
    try:
        told = ""
        while (found := re.search(r"DevTools listening on (ws://\S+)\s", told)) is None:
            data = await process.stderr.receive_some()
            assert data, told
            told += data.decode(errors="replace")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_skip, process.stderr)
            async with open_websocket_url(found[1]) as connection:
                yield Chromium(connection)
            nursery.cancel_scope.cancel()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stderr.aclose()


async def _skip(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass
