"""The real ``trio-mcp inspect --web``, in Chromium, for a server behind each kind of address and of command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.cli.commands import served_page
from tests.interaction.browser.chromium import needs_chromium
from tests.page.devtools import Browser
from tests.page.garden_server import garden_server
from tests.page.inspected import chosen
from tests.ports import url_on_socket

from trio_mcp import serve_http, serve_tcp, serve_unix, serve_websocket

pytestmark = needs_chromium

SERVER = Path(__file__).with_name("garden_server.py")


@asynccontextmanager
async def listening(serve: Any, url: Callable[[Any], str], fifo: Path) -> AsyncIterator[list[str]]:
    """The arguments of ``trio-mcp inspect`` for a server that ``serve`` serves in this process."""
    async with trio.open_nursery() as nursery:
        start = partial(serve, garden_server(fifo), handle_signals=False)
        (listener,) = await nursery.start(lambda task_status: start(task_status=task_status))
        yield [url(listener.socket.getsockname())]
        nursery.cancel_scope.cancel(reason="the test is over")


@asynccontextmanager
async def command(folder: Path, fifo: Path) -> AsyncIterator[list[str]]:
    yield ["--", sys.executable, str(SERVER), str(fifo)]


@asynccontextmanager
async def configured(folder: Path, fifo: Path) -> AsyncIterator[list[str]]:
    file, entry = folder / "mcp.json", {"command": sys.executable, "args": [str(SERVER), str(fifo)]}
    file.write_text(json.dumps({"mcpServers": {"garden": entry}}))
    yield ["garden", "--config", str(file)]


def on_port(serve: Any, url: str) -> Any:
    return lambda folder, fifo: listening(partial(serve, port=0), lambda name: url.format(name[1]), fifo)


def on_socket(serve: Any, option: str, url: Callable[[Path], str]) -> Any:
    return lambda folder, fifo: listening(
        partial(serve, **{option: folder / "socket"}), lambda name: url(Path(name)), fifo
    )


WIRES = {
    "websocket": on_port(serve_websocket, "ws://127.0.0.1:{}/mcp"),
    "tcp": on_port(serve_tcp, "tcp://127.0.0.1:{}"),
    "unix": on_socket(serve_unix, "path", "unix://{}".format),
    "http": on_port(serve_http, "http://127.0.0.1:{}/mcp"),
    "http+unix": on_socket(serve_http, "unix", url_on_socket),
    "command": command,
    "configured": configured,
}


def reason_over(wire: str, era: str) -> str:
    """The reason that the handler gets. In the modern era, a call over HTTP is cancelled by the end of its response."""
    has_no_place = wire.startswith("http") and era == "modern"
    return "the client closed the response" if has_no_place else "cancelled in the page"


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("wire", WIRES)
async def test_call_from_the_inspector_page_shows_progress_and_can_be_cancelled_with_a_reason(
    browser: Browser, wire: str, era: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    async with (
        trio.lowlevel.FdStream(os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK)) as ended,
        WIRES[wire](tmp_path, tmp_path / "fifo") as arguments,
        served_page("--era", era, *arguments) as (_, address),
    ):
        page = await browser.open(address)
        await page.shows("h1", "garden")
        await page.shows("#revision", era)
        # The process id of a server that the inspector has started, and the minutes and seconds since connecting.
        process = "process [0-9]+, " if wire in ("command", "configured") else ""
        await page.run(f"until(() => /^{process}[0-9]+:[0-9][0-9]$/.test(one('#place').textContent))")
        await chosen(page, "grow")
        await page.type("[name=plant]", "Rosa")
        await page.type("[name='pot.size']", "7")
        await page.run("one('select').value = [...one('select')].find((each) => each.text === 'green').value")
        await page.click("[name=water]")
        await page.click("#detail button.main")
        await page.shows(".news", "2 of 4: Rosa in 7 green, True")
        assert await page.run("[one('progress').value, one('progress').max]") == [2, 4]
        await page.click(".card button", "Cancel call")
        assert (await ended.receive_some()).decode() == f"{reason_over(wire, era)}\n"
        await page.shows(".card .status", "cancelled")
        assert await page.seen() == []
