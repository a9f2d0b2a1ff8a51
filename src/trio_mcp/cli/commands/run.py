"""``trio-mcp run`` serves the server of a file or module over standard input and output, or on an address."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import click
import trio

from ...server.server import Server, store_tasks_in
from ...serving.process import serve_stdio
from ..addresses import LOG_LEVELS, Addresses, serving_on
from ..loading import LoadingFailed, load_server
from ..printable import CommandError, log_to_stderr, say
from ..serving_options import serving_options, supervised


@click.command(context_settings={"auto_envvar_prefix": "TRIO_MCP"})
@click.argument("target", metavar="FILE[:NAME]", required=False)
@click.argument("arguments", metavar="[-- ARGUMENTS...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", metavar="MODULE[:NAME]", help="Serve the server of a module, instead of a file.")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    help="Lowest level of Python's log records on standard error. Default: warning, or FILE's own configuration.",
)
@serving_options
@click.option(
    "--tasks",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Keep the tasks of the server in this file, which is made if it does not exist, instead of in memory: they "
    "outlive the server, and several servers on this machine can share them.",
)
@click.option(
    "--reload",
    "reloads",
    is_flag=True,
    help="Start the server anew when a Python file below the present folder changes; the port stays open. Goes with "
    "--http, and needs the package watchfiles.",
)
def run(
    target: str | None,
    arguments: tuple[str, ...],
    module: str | None,
    log_level: str | None,
    addresses: Addresses,
    tasks: Path | None,
    reloads: bool,
) -> int:
    """Serve your server over stdio, or on an address.

    FILE is the Python file that makes the server. MCP clients start this command themselves. Most clients
    have an entry like

    \b
        {"command": "trio-mcp", "args": ["run", "/path/to/server.py"]}

    NAME is the global variable that holds the server, or a function without parameters that makes it; the default is
    `server`, or the only server in the file. MODULE:NAME, or -m MODULE, is a module instead of a file. What follows
    `--` are the arguments in sys.argv. The file runs as with `python FILE`, but without the code guarded by
    `if __name__ == "__main__"`, so two lines are enough:

    \b
        from trio_mcp import Server
        server = Server("batch")

    The server ends, with exit status 0, when the client closes standard input or on SIGINT or SIGTERM, after the
    accepted requests. Standard output belongs to the protocol: text printed by the file goes to standard error. Exit
    status 1 means that the file raised, 2 that there is no such server.

    With --http, --websocket, --tcp or --unix the server runs until SIGINT or SIGTERM. HOST is 127.0.0.1 unless given,
    and port 0 is any free port, reported on standard error. Other ways to check tokens than --issuer are for a program
    of yours that calls `serve_http(server, ..., auth=Protected(...))`.

    Each option can be given by a variable instead, --http by TRIO_MCP_HTTP; several values are separated by blanks.
    """
    if module is not None:
        arguments = arguments if target is None else (target, *arguments)
    elif target is None:
        raise click.UsageError("name a file, or a module with -m")
    if tasks is not None and not tasks.parent.is_dir():
        raise CommandError(f"there is no folder {str(tasks.parent)!r} for the tasks")
    if tasks is not None and addresses.shared is not None:
        raise click.UsageError("--shared keeps the tasks, too: leave --tasks out")
    if (status := supervised(addresses, reloads=reloads)) is not None:
        return status
    serve = serving_on(addresses)
    if serve is None and (sys.stdin is None or sys.stdout is None):  # pyright: ignore[reportUnnecessaryComparison]
        raise CommandError("standard input and output must be open: they are the connection")
    if log_level is not None:
        log_to_stderr(log_level)
    try:
        server = load_server(module or str(target), arguments, is_module=module is not None)
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
            raise CommandError(str(error)) from None
    log_to_stderr("warning")  # does nothing where logging was set up already
    if serve is None and sys.stdin.isatty():
        say(f"serving {server.info.name!r} to MCP clients; this is a terminal; press Ctrl-C to stop")
    trio.run(serve or serve_stdio, server)
    return 0


async def _keep_tasks(server: Server, path: Path) -> None:
    """Have the tasks of ``server`` kept in the file ``path``. Raises `OSError` when the file cannot be used."""
    from ...stores.sqlite_store import SQLiteTaskStore  # most servers never need it

    async with SQLiteTaskStore(path) as store:  # opened again by the server
        await store.expire(limit=0)
    store_tasks_in(server, store)
