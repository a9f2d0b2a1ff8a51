"""run: serve the server of a file over standard input and output, or on an address."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import trio

from ...server.server import Server
from ...serving.stdio import serve_stdio
from ..log_lines import log_to_stderr
from .addresses import Addresses, BadAddress, CannotListen, serving_on
from .loading import LoadingFailed, NoServer, load_server


def run_server(target: str, log_level: str | None, addresses: Addresses, tasks: Path | None = None) -> int:
    """Serve the server that ``target`` names, FILE or FILE:NAME; return the exit status.

    The server is served on ``addresses``, or over standard input and output until the client is gone. Its tasks are
    kept in the file ``tasks``, or where FILE says.

    ``log_level`` is the level of Python's logging on standard error; with `None` the file may configure logging. Errors
    are reported on standard error: in one line and with status 2 when there is no such server or no address to serve
    on, with the traceback and status 1 when the file raised.
    """
    try:
        serve = serving_on(addresses)
    except BadAddress as error:
        return _say(str(error), 2)
    if serve is None and (sys.stdin is None or sys.stdout is None):  # pyright: ignore[reportUnnecessaryComparison]
        return _say("standard input and output must be open: they are the connection", 2)
    if log_level is not None:
        log_to_stderr(log_level)
    try:
        server = load_server(target)
    except NoServer as error:
        return _say(str(error), 2)
    except LoadingFailed as failed:
        traceback.print_exception(failed.error)
        return _say(str(failed), 1)
    if server is None:
        return 0
    if tasks is not None:
        try:
            trio.run(_keep_tasks, server, tasks)
        except OSError as error:
            return _say(str(error), 2)
    log_to_stderr("warning")  # does nothing where logging was set up already
    if serve is not None:
        try:
            trio.run(serve, server)
        except CannotListen as error:
            return _say(str(error), 2)
        return 0
    if sys.stdin.isatty():
        _say(f"serving {server.info.name!r} to MCP clients; this is a terminal; press Ctrl-C to stop", 0)
    trio.run(serve_stdio, server)
    return 0


async def _keep_tasks(server: Server, path: Path) -> None:
    """Have the tasks of ``server`` kept in the file ``path``. Raises `OSError` when the file cannot be used."""
    from ...stores.sqlite_store import SqliteTaskStore  # most servers never need it

    async with SqliteTaskStore(path) as store:  # opened again by the server
        await store.expire(most=0)
    server.keep_tasks_in(store)


def _say(line: str, status: int) -> int:
    print(f"trio-mcp: {line}", file=sys.stderr)
    return status
