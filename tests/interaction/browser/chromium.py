"""Chromium, without a window, at a page that reports what happens there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
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


async def answer_http(page: bytes, reports: Heard, stream: trio.SocketStream) -> None:
    """One request: for the page, or a report of it."""
    request, missing = b"", 1
    with contextlib.suppress(trio.BrokenResourceError):  # the browser was ended
        while missing > 0:
            if not (data := await stream.receive_some()):
                return
            request += data
            head, end, body = request.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            missing = int(length[1] if length else 0) - len(body) if end else 1
        if head.startswith(b"POST /report "):
            reports.add(json.loads(body))
        status, content = ("200 OK", page) if head.startswith(b"GET / ") else ("204 No Content", b"")
        headers = f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n\r\n"
        await stream.send_all(headers.encode() + content)


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
