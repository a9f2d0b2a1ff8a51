"""assert_replays: a recording is a test."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

from ..connecting.memory import open_server
from ..connecting.stdio import Command, open_process
from ..recording.entries import read_recording
from ..recording.replay import replay
from ..server.servable import Servable
from ..transports.memory import memory_channel_pair


async def assert_replays(
    recording: str | os.PathLike[str], server: Servable | Command, *, patience: float = 10.0
) -> None:
    """Send the messages of the client of ``recording`` to ``server``, which runs in this process, or is started as a
    child, and raise `AssertionError` for answers that differ: see `trio-mcp replay`.

        await assert_replays("calls.jsonl", server)
    """
    recorded = read_recording(recording)
    async with AsyncExitStack() as stack:
        if isinstance(server, Command):
            transport = await stack.enter_async_context(open_process(server))
        else:
            transport, theirs = memory_channel_pair()
            await stack.enter_async_context(open_server(server, theirs))
        differences = await replay(recorded, transport, patience=patience)
    assert not differences, "\n".join(map(str, differences))
