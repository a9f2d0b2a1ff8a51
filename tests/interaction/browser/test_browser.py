"""A browser's own WebSocket is a client: a page without any library drives a server (WSK-01, WSK-06)."""

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
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import CancelCause, RequestContext, Server, serve_websocket

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAGE = Path(__file__).with_name("page.html").read_bytes()
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

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: no chromium or chromium-browser on PATH")


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


async def answer_http(reports: Heard, stream: trio.SocketStream) -> None:
    """One request: the page, or a report of it."""
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
        status, content = ("200 OK", PAGE) if head.startswith(b"GET / ") else ("204 No Content", b"")
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


async def test_a_page_calls_a_tool_shows_its_progress_and_cancels_another(tmp_path: Path) -> None:
    server, reports = Server("for pages"), Heard()
    ended, causes = trio.Event(), []

    @server.tool
    async def count(ctx: RequestContext) -> str:
        for number in (1, 2, 3):
            ctx.progress(number, total=3, message=f"step {number}")
            await reports.wait_for(progress=f"{number} of 3: step {number}")  # the page shows it while we run
        return "counted"

    @server.tool
    async def hang(ctx: RequestContext) -> None:
        ctx.progress(1)
        try:
            await trio.sleep_forever()
        finally:
            causes.append(ctx.cancellation)
            ended.set()

    @server.tool
    async def after_hang() -> str:
        await ended.wait()
        return "still here"

    with trio.fail_after(PATIENCE):
        async with serving(trio.serve_tcp, partial(answer_http, reports), 0, host="127.0.0.1") as pages:
            origin = f"http://127.0.0.1:{port_of(pages)}"
            async with (
                serving(serve_websocket, server, port=0, origins=[origin]) as listeners,
                browsing(f"{origin}/#{port_of(listeners)}", tmp_path),
            ):
                seen = await reports.wait_for(last=True)

    assert seen["subprotocol"] == "mcp"
    assert seen["server"] == "for pages"
    assert seen["progress"].split("\n") == ["1 of 3: step 1", "2 of 3: step 2", "3 of 3: step 3"]
    assert seen["result"] == "counted"
    assert [(why.cause, why.reason) for why in causes] == [(CancelCause.PEER, "the user left: ✋")]
    assert seen["after"] == "still here"
    assert (seen["cancelled"], seen["replied"]) == (3, [1, 2, 4])
    assert (seen["code"], seen["wasClean"]) == (1000, True)


async def test_the_same_page_from_a_foreign_origin_cannot_connect(tmp_path: Path) -> None:
    reports = Heard()
    with trio.fail_after(PATIENCE):
        async with serving(trio.serve_tcp, partial(answer_http, reports), 0, host="127.0.0.1") as pages:
            page = port_of(pages)
            origins = [f"http://127.0.0.1:{page}"]
            async with serving(serve_websocket, Server("for pages"), port=0, origins=origins) as listeners:
                port = port_of(listeners)
                async with browsing(f"http://localhost:{page}/#{port}", tmp_path / "foreign"):
                    seen = await reports.wait_for(last=True)
                async with browsing(f"http://127.0.0.1:{page}/#{port}", tmp_path / "own"):
                    await reports.wait_for(opened=True)  # it was its name that kept it out
    assert (seen["opened"], seen["code"]) == (False, 1006)
