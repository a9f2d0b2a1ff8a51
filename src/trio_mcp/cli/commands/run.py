"""``trio-mcp run`` serves the server of a file over standard input and output, or on an address.

The server that FILE[:NAME] names is loaded while standard input and output are held back for messages.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Generator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import attrs
import click
import trio

import trio_mcp

from ...concurrency.contexts import contextmanager
from ...server.server import Server
from ...serving import process
from ...serving.process import serve_stdio
from ..addresses import LOG_LEVELS, Addresses, address_options, serving_on
from ..printable import Unusable, log_to_stderr, say


@click.command()
@click.argument("target", metavar="FILE[:NAME]")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    help="Lowest level of Python's log records on standard error. Default: warning, or FILE's own configuration.",
)
@address_options
@click.option(
    "--tasks",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Keep the tasks of the server in this file, which is made if it does not exist, instead of in memory: they "
    "outlive the server, and several servers on this machine can share them.",
)
@click.option(
    "--stateless",
    is_flag=True,
    help="Keep nothing between HTTP requests, so that any of several processes can answer any request: there are no "
    "sessions, and no handler waits for an answer of its client.",
)
def run(target: str, log_level: str | None, addresses: Addresses, tasks: Path | None, stateless: bool) -> int:
    """Serve a server of yours over standard input and output, or on an address of your choice.

    FILE is the Python file that makes the server. MCP clients start this command themselves. Most clients
    have an entry like

    \b
        {"command": "trio-mcp", "args": ["run", "/path/to/server.py"]}

    NAME is the global variable that holds the server; the default is `server`, or the only server in the file. The
    file runs as with `python FILE`, but without the code guarded by `if __name__ == "__main__"`, so two lines are
    enough:

    \b
        from trio_mcp import Server
        server = Server("batch")

    The server ends, with exit status 0, when the client closes standard input or on SIGINT or SIGTERM, after the
    accepted requests. Standard output belongs to the protocol: text printed by the file goes to standard error. Exit
    status 1 means that the file raised, 2 that there is no such server.

    A server that checks the tokens of its clients is not for this command, but for a program of yours that calls
    `serve_http(server, ..., auth=Protected(...))`.

    With --http, --websocket, --tcp or --unix the server runs until SIGINT or SIGTERM. HOST is 127.0.0.1 unless given,
    and port 0 is any free port, reported on standard error.
    """
    if tasks is not None and not tasks.parent.is_dir():
        raise click.UsageError(f"there is no folder {str(tasks.parent)!r} for the tasks")
    serve = serving_on(attrs.evolve(addresses, stateless=stateless))
    if serve is None and (sys.stdin is None or sys.stdout is None):  # pyright: ignore[reportUnnecessaryComparison]
        raise Unusable("standard input and output must be open: they are the connection")
    return run_server(target, log_level, serve, tasks)


def run_server(
    target: str, log_level: str | None, serve: Callable[[Server], Awaitable[None]] | None, tasks: Path | None
) -> int:
    """Serve the server that ``target`` names, FILE or FILE:NAME; return the exit status.

    The server is served by ``serve``, or over standard input and output until the client is gone. Its tasks are kept in
    the file ``tasks``, or where FILE says.

    ``log_level`` is the level of Python's logging on standard error; with `None` the file may configure logging. When
    the file raised, the traceback is printed on standard error, and the status is 1. Raises `Unusable` when there is no
    such server.
    """
    if log_level is not None:
        log_to_stderr(log_level)
    try:
        server = load_server(target)
    except LoadingFailed as failed:
        traceback.print_exception(failed.error)
        say(str(failed))
        return 1
    if server is None:
        return 0
    if tasks is not None:
        try:
            trio.run(_keep_tasks, server, tasks)
        except OSError as error:
            raise Unusable(str(error)) from None
    log_to_stderr("warning")  # does nothing where logging was set up already
    if serve is None and sys.stdin.isatty():
        say(f"serving {server.info.name!r} to MCP clients; this is a terminal; press Ctrl-C to stop")
    trio.run(serve or serve_stdio, server)
    return 0


async def _keep_tasks(server: Server, path: Path) -> None:
    """Have the tasks of ``server`` kept in the file ``path``. Raises `OSError` when the file cannot be used."""
    from ...stores.sqlite_store import SqliteTaskStore  # most servers never need it

    async with SqliteTaskStore(path) as store:  # opened again by the server
        await store.expire(most=0)
    server.keep_tasks_in(store)


_STAND_IN_NAME: Final = "__trio_mcp_main__"
_LISTENING: Final = ("serve_http", "serve_tcp", "serve_unix", "serve_websocket")


class LoadingFailed(Exception):
    """The file raised ``error``, whose traceback begins in the file itself."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(f"{path} could not be loaded")
        self.error = error


