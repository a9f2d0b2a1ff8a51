"""trio_mcp: the group of all commands, and its help."""

from __future__ import annotations

import click

from .bridge import bridge
from .call import call
from .complete import complete
from .demo import demo
from .inspect import inspect
from .install import install
from .logout import logout
from .prompt import prompt
from .read import read
from .run import run
from .tasks import tasks


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trio-mcp")
def trio_mcp() -> None:
    """Serve and call the Model Context Protocol, with cancel scopes that cross the process boundary.

    \b
    See a demonstration:     trio-mcp demo
    Serve your own server:   trio-mcp run server.py
    Show a server's offers:  trio-mcp inspect server.py
    Call a tool:             trio-mcp call server.py TOOL key=value
    Wait for a task:         trio-mcp tasks result https://mcp.example.com/mcp ID
    Read a resource:         trio-mcp read server.py URI
    Fill in a prompt:        trio-mcp prompt server.py PROMPT key=value
    Forget a sign-in:        trio-mcp logout https://mcp.example.com/mcp
    Serve another server:    trio-mcp bridge --http 8000 -- npx -y some-server
    Add a server to a host:  trio-mcp install server.py --client cursor
    """


for _command in (inspect, call, tasks, read, prompt, complete, logout, install, bridge, demo, run):
    trio_mcp.add_command(_command)
