"""Servers of peers over HTTP: one process each, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
from tests.patience import PATIENCE
from tests.peers.journals import Journal
from tests.peers.websocket.children import Listening, listening

__all__ = ["HttpServers", "http_servers"]


@attrs.define
class HttpServers:
    """The processes that run, by name; each has a journal in ``folder``."""

    folder: Path
    stack: ExitStack = attrs.Factory(ExitStack)
    running: dict[str, Listening] = attrs.Factory(dict)

    def get(self, name: str, command: Sequence[str]) -> Listening:
        """The server ``name``. It is started by ``command``, with the argument ``http``, when nobody has done so."""
        if name not in self.running:
            journal = Journal(self.folder / name)
            self.running[name] = self.stack.enter_context(listening([*command, "http"], journal, "http"))
        return self.running[name]


@contextmanager
def http_servers(folder: Path) -> Iterator[HttpServers]:
    """End them with the block: at a signal, and in good order."""
    servers = HttpServers(folder)
    with servers.stack:
        yield servers
        for server in servers.running.values():
            server.process.terminate()
        for server in servers.running.values():
            assert server.process.wait(PATIENCE) == 0
            assert server.journal.lines[-1] == "server ended"