def load_server(target: str) -> Server | None:
    """Return the server that ``target`` names, FILE or FILE:NAME.

    The file runs as ``python FILE`` would run it: its directory comes first on the path, and `sys.argv` holds only the
    file. But ``__name__`` is not ``"__main__"``, and standard output and input are held back for messages
    (`wire_held_back`). Returns `None` when the file, unguarded, has called ``serve_stdio`` itself and the call has
    returned; during the call the file had the real standard output and input.

    Raises `Unusable`, also for a file that would listen by itself, and never come to its end, and `LoadingFailed` when
    the file raises. `SystemExit` is let through.
    """
    path, name = _split(target)
    with _may_not_listen() as called:
        try:
            module, served = _run(path)
        finally:
            if called:
                raise Unusable(
                    f'{path} calls {called[0]} while it is loaded; put what serves under: if __name__ == "__main__":'
                ) from None
    if served:
        return None
    servers = {key: value for key, value in vars(module).items() if isinstance(value, Server)}
    return _only(path, servers) if name is None else _named(path, name, module, servers)


def _split(target: str) -> tuple[Path, str | None]:
    file, colon, name = target.rpartition(":")
    if not colon or Path(target).exists():
        path, wanted = Path(target), None
    else:
        path, wanted = Path(file), name
    if not path.exists():
        raise Unusable(f"no such file: {path}")
    if path.is_dir():
        raise Unusable(f"{path} is a directory, not a Python file")
    return path, wanted


def _named(path: Path, name: str, module: ModuleType, servers: dict[str, Server]) -> Server:
    if name in servers:
        return servers[name]
    if hasattr(module, name):
        raise Unusable(f"{path}:{name} is no Server but of type {type(getattr(module, name)).__name__}")
    raise Unusable(f"{path} has no {name!r}; its servers are: {', '.join(servers) or 'none'}")


def _only(path: Path, servers: dict[str, Server]) -> Server:
    if "server" in servers:
        return servers["server"]
    different = list({id(server): server for server in servers.values()}.values())
    if not different:
        raise Unusable(f'no server in {path}; it needs a global variable like: server = Server("name")')
    if len(different) > 1:
        raise Unusable(f"several servers in {path}; choose one with {path}:NAME, of: {', '.join(servers)}")
    return different[0]


def _run(path: Path) -> tuple[ModuleType, list[Server]]:
    """Return the module of the file, and the servers that the file has served itself."""
    # The file's other modules can import it under its own name; but it must not replace another module.
    taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    name, file = _STAND_IN_NAME if taken else path.stem, str(path.absolute())
    spec = spec_from_file_location(name, file, loader=SourceFileLoader(name, file))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    sys.argv = [str(path)]
    with wire_held_back() as wire, _may_serve_itself(wire) as served:
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # whatever the user's code raises, the user is to see it
            raise LoadingFailed(path, _from_file(error, file)) from error
    return module, served


def _from_file(error: Exception, file: str) -> Exception:
    """Return ``error`` without our own frames, which would only push the user's out of sight."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != file:
        frame = frame.tb_next
    return error.with_traceback(frame)


@contextmanager
def _may_serve_itself(wire: StandardDescriptors) -> Generator[list[Server]]:
    """Give ``serve_stdio`` the wire while inside, to support a file that ends in ``trio.run(serve_stdio, server)``
    without a guard. Yields the list of the servers served."""
    served: list[Server] = []
    real = process.serve_stdio

    async def serve_stdio(server: Server, **options: Any) -> None:
        served.append(server)
        with wire.given_back():
            await real(server, **options)

    process.serve_stdio = trio_mcp.serve_stdio = serve_stdio
    try:
        yield served
    finally:
        process.serve_stdio = trio_mcp.serve_stdio = real


@contextmanager
def _may_not_listen() -> Generator[list[str]]:
    """Fail the functions that listen while inside. Yields the list of the names of those that were called."""
    called: list[str] = []
    before = vars(trio_mcp).copy()
    for name in _LISTENING:
        setattr(trio_mcp, name, _refusing(name, called))
    try:
        yield called
    finally:
        for name in _LISTENING:
            if name in before:
                setattr(trio_mcp, name, before[name])
            else:
                delattr(trio_mcp, name)  # imported when it is wanted


def _refusing(name: str, called: list[str]) -> Callable[..., Awaitable[NoReturn]]:
    async def refuse(*_: Any, **__: Any) -> NoReturn:
        called.append(name)
        raise Unusable(f"{name} was called")

    return refuse


@contextmanager
def wire_held_back() -> Generator[StandardDescriptors]:
    """Keep other code away from the wire while no server owns the wire: descriptor 1 is standard error and descriptor 0
    is empty, for this process and its children."""
    wire = StandardDescriptors()
    wire.hold_back()
    try:
        yield wire
    finally:
        wire.give_back()
        wire.close()


class StandardDescriptors:
    """Copies of descriptors 0 and 1, made at the creation of the object. Both must be open."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)

    def hold_back(self) -> None:
        """Put harmless descriptors in the place of the wire."""
        sys.stdout.flush()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2 if sys.__stderr__ is not None else null, 1)
        os.close(null)

    def give_back(self) -> None:
        """Put the wire back."""
        sys.stdout.flush()  # what was printed waits in the buffer, and would be written to the wire
        os.dup2(self._input, 0)
        os.dup2(self._output, 1)

    @contextmanager
    def given_back(self) -> Generator[None]:
        """Put the wire back, and hold it back again at the end."""
        self.give_back()
        try:
            yield
        finally:
            self.hold_back()

    def close(self) -> None:
        """Close the copies of both descriptors, and leave the descriptors unchanged."""
        os.close(self._input)
        os.close(self._output)
