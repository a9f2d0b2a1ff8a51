"""Wires to a server: lines of bytes through descriptors, with a deadline on everything."""

from __future__ import annotations

import json
import os
import select
import selectors
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

from .conversation import META_PREFIX, MODERN, is_same
from .harness import BOUND

__all__ = ["HttpWire", "WebSocketWire", "Wire"]


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
            self._received(data)
        else:
            self.at_end = True

    def _received(self, data: bytes) -> None:
        self.buffer += data

    @property
    def can_be_read(self) -> bool:
        """Whether what the server says still comes here."""
        return self.from_server is not None

    def read_answer(self, request_id: Any, *, bound: float = BOUND) -> None:
        """Read to the end of the answer to a request, where each request has an answer of its own."""

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


class WebSocketWire(Wire):
    """A WebSocket: each line is one text message, and each text message that comes is a line."""

    def __init__(self, to_server: int, from_server: int, host: str) -> None:
        super().__init__(to_server, from_server)
        self.close_code: int | None = None
        """What the server's close frame says, once it came."""
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._accepted = False
        self._writing = False
        self._answers = b""
        self._write_frames(self._protocol.send(Request(host=host, target="/mcp", subprotocols=["mcp"])))
        while not self._accepted:
            self.peek()
            self._read_once(1 << 16)
            assert not self.at_end, "the server refused the upgrade"

    def write(self, data: bytes, *, bound: float = BOUND, reading: bool = True) -> None:
        """One text message for each line of ``data``, all of them in one write."""
        *lines, rest = data.decode("utf-8").split("\n")
        assert not rest, "the last line is not whole"
        frames = b"".join(self._protocol.send(TextMessage(data=line)) for line in lines)
        self._write_frames(frames, bound=bound, reading=reading)

    def close_input(self) -> None:
        """Say that we are done (1000). What comes before the server's own close frame can still be read."""
        self._write_frames(self._protocol.send(CloseConnection(1000)))

    def close(self) -> None:
        """Vanish, without a word."""
        for fd in {self.to_server, self.from_server} - {None}:
            os.close(fd)
        self.to_server = self.from_server = None

    def _write_frames(self, frames: bytes, *, bound: float = BOUND, reading: bool = True) -> None:
        self._writing = True
        super().write(frames, bound=bound, reading=reading)
        self._writing = False
        self._answer()

    def _read_once(self, chunk: int) -> None:
        super()._read_once(chunk)
        self._answer()

    def _received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events():
            match event:
                case AcceptConnection(subprotocol="mcp"):
                    self._accepted = True
                case TextMessage():
                    assert "\n" not in event.data, event
                    self.buffer += event.data.encode() + (b"\n" if event.message_finished else b"")
                case Ping():
                    self._answers += self._protocol.send(event.response())
                case CloseConnection():
                    self.close_code = event.code
                    self.at_end = True
                    if self._protocol.state is ConnectionState.REMOTE_CLOSING:
                        self._answers += self._protocol.send(event.response())
                case _:
                    raise AssertionError(event)

    def _answer(self) -> None:
        """Between frames, and never in the middle of one."""
        if self._answers and not self._writing and self.to_server is not None:
            with suppress(OSError):  # no room, or nobody there: the server does not wait for it for ever either
                os.write(self.to_server, self._answers)
            self._answers = b""


