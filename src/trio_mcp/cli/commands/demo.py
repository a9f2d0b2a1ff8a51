"""``trio-mcp demo`` calls a bundled server and shows the events in that server."""

from __future__ import annotations

import click

from ..demo.walkthrough import run_demo, tell_story_over_http, tell_story_over_websocket

_WITH_AUTHORIZATION = """the demo with authorization is an example in the repository, and no part of the package. \
In a clone, with Node.js 22 or newer and npm:
  pip install -e '.[cli,auth]'
  python -m examples.authorization"""


@click.command()
@click.option(
    "--http", "transport", flag_value="http", help="Over HTTP, with two clients at once, one of which gives up."
)
@click.option("--websocket", "transport", flag_value="websocket", help="The same over WebSocket.")
@click.option(
    "--auth",
    "transport",
    flag_value="auth",
    help="Say how to run the demo with an authorization server: sign-in, step-up, refresh, revocation.",
)
def demo(transport: str | None) -> int:
    """Call a bundled server and see what happens in it.

    Starts the server in a child process, lists its tools, runs a long call with progress and log lines, lets the server
    ask you a question, gives up on a call to show how soon the handler's cleanup runs in the other process, and starts
    a task. Takes about five seconds. Without a terminal, the demo answers the question itself and prints plain lines.
    """
    if transport is None:
        return run_demo()
    if transport == "auth":
        raise click.UsageError(_WITH_AUTHORIZATION)
    return run_demo(tell_story_over_http if transport == "http" else tell_story_over_websocket)
