"""A web page calls a tool of another origin over Streamable HTTP, shows progress and cancels (docs/examples)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio
from tests.interaction.browser.chromium import Heard, answer_http, browsing, needs_chromium
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import CancelCause, RequestContext, Server, serve_http

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "browser.html"
USER = Path(__file__).with_name("http_user.html")
"""What a user of the page does, and sees."""

pytestmark = needs_chromium


async def test_browser_page_of_another_origin_can_call_a_tool_and_show_progress_and_cancel_over_http(
    tmp_path: Path,
) -> None:
    server, reports = Server("for pages"), Heard()
    ended, causes = trio.Event(), []

    @server.tool
    async def count(upto: int, ctx: RequestContext) -> str:
        for number in range(1, upto + 1):
            ctx.progress(number, total=upto, message=f"step {number}")
            await reports.wait_for(progress=f"{number} of {upto}: step {number}")  # the page shows it while we run
        return "counted"

    @server.tool
    async def hang(ctx: RequestContext) -> None:
        ctx.progress(1, total=2, message="hanging")
        try:
            await trio.sleep_forever()
        finally:
            causes.append(ctx.cancellation)
            ended.set()

    @server.tool
    async def after_hang() -> str:
        await ended.wait()
        return "still here"

    seen = await browse(server, reports, tmp_path, "127.0.0.1")
    assert seen["progress"].split("\n") == ["1 of 3: step 1", "2 of 3: step 2", "3 of 3: step 3"]
    assert seen["result"] == "counted"
    assert seen["cancelled"] == "cancelled"
    assert [why.cause for why in causes] == [CancelCause.DISCONNECT]
    assert seen["after"] == "still here"
    assert seen["unknown"].startswith("failed: Unknown tool")


async def test_browser_page_of_disallowed_origin_cannot_call_tools_or_read_responses(tmp_path: Path) -> None:
    called: list[int] = []
    server = Server("for pages")

    @server.tool
    async def count(upto: int) -> str:
        called.append(upto)
        return "counted"

    seen = await browse(server, Heard(), tmp_path, "localhost")
    assert seen["result"] == "failed: Failed to fetch"
    assert called == []


async def browse(server: Server, reports: Heard, profile: Path, page_host: str) -> dict[str, str]:
    """Have a user at the page, whose origin is allowed under the host 127.0.0.1. What the user saw in the end."""
    page = EXAMPLE.read_bytes() + USER.read_bytes()
    with trio.fail_after(PATIENCE):
        async with serving(trio.serve_tcp, partial(answer_http, page, reports), 0, host="127.0.0.1") as pages:
            origins = [f"http://127.0.0.1:{port_of(pages)}"]
            async with (
                serving(serve_http, server, port=0, allowed_origins=origins) as listeners,
                browsing(f"http://{page_host}:{port_of(pages)}/#{port_of(listeners)}", profile),
            ):
                return await reports.wait_for(last=True)
