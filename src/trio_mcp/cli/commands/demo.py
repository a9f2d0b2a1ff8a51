"""``trio-mcp demo`` calls a bundled server and shows the events in that server."""

from __future__ import annotations

import click

from ..demo.walkthrough import run_demo, tell_story_over_http, tell_story_over_websocket


@click.command()
@click.option(
    "--http", "transport", flag_value="http", help="Over HTTP, with two clients at once, one of which gives up."
)
@click.option("--websocket", "transport", flag_value="websocket", help="The same over WebSocket.")
@click.option(
    "--auth",
    "transport",
    flag_value="auth",
    help="With an authorization server: sign-in, step-up, refresh, revocation. Needs Node.js 22 with npm.",
)
@click.option("--browser", is_flag=True, help="With --auth: sign in yourself, in your browser.")
def demo(transport: str | None, browser: bool) -> int:
    """Call a bundled server and see what happens in it.

    Starts the server in a child process, lists its tools, runs a long call with progress and log lines, lets the server
    ask you a question, gives up on a call to show how soon the handler's cleanup runs in the other process, and starts
    a task. Takes about five seconds. Without a terminal, the demo answers the question itself and prints plain lines.
    """
    if browser and transport != "auth":
        raise click.UsageError("--browser goes with --auth")
    if transport is None:
        return run_demo()
    if transport == "auth":
        from ..demo.with_authorization import tell_story_with_authorization

        return run_demo(lambda screen: tell_story_with_authorization(screen, in_browser=browser))
    return run_demo(tell_story_over_http if transport == "http" else tell_story_over_websocket)
