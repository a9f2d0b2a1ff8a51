"""``trio-mcp torture`` plays black-box scenarios of cancellation and robustness against a server or a client."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import click

from ...torture.client_scenarios import CLIENT_SCENARIOS, ClientUnderTest
from ...torture.departures import SERVER_SCENARIOS
from ...torture.report import details, line, summary
from ...torture.scenarios import ERAS, Scenario, ScenarioOutcome, run_scenarios
from ...torture.server_under_test import TOOLS, ServerUnderTest, find_tools
from .. import ENDED_WELL, NO_CONNECTION, TOOL_FAILED
from ..printable import printable, say
from ..signals import run_until_interrupted
from .options import TARGET, ConnectionOptions, TargetCommand, connection_options, words_after_dashes


def _tool_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for kind, does in reversed(TOOLS.items()):
        command = click.option(f"--{kind}", metavar="TOOL", help=f"The tool that {does}; `{kind}` by default.")(command)
    return command


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET, required=False)
@click.option("--client", metavar="COMMAND", help="Test this client, which connects to the server {server}.")
@click.option("--only", metavar="TEXT", help="Play only the scenarios whose id contains this text.")
@click.option("--patience", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Multiply all time limits.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as JSON.")
@click.option("--list", "lists", is_flag=True, help="List the scenarios and play none.")
@_tool_options
@connection_options
def torture(
    target: str | None,
    client: str | None,
    only: str | None,
    patience: float,
    as_json: bool,
    lists: bool,
    connection: ConnectionOptions,
    **tools: str | None,
) -> int:
    """Test how a server or client cancels and survives.

    TARGET is as for `trio-mcp inspect`. Each scenario starts the server again, or opens a new
    connection.

    \b
        trio-mcp torture server.py
        trio-mcp torture http://127.0.0.1:8000/mcp --only cancel
        trio-mcp torture --client "python client.py {server}"

    A server needs tools by which its handlers can be seen from outside: see the options. The documentation has such a
    server for three SDKs, and the fifteen lines that a client needs.

    MUST and SHOULD are the specification's; "better" is what users notice. Exit status: 0 if no scenario failed; 1 if
    one failed; 2 for wrong usage; 3 when there is no connection.
    """
    if (target is None) == (client is None) and not lists:
        raise click.UsageError("TARGET or --client is required, and not both")
    eras: Sequence[Any] = ERAS if connection.era == "auto" else (connection.era,)
    scenarios: Sequence[Scenario[Any]] = SERVER_SCENARIOS if client is None else CLIENT_SCENARIOS
    scenarios = [each for each in scenarios if only is None or only in each.id]
    if lists:
        print("\n".join(f"{each.level:6}  {each.id}: {each.title}" for each in scenarios))
        return ENDED_WELL

    outcomes = list[ScenarioOutcome]()

    async def play() -> bool:
        was_found = client is not None
        for era in eras:
            under_test: Any = ClientUnderTest(shlex.split(client or ""), era, patience)
            if client is None:
                where = connection.target(words_after_dashes(target or ""), None)
                found = await find_tools(where, era)
                if found is None:
                    continue
                was_found = True
                named = {kind: name for kind, name in tools.items() if name is not None}
                under_test = ServerUnderTest(where, era, {**found, **named}, patience)
            chosen: Any = scenarios
            async for outcome in run_scenarios(chosen, era, under_test, patience):
                outcomes.append(outcome)
                if not as_json:
                    print("\n".join(printable(text) for text in (line(outcome), *details(outcome))), flush=True)
        return was_found

    if not run_until_interrupted(play, connection.timeout):
        say("the server answers in neither era")
        return NO_CONNECTION
    if as_json:
        print(json.dumps([each.as_json() for each in outcomes], indent=1))
    else:
        print(summary(outcomes))
    return TOOL_FAILED if any(each.status == "failed" for each in outcomes) else ENDED_WELL
