"""Replicas in processes of their own, reached in turn by the driver itself or through a balancer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from shutil import which

from ..driver.checks import within
from ..driver.child import Child
from ..driver.cores import DRIVER_CORES, MEASURED_CORES
from ..driver.http import Connection
from ..driver.http_session import HttpSession
from ..driver.marks import PORT
from .redis import free_port

__all__ = ["Fleet", "balanced", "is_balancer_installed", "replicas", "session_of"]

_PATIENCE = 120
_PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])


@dataclass(kw_only=True)
class Fleet(HttpSession):
    """A client of several servers: each new connection goes to the next of ``ports``."""

    ports: list[int]
    turns: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.turns = cycle(self.ports)

    def connect(self) -> Connection:
        return Connection(next(self.turns))

    @classmethod
    def of(cls, session: HttpSession, ports: list[int]) -> Fleet:
        """A client that is in the same session, if any, as the client ``session``."""
        era, child, ids = session.era, session.child, session.ids
        return cls(
            port=session.port, era=era, session_id=session.session_id, child=child, scale=1.0, ids=ids, ports=ports
        )


def session_of(replica: HttpSession) -> HttpSession:
    """A new legacy session, which is opened at this replica."""
    with replica.connect() as connection, within(_PATIENCE, "a session"):
        return replica.new_session(connection)


def _spread(pid: int) -> None:
    """Let a process run on all cores."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), MEASURED_CORES | DRIVER_CORES)


@contextmanager
def replicas(*storages: str, pinned: bool = False) -> Iterator[list[HttpSession]]:
    """A replica for each of these storages: modern clients of theirs. ``pinned``: on the measured core, else on all."""
    with ExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.replicas.serving"]
        children = [stack.enter_context(Child([*command, storage])) for storage in storages]
        made: list[HttpSession] = []
        for child in children:
            with within(_PATIENCE, "the port"):
                (port,) = child.marks.wait(PORT)
            made.append(HttpSession(port=port, era="modern", child=child, scale=1.0))
            if not pinned:
                _spread(child.pid)
        for each in made:
            with each.connect() as connection, within(_PATIENCE, "the first answer"):
                each.echo(connection)
        yield made
        for child in children:
            child.terminate()


_BALANCER = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen mcp
    bind 127.0.0.1:{port}
    balance roundrobin
    {servers}
"""


def is_balancer_installed() -> bool:
    """Whether there is HAProxy here."""
    return which("haproxy", path=_PATHS) is not None


@contextmanager
def balanced(ports: list[int]) -> Iterator[int]:
    """Start HAProxy before the servers on these ports, in round robin: the port where it listens."""
    port = free_port()
    servers = "\n    ".join(f"server r{each} 127.0.0.1:{each}" for each in ports)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(_BALANCER.format(port=port, servers=servers))
        file.flush()
        command = [which("haproxy", path=_PATHS) or "haproxy", "-db", "-f", file.name]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            try:
                with within(_PATIENCE, "the balancer"):
                    _until_listening(port, process)
                yield port
            finally:
                process.kill()


def _until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            return Connection(port).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise ConnectionError(f"the balancer ended with status {process.returncode}")
