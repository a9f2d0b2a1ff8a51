"""A RAW client: it starts a server as a child process and writes and reads exact bytes over its stdio.

It knows nothing of trio-mcp and nothing of trio: it is a script with a deadline on everything. Each line it
reads is checked to be one whole JSON-RPC message, so whatever else gets onto the wire fails the test.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .conversation import LATEST_LEGACY, LEGACY, MODERN, REVISIONS, Conversation, is_same
from .harness import BOUND, JOURNAL_VARIABLE, Journal

__all__ = ["FIXTURE", "LATEST_LEGACY", "LEGACY", "MODERN", "REVISIONS", "RawClient", "is_same", "serving"]

FIXTURE = Path(__file__).with_name("fixture_server.py")


class Wire:
    """Bytes to and from two descriptors of ours, which are made non-blocking and closed by it."""

    def __init__(self, to_server: int | None, from_server: int | None) -> None:
        self.to_server = to_server
        self.from_server = from_server
        for fd in {to_server, from_server} - {None}:
            os.set_blocking(fd, False)
        self.buffer = bytearray()
        self.at_end = False

    def write(self, data: bytes, *, bound: float = BOUND, reading: bool = True) -> None:
        """Write all of it, reading what comes meanwhile so that nobody waits for anybody in a circle."""
        assert self.to_server is not None, "the input of the server is closed"
        rest = memoryview(data)
        give_up = time.monotonic() + bound
        while rest:
            readers = [self.from_server] if reading and self.from_server is not None and not self.at_end else []
            readable, writable, _ = select.select(readers, [self.to_server], [], max(0, give_up - time.monotonic()))
            assert readable or writable, f"the server did not read {len(rest)} bytes within {bound} s"
            if readable:
                self._read_once(1 << 16)
            if writable:
                with suppress(BlockingIOError):
                    rest = rest[os.write(self.to_server, rest) :]

    def line(self, *, bound: float = BOUND, chunk: int = 1 << 16) -> bytes | None:
        """The next line without its newline, `None` at the end."""
        give_up = time.monotonic() + bound
        searched = 0
        while (end := self.buffer.find(b"\n", searched)) < 0:
            searched = len(self.buffer)
            if self.at_end:
                assert not self.buffer, f"the last line is not whole: {bytes(self.buffer[:200])!r}"
                return None
            assert self.from_server is not None
            ready, _, _ = select.select([self.from_server], [], [], max(0, give_up - time.monotonic()))
            assert ready, f"the server wrote no line within {bound} s"
            self._read_once(chunk)
        found = bytes(self.buffer[:end])
        del self.buffer[: end + 1]
        return found

    def peek(self, *, bound: float = BOUND) -> None:
        """Wait until something can be read, and leave it there."""
        assert select.select([self.from_server], [], [], bound)[0], f"the server wrote nothing within {bound} s"

    def _read_once(self, chunk: int) -> None:
        assert self.from_server is not None
        try:
            data = os.read(self.from_server, chunk)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose other side is gone
            data = b""
        if data:
            self.buffer += data
        else:
            self.at_end = True

    def close_input(self) -> None:
        """Let the server see the end of its input."""
        if self.to_server is not None:
            if stat.S_ISSOCK(os.fstat(self.to_server).st_mode):  # its other direction may still be open
                with suppress(OSError), socket.socket(fileno=os.dup(self.to_server)) as end:
                    end.shutdown(socket.SHUT_WR)
            os.close(self.to_server)
            self.to_server = None

    def close_output(self) -> None:
        """Read no more: the server's next write fails."""
        if self.from_server is not None:
            os.close(self.from_server)
            self.from_server = None
            self.at_end = True

    def close(self) -> None:
        """Close both."""
        self.close_input()
        self.close_output()


