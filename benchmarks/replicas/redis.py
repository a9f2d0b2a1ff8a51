"""A Redis for measures: Debian's ``redis-server``, on loopback, which writes nothing to the disk."""

from __future__ import annotations

import re
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from ..driver.checks import within

__all__ = ["RedisProcess", "free_port", "redis"]

_PATIENCE = 60
_OF_OURS = frozenset({"info", "dbsize", "monitor", "ping"})
"""Commands that are no part of a call: those of the driver, and the proof of each second that Redis is there."""


class RedisProcess:
    """A Redis that listens on ``port``, and a connection to it."""

    def __init__(self, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}"
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
        self._answers = self._socket.makefile("rb")

    def close(self) -> None:
        """End the connection."""
        self._answers.close()
        self._socket.close()

    def ask(self, *command: str) -> Any:
        """The answer to a command, which has to be no error."""
        parts = [word.encode() for word in command]
        self._socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts))
        return self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self._answers.read(int(rest) + 2)[:-2]
        if kind not in (b"+", b":"):
            raise ConnectionError(f"Redis says {line!r}")
        return int(rest) if kind == b":" else rest

    def info(self, section: str) -> dict[str, str]:
        """A section of INFO."""
        lines = self.ask("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def commands(self) -> int:
        """How many commands there were so far, those within scripts included."""
        stats = self.info("commandstats")
        counts = {name.removeprefix("cmdstat_"): line for name, line in stats.items()}
        return sum(int(line.split(",")[0][6:]) for name, line in counts.items() if name not in _OF_OURS)

    def memory(self) -> int:
        """Bytes that Redis has allocated."""
        return int(self.info("memory")["used_memory"])

    def cpu(self) -> float:
        """Seconds of processor time that Redis has used."""
        used = self.info("cpu")
        return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])

    def times_of(self, word: str, seconds: float) -> list[float]:
        """When commands with this word came, in the next ``seconds``."""
        with closing(RedisProcess(self._port)) as other:
            other.ask("MONITOR")
            received = other.received(seconds)
        lines = re.findall(rb"^\+([0-9.]+) \[\d+ (?!lua)[^\n]*?\"%b\"" % word.encode(), received, re.MULTILINE)
        return [float(line) for line in lines]

    def received(self, seconds: float) -> bytes:
        """What comes in the next ``seconds``, and is no answer to a command."""
        end, received = time.monotonic() + seconds, bytearray()
        while (left := end - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                received += self._socket.recv(1 << 20)
        return bytes(received)


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def redis() -> Iterator[RedisProcess]:
    """Start a Redis, and kill it at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                with within(_PATIENCE, "Redis"):
                    made = _connected(port, process)
                with closing(made):
                    yield made
            finally:
                process.kill()


def _connected(port: int, process: subprocess.Popen[bytes]) -> RedisProcess:
    while process.poll() is None:
        try:
            return RedisProcess(port)
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise ConnectionError(f"redis-server ended with status {process.returncode}")
