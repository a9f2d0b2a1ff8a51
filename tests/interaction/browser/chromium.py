"""Chromium, without a window, at a page that reports what happens there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

__all__ = ["Heard", "answer_http", "browsing", "needs_chromium"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium or chromium-browser on PATH")


@attrs.define
class Heard:
    """What was said until now; who waits for something is woken by each item."""

    items: list[Any] = attrs.field(factory=list[Any])
    _more: trio.Event = attrs.field(factory=trio.Event)

    def add(self, item: Any) -> None:
        self.items.append(item)
        self._more.set()
        self._more = trio.Event()

    async def wait_for(self, **part: Any) -> dict[str, Any]:
        """The first item that has ``part`` in it."""
        while True:
            for item in self.items:
                if part.items() <= item.items():
                    return item
            await self._more.wait()


Answer = Callable[[str, Any], Awaitable[tuple[dict[str, str], bytes]]]
"""Takes a path, and the JSON of a POST or `None`, and returns headers and content."""


async def no_more(path: str, given: Any) -> tuple[dict[str, str], bytes]:
    return {}, b""


async def answer_http(page: bytes, reports: Heard, stream: trio.SocketStream, more: Answer = no_more) -> None:
    """One request: for the page, or a report of it, or, by ``more``, for anything else."""
    request, missing = b"", 1
    with contextlib.suppress(trio.BrokenResourceError):  # the browser was ended
        while missing > 0:
            if not (data := await stream.receive_some()):
                return
            request += data
            head, end, body = request.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            missing = int(length[1] if length else 0) - len(body) if end else 1
        path = head.split(b" ", 2)[1].decode()
        given = json.loads(body) if body else None
        if path == "/report":
            reports.add(given)
        added, content = ({}, page) if path == "/" else await more(path, given)
        headers = {"Content-Type": "text/html; charset=utf-8", "Connection": "close", **added}
        lines = [f"HTTP/1.1 {'200 OK' if content else '204 No Content'}", *map(": ".join, headers.items()), "", ""]
        await stream.send_all("\r\n".join(lines).encode() + content)


@asynccontextmanager
async def browsing(url: str, profile: Path) -> AsyncIterator[None]:
    """Chromium at ``url``. It and all its processes are gone afterwards."""
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", url]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = await trio.lowlevel.open_process(command, **quiet, start_new_session=True)  # type: ignore[call-overload]
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()
