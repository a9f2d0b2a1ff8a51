"""A recorded run replays without differences: over each transport and revision, for client and server."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.ports import url_on_socket
from tests.recording.scenes import User, made

from trio_mcp import (
    Address,
    Client,
    Command,
    Server,
    open_memory,
    serve_http,
    serve_tcp,
    serve_unix,
    serve_websocket,
)
from trio_mcp.testing import assert_replays

REVISIONS = pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", "2026-07-28"])
SERVER = str(Path(__file__).with_name("scenes.py"))


def options_in(revision: str, user: User) -> dict[str, Any]:
    if revision == "2026-07-28":
        return {**user.options(), "era": "modern"}
    # There is no elicitation in the oldest revision.
    return {**user.options(asks=revision != "2024-11-05"), "era": "legacy", "revision": revision}


@asynccontextmanager
async def serving(way: str, server: Server, folder: Path) -> AsyncIterator[Address | Command]:
    """Serve over ``way``, and record to ``server.jsonl``."""
    record = folder / "server.jsonl"
    serve: Any
    if way == "stdio":
        yield Command([sys.executable, SERVER], inherit_env=True)
        return
    sock = folder / "s"
    serve, words = {
        "tcp": (serve_tcp, ("127.0.0.1", 0)),
        "unix": (serve_unix, (sock,)),
        "websocket": (serve_websocket, ("127.0.0.1", 0)),
        "http": (serve_http, ("127.0.0.1", 0)),
        "http over unix": (lambda *given, **options: serve_http(*given, unix=sock, **options), ()),
    }[way]
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            lambda task_status: serve(server, *words, record=record, task_status=task_status)
        )
        port = listener.socket.getsockname()[1] if "unix" not in way else 0
        urls = {"tcp": f"tcp://127.0.0.1:{port}", "unix": f"unix://{sock}", "http over unix": url_on_socket(sock)}
        schemes = {"websocket": "ws", "http": "http"}
        yield Address(urls.get(way) or f"{schemes[way]}://127.0.0.1:{port}/mcp")
        nursery.cancel_scope.cancel(reason="done")


@REVISIONS
@pytest.mark.parametrize("way", ["memory", "stdio", "tcp", "unix", "websocket", "http", "http over unix"])
async def test_recording_can_be_replayed_against_the_server_and_against_the_client(
    tmp_path: Path, way: str, revision: str
) -> None:
    path, user = tmp_path / "client.jsonl", User()
    options = options_in(revision, user)
    if way == "memory":
        async with open_memory(made(), record=path, **options) as client:
            await user.use(client)
    else:
        async with serving(way, made(), tmp_path) as target:
            async with target.open(record=path, **options) as client:
                await user.use(client)
            await assert_replays(path, target)  # over the same transport
    await assert_replays(path, made())
    if way not in ("memory", "stdio"):
        await assert_replays(tmp_path / "server.jsonl", made())
    again = User()
    await assert_replays(path, again.use, **again.options(asks=revision != "2024-11-05"))


CHANGES = {
    "result": ({"greeting": "bye"}, r'greet .*"hello Ann" was recorded, and now there is "bye Ann"'),
    "log": ({"logs": "begun"}, r'notification notifications/message: params.data: "began" was recorded'),
    "one more log": ({"more_logs": 1}, r"the notification notifications/message: none was recorded"),
    "progress": (
        {"steps": 3},
        r"last progress of tools/call work .*: progress: 2 was recorded, and now there is 3",
    ),
    "no question": ({"asks": False}, r"elicitation/create|resultType"),
}


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("change", CHANGES)
async def test_replay_reports_a_change_of_the_server(tmp_path: Path, change: str, revision: str) -> None:
    path, user = tmp_path / "client.jsonl", User()
    async with open_memory(made(), record=path, **options_in(revision, user)) as client:
        await user.use(client)
    changed, words = CHANGES[change]
    with pytest.raises(AssertionError, match=words):
        await assert_replays(path, made(**changed), patience=1)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_replay_reports_a_change_of_the_client(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "client.jsonl"
    era: Any = "modern" if revision == "2026-07-28" else "legacy"
    async with open_memory(made(), record=path, era=era) as client:
        await client.call_tool("greet", {"name": "Ann"})
        await client.call_tool("greet", {"name": "Bea"})

    async def other(client: Client) -> None:
        await client.call_tool("greet", {"name": "Cid"})

    with pytest.raises(AssertionError) as caught:
        await assert_replays(path, other)
    first, second = str(caught.value).splitlines()
    assert first == 'the request tools/call: params.arguments.name: "Ann" was recorded, and now there is "Cid"'
    assert second.startswith("the request tools/call: ")
    assert second.endswith(" was recorded, and now there is none")


async def test_exception_in_a_client_function_that_is_replayed_propagates(tmp_path: Path) -> None:
    path = tmp_path / "client.jsonl"
    async with open_memory(made(), record=path) as client:
        await client.call_tool("greet", {"name": "Ann"})

    async def fails(client: Client) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await assert_replays(path, fails)
