"""Redis servers for tests: Debian's ``redis-server``, on a free port of 127.0.0.1, with files in a folder of the test.

Tests in this folder have the fixtures `redis_server` and `redis_url` from ``conftest.py``; other tests import them:

    from tests.fleet.redis_server import redis_of_process, redis_server, redis_url  # noqa: F401

`redis_server` is one server for all tests of a process, without files, empty at the start of each test that asks for
the server. A test that kills or freezes a server starts its own: ``with RedisServer(tmp_path, "appendonly yes") as …``.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Self

import pytest
from tests.patience import PATIENCE
from tests.ports import free_port

__all__ = ["RedisServer", "read_answer", "redis_of_process", "redis_server", "redis_url"]

_POLL: Final = 0.01


class RedisServer:
    """A Redis in a process of its own, from the entry of the block on; ended by its process id.

    ``lines`` are added to the configuration, ``appendonly yes`` for example. Nothing is written to the disk otherwise.
    With ``is_sentinel``, the process is a sentinel.
    """

    def __init__(self, folder: Path, *lines: str, is_sentinel: bool = False, is_tls: bool = False) -> None:
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed")
        self.port: Final = free_port()
        """The port; with ``is_tls``, for commands in the clear, beside `tls_port`."""
        self.tls_port: Final = free_port() if is_tls else 0
        self.folder: Final = folder / f"redis-{self.port}"
        self.socket: Final = self.folder / "socket"
        self.folder.mkdir()
        self._is_sentinel = is_sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self._configuration = self.folder / "redis.conf"
        standard = ["bind 127.0.0.1", f"port {self.port}", f"dir {self.folder}", "logfile log", "protected-mode no"]
        if not is_sentinel:
            standard += ['save ""', f"unixsocket {self.socket}", "enable-debug-command yes"]
        if is_tls:
            standard.append(f"tls-port {self.tls_port}")
        self._configuration.write_text("\n".join([*standard, *lines, ""]))

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Id of the process, which runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process, and wait until it answers and has read its files."""
        assert self._process is None
        command = ["redis-server", str(self._configuration), *(["--sentinel"] if self._is_sentinel else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError((self.folder / "log").read_text()[-2000:])
            time.sleep(_POLL)

    def _answers(self) -> bool:
        try:
            return self.ask("PING") == b"PONG"
        except (OSError, RuntimeError):  # not listening yet, or loading
            return False

    def kill(self) -> None:
        """End the process at once (SIGKILL); a frozen one, too. Nothing where it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Kill the process, and start it again with the files that are there."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Freeze the process (SIGSTOP)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the frozen process go on (SIGCONT)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask(self, *command: str | bytes | int) -> Any:
        """Return the answer to a command, on a connection of its own; raises `RuntimeError` for an error. Blocks, so
        it is for a server that runs."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            parts = [each if isinstance(each, bytes) else str(each).encode() for each in command]
            connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts))
            with connection.makefile("rb") as answers:
                return read_answer(answers)

    def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO."""
        lines = self.ask("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


def read_answer(answers: Any) -> Any:
    """Return the next answer in a stream of answers; raises `RuntimeError` for an error."""
    line = answers.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the connection ended within an answer")
    kind, rest = line[:1], line[1:-2]
    match kind:
        case b"+":
            return rest
        case b"-":
            raise RuntimeError(rest.decode())
        case b":":
            return int(rest)
        case b"$":
            return None if rest == b"-1" else answers.read(int(rest) + 2)[:-2]
        case b"*":
            return None if rest == b"-1" else [read_answer(answers) for _ in range(int(rest))]
        case _:
            raise AssertionError(line)


@pytest.fixture(scope="session")
def redis_of_process(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(redis_of_process: RedisServer) -> RedisServer:
    """A Redis that is empty, with its statistics at 0. It may be used by one test after the other, not be killed."""
    redis_of_process.ask("FLUSHALL")
    redis_of_process.ask("CONFIG", "RESETSTAT")
    return redis_of_process


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of `redis_server`."""
    return redis_server.url
