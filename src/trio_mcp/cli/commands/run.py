"""``trio-mcp run``: arguments, options and help."""

from __future__ import annotations

from pathlib import Path

import click

from .address_options import LEVELS, address_options


@click.command()
@click.argument("target", metavar="FILE[:NAME]")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
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
    from ..servers.addresses import Addresses
    from ..servers.running import run_server

    if tasks is not None and not tasks.parent.is_dir():
        raise click.UsageError(f"there is no folder {str(tasks.parent)!r} for the tasks")
    addresses = Addresses(http, websocket, tcp, unix, path, origins, names, proxies, stateless)
    return run_server(target, log_level, addresses, tasks)
