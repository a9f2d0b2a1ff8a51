"""``trio-mcp complete`` asks a server for suggestions for an argument of a prompt or a resource template."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

import attrs
import click

from ...classes import define
from ...client.client import Client
from ...jsonrpc.errors import METHOD_NOT_FOUND, PeerError
from ...protocol.types.prompts import Completion, PromptReference, ResourceTemplateReference
from ...runtime.calls import OnProgress
from ..arguments import WrongArgument, texts_typed
from ..printable import say
from ..request import CommandRequest, not_offered
from .options import REFERENCE, TARGET, TargetCommand, request_options

T = TypeVar("T")


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
        prompts = await listed(client.list_prompts(), declared.prompts is not None)
        names = [prompt.name for prompt in prompts or ()]
        if self.name in names:
            self._reference = PromptReference(self.name)
            return
        templates = await listed(client.list_resource_templates(), declared.resources is not None)
        names += [template.uri_template for template in templates or ()]
        if self.name not in names:
            raise not_offered("prompt or resource template", self.name, names)
        self._reference = ResourceTemplateReference(self.name)

    async def send(self, client: Client, on_progress: OnProgress) -> Completion:
        """Ask for suggestions. The request has no progress."""
        (argument, beginning), *settled = self._typed.items()
        return await client.complete(self._reference, argument, beginning, settled=dict(settled) if settled else None)

    def lines(self, result: Completion) -> Iterable[str]:
        """Return the suggestions."""
        yield from result.values
        if result.has_more or (result.total is not None and result.total > len(result.values)):
            say(f"there are more: {result.total}" if result.total is not None else "there are more")


async def listed(items: AsyncIterator[T], declared: bool) -> list[T] | None:
    """Return all of ``items``; `None` when the server has no such list, or, without asking, unless it is
    ``declared``."""
    if not declared:
        return None
    try:
        return [item async for item in items]
    except PeerError as error:
        # One capability stands for resources and for templates; some servers know only one of the methods.
        if error.code != METHOD_NOT_FOUND:
            raise
        return None
