"""``trio-mcp torture`` plays black-box scenarios of cancellation and robustness against a server or a client."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from ...torture.client_scenarios import CLIENT_SCENARIOS, ClientUnderTest
from ...torture.scenarios import ERAS, Era, ScenarioOutcome, UnderTest, run_scenarios
from ...torture.server_scenarios import SERVER_SCENARIOS
from ...torture.server_under_test import TOOLS, ServerUnderTest, find_tools
from .. import ENDED_WELL, NO_CONNECTION, TOOL_FAILED
from ..printable import printable, say
from ..signals import run_until_interrupted
from .options import TARGET, ConnectionOptions, TargetCommand, connection_options, words_after_dashes

_MARKS = {"passed": "ok", "failed": "FAIL", "skipped": "skip"}
_LEVELS = ("MUST", "SHOULD", "better")


def _tool_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for kind, does in reversed(TOOLS.items()):
        text = f"The tool that {does}; `{kind}` by default."
        command = click.option(f"--{kind}", metavar="TOOL", help=text)(command)
    return command


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET, required=False)
@click.option("--client", metavar="COMMAND", help="Test this client, which connects to the server {server}.")
@click.option("--only", metavar="TEXT", default="", help="Play only scenarios whose id contains this text.")
@click.option("--patience", type=click.FloatRange(0, min_open=True), default=1.0, help="Scale time limits.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as JSON.")
@click.option("--list", "lists", is_flag=True, help="List the scenarios and play none.")
@_tool_options
@connection_options
def torture(
    target: str | None,
    client: str | None,
    only: str,
    patience: float,
    as_json: bool,
    lists: bool,
    connection: ConnectionOptions,
    **tools: str | None,
) -> int:
    """Test cancellation and robustness of a server or client.

    TARGET is as for `trio-mcp inspect`. Each scenario starts the server again, or opens a
    new connection.

    \b
        trio-mcp torture server.py
        trio-mcp torture http://127.0.0.1:8000/mcp --only cancel
        trio-mcp torture --client "python client.py {server}"

    A server needs the tools that the options describe. The documentation has such a server for several SDKs, and the
    program that a client needs.

    MUST and SHOULD are the specification's words. "better" means that no clause requires the behavior, but users notice
    its absence. Exit status: 0 if no scenario failed; 1 if one failed; 2 for wrong usage; 3 without a connection.
    """
    if (target is None) == (client is None) and not lists:
        raise click.UsageError("either TARGET or --client is required, but not both")
    scenarios = [each for each in (CLIENT_SCENARIOS if client else SERVER_SCENARIOS) if only in each.id]
    if lists:
        print("\n".join(f"{each.level:6}  {each.id}: {each.title}" for each in scenarios))
        return ENDED_WELL

    async def under_test(era: Era) -> UnderTest | None:
        if client is not None:
            return ClientUnderTest(era, shlex.split(client), patience=patience)
        server = connection.target(words_after_dashes(target or ""), None)
        found = await find_tools(server, era)
        named = {kind: name for kind, name in tools.items() if name is not None}
        return None if found is None else ServerUnderTest(era, server, {**found, **named}, patience=patience)

    async def play() -> bool:
        spoken = [each for era in eras if (each := await under_test(era)) is not None]
        for each in spoken:
            async for outcome in run_scenarios(scenarios, each):
                outcomes.append(outcome)
                if not as_json:
                    print("\n".join(map(printable, _report(outcome))), flush=True)
        return bool(spoken)

    outcomes = list[ScenarioOutcome]()
    eras: Sequence[Any] = ERAS if connection.era == "auto" else (connection.era,)
    if not run_until_interrupted(play, connection.timeout):
        say("the server speaks neither a legacy nor the modern revision")
        return NO_CONNECTION
    print(json.dumps([each.as_json() for each in outcomes], indent=1) if as_json else _summary(outcomes))
    return TOOL_FAILED if any(each.status == "failed" for each in outcomes) else ENDED_WELL


def _report(outcome: ScenarioOutcome) -> Iterator[str]:
    scenario = outcome.scenario
    yield f"{_MARKS[outcome.status]:4}  {scenario.level:6}  {outcome.era}  {scenario.id}"
    yield f"      {scenario.title}"
    if outcome.status == "skipped":
        yield f"      {outcome.reason}"
    if outcome.status == "failed":
        yield f"      seen:    {outcome.reason}"
        yield f"      clause:  {scenario.clause}"
        yield f"      users:   {scenario.meaning}"


def _summary(outcomes: Sequence[ScenarioOutcome]) -> str:
    """Return a text with one line per level (MUST, SHOULD, better). The line contains the number of scenarios for each
    status, such as passed."""
    counts = Counter((each.scenario.level, each.status) for each in outcomes)
    return "\n".join(
        f"{level}: {', '.join(f'{counts[level, status]} {status}' for status in _MARKS)}" for level in _LEVELS
    )
