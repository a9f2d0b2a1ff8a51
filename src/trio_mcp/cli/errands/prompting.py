"""prompt: fill in a prompt of a server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import attrs

from ...client.client import Client
from ...protocol.converters import unstructure
from ...protocol.revisions import Revision
from ...protocol.types.prompts import GetPromptResult
from ...runtime.on_progress import OnProgress
from ..statuses import ENDED_WELL
from ..terminal.printable import printable
from ..terminal.tool_results import words_of_block
from .arguments import no_such_argument, texts_typed
from .errand import Errand, found


@attrs.define(kw_only=True)
class Prompting(Errand[GetPromptResult]):
    """The errand that fills in a prompt. `prepare` raises `NotOffered` and `WrongArgument`."""

    prompt: str
    pairs: Sequence[str]
    as_json: bool
    _arguments: dict[str, str] = attrs.field(init=False)

    async def prepare(self, client: Client) -> None:
        """Find the prompt, and check that it has these arguments."""
        declared = client.server_capabilities.prompts is not None
        prompt = await found("prompt", self.prompt, client.list_prompts(), declared)
        self._arguments = texts_typed(self.pairs)
        known = [argument.name for argument in prompt.arguments or ()]
        for stray in self._arguments.keys() - set(known):
            raise no_such_argument("prompt", stray, known)

    async def request(self, client: Client, on_progress: OnProgress) -> GetPromptResult:
        """Get the prompt. Arguments are left out if there are none."""
        return await client.get_prompt(self.prompt, self._arguments or None, on_progress=on_progress)

    def show(self, result: GetPromptResult, revision: Revision) -> int:
        """Print the messages, each behind its role."""
        is_terminal = sys.stdout.isatty()
        if self.as_json:
            print(json.dumps(unstructure(result, revision), indent=2, ensure_ascii=is_terminal))
            return ENDED_WELL
        for message in result.messages:
            line = f"{message.role}: {words_of_block(message.content)}"
            print(printable(line) if is_terminal else line)
        return ENDED_WELL