class HttpWire(Wire):
    """Streamable HTTP: each line is a POST on a connection of its own, and each message of an answer is a line.

    A modern cancel closes the answer to its request. In legacy revisions the session is kept, and its stream is opened
    after the handshake. What is posted without an answer to wait for has arrived when it is written; requests arrive in
    no order. What is refused is answered by a message, too.
    """

    def __init__(self, connect: Callable[[], socket.socket], host: str) -> None:
        super().__init__(None, None)
        self._dial = connect
        self._host = host
        self._answers = selectors.DefaultSelector()
        self._session: dict[str, str] = {}
        self._listens = False

    @property
    def can_be_read(self) -> bool:
        return True

    def write(self, data: bytes, *, bound: float = BOUND, reading: bool = True) -> None:
        """One POST for each line of ``data``."""
        *lines, rest = data.split(b"\n")
        assert not rest, "the last line is not whole"
        for line in lines:
            self._post(line, bound)

    def read_answer(self, request_id: Any, *, bound: float = BOUND) -> None:
        """Read to the end of the answer to a request: what answers on other connections bring says nothing of it."""
        for answer in self._open_answers():
            if is_same(answer.request_id, request_id):
                self._until(lambda answer=answer: answer.is_over, bound)

    def _post(self, line: bytes, bound: float) -> None:
        message = _read_leniently(line)
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if method == "notifications/cancelled" and not self._session:
            for answer in self._open_answers():
                if is_same(answer.request_id, params["requestId"]):
                    answer.close()
            return
        answer = self._ask("POST", self._headers(method, params), line, message.get("id") if method else None)
        if method == "initialize" or not _has_request(message):
            self._until(lambda: answer.is_over, bound)
        if method == "initialize" and answer.status == HTTPStatus.OK and not self._session:
            self._session = {
                "Mcp-Session-Id": answer.headers["mcp-session-id"],
                "MCP-Protocol-Version": params["protocolVersion"],
            }
        if method == "notifications/initialized" and self._session and not self._listens:
            self._listens = True
            listening = self._ask("GET", self._session, b"", None)
            self._until(lambda: listening.status != 0, bound)

    def _headers(self, method: object, params: dict[str, Any]) -> dict[str, str]:
        """What the headers of a POST repeat of its body, or the session in legacy revisions."""
        meta = params.get("_meta")
        version = meta.get(META_PREFIX + "protocolVersion") if isinstance(meta, dict) else None
        if version is None and method == "initialize":
            return self._session
        if version is None:
            return self._session or {"MCP-Protocol-Version": MODERN}
        name = params.get("name", params.get("uri"))
        named = {"Mcp-Name": name} if isinstance(name, str) else {}
        return {"MCP-Protocol-Version": str(version), "Mcp-Method": str(method), **named}

    def _ask(self, method: str, headers: dict[str, str], body: bytes, request_id: Any) -> _Answer:
        answer = _Answer(self._dial(), self._host, method, headers, body, request_id, self.buffer, self._answers)
        self._answers.register(answer, selectors.EVENT_READ)
        return answer

    def _open_answers(self) -> list[_Answer]:
        return [cast("_Answer", key.fileobj) for key in self._answers.get_map().values()]

    def _until(self, holds: Callable[[], bool], bound: float) -> None:
        give_up = time.monotonic() + bound
        while not holds():
            assert self._read_answers(give_up), f"no answer within {bound} s"

    def _read_answers(self, give_up: float) -> bool:
        """Read what comes next. Return false when nothing came in time, or nothing can come."""
        if not self._answers.get_map():
            return False
        ready = self._answers.select(max(0, give_up - time.monotonic()))
        for key, _ in ready:
            cast("_Answer", key.fileobj).read()
        return bool(ready)

    def line(self, *, bound: float = BOUND, chunk: int = 1 << 16) -> bytes | None:
        """The next message of any answer, `None` when no answer is open any more."""
        give_up = time.monotonic() + bound
        while (end := self.buffer.find(b"\n")) < 0:
            if not self._read_answers(give_up):
                assert not self._answers.get_map(), f"the server wrote no message within {bound} s"
                self.at_end = True
                return None
        found = bytes(self.buffer[:end])
        del self.buffer[: end + 1]
        return found

    def close(self) -> None:
        """Close all answers, without a word."""
        if self._answers.get_map() is not None:  # closed before
            for answer in self._open_answers():
                answer.close()
            self._answers.close()


def _read_leniently(line: bytes) -> dict[str, Any]:
    """The message on a line; of a batch one that has a request in it, if any; of what is none, nothing."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    members = message if isinstance(message, list) else [message]
    members = [member for member in members if isinstance(member, dict)]
    return next(filter(_has_request, members), members[0] if members else {})


def _has_request(message: dict[str, Any]) -> bool:
    return "method" in message and "id" in message


class _Answer:
    """The answer to one request, whose messages go to ``lines``."""

    def __init__(
        self,
        connection: socket.socket,
        host: str,
        method: str,
        headers: dict[str, str],
        body: bytes,
        request_id: Any,
        lines: bytearray,
        among: selectors.BaseSelector,
    ) -> None:
        self.request_id = request_id
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_over = False
        self._connection = connection
        self._lines = lines
        self._among = among
        self._text = bytearray()
        self._parser = h11.Connection(h11.CLIENT)
        accept = "text/event-stream" if method == "GET" else "application/json, text/event-stream"
        given = {"Host": host, "Accept": accept, "Content-Type": "application/json", **headers}
        request = h11.Request(
            method=method, target="/mcp", headers=[*given.items(), ("Content-Length", str(len(body)))]
        )
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            connection.sendall(self._parser.send(event) or b"")

    def fileno(self) -> int:
        return self._connection.fileno()

    def read(self) -> None:
        """Read once, and put whole messages among the lines."""
        try:
            self._parser.receive_data(self._connection.recv(1 << 16))
        except OSError:
            self.close()
            return
        while (event := self._parser.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                self.status = event.status_code
                self.headers = {name.decode(): text.decode() for name, text in event.headers}
            elif isinstance(event, h11.Data):
                self._text += event.data
                self._take_events()
            else:
                if isinstance(event, h11.EndOfMessage) and self._text.strip():
                    self._lines += self._text.replace(b"\n", b" ") + b"\n"
                self.close()
                return

    def _take_events(self) -> None:
        if self.headers.get("content-type") != "text/event-stream":
            return
        *events, rest = self._text.split(b"\n\n")
        for event in events:
            data = [line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")]
            if any(data):
                self._lines += b"".join(data) + b"\n"
        self._text[:] = rest

    def close(self) -> None:
        """Vanish, also from those that are waited for."""
        self.is_over = True
        self._among.unregister(self)
        self._connection.close()
