"""The server that FILE[:NAME] names is loaded, while standard input and output are held back for messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Generator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import trio_mcp
from trio_mcp import Server
from trio_mcp.concurrency.contexts import contextmanager
from trio_mcp.serving import process

_STAND_IN_NAME: Final = "__trio_mcp_main__"
_LISTENING: Final = ("serve_http", "serve_tcp", "serve_unix", "serve_websocket")


class NoServer(Exception):
    """FILE[:NAME] names no server. The message is one line for the user."""


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

    Raises `NoServer`, also for a file that would listen by itself, and never come to its end, and `LoadingFailed` when
    the file raises. `SystemExit` is let through.
    """
    path, name = _split(target)
    with _may_not_listen() as called:
        try:
            module, served = _run(path)
        finally:
            if called:
                raise NoServer(
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
        raise NoServer(f"no such file: {path}")
    if path.is_dir():
        raise NoServer(f"{path} is a directory, not a Python file")
    return path, wanted


def _named(path: Path, name: str, module: ModuleType, servers: dict[str, Server]) -> Server:
    if name in servers:
        return servers[name]
    if hasattr(module, name):
        raise NoServer(f"{path}:{name} is no Server but of type {type(getattr(module, name)).__name__}")
    raise NoServer(f"{path} has no {name!r}; its servers are: {', '.join(servers) or 'none'}")


def _only(path: Path, servers: dict[str, Server]) -> Server:
    if "server" in servers:
        return servers["server"]
    different = list({id(server): server for server in servers.values()}.values())
    if not different:
        raise NoServer(f'no server in {path}; it needs a global variable like: server = Server("name")')
    if len(different) > 1:
        raise NoServer(f"several servers in {path}; choose one with {path}:NAME, of: {', '.join(servers)}")
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
def _may_serve_itself(wire: Wire) -> Generator[list[Server]]:
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
        raise NoServer(f"{name} was called")

    return refuse


@contextmanager
def wire_held_back() -> Generator[Wire]:
    """Keep other code away from the wire while no server owns the wire: descriptor 1 is standard error and descriptor 0
    is empty, for this process and its children."""
    wire = Wire()
    wire.hold_back()
    try:
        yield wire
    finally:
        wire.give_back()
        wire.close()


class Wire:
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
