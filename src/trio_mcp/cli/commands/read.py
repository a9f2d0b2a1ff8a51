"""``trio-mcp read`` reads a resource of a server."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterable

import click

from ...classes import define
from ...client.client import Client
from ...protocol.revisions import Revision
from ...protocol.types.content import ResourceContents, TextResourceContents
from ...protocol.types.resources import ReadResourceResult
from ...runtime.calls import OnProgress
from ..printable import say
from ..request import CommandRequest, resource_text
from ..statuses import ENDED_WELL, SERVER_ERROR
from .options import TARGET, URI, TargetCommand, request_options


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("uri", type=URI)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@request_options
def read(uri: str, as_json: bool) -> ReadResource:
    """Read a resource of a server, to standard output.

    TARGET is as for `trio-mcp inspect`; the words of a command come last, after --.

    \b
        trio-mcp read server.py note://today
        trio-mcp read ws://127.0.0.1:8765/mcp file:///logo.png > logo.png
        trio-mcp read note://today -- python server.py

    A terminal shows text, and describes other contents. A file or another program gets the contents byte for byte, one
    part after another.

    Progress, log lines, questions, Ctrl-C and the exit status are those of `trio-mcp call`.
    """

    return ReadResource(uri=uri, as_json=as_json)


@define(kw_only=True)
class ReadResource(CommandRequest[ReadResourceResult]):
    """The request that reads a resource, which servers need not list."""

    uri: str

    async def send(self, client: Client, on_progress: OnProgress) -> ReadResourceResult:
        """Read the resource."""
        return await client.read_resource(self.uri, on_progress=on_progress)

    def show(self, result: ReadResourceResult, revision: Revision) -> int:
        """Print the contents: to a terminal as text, elsewhere byte for byte."""
        if self.as_json or sys.stdout.isatty():
            return super().show(result, revision)
        try:
            data = [_bytes(contents) for contents in result.contents]
        except binascii.Error as error:
            say(f"the server violated the protocol: a blob is not valid base64: {error}")
            return SERVER_ERROR
        sys.stdout.buffer.writelines(data)
        sys.stdout.flush()
        return ENDED_WELL

    def lines(self, result: ReadResourceResult) -> Iterable[str]:
        """Return the texts of the contents, and descriptions of the others."""
        return map(resource_text, result.contents)


def _bytes(contents: ResourceContents) -> bytes:
    if isinstance(contents, TextResourceContents):
        return contents.text.encode()
    return base64.b64decode(contents.blob, validate=True)
