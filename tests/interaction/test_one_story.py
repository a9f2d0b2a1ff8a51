"""One server file without any code about revisions behaves the same for a legacy and a modern client."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.story_server import counts, server
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import Client, Limits, PeerError, open_http, open_stdio, open_websocket, serve_http, serve_websocket
from trio_mcp.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitURLParams,
    Root,
    TextContent,
)

SERVER = Path(__file__).parent / "story_server.py"
BRIEF = Limits(retry_timeout=1)
"""For modern clients over HTTP, who cannot say that they will not come back: they have nothing open to close."""


class Host:
    """A client's side of the story: all that its handlers and callbacks saw, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.hanging = trio.Event()
        self.left = trio.Event()

    async def sampling(self, params: CreateMessageParams) -> CreateMessageResult:
        text = params.messages[0].content.text  # type: ignore[union-attr]
        if text == "never answered":
            self.hanging.set()
            try:
                await trio.sleep_forever()
            finally:
                self.left.set()
        self.seen.append(("sampling", text, params.max_tokens))
        return CreateMessageResult("assistant", TextContent("so be it"), "oracle")

    async def elicitation(self, params: ElicitFormParams) -> ElicitResult:
        self.seen.append(("form", params.message, params.requested_schema))
        return ElicitResult("accept", {"street": "Elm"})

    async def elicitation_url(self, params: ElicitURLParams) -> ElicitResult:
        self.seen.append(("url", params.message, params.url))
        return ElicitResult("decline")

    async def roots(self) -> list[Root]:
        self.seen.append("roots")
        return [Root("file:///home", "home"), Root("file:///work")]

    def options(self, era: str) -> dict[str, Any]:
        return {
            "era": era,
            "sampling": self.sampling,
            "elicitation": self.elicitation,
            "elicitation_url": self.elicitation_url,
            "roots": self.roots,
            "on_log": lambda log: self.seen.append((log.level, log.data)),
        }


@asynccontextmanager
async def stdio(**options: Any) -> AsyncIterator[Client]:
    root = Path(__file__).parents[2]
    async with open_stdio([sys.executable, str(SERVER)], env={"PYTHONPATH": str(root)}, **options) as client:
        yield client


@asynccontextmanager
async def websocket(**options: Any) -> AsyncIterator[Client]:
    counts.clear()
    async with (
        serving(partial(serve_websocket, server, port=0)) as listeners,
        open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp", **options) as client,
    ):
        yield client


@asynccontextmanager
async def http(**options: Any) -> AsyncIterator[Client]:
    counts.clear()
    async with (
        serving(partial(serve_http, server, port=0, limits=BRIEF)) as listeners,
        open_http(f"http://127.0.0.1:{port_of(listeners)}/mcp", **options) as client,
    ):
        yield client


async def story(connect: Any, era: str) -> list[Any]:
    """All that a host sees of the server, call by call; what several tasks asked at once in order of its words."""
    host, told = Host(), list[Any]()

    async def chapter(name: str, call: Any) -> None:
        host.seen.clear()
        progress: list[Any] = []
        try:
            end: Any = await call(progress)
        except PeerError as error:
            end = (error.code, error.message)
        # How many reports there are is a matter of time: at most one per interval and round.
        told.append((name, end, progress[-1:], sorted(map(repr, host.seen))))

    async def tool(progress: list[Any], name: str, **arguments: Any) -> Any:
        result = await client.call_tool(name, arguments, on_progress=progress.append)
        return result.text, result.structured_content, result.is_error

    async def leave(_: list[Any]) -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.call_tool, "hang"))
            await host.hanging.wait()
            nursery.cancel_scope.cancel(reason="the user closed the window")
        await host.left.wait()
        return True

    def read(call: Awaitable[Any], name: str) -> Any:
        async def run(_: list[Any]) -> Any:
            return getattr(await call, name)

        return run

    async with connect(**host.options(era)) as client:
        await client.set_log_level("info")
        for name, arguments in (
            ("order", {"item": "tea"}),
            ("pay", {}),
            ("returning", {}),
            ("greet", {}),
            ("order", {"item": 7}),
            ("unknown", {}),
        ):
            await chapter(name, partial(tool, name=name, **arguments))
        await chapter("leave", leave)
        # Of results, what the handler gave: only modern ones say who the server is, and how long they keep.
        await chapter("prompt", read(client.get_prompt("hello"), "messages"))
        await chapter("resource", read(client.read_resource("story:///home"), "contents"))
        ended: dict[str, int] = {}
        while "hang ended" not in ended:  # a server of its own notices the cancel in its own time
            ended = (await client.call_tool("counts")).structured_content  # type: ignore[assignment]
        told.append(sorted(ended.items()))
    return told


@pytest.mark.parametrize("connect", [stdio, websocket, http])
async def test_server_gives_equal_results_to_a_legacy_and_a_modern_client(connect: Any) -> None:
    with trio.fail_after(PATIENCE):
        legacy, modern = await story(connect, "legacy"), await story(connect, "modern")
    assert modern == legacy
    for name in ("hang", "order", "pay"):
        assert (f"{name} begun", 1) in modern[-1]
        assert (f"{name} ended", 1) in modern[-1]
    assert modern[0][1][0] == "tea to Elm 1, oracle, 2 roots"
    assert [one.progress for one in modern[0][2]] == [3]
