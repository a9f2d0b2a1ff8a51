"""assert_replays: use a recording as a regression test, of a server or of a client."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Unpack

import trio

from ..client.client import Client
from ..client.opening import open_client
from ..client.options import ClientOptions
from ..concurrency.misuse import check_keywords
from ..concurrency.nurseries import open_service_nursery
from ..connecting.memory import open_server
from ..connecting.stdio import Command
from ..connecting.targets import Address, open_messages
from ..recording.comparing import Difference
from ..recording.entries import BadRecording, Recorded, read_recording
from ..recording.replay import opening_of, replay
from ..server.servable import Servable
from ..transports.lines import memory_transports


async def assert_replays(
    recording: str | os.PathLike[str],
    server: Servable | Command | Address | Callable[[Client], Awaitable[object]],
    *,
    patience: float = 10.0,
    **options: Unpack[ClientOptions],
) -> None:
    """Replay one side of ``recording`` to a server or client, and assert that it answers with the recorded messages.

        await assert_replays("calls.jsonl", server)

    A server gets the messages of the recorded client. It runs in this process, is started as a child process, or
    listens at an address. A function is a client, and gets the messages of the recorded server. It is called with a
    `Client`, which is opened with ``options`` and in the revision of the recording::

        async def use(client: Client) -> None:
            await client.call_tool("now")

        await assert_replays("calls.jsonl", use)

    A message can be up to ``patience`` seconds late. ``trio-mcp replay`` does the same from a shell.

    Raises:
        AssertionError: messages differ from the recording; the text lists them.
        BadRecording: the recording is invalid.
        OSError: the recording can't be read.
    """
    check_keywords(assert_replays, options)
    recorded = read_recording(recording)
    if isinstance(server, Command | Address):
        async with open_messages(server, opening_of(recorded).modern) as transport:
            differences = await replay(recorded, transport, patience=patience)
    elif callable(server):
        differences = await _played_to_client(recorded, server, patience, options)
    else:
        ours, theirs = memory_transports()
        async with open_server(server, theirs):
            differences = await replay(recorded, ours, patience=patience)
    assert not differences, "\n".join(map(str, differences))


async def _played_to_client(
    recorded: Recorded, use: Callable[[Client], Awaitable[object]], patience: float, options: ClientOptions
) -> list[Difference]:
    opening = opening_of(recorded)
    by_recording: ClientOptions = {"era": "modern" if opening.legacy is None else "legacy"}
    if opening.legacy is not None:
        by_recording["revision"] = opening.legacy
    ours, theirs = memory_transports()
    differences: list[Difference] = []
    failures: list[Exception] = []
    over = trio.Event()

    async def play() -> None:
        try:
            differences.extend(await replay(recorded, theirs, side="server", patience=patience))
        except (BadRecording, OSError) as error:
            failures.append(error)
        over.set()

    try:
        async with open_service_nursery("the client was closed") as nursery:
            nursery.start_soon(play)
            async with open_client(ours, **{**by_recording, **options}) as client:
                await use(client)
            await over.wait()
    finally:
        if failures:  # raise the real cause, because the client only reports that its connection ended
            raise failures[0]
    return differences
