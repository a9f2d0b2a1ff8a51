"""Loading: from FILE[:NAME] to the server it means."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import trio_mcp
from trio_mcp import Server, serving

__all__ = ["LoadingFailed", "NoServer", "load_server"]

_STAND_IN_NAME: Final = "__trio_mcp_main__"


class NoServer(Exception):
    """FILE[:NAME] means no server. The text is one line for the user."""


class LoadingFailed(Exception):
    """The file raised ``error``, whose traceback begins in the file itself."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(f"{path} could not be loaded")
        self.error = error


def load_server(target: str) -> Server:
    """The server that ``target`` means, FILE or FILE:NAME.

    The file runs as ``python FILE`` would run it: its directory comes first on the path, and it is alone in
    `sys.argv`. But its ``__name__`` is not ``"__main__"``, and meanwhile standard output is standard error
    and standard input is empty, for the process and its children: the real ones are for messages only.
    A file that calls ``serve_stdio`` itself, unguarded, means the server that it gives to it.

    Raises `NoServer`, and `LoadingFailed` when the file raises. Its `SystemExit` is let through.
    """
    path, name = _split(target)
    module, served = _run(path)
    servers = {key: value for key, value in vars(module).items() if isinstance(value, Server)}
    if name is not None:
        if name in servers:
            return servers[name]
        if hasattr(module, name):
            raise NoServer(f"{path}:{name} is a {type(getattr(module, name)).__name__}, not a Server")
        raise NoServer(f"{path} has no {name!r}; its servers are: {', '.join(servers) or 'none'}")
    choice = _distinct(served) or _distinct([servers["server"]] if "server" in servers else servers.values())
    if not choice:
        raise NoServer(f'no server in {path}; it needs a global variable like: server = Server("name")')
    if len(choice) > 1:
        raise NoServer(f"several servers in {path}; choose one with {path}:NAME, of: {', '.join(servers)}")
    return choice[0]


def _distinct(servers: Any) -> list[Server]:
    return list({id(server): server for server in servers}.values())


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


def _run(path: Path) -> tuple[ModuleType, list[Server]]:
    """The module of the file, and the servers that it tried to serve."""
    # Under its own name its other modules can import it back; but it must not replace somebody else.
    taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    name = _STAND_IN_NAME if taken else path.stem
    spec = spec_from_file_location(name, path, loader=SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    sys.argv = [str(path)]
    with _wire_untouched(), _serving_noted() as served:
        try:
            spec.loader.exec_module(module)
        except SystemExit:
            if not served:
                raise
        except Exception as error:  # whatever the user's code raises, they are to see it
            raise LoadingFailed(path, _from_file(error, str(path))) from error
    return module, served


def _from_file(error: Exception, path: str) -> Exception:
    """``error`` without our own frames: they would only push the user's out of sight."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != path:
        frame = frame.tb_next
    return error.with_traceback(frame)


@contextmanager
def _serving_noted() -> Generator[list[Server]]:
    """Meanwhile ``serve_stdio`` only notes what it is to serve: a file that ends in
    ``trio.run(serve_stdio, server)`` is loaded to its end, and served once, by us."""
    served: list[Server] = []

    async def serve_stdio(server: Server, **_: Any) -> None:
        served.append(server)

    real = serving.serve_stdio
    serving.serve_stdio = trio_mcp.serve_stdio = serve_stdio
    try:
        yield served
    finally:
        serving.serve_stdio = trio_mcp.serve_stdio = real


@contextmanager
def _wire_untouched() -> Generator[None]:
    """Descriptor 1 is standard error and descriptor 0 is empty meanwhile."""
    sys.stdout.flush()
    saved_input, saved_output = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(null, 0)
        os.dup2(2 if sys.stderr is not None else null, 1)  # pyright: ignore[reportUnnecessaryComparison] - None when it was closed
        yield
    finally:
        sys.stdout.flush()  # a print waits in the buffer, and would come out on the wire
        os.dup2(saved_input, 0)
        os.dup2(saved_output, 1)
        for fd in (saved_input, saved_output, null):
            os.close(fd)
