"""Sends a command's request to a server, and meanwhile shows progress and logs, asks the user to answer input requests,
and handles signals.

Each command has its own `CommandRequest`, in the command's module. The code that prints results, as text or JSON, is
shared. The server's standard error is kept, because a traceback explains a crash.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TextIO, TypeVar

import attrs
import trio

from ..classes import define
from ..client.client import Client
from ..client.options import ClientOptions
from ..concurrency.nurseries import open_service_nursery
from ..connecting.targets import Target
from ..jsonrpc.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, MCPError, PeerError
from ..protocol.converters import structure, unstructure
from ..protocol.errors import URL_ELICITATION_REQUIRED, URLElicitationRequiredData
from ..protocol.revisions import Revision
from ..protocol.types.content import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    TextResourceContents,
    UnknownContent,
)
from ..protocol.types.tools import CallToolResult
from ..runtime.calls import OnProgress
from ..transports.process import LastLines
from . import ENDED_WELL, INTERRUPTED, SIGNALLED, TOOL_FAILED
from .printable import CommandError, name_shown, printable, say
from .reporting import WITH_SERVER, say_error
from .signals import Signals
from .terminal import Questions, Terminal

R = TypeVar("R")
N = TypeVar("N", bound="_Named")

_PATIENCE: Final = 5.0
"""Seconds that the server gets to show that it has received a cancellation."""
_LONGEST_NAME: Final = 60
_NAMES_TOLD: Final = 10


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class NotOffered(CommandError):
    """The server doesn't have the requested tool, resource or prompt. The error's message is one line for the user."""


async def found(kind: str, name: str, items: AsyncIterator[N], declared: bool) -> N:
    """Return the first of ``items`` with the given name. Raises `NotOffered` if there is no such item.

    ``declared`` is true if the server declares this kind of list. A server that doesn't declare it may refuse the list
    request.
    """
    names: list[str] = []
    try:
        async for item in items:
            if item.name == name:
                return item
            names.append(item.name)
    except PeerError as error:
        if declared or error.code != METHOD_NOT_FOUND:
            raise
    raise not_offered(kind, name, names)


def not_offered(kind: str, name: str, names: Sequence[str]) -> NotOffered:
    """Return the error for a ``name`` that isn't one of the server's ``names``. The message lists similar names or, if
    there are none, some of the names."""
    if not names:
        return NotOffered(f"the server has no {kind}s")
    near = get_close_matches(name, names, n=3) or names[:_NAMES_TOLD]
    told = ", ".join(name_shown(one, _LONGEST_NAME) for one in near)
    return NotOffered(f"the server has no {kind} {name!r}; it has {told}")


@define(kw_only=True)
class CommandRequest(Generic[R]):
    """The request that a command sends to a server. `RequestRun` calls the methods `prepare`, `send` and `show`, in
    this order.

    `prepare` and `send` raise the same errors as `Client`.
    """

    as_json: bool = False
    """Whether the whole result is printed as JSON."""

    cancels: ClassVar[bool] = True
    """Whether Ctrl-C cancels the request. If false, Ctrl-C only ends the command, because the work continues in any
    case."""
    answers_tasks: ClassVar[bool] = True
    """Whether the user answers the input requests of tasks. If false, these input requests are left for a command that
    waits for the task's result."""
    era: ClassVar[Literal["auto", "legacy"]] = "auto"
    """Which protocol revisions are used by default."""

    async def prepare(self, client: Client) -> None:
        """Check that the server has the requested tool, resource or prompt. During this step, Ctrl-C ends the command
        at once."""

    async def send(self, client: Client, on_progress: OnProgress) -> R:
        """Send the request (or several) to the server, and return the result."""
        raise NotImplementedError

    def show(self, result: R, revision: Revision) -> int:
        """Print the request's result to standard output, and return the exit status."""
        if self.as_json:
            print_json(self.plain(result, revision))
        else:
            for line in self.lines(result):
                print_line(line)
        return ENDED_WELL

    def plain(self, result: R, revision: Revision) -> Any:
        """Return the request's result as plain data for JSON output."""
        return unstructure(result, revision)

    def lines(self, result: R) -> Iterable[str]:
        """Return the request's result as lines of text."""
        raise NotImplementedError

    def advice(self, error: Exception) -> str | None:
        """Return advice for the user about ``error``, or `None` if there is no advice. The error itself was already
        printed."""
        return None


def print_json(value: Any) -> None:
    """Print ``value`` as JSON to standard output. JSON escapes control characters, so they can't affect the
    terminal."""
    print(json.dumps(value, indent=2, ensure_ascii=sys.stdout.isatty()))


def print_line(line: str, out: TextIO | None = None) -> None:
    """Print a line of text from a server to ``out``, by default standard output. For a terminal, the text is made
    `printable`."""
    stream = out or sys.stdout
    print(printable(line) if stream.isatty() else line, file=stream)


