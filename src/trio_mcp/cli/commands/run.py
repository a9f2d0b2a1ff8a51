"""``trio-mcp run`` serves the server of a file or module over standard input and output, or on an address."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import trio

from ...server.server import Server
from ...serving.process import serve_stdio
from ..addresses import LOG_LEVELS, Addresses, address_options, open_sockets, serving_on
from ..loading import LoadingFailed, load_server
from ..printable import Unusable, log_to_stderr, say
from ..sharing import storage_at
from ..supervisor import report_in_a_thread
from ..workers import WorkerLink, supervise

if TYPE_CHECKING:
    from ...auth.resource_server.protected import Protected


@click.command(context_settings={"auto_envvar_prefix": "TRIO_MCP"})
@click.argument("target", metavar="FILE[:NAME]", required=False)
@click.argument("arguments", metavar="[-- ARGUMENTS...]", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", metavar="MODULE[:NAME]", help="Serve the server of a module, instead of a file.")
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
@click.option(
    "--shared",
    metavar="URL|FILE",
    help="Serve as one of several processes behind a balancer, of which any answers any request: what they have to "
    "know of each other is in the Redis at this URL, like redis://HOST:PORT (extra redis), or, for the processes of "
    "one machine, in this SQLite file, which is made if it does not exist. Tasks are kept there, too. Goes with "
    "--http. A URL with a password belongs in the variable TRIO_MCP_SHARED: others on the machine see the options.",
)
@click.option("--health", is_flag=True, help="Answer GET /healthz and GET /readyz, for probes.")
@click.option(
    "--issuer",
    "issuers",
    multiple=True,
    metavar="URL",
    help="An authorization server whose signed tokens (JWT) each HTTP request needs. Repeatable.",
)
@click.option("--resource", metavar="URL", help="The URL of the server, as its clients write it. Goes with --issuer.")
@click.option(
    "--audience",
    "audiences",
    multiple=True,
    metavar="NAME",
    help="A name of the server in tokens. Repeatable. Default: the URL of --resource.",
)
@click.option("--jwks", metavar="URL", help="The keys of the issuer. Default: those that its metadata name.")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="A scope that each token needs. Repeatable.")
@click.option(
    "--workers",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Serve with N processes, which share the port. One that dies is started again, and SIGHUP replaces them one "
    "after another. Goes with --http, and with --shared or --stateless.",
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
    workers: int | None,
    reloads: bool,
    stateless: bool,
    shared: str | None,
    health: bool,
    **tokens: Any,
) -> int:
    """Serve a server of yours over standard input and output, or on an address of your choice.

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
        raise click.UsageError(f"there is no folder {str(tasks.parent)!r} for the tasks")
    if tasks is not None and shared is not None:
        raise click.UsageError("--shared keeps the tasks, too: leave --tasks out")
    storage = None if shared is None else storage_at(shared)
    link = WorkerLink.from_environment()
    auth = _protected(**tokens)
    addresses = attrs.evolve(addresses, stateless=stateless, shared=storage, health=health, auth=auth, link=link)
    if (workers is not None or reloads) and link is None:
        return _supervise(addresses, workers or 1, reloads=reloads)
    serve = serving_on(addresses)
    if serve is None and (sys.stdin is None or sys.stdout is None):  # pyright: ignore[reportUnnecessaryComparison]
        raise Unusable("standard input and output must be open: they are the connection")

    def load() -> Server | None:
        server = load_server(module or str(target), arguments, is_module=module is not None)
        if server is not None and link is not None:
            server.share_secret(link.secret)
        return server

    return run_server(load, log_level, serve, tasks)


def _protected(
    *,
    issuers: tuple[str, ...],
    resource: str | None,
    audiences: tuple[str, ...],
    jwks: str | None,
    scopes: tuple[str, ...],
) -> Protected | None:
    """Return the authorization that the options describe; `None` without one. Raises `click.UsageError`."""
    if not issuers:
        if resource is not None or audiences or jwks is not None or scopes:
            raise click.UsageError("--resource, --audience, --jwks and --scope go with --issuer")
        return None
    if resource is None:
        raise click.UsageError("--issuer needs --resource: the URL of the server, as its clients write it")
    try:
        from ...auth.resource_server.jwt import JWTVerifier
        from ...auth.resource_server.protected import Protected

        verifier = JWTVerifier(audience=audiences or None, jwks_uri=jwks)
        return Protected(resource=resource, authorization_servers=issuers, verifier=verifier, scopes=frozenset(scopes))
    except (ImportError, ValueError) as error:  # the first where the extra that checks tokens is not installed
        raise click.UsageError(str(error)) from None


def _supervise(addresses: Addresses, count: int, *, reloads: bool) -> int:
    """Serve with ``count`` workers, which run this command line again; return the exit status."""
    if count > 1 and not addresses.stateless and addresses.shared is None:
        raise click.UsageError(
            "--workers goes with --shared, or with --stateless: requests of a session come to any of the processes"
        )
    if reloads and find_spec("watchfiles") is None:
        raise Unusable("--reload needs the package watchfiles: pip install 'trio-mcp[reload]'")
    serving_on(addresses)  # the options are checked here, and once
    log_to_stderr("warning")
    return trio.run(_supervised, addresses, count, os.getcwd() if reloads else None)


async def _supervised(addresses: Addresses, count: int, watched: str | None) -> int:
    sockets, where = await open_sockets(addresses)
    processes = "a worker" if count == 1 else f"{count} workers"
    return await supervise(
        sockets,
        count,
        lambda server: report_in_a_thread(f"serving {server!r} at {where} with {processes}; press Ctrl-C to stop"),
        watched,
    )


def run_server(
    load: Callable[[], Server | None],
    log_level: str | None,
    serve: Callable[[Server], Awaitable[None]] | None,
    tasks: Path | None,
) -> int:
    """Serve the server that ``load`` returns; return the exit status.

    The server is served by ``serve``, or over standard input and output until the client is gone. Its tasks are kept in
    the file ``tasks``, or where the author's file says.

    ``log_level`` is the level of Python's logging on standard error; with `None` the file may configure logging. When
    the file raised, the traceback is printed on standard error, and the status is 1. Raises `Unusable` when there is no
    such server.
    """
    if log_level is not None:
        log_to_stderr(log_level)
    try:
        server = load()
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
