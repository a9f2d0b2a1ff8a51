"""A browser's own WebSocket is a client: a page without any library drives a server (WSK-01, WSK-06)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio
from tests.interaction.browser.chromium import Heard, answer_http, browsing, needs_chromium
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import CancelCause, RequestContext, Server, serve_websocket

PAGE = Path(__file__).with_name("page.html").read_bytes()

pytestmark = needs_chromium


async def test_browser_page_can_call_a_tool_and_show_its_progress_and_cancel_the_call_over_websocket(
    tmp_path: Path,
) -> None:
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
        async with serving(trio.serve_tcp, partial(answer_http, PAGE, reports), 0, host="127.0.0.1") as pages:
            origin = f"http://127.0.0.1:{port_of(pages)}"
            async with (
                serving(serve_websocket, server, port=0, allowed_origins=[origin]) as listeners,
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


async def test_browser_page_from_a_disallowed_origin_cannot_open_a_websocket(tmp_path: Path) -> None:
    reports = Heard()
    with trio.fail_after(PATIENCE):
        async with serving(trio.serve_tcp, partial(answer_http, PAGE, reports), 0, host="127.0.0.1") as pages:
            page = port_of(pages)
            origins = [f"http://127.0.0.1:{page}"]
            async with serving(serve_websocket, Server("for pages"), port=0, allowed_origins=origins) as listeners:
                port = port_of(listeners)
                async with browsing(f"http://localhost:{page}/#{port}", tmp_path / "foreign"):
                    seen = await reports.wait_for(last=True)
                async with browsing(f"http://127.0.0.1:{page}/#{port}", tmp_path / "own"):
                    await reports.wait_for(opened=True)  # it was its name that kept it out
    assert (seen["opened"], seen["code"]) == (False, 1006)
