"""The authorization server is oidc-provider, installed by npm, in a process of its own; `press` signs a user in."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

import attrs
import trio

from trio_mcp.concurrency.contexts import asynccontextmanager
from trio_mcp.concurrency.nurseries import open_service_nursery

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
    tail, has_said_all = bytearray(), trio.Event()
    try:
        async with open_service_nursery("the authorization server has ended") as nursery:
            nursery.start_soon(_keep_tail, process.stderr, tail, has_said_all)
            account = _Lines(process.stdout)
            try:
                with trio.fail_after(_START):
                    await process.stdin.send_all(json.dumps(settings).encode() + b"\n")
                    issuer = (await account.next()).decode()
            except (trio.TooSlowError, trio.BrokenResourceError, EOFError):
                process.kill()  # one that keeps silent; of one that has ended, the reason may not be read yet
                with trio.move_on_after(_END):
                    await has_said_all.wait()
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


async def _keep_tail(stderr: trio.abc.ReceiveStream, tail: bytearray, has_said_all: trio.Event) -> None:
    async for data in stderr:
        tail += data
        del tail[:-_TAIL]
    has_said_all.set()


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


HERE: Final = Path(__file__).parent
FILES: Final = ("package.json", "package-lock.json", "server.js")
INSTALL_PATIENCE: Final = 90.0
"""Seconds after which no package registry is there; no measure of speed."""
_NODE: Final = 22
_NPM: Final = (
    "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=1",
)  # fmt: skip


class CannotInstall(Exception):
    """Node or npm is missing, or the packages cannot be had. The message says what to do."""


def version() -> str:
    """Return a name for what is installed, which changes with every file."""
    digest = hashlib.sha256(b"\0".join((HERE / name).read_bytes() for name in FILES))
    return f"authorization-server-{digest.hexdigest()[:16]}"


def install(folder: Path) -> None:
    """Install the server and its packages into the new ``folder``. Raises `CannotInstall`."""
    _check_node()
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    try:
        subprocess.run(_NPM, cwd=folder, capture_output=True, text=True, timeout=INSTALL_PATIENCE, check=True)  # noqa: S603 - no shell
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"npm took longer than {INSTALL_PATIENCE:g} s: is there a package registry?") from None
    except subprocess.CalledProcessError as error:
        raise CannotInstall(f"npm failed with status {error.returncode}: {error.stderr.strip()[-300:]}") from None


def place() -> Path:
    """Return the folder in the user's cache where the server is, or will be."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trio-mcp" / version()


def installed() -> Path:
    """Return the folder of the server in the user's cache, which is filled when there is none. Other processes wait
    meanwhile. Raises `CannotInstall`."""
    _check_node()
    made = place()
    cache, making = made.parent, made.with_suffix(".part")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "installing.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                # Complete under its final name or not there at all, also when this is interrupted.
                shutil.rmtree(making, ignore_errors=True)
                install(making)
                making.rename(made)
    except OSError as error:
        raise CannotInstall(f"the cache cannot be written: {error}") from None
    return made


def _check_node() -> None:
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        raise CannotInstall(f"{' and '.join(missing)} cannot be found; install Node.js {_NODE} or newer, with npm")
    # Asked for what the packages need, since the newest of the older Nodes have the same.
    command = ["node", "--print", "URL.parse && require('crypto').hash ? 'new enough' : process.version"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - no shell
    if told != "new enough":
        raise CannotInstall(f"Node.js {_NODE} or newer is needed, and `node` is {told or 'broken'}")


_PAGE_PATIENCE: Final = 30.0
_LONGEST_PAGE: Final = 100_000


class NoSuchPage(Exception):
    """There was no page with such a button. The message has no address, whose query is secret."""


async def press(url: str, button: str = "allow") -> None:
    """Go to ``url`` as a browser would, press ``button`` on the sign-in page there, and follow redirects to their end.
    Scripts are not run. Raises `NoSuchPage`."""
    # With cookies, redirects and forms, the standard library is the smallest of browsers; as such, it blocks.
    await trio.to_thread.run_sync(_press, url, button, abandon_on_cancel=True)


def _press(url: str, button: str) -> None:
    browser = build_opener(ProxyHandler({}), HTTPCookieProcessor())
    try:
        with browser.open(url, timeout=_PAGE_PATIENCE) as page:
            if f'value="{button}"'.encode() not in page.read(_LONGEST_PAGE):
                raise NoSuchPage(f"the page (status {page.status}) has no button {button!r}")
            form = page.url  # a form without an action is sent to where the page is
        with browser.open(form, urlencode({"answer": button}).encode(), timeout=_PAGE_PATIENCE):
            pass
    except HTTPError as error:
        error.close()
        raise NoSuchPage(f"a page answered with status {error.code}") from None
