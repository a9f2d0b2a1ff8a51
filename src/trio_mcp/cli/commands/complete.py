"""``trio-mcp complete`` asks a server for suggestions for an argument of a prompt or a resource template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import click

from ...classes import define
from ...client.client import Client
from ...client.listing import Collected, collect
from ...protocol.types.prompts import Completion, PromptReference, ResourceTemplateReference
from ...runtime.calls import OnProgress
from ..arguments import WrongArgument, texts_typed
from ..printable import say
from ..request import CommandRequest, not_offered
from .options import REFERENCE, TARGET, TargetCommand, request_options


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("name", metavar="NAME", type=REFERENCE)
@click.argument("arguments", nargs=-1, metavar="ARGUMENT=BEGINNING [KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the suggestions and their total as JSON.")
@request_options
def complete(name: str, arguments: tuple[str, ...], as_json: bool) -> CompleteArgument:
    """Ask a server for the values of an argument, and print its suggestions, one a line.

    TARGET is as for `trio-mcp inspect`; the words of a command come last, after --. NAME is a prompt, or a resource
    template as shown by `trio-mcp inspect`. The first argument is the one to complete: BEGINNING is typed already, and
    may be empty. The other arguments are settled.

    \b
        trio-mcp complete server.py praise dish=so
        trio-mcp complete server.py 'menu://{day}/{dish}' dish= day=monday

    Log lines, Ctrl-C and the exit status are those of `trio-mcp call`.
    """

    return CompleteArgument(name=name, pairs=arguments, as_json=as_json)


@define(kw_only=True)
class CompleteArgument(CommandRequest[Completion]):
    """The request that asks for suggestions: the first of ``pairs`` is to be completed, the others are settled.
    `prepare` raises `NotOffered` and `WrongArgument`."""

    name: str
    pairs: Sequence[str]
    _reference: PromptReference | ResourceTemplateReference = attrs.field(init=False)
    _typed: dict[str, str] = attrs.field(init=False)

    async def prepare(self, client: Client) -> None:
        """Find the prompt or the resource template."""
        self._typed = texts_typed(self.pairs)
        if not self._typed:
            raise WrongArgument("what is to be completed is like ARGUMENT=BEGINNING, or ARGUMENT= for all there is")
        declared = client.server_capabilities
        kinds = (
            (PromptReference, declared.prompts, client.list_prompts(), "name"),
            (ResourceTemplateReference, declared.resources, client.list_resource_templates(), "uri_template"),
        )
        names: list[str] = []
        error: Exception | None = None
        for kind, declaration, pages, member in kinds:
            found: Collected[Any] = await collect(pages) if declaration is not None else Collected([])
            names += [getattr(item, member) for item in found.items]
            if self.name in names:
                self._reference = kind(self.name)
                return
            error = error or found.error
        raise error or not_offered("prompt or resource template", self.name, names)

    async def send(self, client: Client, on_progress: OnProgress) -> Completion:
        """Ask for suggestions. The request has no progress."""
        (argument, beginning), *settled = self._typed.items()
        return await client.complete(self._reference, argument, beginning, settled=dict(settled) if settled else None)

    def lines(self, result: Completion) -> Iterable[str]:
        """Return the suggestions."""
        yield from result.values
        if result.has_more or (result.total is not None and result.total > len(result.values)):
            say(f"there are more: {result.total}" if result.total is not None else "there are more")
