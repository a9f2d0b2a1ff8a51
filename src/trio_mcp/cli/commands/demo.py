"""``trio-mcp demo``: arguments, options and help."""

from __future__ import annotations

import click

__all__ = ["demo"]


@click.command()
@click.option("--websocket", is_flag=True, help="Over WebSocket, with two clients at once, one of which gives up.")
def demo(websocket: bool) -> int:
    """Call a bundled server and see what happens in it.

    Starts the server in a child process, lists its tools, runs a long call with progress and log lines, lets the server
    ask you a question, and gives up on a call to show how soon the handler's cleanup runs in the other process. Takes
    about five seconds. Without a terminal, the demo answers the question itself and prints plain lines.
    """
    from ..demo.over_stdio import run_demo

    if not websocket:
        return run_demo()
    from ..demo.over_websocket import tell_story

    return run_demo(tell_story)
