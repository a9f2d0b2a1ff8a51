"""authorization_server: the server in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from ....concurrency.contexts import asynccontextmanager
from ....concurrency.nurseries import open_service_nursery

_START: Final = 30.0
_END: Final = 5.0
_TAIL: Final = 2000
"""Bytes of standard error that are kept, for when the server does not start."""


class DoesNotStart(Exception):
    """The authorization server ended, or kept silent, instead of listening."""


@attrs.define
class AuthorizationServer:
    """A running authorization server, and its own account of what it has done."""

    issuer: str
    pid: int
    done: Counter[str] = attrs.field(factory=Counter[str])
    """How often the server did what: ``registration``, ``authorization``, ``revocation``, and each kind of grant."""
    refused: list[str] = attrs.field(factory=list[str])
    """Errors of OAuth that the server has answered with, each with its endpoint."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    """The server has ended, and its account is complete."""
    _news: trio.Event = attrs.field(factory=trio.Event)

    async def has_done(self, what: str, times: int = 1) -> None:
        """Wait until the server did ``what`` at least so many ``times``."""
        while self.done[what] < times:
            await self._news.wait()

    def note(self, line: bytes) -> None:
        """Note a line of the server's account."""
        event = json.loads(line)
        if "done" in event:
            self.done[event["done"]] += 1
        else:
            self.refused.append(f"{event['refused']}: {event['error']}")
        self._news.set()
        self._news = trio.Event()


@asynccontextmanager
async def authorization_server(folder: Path, **settings: Any) -> AsyncGenerator[AuthorizationServer]:
    """Run the server that is installed in ``folder``, with ``settings`` as server.js names them, and yield it once it
    listens. The process has ended, and its account is complete, when the block is left. Raises `DoesNotStart`."""
    process = await trio.lowlevel.open_process(
        ["node", str(folder / "server.js")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us, and the end of standard input for the server
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    tail = bytearray()
    try:
        async with open_service_nursery("the authorization server has ended") as nursery:
            nursery.start_soon(_keep_tail, process.stderr, tail)
            account = _Lines(process.stdout)
            try:
                with trio.fail_after(_START):
                    await process.stdin.send_all(json.dumps(settings).encode() + b"\n")
                    issuer = (await account.next()).decode()
            except (trio.TooSlowError, trio.BrokenResourceError, EOFError):
                told = tail.decode(errors="replace").strip() or "not a word"
                raise DoesNotStart(f"the authorization server did not start: {told}") from None
            server = AuthorizationServer(issuer, process.pid)
            nursery.start_soon(_read_account, account, server)
            try:
                yield server
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _END):
                    await process.stdin.aclose()
                    await server.ended.wait()
    finally:
        process.kill()  # without effect on one that has ended
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END):
            await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _END):
                await stream.aclose()


async def _read_account(account: _Lines, server: AuthorizationServer) -> None:
    try:
        while True:
            server.note(await account.next())
    except EOFError:
        server.ended.set()


async def _keep_tail(stderr: trio.abc.ReceiveStream, tail: bytearray) -> None:
    async for data in stderr:
        tail += data
        del tail[:-_TAIL]


class _Lines:
    """The lines of a stream, without their ends."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def next(self) -> bytes:
        """Wait for the next line. Raises `EOFError` at the end."""
        while b"\n" not in self._buffer:
            if not (data := await self._stream.receive_some()):
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
