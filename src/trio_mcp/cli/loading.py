"""Loads the user's server from a file or module for ``trio-mcp run``, and protects standard input and output, which
carry the protocol, from other code."""

from __future__ import annotations

import inspect
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final, NoReturn, cast

import trio_mcp

from ..concurrency.contexts import contextmanager
from ..server.server import Server
from ..serving import process, running
from .printable import CommandError

_STAND_IN_NAME: Final = "__trio_mcp_main__"
_LISTENING: Final = ("serve_http", "serve_tcp", "serve_unix", "serve_websocket")


class LoadingFailed(CommandError):
    """The user's file or module raised ``error`` while it was loaded. The traceback of ``error`` begins in the file
    itself."""

    exit_code = 1

    def __init__(self, source: Path | str, error: Exception) -> None:
        super().__init__(f"{source} could not be loaded")
        self.error = error

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the traceback and a message on standard error: see `click.ClickException.show`."""
        traceback.print_exception(self.error)
        super().show(file)


def load_server(target: str, arguments: Sequence[str] = (), *, is_module: bool = False) -> Server | None:
    """Load and return the server that ``target`` names, as FILE, FILE:NAME, MODULE or MODULE:NAME.

    NAME is a server, or a function without parameters that returns one.

    A file runs as ``python FILE`` would run it: its directory comes first on the path, and `sys.argv` holds the file
    and ``arguments``. A module is imported with the current directory first on the path. However, ``__name__`` isn't
    ``"__main__"``, and standard output and input are reserved for the protocol (`wire_held_back`). With ``is_module``,
    ``target`` is never a file.

    Returns `None` if the file itself has called ``serve_stdio``, without a guard, and the call has returned. During
    that call, the file has the real standard output and input.

    Raises:
      CommandError: the target is wrong, or the file would listen on its own and never finish loading.
      LoadingFailed: the file raised an exception.
      SystemExit: the file exited.
    """
    source, name = _split(target, is_module=is_module)
    with _may_not_listen() as called, wire_held_back() as wire, _may_serve_itself(wire) as served:
        try:
            module = _load(source, arguments)
            if served:
                return None
            return _only(source, module) if name is None else _named(source, name, module)
        finally:
            if called:
                raise CommandError(
                    f"{source} calls {called[0]} when it is imported; move that call below the line: "
                    'if __name__ == "__main__":'
                ) from None


_MODULE: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def _split(target: str, *, is_module: bool) -> tuple[Path | str, str | None]:
    """Split ``target`` into a file or the name of a module, and the name of the variable with the server."""
    before, colon, after = target.rpartition(":")
    source, name = (before, after) if colon and not Path(target).exists() else (target, None)
    path = Path(source)
    if is_module or (not path.exists() and _MODULE.fullmatch(source) and path.suffix != ".py"):
        sys.path.insert(0, os.getcwd())
        return source, name
    if not path.exists():
        raise CommandError(f"no such file: {path}")
    if path.is_dir():
        raise CommandError(f"{path} is a directory, not a Python file")
    return path, name


def _named(source: Path | str, name: str, module: ModuleType) -> Server:
    found = getattr(module, name, None)
    if found is None:
        servers = [key for key, value in vars(module).items() if isinstance(value, Server)]
        raise CommandError(f"{source} has no {name!r}; its servers are: {', '.join(servers) or 'none'}")
    if isinstance(found, Server):
        return found
    # Test for functools.partial as well, because inspect.isroutine() is false for it before CPython 3.14.
    if not (inspect.isroutine(found) or inspect.isclass(found) or issubclass(type(found), partial)):
        raise CommandError(f"{source}:{name} must be a Server, not {type(found).__name__}")
    try:
        made = found()
    except Exception as error:
        raise LoadingFailed(source, _from_file(error, str(getattr(module, "__file__", "")))) from error
    if isinstance(made, Server):
        return made
    if inspect.iscoroutine(made):
        made.close()
        raise CommandError(
            f"{source}:{name} must be a plain def, not async; put async setup into the server's lifespan"
        )
    raise CommandError(f"{source}:{name}() must return a Server, not {type(made).__name__}")


def _only(source: Path | str, module: ModuleType) -> Server:
    servers = {key: value for key, value in vars(module).items() if isinstance(value, Server)}
    if "server" in servers:
        return servers["server"]
    different = list({id(server): server for server in servers.values()}.values())
    if not different:
        raise CommandError(f'no server in {source}; it needs a global variable like: server = Server("name")')
    if len(different) > 1:
        raise CommandError(f"several servers in {source}: {', '.join(servers)}; choose one with {source}:NAME")
    return different[0]


def _load(source: Path | str, arguments: Sequence[str]) -> ModuleType:
    if isinstance(source, str):
        return _imported(source, arguments)
    # Let the other modules in the file's folder import the file by its name, unless another module has that name.
    taken = source.stem in sys.modules or source.stem in sys.stdlib_module_names
    name, file = _STAND_IN_NAME if taken else source.stem, str(source.absolute())
    spec = spec_from_file_location(name, file, loader=SourceFileLoader(name, file))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(source.resolve().parent))
    sys.argv = [str(source), *arguments]
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything, and the user wants to see it
        raise LoadingFailed(source, _from_file(error, file)) from error
    return module


def _imported(name: str, arguments: Sequence[str]) -> ModuleType:
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # a parent package of the module doesn't exist
        spec = None
    if spec is None:
        raise CommandError(f"there is neither a file nor a module {name!r}")
    sys.argv = [spec.origin or name, *arguments]
    try:
        return import_module(name)
    except Exception as error:
        raise LoadingFailed(name, _from_file(error, spec.origin or "")) from error


def _from_file(error: Exception, file: str) -> Exception:
    """Return ``error`` with a traceback that begins in the user's file, without the frames of this package."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != file:
        frame = frame.tb_next
    return error.with_traceback(frame)