@define(kw_only=True)
class RequestRun:
    """Runs a command that sends a request to a server, with the connection options that the user has typed."""

    request: CommandRequest[Any]
    target: Target
    recent_stderr: RecentStderr | None
    """Sink for the server's standard error. `None` if the user already sees it."""
    log_level: str | None
    """The lowest level of log messages to show, or `None` to show none."""
    era: Literal["auto", "modern", "legacy"]
    timeout: float | None
    """The time limit in seconds. The time that the user takes to answer input requests doesn't count."""
    _terminal: Terminal = attrs.field(init=False)
    _questions: Questions = attrs.field(init=False)
    _server: str = attrs.field(default="the server", init=False)
    _scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    """The cancel scope of the request while it runs."""
    _ended_by: int | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._terminal = Terminal(self.log_level)
        self._questions = Questions(self._terminal, lambda: self._server, of_tasks=self.request.answers_tasks)

    def run(self) -> int:
        """Connect to the server, send the request, show its result, and return the exit status.

        The first Ctrl-C cancels the request and reports the outcome. The next one ends the command. If the server
        failed, its standard error since the start of the request is shown last, unless the user refused a request of
        the server, because then the failure is expected.
        """
        try:
            status = trio.run(self._until_signalled)
            failed = status == TOOL_FAILED
        except WITH_SERVER as error:
            failed = isinstance(error, PeerError) and error.code == INTERNAL_ERROR
            if isinstance(error, PeerError) and error.code == URL_ELICITATION_REQUIRED:
                say_urls(error.data)
            status = say_error(error)
            if advice := self.request.advice(error):
                say(advice)
        if failed and self.recent_stderr is not None and not self._questions.refused:
            self.recent_stderr.say_crash()
        return status

    async def _until_signalled(self) -> int:
        status = INTERRUPTED
        # Cancel the request and restore the terminal even if a second signal ends the command at once.
        with Signals() as signals:
            async with open_service_nursery("the command is over") as nursery:
                with trio.CancelScope() as leaving:
                    nursery.start_soon(self._handle_signals, signals.numbers, leaving)
                    status = await self._connected(signals)
        if leaving.cancelled_caught:
            say("interrupted; the connection is closed")
        return self._ended_by or status

    async def _handle_signals(self, numbers: AsyncIterator[int], leaving: trio.CancelScope) -> None:
        async for number in numbers:
            if number != signal.SIGINT:
                self._ended_by = SIGNALLED + number
                leaving.cancel(reason=signal.Signals(number).name)
            elif self._scope is None or self._scope.cancel_called or not self.request.cancels:
                leaving.cancel(reason="Ctrl-C")
            else:
                self._terminal.say("Ctrl-C: cancelling the call; press it again to exit at once")
                self._scope.cancel(reason="the user pressed Ctrl-C")
                self._questions.give_up()

    async def _connected(self, signals: Signals) -> int:
        begun = trio.current_time()
        async with self.target.open(**self._client_options()) as client:
            if client.server_info is not None:
                self._server = name_shown(client.server_info.name, _LONGEST_NAME) or self._server
            begun += client._timeouts.paused_seconds
            left = None if self.timeout is None else max(begun + self.timeout - trio.current_time(), 0)
            with signals.limited(left):
                await self.request.prepare(client)
                await self._request_logs(client)
                if self.recent_stderr is not None:
                    self.recent_stderr.clear()
                result = None
                with self._terminal.progress() as show, trio.CancelScope() as self._scope:
                    result = await self.request.send(client, show)
            if result is None:
                await _report_cancel(client)
                return INTERRUPTED
            self._questions.leave_alone()  # the call has ended, so don't ask the user any more questions
            return self.request.show(result, client.revision)

    def _client_options(self) -> ClientOptions:
        era = self.request.era if self.era == "auto" else self.era
        options = ClientOptions(era=era, on_log=self._terminal.log)
        if self.timeout is not None:
            options["connect_timeout"] = self.timeout
        return {**options, **self._questions.options()}

    async def _request_logs(self, client: Client) -> None:
        # Set a level: without it, servers send no logs in modern protocol revisions, and choose it in legacy ones.
        if self.log_level is not None and client.server_capabilities.logging is not None:
            try:
                await client.set_log_level(self.log_level)
            except PeerError as error:
                say(f"the log level could not be set: {error}")


async def _report_cancel(client: Client) -> None:
    """Print that the call was cancelled, and whether the server has received the cancellation.

    It has if it responds to a later ping, because the server reads messages in order.
    """
    started = trio.current_time()
    with trio.move_on_after(_PATIENCE) as patience:
        try:
            await client.ping()
        except PeerError:
            pass  # an error, too, shows that the server has read the ping
        except MCPError as error:
            say(f"the call was cancelled, but the connection was lost: {error}")
            return
    if patience.cancelled_caught:
        say(f"the call was cancelled, but the server has not answered a ping for {_PATIENCE:g} s")
        return
    took = (trio.current_time() - started) * 1000
    say(f"the call was cancelled; the server has received that, and answered a ping in {took:.0f} ms")


