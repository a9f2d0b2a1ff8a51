"""A RAW client: it starts a server as a child process and writes and reads exact bytes, over its stdio or a socket.

It knows nothing of trio-mcp and nothing of trio: it is a script with a deadline on everything. Each line it
reads is checked to be one whole JSON-RPC message, so whatever else gets onto the wire fails the test.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from tests.forked import Forked, forked_command

from .conversation import LATEST_LEGACY, LEGACY, MODERN, REVISIONS, Conversation, is_same
from .harness import BOUND, JOURNAL_VARIABLE, Journal
from .wires import HttpWire, WebSocketWire, Wire

__all__ = [
    "ERAS",
    "FIXTURE",
    "LATEST_LEGACY",
    "LEGACY",
    "MODERN",
    "REVISIONS",
    "RawClient",
    "Start",
    "across",
    "is_same",
    "serving",
]

FIXTURE = Path(__file__).with_name("fixture_server.py")
BRIDGE = ["-m", "trio_mcp.cli.main", "bridge", "--"]
"""What Python does for a process that stands before a server, and knows nothing of it."""
ERAS = (LATEST_LEGACY, MODERN)


def across(revisions: Sequence[str]) -> list[tuple[str, str]]:
    """Transport and revision: all of ``revisions`` over stdio and through a bridge, the latest over WebSocket, too, and
    the latest of each era over HTTP. What differs between revisions does not differ between transports, so not every
    pair is worth a process."""
    legacy = [revision for revision in revisions if revision != MODERN]
    modern = [revision for revision in revisions if revision == MODERN]
    return [
        *((transport, revision) for transport in ("stdio", "bridged") for revision in revisions),
        ("websocket", revisions[-1]),
        *(("http", revision) for revision in (*legacy[-1:], *modern)),
    ]


class RawClient(Conversation):
    """One child process and the wire to it, with words for what scenarios do.

    ``connect`` makes one more wire to the same process, where that is possible.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes] | Forked,
        wire: Wire,
        journal: Journal,
        stderr: Path,
        connect: Callable[[], Wire] | None = None,
    ) -> None:
        super().__init__()
        self.process = process
        self.wire = wire
        self._connect = connect
        self.journal = journal
        self.stderr_path = stderr

    @property
    def pid(self) -> int:
        """The server's process."""
        return self.process.pid

    @property
    def cause_at_shutdown(self) -> str:
        """Why handlers are cancelled when the process ends: behind a proxy, because that cancels them."""
        return "peer" if self.is_bridged else "shutdown"

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

    @property
    def gate(self) -> str:
        """The file that `let_go` makes."""
        return f"{self.journal.path}.gate"

    def held(self, **options: Any) -> Any:
        """Send a tool call that goes on until `let_go`, and wait until it has started; its id."""
        return self.started("hold", {"file": self.gate}, **options)

    def let_go(self) -> None:
        """End what is held."""
        Path(self.gate).touch()

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
        looked_at = 0
        while (message := self.claim(wanted, looked_at)) is None:
            looked_at = self.unclaimed
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
        return self.stderr_path.read_text(encoding="utf-8", errors="replace")

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

    @contextmanager
    def beside(self, revision: str, capabilities: dict[str, Any] | None = None) -> Iterator[RawClient]:
        """One more connection to the same process, which it does not end."""
        assert self._connect is not None, "over stdio there is one connection"
        with closing(self._connect()) as wire:
            other = RawClient(self.process, wire, self.journal, self.stderr_path, self._connect)
            other.open(revision, capabilities)
            yield other

    def finish(self, *, bound: float = BOUND) -> int:
        """End the server in good order, read to the end of its output, and return its exit status.

        Over stdio it ends with its input; a server of many connections is told by a signal.
        """
        if self._connect is None:
            self.wire.close_input()
        else:
            os.kill(self.pid, signal.SIGTERM)
        if self.wire.can_be_read:
            self.drain(bound=bound)
        if isinstance(self.wire, WebSocketWire):
            assert self.wire.close_code == 1001
        self.wire.close()
        return self.wait(bound=bound)

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        self.wire.close()
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


Start: TypeAlias = Callable[..., AbstractContextManager[RawClient]]
"""`serving`, its directory and its transport settled."""


@contextmanager
def serving(
    directory: Path,
    transport: str = "stdio",
    *,
    limits: dict[str, Any] | None = None,
    command: Sequence[str] | None = None,
    stdio: tuple[Any, Any] | None = None,
    wire: Wire | None = None,
    revision: str | None = None,
    capabilities: dict[str, Any] | None = None,
    stderr_to: int | None = None,
    forked: bool = False,
) -> Iterator[RawClient]:
    """The fixture server, or ``command``, as a child process in a group of its own. ``forked``: it is started the quick
    way, if it is a program for our Python.

    ``transport`` is ``stdio``, ``websocket``, ``tcp``, or ``bridged``: stdio, through ``trio-mcp bridge``. ``stdio``
    and ``wire``: other descriptors than pipes for the child, and how to reach it through them. With a ``revision``
    the connection is opened. ``stderr_to``: a descriptor for its standard error, in place of a file. Whatever happens,
    no process is left behind.
    """
    directory.mkdir(parents=True, exist_ok=True)
    journal, stderr = Journal(directory / "journal"), directory / "stderr"
    env = {**os.environ, JOURNAL_VARIABLE: str(journal.path), "TRIO_MCP_TEST_LIMITS": json.dumps(limits or {})}
    env.pop("PYTHONUNBUFFERED", None)  # hosts do not set it, and buffers are a part of what is tested
    fixture = [str(FIXTURE), transport]
    if transport == "bridged":
        behind = [str(FIXTURE), "stdio"]
        fixture = [*BRIDGE, *(forked_command(behind) if forked else [sys.executable, *behind])]
    if stdio is None:
        (stdin, to_server), (from_server, stdout) = os.pipe(), os.pipe()
        wire = Wire(to_server, from_server)
    else:
        stdin, stdout = stdio
    with stderr.open("wb") as errors:
        standard = {"stdin": stdin, "stdout": stdout, "stderr": errors.fileno() if stderr_to is None else stderr_to}
        command = command or [sys.executable, *fixture]
        if forked and command[0] == sys.executable:
            process = Forked(command[1:], **standard, env=env)
        else:
            process = subprocess.Popen(command, **standard, env=env, start_new_session=True)
    if stdio is None:
        os.close(stdin)
        os.close(stdout)
    assert wire is not None, "what the other ends are on is told with `stdio`"
    client = RawClient(process, wire, journal, stderr)
    try:
        client.is_bridged = transport == "bridged"
        if transport not in ("stdio", "bridged"):
            client = _connected(client, transport)
        if revision is not None:
            client.open(revision, capabilities)
        yield client
    finally:
        client.end()


def _connected(child: RawClient, transport: str) -> RawClient:
    """The client of a process that prints the port where it listens."""
    printed = child.wire.line()
    assert printed is not None, f"no port; stderr: {child.stderr()[-2000:]}"
    child.wire.close()

    address = ("127.0.0.1", int(printed))

    def dial() -> socket.socket:
        connected = socket.create_connection(address, BOUND)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a short message must not wait for another
        return connected

    def connect() -> Wire:
        if transport == "http":
            return HttpWire(dial, f"{address[0]}:{address[1]}")
        ours = dial().detach()
        if transport == "websocket":
            return WebSocketWire(ours, os.dup(ours), f"{address[0]}:{address[1]}")
        return Wire(ours, os.dup(ours))

    return RawClient(child.process, connect(), child.journal, child.stderr_path, connect)