@contextmanager
def _may_serve_itself(wire: StandardDescriptors) -> Generator[list[Server]]:
    """While inside the ``with`` block, let the loaded file call ``serve_stdio`` itself, with the real standard streams.
    Yields a list of the servers that the file has served.

    This is for a file that ends in ``trio.run(serve_stdio, server)`` without a ``__main__`` guard.
    """
    served: list[Server] = []
    real = process.serve_stdio

    async def serve_stdio(server: Server, **options: Any) -> None:
        served.append(server)
        wire.give_back()
        try:
            await real(server, **options)
        finally:
            wire.hold_back()

    process.serve_stdio = trio_mcp.serve_stdio = serve_stdio
    try:
        yield served
    finally:
        process.serve_stdio = trio_mcp.serve_stdio = real


@contextmanager
def _may_not_listen() -> Generator[list[str]]:
    """Inside the block, make functions that listen for connections raise an error, because a file must not serve while
    it is imported.

    Yields a list of the names of the functions that were called.
    """
    called: list[str] = []
    before = vars(trio_mcp).copy()
    for name in _LISTENING:
        setattr(trio_mcp, name, _refusing(name, called))
    trio_mcp.run = cast("Any", _running_over_stdio(called))
    try:
        yield called
    finally:
        for name in (*_LISTENING, "run"):
            if name in before:
                setattr(trio_mcp, name, before[name])
            else:
                # Delete the replacement of this function: `trio_mcp` imports the function itself at its next use.
                delattr(trio_mcp, name)


def _refusing(name: str, called: list[str]) -> Callable[..., Awaitable[NoReturn]]:
    async def refuse(*_: Any, **__: Any) -> NoReturn:
        called.append(name)
        raise CommandError(f"{name} was called")

    return refuse


def _running_over_stdio(called: list[str]) -> Callable[..., None]:
    def run(server: Server, transport: str = "stdio", **options: Any) -> None:
        if transport != "stdio":
            called.append("run")
            raise CommandError("run was called")
        running.run(server, **options)

    return run


@contextmanager
def wire_held_back() -> Generator[StandardDescriptors]:
    """Protect standard input and output, which carry the protocol, inside the block: other code in this process and its
    children can't read or write them.

    Writes to descriptor 1 go to standard error, and descriptor 0 is empty.
    """
    wire = StandardDescriptors()
    wire.hold_back()
    try:
        yield wire
    finally:
        wire.give_back()
        os.close(wire.input)
        os.close(wire.output)


class StandardDescriptors:
    """Duplicates of the file descriptors 0 and 1, so that the standard streams can be replaced and restored. Both
    descriptors must be open."""

    def __init__(self) -> None:
        self.input, self.output = os.dup(0), os.dup(1)

    def hold_back(self) -> None:
        """Redirect the standard streams, so that other code can't read or write the streams of the protocol."""
        sys.stdout.flush()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2 if sys.__stderr__ is not None else null, 1)
        os.close(null)

    def give_back(self) -> None:
        """Restore the real standard streams, which carry the protocol."""
        sys.stdout.flush()  # flush first, because buffered text would otherwise go to the client
        os.dup2(self.input, 0)
        os.dup2(self.output, 1)
