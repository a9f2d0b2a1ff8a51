"""``trio-mcp prompt`` fills in a prompt of a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import click

from ...classes import define
from ...client.client import Client
from ...protocol.types.prompts import GetPromptResult
from ...runtime.calls import OnProgress
from ..arguments import no_such_argument, texts_typed
from ..request import CommandRequest, block_text, found
from .options import PROMPT, TARGET, TargetCommand, request_options


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("name", metavar="PROMPT", type=PROMPT)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@request_options
def prompt(name: str, arguments: tuple[str, ...], as_json: bool) -> GetPrompt:
    """Fill in a prompt of a server and print its messages.

    TARGET is as for `trio-mcp inspect`; the words of a command come last, after --.

    \b
        trio-mcp prompt server.py praise dish=soup
        trio-mcp prompt praise dish=soup --json -- python server.py

    Values are strings, taken literally.

    Progress, log lines, questions, Ctrl-C and the exit status are those of `trio-mcp call`.
    """

    return GetPrompt(prompt=name, pairs=arguments, as_json=as_json)


@define(kw_only=True)
class GetPrompt(CommandRequest[GetPromptResult]):
    """The request that fills in a prompt. `prepare` raises `NotOffered` and `WrongArgument`."""

    prompt: str
    pairs: Sequence[str]
    _arguments: dict[str, str] = attrs.field(init=False)

    async def prepare(self, client: Client) -> None:
        """Find the prompt, and check that it has these arguments."""
        declared = client.server_capabilities.prompts is not None
        prompt = await found("prompt", self.prompt, client.list_prompts(), declared)
        self._arguments = texts_typed(self.pairs)
        known = [argument.name for argument in prompt.arguments or ()]
        for stray in self._arguments.keys() - set(known):
            raise no_such_argument("prompt", stray, known)

    async def send(self, client: Client, on_progress: OnProgress) -> GetPromptResult:
        """Get the prompt. Arguments are left out if there are none."""
        return await client.get_prompt(self.prompt, self._arguments or None, on_progress=on_progress)

    def lines(self, result: GetPromptResult) -> Iterable[str]:
        """Return the messages, each behind its role."""
        return (f"{message.role}: {block_text(message.content)}" for message in result.messages)