_MOST_LINES: Final = 200
_TRACEBACK: Final = "Traceback (most recent call last)"
"""Pattern of the line with which Python begins a traceback. Some servers decorate this line."""


class RecentStderr:
    """A sink for a server's standard error. It keeps the last 200 lines since the last call of `clear`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop the kept lines of the server's standard error."""
        self._lines = LastLines(limit=_MOST_LINES)

    def write(self, text: str, /) -> None:
        """Keep ``text``, which the server has written to standard error: see `TextSink`."""
        self._lines.write(text)

    def say_crash(self) -> None:
        """Print the kept lines of the server's standard error, beginning with the first traceback. Prints nothing if
        there is no traceback."""
        lines = self._lines.lines
        first = next((number for number, line in enumerate(lines) if _TRACEBACK in line), None)
        if first is not None:
            say("\n  ".join(["the server wrote to standard error:", *lines[max(first - 1, 0) :]]))


def say_urls(data: Any) -> None:
    """Print the URLs in the ``data`` of an error -32042 (URL elicitation required). They aren't opened."""
    try:
        required = structure(data, URLElicitationRequiredData)
    except ValueError:
        return  # print no URLs if the error's data is malformed: `say_error` reports the error
    for page in required.elicitations:
        say(f"visit this page, then call again: {ascii(page.url)[1:-1]} ({page.message})")


def show_result(
    result: CallToolResult, revision: Revision, *, as_json: bool, save: Path | None = None, name: str = "result"
) -> None:
    """Print the result of a tool call to standard output, or to standard error if the tool failed.

    With ``as_json``, print the whole result as JSON, always to standard output. Images, audio and files are saved in
    the folder ``save``, under ``name``. On a terminal, text that only repeats structured content is indented. Raises
    `CommandError` if a file can't be saved.
    """
    if as_json:
        print_json(unstructure(result, revision))
        return
    out = sys.stderr if result.is_error else sys.stdout
    for block in result.content:
        path = None if save is None else saved(block, save, name)
        if path is not None:
            print_line(f"[saved {path}]", out)
        elif out.isatty() and isinstance(block, TextContent) and _repeats(block.text, result.structured_content):
            print_line(json.dumps(result.structured_content, indent=2), out)
        else:
            print_line(block_text(block), out)
    if not result.content and result.structured_content is not None:
        print_line(json.dumps(result.structured_content, indent=2, ensure_ascii=out.isatty()), out)


def _repeats(text: str, structured: Any) -> bool:
    """Return whether ``text`` is the JSON form of ``structured``, which is an object or a list."""
    try:
        return isinstance(structured, dict | list) and json.loads(text) == structured
    except (ValueError, RecursionError):
        return False


def block_text(block: ContentBlock) -> str:
    """Return the text of a content block, or a description of the block if it isn't text."""
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}, {_size(block.data)}]"
        case ResourceLink():
            return f"[resource {block.uri}: {block.title or block.name}]"
        case UnknownContent():
            return json.dumps(block.raw, ensure_ascii=False)
        case _:
            return resource_text(block.resource)


def resource_text(contents: ResourceContents) -> str:
    """Return the text of a resource's contents, or a description of the contents if they aren't text."""
    if isinstance(contents, TextResourceContents):
        return contents.text
    kind = f", {contents.mime_type}" if contents.mime_type else ""
    return f"[resource {contents.uri}{kind}, {_size(contents.blob)}]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4 - base64[-2:].count('=')} bytes"


_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_SUFFIX: Final = re.compile(r"\.[a-z0-9]{1,10}")


def saved(block: ContentBlock, folder: Path, name: str) -> Path | None:
    """Save the image, audio or file in the content block ``block`` in ``folder``. Returns the path of the new file, or
    `None` for a text block.

    The file is called ``name``, with a number if that exists and a suffix for its type. No name from the server is
    used. Raises `CommandError` if the file can't be written, or if the data isn't base64.
    """
    match block:
        case ImageContent(data=data, mime_type=kind) | AudioContent(data=data, mime_type=kind):
            pass
        case EmbeddedResource(resource=BlobResourceContents(blob=data, mime_type=kind)):
            pass
        case _:
            return None
    suffix = mimetypes.guess_extension((kind or "").partition(";")[0].strip()) or ".bin"
    stem = _UNSAFE.sub("_", name)[:100] or "result"
    try:
        content = base64.b64decode(data, validate=True)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = folder / f"{stem}-{number}{suffix if _SUFFIX.fullmatch(suffix) else '.bin'}"
            try:
                with path.open("xb") as file:
                    file.write(content)
            except FileExistsError:
                continue
            return path
    except binascii.Error:
        raise CommandError("the server sent data that is not valid base64") from None
    except OSError as error:
        raise CommandError(f"cannot save files in {folder}: {error}") from None
    raise CommandError(f"there are too many files with this name in {folder}")
