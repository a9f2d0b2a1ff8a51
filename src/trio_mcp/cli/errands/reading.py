"""read: read a resource of a server."""

from __future__ import annotations

import base64
import binascii
import json
import sys

import attrs

from ...client.client import Client
from ...protocol.converters import unstructure
from ...protocol.revisions import Revision
from ...protocol.types.content import ResourceContents, TextResourceContents
from ...protocol.types.resources import ReadResourceResult
from ...runtime.on_progress import OnProgress
from ..reporting import say
from ..statuses import ENDED_WELL, SERVER_ERROR
from ..terminal.printable import printable
from ..terminal.tool_results import words_of_resource
from .errand import Errand


@attrs.frozen(kw_only=True)
class Reading(Errand[ReadResourceResult]):
    """The errand that reads a resource."""

    uri: str
    as_json: bool

    async def prepare(self, client: Client) -> None:
        """Do nothing: servers need not list their resources."""

    async def request(self, client: Client, on_progress: OnProgress) -> ReadResourceResult:
        """Read the resource."""
        return await client.read_resource(self.uri, on_progress=on_progress)

    def show(self, result: ReadResourceResult, revision: Revision) -> int:
        """Print the contents: to a terminal as text, elsewhere byte for byte."""
        is_terminal = sys.stdout.isatty()
        if self.as_json:
            print(json.dumps(unstructure(result, revision), indent=2, ensure_ascii=is_terminal))
            return ENDED_WELL
        if is_terminal:
            for contents in result.contents:
                print(printable(words_of_resource(contents)))
            return ENDED_WELL
        try:
            data = [_bytes(contents) for contents in result.contents]
        except binascii.Error as error:
            say(f"the server violated the protocol: a blob is not valid base64: {error}")
            return SERVER_ERROR
        sys.stdout.buffer.writelines(data)
        sys.stdout.flush()
        return ENDED_WELL


def _bytes(contents: ResourceContents) -> bytes:
    if isinstance(contents, TextResourceContents):
        return contents.text.encode()
    return base64.b64decode(contents.blob, validate=True)
