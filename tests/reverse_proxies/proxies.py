"""Reverse proxies, run with the configurations of the pages in docs/deployment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio
from tests.pages import Page
from tests.ports import free_port

__all__ = ["CADDY", "HAPROXY", "NGINX", "PAGES", "Proxy", "end", "until_listening"]

PAGES = Page("deployment")
PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def configuration(language: str, replaced: Mapping[str, str]) -> str:
    """A configuration of the pages, with ports and times of a test in place of its own, if any."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGES.text, re.MULTILINE | re.DOTALL)
    assert found is not None, language
    for old in replaced:
        assert old in found[1], old
    if not replaced:
        return found[1]
    # In one pass: what is put in, such as port 38765, may contain what another entry replaces.
    return re.sub("|".join(map(re.escape, replaced)), lambda old: replaced[old[0]], found[1])


def for_replicas(language: str, ports: Sequence[int]) -> str:
    """A configuration of the pages for two replicas, with a line for each of these instead."""
    lines = configuration(language, {}).splitlines()
    first, second = (lines.index(line) for line in lines if re.search(r"127\.0\.0\.1:876\d", line))
    replica = lines[first].replace("replica1", "replica{0}").replace("8765", "{1}")
    lines[first : second + 1] = [replica.format(number, port) for number, port in enumerate(ports, 1)]
    return "\n".join([*lines, ""])


@attrs.frozen
class Proxy:
    """A program that stands between clients and servers. ``command`` runs it; ``frame`` is what its file needs besides
    the page's part, and ``{}`` stands for that."""

    name: str
    command: Sequence[str]
    frame: str = "{}"
    idle_limit: str | None = "60s"
    """How the page writes the silence after which the proxy gives up; nothing where it never does."""
    address: str = "8080"
    """How the page writes where the proxy listens."""
    listens_at: str = "{}"
    """How a test writes that, for a port."""
    backend: str = ""
    """The part of the page's configuration that another one of the page replaces."""

    @property
    def is_installed(self) -> bool:
        return shutil.which(self.command[0], path=PATHS) is not None

    @asynccontextmanager
    async def running(
        self,
        folder: Path,
        server: int,
        idle: float | None = None,
        *,
        port: int | None = None,
        language: str | None = None,
        replicas: Sequence[int] | None = None,
        **more: int,
    ) -> AsyncIterator[int]:
        """Run the proxy before the server at this port, and give the port of the proxy, any free one unless given.
        ``idle``: seconds in place of the minute that a stream may be silent. ``replicas``: the ports of all servers,
        which are called in turn."""
        port = port or free_port()
        replaced = {self.address: self.listens_at.format(port), "8765": str(server)}
        if idle is not None and self.idle_limit is not None:
            replaced[self.idle_limit] = f"{int(idle * 1000)}ms"
        if self.name == "caddy" and await version_of("caddy") < (2, 6, 3):  # as in Debian
            replaced["request_buffers 16MiB"] = "buffer_requests"
        text = configuration(self.name, replaced)
        if replicas is not None:
            part = for_replicas(f"{self.name}-replicas", replicas)
            text = re.sub(self.backend, lambda _: part, text, flags=re.MULTILINE | re.DOTALL)
        elif language is not None:
            second = {"8765": str(server), **{old: str(new) for old, new in more.items()}}
            text = re.sub(self.backend, lambda _: configuration(language, second), text, flags=re.MULTILINE | re.DOTALL)
        file = folder / "proxy.conf"
        file.write_text(self.frame.format(text))
        command = [shutil.which(self.command[0], path=PATHS), *self.command[1:]]
        command = [str(word).format(folder=folder, file=file) for word in command]
        environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, env=environment)
        try:
            await until_listening(port, process)
            yield port
        finally:
            await end(process)


NGINX = Proxy(
    "nginx",
    ["nginx", "-p", "{folder}", "-c", "{file}", "-e", "stderr"],
    """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {}
}}
""",
    backend=r"^upstream mcp \{.*?^\}\n",
)
HAPROXY = Proxy("haproxy", ["haproxy", "-db", "-f", "{file}"], backend=r"^backend .*")
CADDY = Proxy(
    "caddy",
    ["caddy", "run", "--config", "{file}", "--adapter", "caddyfile"],
    "{{\n    admin off\n}}\n{}",
    idle_limit=None,
    address="mcp.example.com",
    listens_at="http://mcp.example.com:{0}, http://127.0.0.1:{0}",
)


async def version_of(program: str) -> tuple[int, ...]:
    """Return the version that a program prints."""
    printed = await trio.run_process([shutil.which(program, path=PATHS) or program, "version"], capture_stdout=True)
    found = re.search(rb"(\d+)\.(\d+)\.(\d+)", printed.stdout)
    assert found is not None, printed.stdout
    return tuple(map(int, found.groups()))


async def end(process: trio.Process) -> None:
    """Ask a process to end, and insist."""
    process.terminate()
    with trio.CancelScope(shield=True):
        with trio.move_on_after(1):
            await process.wait()
        process.kill()
        await process.wait()


async def until_listening(port: int, process: trio.Process) -> None:
    """Wait until somebody accepts connections. Raises `AssertionError` when the process ends instead."""
    while process.poll() is None:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(0.02)
        else:
            await stream.aclose()
            return
    raise AssertionError(f"{process.args} ended with status {process.returncode}; its standard error says why")
