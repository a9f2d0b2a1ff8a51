"""open_stdio: a client and the server it starts; open_process: that server without the client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Unpack

import trio

from ..client.client import Client
from ..client.opening import open_client
from ..client.options import ClientOptions
from ..runtime.limits import DEFAULT_LIMITS, Limits
from ..runtime.nurseries import open_service_nursery
from ..transports.last_lines import TextSink
from ..transports.process import ProcessChannel, start_process

__all__ = ["open_process", "open_stdio"]


@asynccontextmanager
async def open_stdio(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    stderr: TextSink | None = None,
    close_grace: float = 2.0,
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[Client]:
    """Start the server ``command`` as a child process, connect to it over stdio, and own both.

    The child gets ``env`` on top of a short list of harmless variables (PATH, HOME, LANG, …), or of all of
    ours with ``inherit_env``. Its standard error is always read; ``stderr`` gets a copy, and its last lines
    are part of `ConnectionLost`. ``options`` are those of `ClientSettings`.

    Left in whatever way, the block closes the child's input and waits up to ``close_grace`` seconds for it to
    exit, then sends SIGTERM to its whole process group and waits once more, then SIGKILL. The child is
    reaped, and no process of its group runs on. Exceptions of the body leave as they are, never as a group.

    Raises `ConnectionLost` when the command cannot be started or the server exits, and as `open_client`.
    """
    async with (
        open_process(
            command,
            env=env,
            inherit_env=inherit_env,
            cwd=cwd,
            stderr=stderr,
            close_grace=close_grace,
            limits=options.get("limits", DEFAULT_LIMITS),
        ) as channel,
        open_client(channel, **options) as client,
    ):
        yield client


@asynccontextmanager
async def open_process(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    stderr: TextSink | None = None,
    close_grace: float = 2.0,
    limits: Limits = DEFAULT_LIMITS,
) -> AsyncGenerator[ProcessChannel]:
    """The bare messages of a child process, which is started and ended as `open_stdio` says.

    Raises `ConnectionLost` when the command cannot be started.
    """
    async with open_service_nursery("the connection was closed") as nursery:
        channel = await start_process(
            command,
            env=env,
            inherit_env=inherit_env,
            cwd=cwd,
            stderr=stderr,
            max_message_bytes=limits.max_message_bytes,
        )
        nursery.start_soon(channel.drain_stderr)
        try:
            yield channel
        finally:
            # Two waits of the ladder and a moment more; SIGKILL cannot be refused.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * close_grace + 5):
                await channel.end(close_grace)
