"""complete: ask a server for suggestions for an argument of a prompt or a resource template."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import attrs

from ...client.client import Client
from ...protocol.converters import unstructure
from ...protocol.revisions import Revision
from ...protocol.types.completion import Completion, PromptReference, ResourceTemplateReference
from ...runtime.on_progress import OnProgress
from ..reporting import say
from ..statuses import ENDED_WELL
from ..terminal.printable import printable
from .arguments import WrongArgument, texts_typed
from .errand import Errand, not_offered
from .offers import listed


@attrs.define(kw_only=True)
class Suggesting(Errand[Completion]):
    """The errand that asks for suggestions: the first of ``pairs`` is to be completed, the others are settled.
    `prepare` raises `NotOffered` and `WrongArgument`."""

    name: str
    pairs: Sequence[str]
    as_json: bool
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

    async def request(self, client: Client, on_progress: OnProgress) -> Completion:
        """Ask for suggestions. The request has no progress."""
        (argument, beginning), *settled = self._typed.items()
        return await client.complete(self._reference, argument, beginning, settled=dict(settled) if settled else None)

    def show(self, result: Completion, revision: Revision) -> int:
        """Print the suggestions, one a line."""
        is_terminal = sys.stdout.isatty()
        if self.as_json:
            print(json.dumps(unstructure(result, revision), indent=2, ensure_ascii=is_terminal))
            return ENDED_WELL
        for value in result.values:
            print(printable(value) if is_terminal else value)
        if result.has_more or (result.total is not None and result.total > len(result.values)):
            say(f"there are more: {result.total}" if result.total is not None else "there are more")
        return ENDED_WELL
