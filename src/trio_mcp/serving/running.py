"""run: serves a server over any transport, in a process that does nothing else."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, overload

import trio

from ..server.servable import Servable

if TYPE_CHECKING:
    from ..recording.recorder import Recorder
    from .accepting import ServingOptions
    from .http.serve import HTTPOptions
    from .websocket import WebSocketOptions

_FUNCTIONS: Final = {
    "stdio": ".process:serve_stdio",
    "http": ".http.serve:serve_http",
    "websocket": ".websocket:serve_websocket",
    "tcp": ".connections:serve_tcp",
    "unix": ".connections:serve_unix",
}
"""Module and function of each transport, keyed by name. Only the module of the transport in use is imported."""


@overload
def run(
    server: Servable,
    transport: Literal["stdio"] = "stdio",
    *,
    stateless: bool = False,
    handle_signals: bool = True,
    record: Recorder | str | os.PathLike[str] | None = None,
) -> None: ...
@overload
def run(
    server: Servable,
    transport: Literal["http"],
    *,
    host: str | None = "127.0.0.1",
    port: int = 8000,
    **options: Unpack[HTTPOptions],
) -> None: ...
@overload
def run(
    server: Servable,
    transport: Literal["websocket"],
    *,
    host: str | None = "127.0.0.1",
    port: int = 8765,
    **options: Unpack[WebSocketOptions],
) -> None: ...
@overload
def run(
    server: Servable,
    transport: Literal["tcp"],
    *,
    host: str | None = "127.0.0.1",
    port: int = 8766,
    **options: Unpack[ServingOptions],
) -> None: ...
@overload
def run(
    server: Servable, transport: Literal["unix"], *, path: str | os.PathLike[str], **options: Unpack[ServingOptions]
) -> None: ...
def run(
    server: Servable, transport: Literal["stdio", "http", "websocket", "tcp", "unix"] = "stdio", **options: Any
) -> None:
    """Run ``server`` in this process. Over stdio, it runs until the client closes standard input.

    With other transports, it runs until Ctrl-C or SIGTERM.

        run(server)  # over standard input and output
        run(server, "http", port=8000)

    Keyword arguments are passed to `serve_stdio`, `serve_http`, `serve_websocket`, `serve_tcp` or `serve_unix`, which
    describe the shutdown. If your program runs trio itself, call one of these functions instead.

    Raises:
      ValueError: ``transport`` is unknown.
      TypeError: a function precedes the server, as for `trio.run`.
      RuntimeError: trio is already running.
      Exception: whatever the function raises.
    """
    if transport not in _FUNCTIONS:
        if callable(server):  # as in `trio.run(serve_stdio, server)`
            raise TypeError("the first argument of run() must be the server. Write\n    run(server)")
        raise ValueError(f"transport must be one of {', '.join(map(repr, _FUNCTIONS))}, not {transport!r}")
    module, _, name = _FUNCTIONS[transport].partition(":")
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(f"run() starts trio, but trio is already running. Write\n    await {name}(server, ...)")
    if transport == "stdio" and (of_others := options.keys() & {"host", "port"}):
        raise TypeError(
            f'{of_others.pop()}= is not allowed with the transport stdio: write run(server, "http", host=..., port=...)'
        )
    serve: Callable[..., Awaitable[None]] = getattr(import_module(module, __package__), name)
    trio.run(partial(serve, server, **options))
