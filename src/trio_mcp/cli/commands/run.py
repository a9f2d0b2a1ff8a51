"""``trio-mcp run`` serves the server of a file over standard input and output, or on an address."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import click
import trio

from ...server.server import Server
from ...serving.process import serve_stdio
from ..addresses import LOG_LEVELS, Addresses, BadAddress, CannotListen, address_options, serving_on
from ..loading import LoadingFailed, NoServer, load_server
from ..terminal.printable import log_to_stderr


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
def run(
    target: str,
    log_level: str | None,
    http: str | None,
    websocket: str | None,
    tcp: str | None,
    unix: str | None,
    path: str | None,
    origins: tuple[str, ...],
    names: tuple[str, ...],
    proxies: tuple[str, ...],
    tasks: Path | None,
    stateless: bool,
) -> int:
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
    addresses = Addresses(http, websocket, tcp, unix, path, origins, names, proxies, stateless)
    return run_server(target, log_level, addresses, tasks)


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
