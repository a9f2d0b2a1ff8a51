"""``trio-mcp run``: serves the server of a file or module over standard input and output, or on an address."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import trio

from ...server.server import Server, store_tasks_in
from ...serving.process import serve_stdio
from ..addresses import LOG_LEVELS, Addresses, serving_on
from ..group import SectionedCommand
from ..loading import load_server
from ..printable import CommandError, log_to_stderr, say
from ..serving_options import serving_options, supervised


@click.command(cls=SectionedCommand, context_settings={"auto_envvar_prefix": "TRIO_MCP"})
@click.argument("target", metavar="FILE[:NAME]", required=False)
@click.argument("arguments", metavar="[-- ARGUMENTS...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", metavar="MODULE[:NAME]", help="Serve the server of a module instead of a file.")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    help="Lowest level of log messages on standard error. Default: warning, or FILE's own logging configuration.",
)
@serving_options
@click.option(
    "--tasks",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Keep the server's tasks in this file instead of in memory. They survive restarts, and several servers on "
    "this machine can share them. The file is created if necessary.",
)
@click.option(
    "--reload",
    "reloads",
    is_flag=True,
    help="Restart the server when a Python file in the current folder or below changes. The port stays open. Needs "
    "--http, and the package watchfiles.",
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
    """Serve your server over stdio, HTTP or another transport.

    FILE is the Python file that creates the server. MCP clients start this command themselves. Most have a
    configuration entry like

    \b
        {"command": "trio-mcp", "args": ["run", "/path/to/server.py"]}

    NAME is the global variable that holds the server, or a function without parameters that creates it. The default is
    `server`, or the only server in the file. To load a module instead of a file, use MODULE:NAME or -m MODULE. The
    words after `--` become the arguments in sys.argv. The file runs as with `python FILE`, but without the code under
    `if __name__ == "__main__"`, so two lines are enough:

    \b
        from trio_mcp import Server
        server = Server("batch")

    The server shuts down, with exit status 0, when the client closes standard input, or on SIGINT or SIGTERM. Accepted
    requests are finished first. Standard output belongs to the protocol: text that the file prints goes to standard
    error.

    With --http, --websocket, --tcp or --unix, the server runs until SIGINT or SIGTERM. HOST is 127.0.0.1 by default.
    Port 0 is any free port, which is printed on standard error. To check tokens in another way than --issuer, write a
    program that calls `serve_http(server, ..., auth=Protected(...))`.

    Each option can also be set by an environment variable: --http by TRIO_MCP_HTTP. Separate several values with
    blanks.

    Exit status: 0 success; 1 the file raised an exception; 2 there is no such server.
    """
    if module is not None:
        arguments = arguments if target is None else (target, *arguments)
    elif target is None:
        raise click.UsageError("either FILE or -m MODULE is required")
    if tasks is not None and not tasks.parent.is_dir():
        raise CommandError(f"--tasks: there is no folder {str(tasks.parent)!r}")
    if tasks is not None and addresses.shared is not None:
        raise click.UsageError("--tasks and --shared cannot be combined: --shared stores the tasks as well")
    if (status := supervised(addresses, reloads=reloads)) is not None:
        return status
    serve = serving_on(addresses)
    if serve is None and (sys.stdin is None or sys.stdout is None):  # pyright: ignore[reportUnnecessaryComparison]
        raise CommandError("standard input and output must be open, because the client uses them")
    if log_level is not None:
        log_to_stderr(log_level)
    server = load_server(module or str(target), arguments, is_module=module is not None)
    if server is None:
        return 0
    if tasks is not None:
        with CommandError.instead_of(OSError):
            trio.run(_keep_tasks, server, tasks)
    log_to_stderr("warning")  # does nothing if the user's file has configured logging
    if serve is None and sys.stdin.isatty():
        say(f"serving {server.info.name!r} on standard input, which is a terminal, not a client; press Ctrl-C to stop")
    trio.run(serve or serve_stdio, server)
    return 0


async def _keep_tasks(server: Server, path: Path) -> None:
    """Store the tasks of ``server`` in the file ``path``. Raises `OSError` if the file can't be used."""
    from ...stores.sqlite_store import SQLiteTaskStore  # imported late: most servers don't need this module

    async with SQLiteTaskStore(path) as store:  # only check the file here: the server opens it again later
        await store.expire(limit=0)
    store_tasks_in(server, store)
