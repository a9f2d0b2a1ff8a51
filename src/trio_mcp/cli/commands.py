"""The commands: what can be typed, and what the help says about it."""

from __future__ import annotations

import click

from .bridge_command import bridge
from .call_command import call
from .inspect_command import inspect
from .install_command import install
from .listening_options import LEVELS, listening_options

__all__ = ["trio_mcp"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trio-mcp")
def trio_mcp() -> None:
    """Serve and call the Model Context Protocol, with cancel scopes that cross the process boundary.

    \b
    See what it does:        trio-mcp demo
    Serve a server of yours: trio-mcp run server.py
    See what a server has:   trio-mcp inspect server.py
    Call one of its tools:   trio-mcp call server.py TOOL key=value
    Serve one elsewhere:     trio-mcp bridge --websocket 8765 -- npx -y some-server
    Give it to a host:       trio-mcp install server.py --client cursor
    """


for _command in (inspect, call, install, bridge):
    trio_mcp.add_command(_command)


@trio_mcp.command()
@click.option("--websocket", is_flag=True, help="Over WebSocket, with two clients at once, one of which gives up.")
def demo(websocket: bool) -> int:
    """Call a bundled server and see what happens in it.

    Starts the server in a child process, lists its tools, runs a long call with progress and log lines, lets the
    server ask you a question, and gives up on a call to show how soon the handler's cleanup runs in the other
    process. Takes about five seconds. Without a terminal it answers the question itself and prints plain lines.
    """
    from .demo import run_demo

    if not websocket:
        return run_demo()
    from .websocket_demo import tell_story

    return run_demo(tell_story)


@trio_mcp.command()
@click.argument("target", metavar="FILE[:NAME]")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Least severe message of Python's logging that goes to standard error. Unless given: warning, or "
    "what FILE sets up itself.",
)
@listening_options
def run(
    target: str,
    log_level: str | None,
    websocket: str | None,
    tcp: str | None,
    unix: str | None,
    origins: tuple[str, ...],
    names: tuple[str, ...],
) -> int:
    """Serve a server of yours over standard input and output, or on an address of your choice.

    FILE is the Python file that makes the server. MCP clients start this command themselves. For most of them it
    is an entry like

    \b
        {"command": "trio-mcp", "args": ["run", "/path/to/server.py"]}

    NAME is the global variable that holds the server. Without it, that is `server`, or the only server there
    is. The file runs as `python FILE` would run it, but without what `if __name__ == "__main__"` guards, so
    this is enough:

    \b
        from trio_mcp import Server
        server = Server("batch")

    The server ends, with exit status 0, when the client closes standard input or on SIGINT or SIGTERM, after
    the requests it has accepted. Standard output belongs to the protocol: what the file prints goes to
    standard error. Exit status 1 means that the file raised, 2 that there is no such server.

    With --websocket, --tcp or --unix it serves until SIGINT or SIGTERM. HOST is 127.0.0.1 unless given, and the
    port 0 is any free one; standard error says which.
    """
    from .addresses import Addresses
    from .run import run_server

    return run_server(target, log_level, Addresses(websocket, tcp, unix, origins, names))
