"""open_stdio: start a server and connect to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Unpack

from ..client.client import Client
from ..client.options import ClientOptions
from ..concurrency.entering import entered
from ..transports.last_lines import TextSink
from .command import Command


@entered("client")
def open_stdio(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    stderr: TextSink | None = None,
    close_grace: float = 2.0,
    **options: Unpack[ClientOptions],
) -> AbstractAsyncContextManager[Client]:
    """Start the server ``command`` as a child process, connect to it over stdio, and own both.

    The child gets ``env`` on top of a short list of harmless variables (PATH, HOME, LANG, …), or of all of ours with
    ``inherit_env``. The child's standard error is always read; ``stderr`` gets a copy, and the last lines are part of
    `ConnectionLost`. ``options`` are those of `ClientSettings`.

    However left, the block closes the child's input and waits up to ``close_grace`` seconds for the child to exit, then
    sends SIGTERM to its whole process group and waits once more, then SIGKILL. The child is reaped, and no process of
    its group runs on. An interrupt (Ctrl-C) during the wait sends SIGKILL at once. Exceptions of the body leave
    unchanged, never as a group.

    When the child has exited, but a process started by the child holds its output open, a ping is sent after 5 s of
    silence, and the connection is lost after 5 s more without any message. A server that has become a daemon and goes
    on talking is not lost.

    Raises `ConnectionLost` when the command cannot be started or the server exits, `BadTarget` for a command that no
    system could start, an empty list or a word with NUL for example, and otherwise as `open_client`.
    """
    child = Command(command, env=env or {}, inherit_env=inherit_env, cwd=cwd, stderr=stderr, close_grace=close_grace)
    return child.open(**options)
