"""Children: processes of servers that listen and tell their port."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
from tests.patience import PATIENCE
from tests.peers.journals import Journal

__all__ = ["Listening", "environment", "listening", "our_server", "peer_server"]

HERE = Path(__file__).parent
SERVERS = HERE.parent / "servers"


@attrs.frozen
class Listening:
    """A server in a child process."""

    process: subprocess.Popen[str]
    journal: Journal
    url: str

    def end(self) -> int:
        """Ask it to end, and wait for its exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


def environment(journal: Journal) -> dict[str, str]:
    """The scripts share modules with those that speak over stdio."""
    shared = os.pathsep.join(str(path) for path in (SERVERS, HERE.parent / "clients"))
    return {**os.environ, **journal.env, "PYTHONPATH": shared}


def peer_server(python: Path, transport: str = "websocket") -> list[str]:
    return [str(python), "-W", "ignore", str(HERE / "mcp1_server.py"), transport]


def our_server(transport: str = "websocket") -> list[str]:
    return [sys.executable, str(SERVERS / "trio_mcp_server.py"), transport]


@contextmanager
def listening(command: Sequence[str], journal: Journal, scheme: str = "ws") -> Iterator[Listening]:
    """Run ``command``, whose first line of output is its port. It has ended when the block has."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(journal)) as process:
        try:
            port = process.stdout.readline().strip()
            assert port, "the server ended before it listened; its errors are in the captured output"
            yield Listening(process, journal, f"{scheme}://127.0.0.1:{port}/mcp")
        finally:
            try:
                process.terminate()
                process.wait(PATIENCE)
            finally:
                process.kill()