class RawClient(Conversation):
    """One child process and the wire to it, with words for what scenarios do."""

    def __init__(self, process: subprocess.Popen[bytes], wire: Wire, journal: Journal, stderr: Path) -> None:
        super().__init__()
        self.process = process
        self.wire = wire
        self.journal = journal
        self._stderr = stderr

    @property
    def pid(self) -> int:
        """The server's process."""
        return self.process.pid

    # Writing

    def write(self, data: bytes, **options: Any) -> None:
        """Exactly these bytes."""
        self.wire.write(data, **options)

    def send(self, message: Any, **options: Any) -> None:
        """One message, or one batch, on one line."""
        self.wire.write(json.dumps(message).encode() + b"\n", **options)

    def request(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> Any:
        """Send a request; its id."""
        message = self.message(method, params, **options)
        self.send(message)
        return message["id"]

    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        token: Any = ...,
        log_level: str | None = None,
        id: Any = ...,
    ) -> Any:
        """Send a tool call; its id. ``log_level`` is what a modern request asks for."""
        message = self.call_message(tool, arguments, token=token, log_level=log_level, id=id)
        self.send(message)
        return message["id"]

    def started(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        """Send a tool call and wait until the journal says that it has started; its id."""
        request_id = self.call(tool, arguments, **options)
        self.journal.wait_for("start", call=request_id)
        return request_id

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def cancel(self, request_id: Any, reason: str | None = "user") -> None:
        """Send a cancel."""
        self.notify("notifications/cancelled", {"requestId": request_id, **({"reason": reason} if reason else {})})

    def answer(self, request: dict[str, Any], result: Any) -> None:
        """Answer a request of the server."""
        self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def refuse(self, request: dict[str, Any], code: int, message: str) -> None:
        """Answer a request of the server with an error."""
        self.send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})

    # Reading

    def receive(self, **options: Any) -> dict[str, Any] | list[dict[str, Any]] | None:
        """The next message or batch, `None` at the end. Fails for anything else."""
        line = self.wire.line(**options)
        if line is None:
            return None
        received = json.loads(line.decode("utf-8"))
        self.keep(received)
        return received

    def take(self, wanted: Callable[[dict[str, Any]], bool], what: str, **options: Any) -> dict[str, Any]:
        """The oldest message that nobody took yet and that is ``wanted``."""
        while (message := self.claim(wanted)) is None:
            assert self.receive(**options) is not None, f"the wire ended before {what}; stderr: {self.stderr()[-2000:]}"
        return message

    def reply(self, request_id: Any, **options: Any) -> dict[str, Any]:
        """The response or error response to a request."""
        return self.take(
            lambda message: "method" not in message and is_same(message.get("id"), request_id),
            f"the reply to {request_id!r}",
            **options,
        )

    def result(self, request_id: Any, **options: Any) -> dict[str, Any]:
        """The result of a request, which must not be an error."""
        reply = self.reply(request_id, **options)
        assert "result" in reply, reply
        assert "error" not in reply, reply
        return reply["result"]

    def error(self, request_id: Any, **options: Any) -> dict[str, Any]:
        """The error of a request, which must not be a result."""
        reply = self.reply(request_id, **options)
        assert "error" in reply, reply
        assert "result" not in reply, reply
        return reply["error"]

    def text(self, request_id: Any, **options: Any) -> str:
        """The text of a tool's result, which must not be a failure."""
        result = self.result(request_id, **options)
        assert not result.get("isError"), result
        return "".join(block["text"] for block in result["content"])

    def echo(self, text: str, **options: Any) -> str:
        """Call ``echo`` and return what came back."""
        return self.text(self.call("echo", {"text": text}), **options)

    def asked(self, method: str, **options: Any) -> dict[str, Any]:
        """The next request of the server."""
        return self.take(lambda message: message.get("method") == method and "id" in message, method, **options)

    def ping(self, **options: Any) -> None:
        """Wait for the answer to something that needs no handler. All that was written before it has arrived."""
        self.result(self.request("server/discover" if self.is_modern else "ping"), **options)

    def stderr(self) -> str:
        """What the server wrote to standard error so far."""
        return self._stderr.read_text(encoding="utf-8", errors="replace")

    # Opening and closing

    def initialize(self, revision: str = LATEST_LEGACY, capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
        """The whole handshake; the result of ``initialize``."""
        self.revision = revision
        self.capabilities = capabilities or {}
        result = self.result(self.request("initialize", self.opening(revision)))
        assert result["protocolVersion"] == revision
        self.notify("notifications/initialized")
        return result

    def open(self, revision: str, capabilities: dict[str, Any] | None = None) -> None:
        """The handshake in legacy revisions; modern ones have none."""
        if revision == MODERN:
            self.revision = revision
            self.capabilities = capabilities or {}
        else:
            self.initialize(revision, capabilities)

    def drain(self, *, bound: float = BOUND) -> None:
        """Read all there is, to the end of the server's output."""
        while self.receive(bound=bound) is not None:
            pass

    def wait(self, *, bound: float = BOUND) -> int:
        """The exit status, when the process has ended."""
        return self.process.wait(bound)

    def finish(self, *, bound: float = BOUND) -> int:
        """Close the server's input, read to the end of its output, and return its exit status."""
        self.wire.close_input()
        if self.wire.from_server is not None:
            self.drain(bound=bound)
        return self.wait(bound=bound)

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        self.wire.close()
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def serving(
    directory: Path,
    *,
    limits: dict[str, Any] | None = None,
    command: Sequence[str] | None = None,
    stdio: tuple[Any, Any] | None = None,
    wire: Wire | None = None,
    revision: str | None = None,
    capabilities: dict[str, Any] | None = None,
) -> Iterator[RawClient]:
    """The fixture server, or ``command``, as a child process in a group of its own.

    ``stdio`` and ``wire``: other descriptors than pipes for the child, and how to reach it through them. With
    a ``revision`` the connection is opened. Whatever happens, no process is left behind.
    """
    directory.mkdir(parents=True, exist_ok=True)
    journal, stderr = Journal(directory / "journal"), directory / "stderr"
    env = {**os.environ, JOURNAL_VARIABLE: str(journal.path), "TRIO_MCP_TEST_LIMITS": json.dumps(limits or {})}
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            command or [sys.executable, str(FIXTURE)],
            stdin=subprocess.PIPE if stdio is None else stdio[0],
            stdout=subprocess.PIPE if stdio is None else stdio[1],
            stderr=errors,
            env=env,
            start_new_session=True,
        )
    if wire is None:
        # The pipes are ours from here on, so that each is closed exactly once.
        wire = Wire(*(None if pipe is None else os.dup(pipe.fileno()) for pipe in (process.stdin, process.stdout)))
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
    client = RawClient(process, wire, journal, stderr)
    try:
        if revision is not None:
            client.open(revision, capabilities)
        yield client
    finally:
        client.end()
