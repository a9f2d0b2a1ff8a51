"""``trio-mcp call``, ``read``, ``prompt`` and ``complete``: each sends one request to a server. ``trio-mcp tasks``
shows, waits for or cancels a task, or lists all tasks."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import attrs
import click

from ...classes import define
from ...client.client import Client
from ...client.listing import Collected, collect
from ...jsonrpc.errors import PeerError
from ...protocol.fields import JSONObject
from ...protocol.revisions import Revision
from ...protocol.types.content import ResourceContents, TextResourceContents
from ...protocol.types.offers import (
    Completion,
    GetPromptResult,
    PromptReference,
    ReadResourceResult,
    ResourceTemplateReference,
)
from ...protocol.types.tools import TASKS_EXTENSION, CallToolResult
from ...runtime.calls import OnProgress
from ...runtime.transport import HTTPError
from ...tasks.task_state import TaskState
from .. import ENDED_WELL, SERVER_ERROR, TOOL_FAILED
from ..arguments import WrongArgument, arguments_typed, no_such_argument, object_typed, texts_typed
from ..printable import name_shown, on_one_line, say
from ..request import (
    CommandRequest,
    NotOffered,
    block_text,
    found,
    not_offered,
    print_line,
    resource_text,
    show_result,
)
from .options import PROMPT, TARGET, TOOL, URI, TargetCommand, request_options

_target = click.argument("target", type=TARGET)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")


@click.command(cls=TargetCommand)
@_target
@click.argument("tool", type=TOOL)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--args", "given", metavar="JSON", help="All arguments as one JSON object. KEY=VALUE overrides a member.")
@_as_json
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Save images, audio and files of the result in this folder, which is created if necessary.",
)
@click.option("--task", "as_task", is_flag=True, help="Start a task, print its id, and exit without waiting.")
@request_options
def call(
    tool: str, arguments: tuple[str, ...], given: str | None, as_json: bool, save: Path | None, as_task: bool
) -> CallTool | StartTask:
    """Call a tool of a server and print its result.

    TARGET is the same as for `trio-mcp inspect`. If it is a command, its words come last, after --.

    \b
        trio-mcp call server.py pack files=30
        trio-mcp call ws://127.0.0.1:8765/mcp search --args '{"words": ["a", "b"]}'
        trio-mcp call add a=1 b=2 -- python server.py

    Values are converted by the tool's schema: strings are taken literally, and other values must be JSON. The result is
    printed to standard output, and progress, log messages and questions to standard error. In a terminal, you answer
    the server's questions. Otherwise the client declares that it can't answer questions. If the tool crashes in a
    server that this command has started, the server's traceback is shown.

    Ctrl-C cancels the call, and reports whether the server has received the cancellation. A second Ctrl-C exits at
    once.

    If the tool runs as a task, the command waits for it, and shows the task's messages as progress. Ctrl-C cancels the
    task. With --task, the command prints the task's id and exits as soon as the task has started. Use `trio-mcp tasks`
    with that id to check, wait for or cancel the task, and to answer its questions. A server that this command has
    started ends with the command, and with it its tasks, unless `trio-mcp run --tasks` keeps them.

    Exit status: 0 success; 1 the tool failed; 2 wrong TARGET, TOOL or argument; 3 no connection, or it was lost; 4 the
    server responded with an error; 5 timeout; 6 the server requires a token that wasn't available or was refused; 130
    after Ctrl-C; 128 plus the number of any other signal.
    """
    typed = None if given is None else object_typed(given)
    calling = CallTool(tool=tool, pairs=arguments, given=typed, as_json=as_json, save=save)
    return StartTask(calling=calling) if as_task else calling


@define(kw_only=True)
class CallTool(CommandRequest[CallToolResult]):
    """The `CommandRequest` of ``trio-mcp call``, which calls a tool. The method `prepare` raises `NotOffered` and
    `WrongArgument`."""

    tool: str
    pairs: Sequence[str]
    given: JSONObject | None
    save: Path | None = None
    """The folder for images, audio and files."""
    arguments: JSONObject = attrs.field(init=False)
    """The arguments, which `prepare` has converted."""

    async def prepare(self, client: Client) -> None:
        """Find the tool on the server, and convert the typed arguments as its input schema requires."""
        declared = client.server_capabilities.tools is not None
        tool = await found("tool", self.tool, client.list_tools(), declared)
        self.arguments = arguments_typed(self.pairs, tool.input_schema, self.given)

    async def send(self, client: Client, on_progress: OnProgress) -> CallToolResult:
        """Call the tool with the prepared arguments, and return its result."""
        return await client.call_tool(self.tool, self.arguments, on_progress=on_progress)

    def show(self, result: CallToolResult, revision: Revision) -> int:
        """Print the tool's result, to standard error if the tool failed, and return the exit status."""
        show_result(result, revision, as_json=self.as_json, save=self.save, name=self.tool)
        if not result.is_error:
            return ENDED_WELL
        say(f"the tool {self.tool!r} failed")
        return TOOL_FAILED


@define(kw_only=True)
class StartTask(CommandRequest["str | CallToolResult"]):
    """The `CommandRequest` of ``trio-mcp call --task``, which starts a tool as a task and doesn't wait for the result.

    `prepare` raises the same errors as `CallTool.prepare`.
    """

    calling: CallTool
    answers_tasks = False

    async def prepare(self, client: Client) -> None:
        """Find the tool on the server, and convert the typed arguments. See `CallTool.prepare`."""
        await self.calling.prepare(client)

    async def send(self, client: Client, on_progress: OnProgress) -> str | CallToolResult:
        """Call the tool as a task. Returns the id of the task, or the tool's result if the server responds without a
        task."""
        task = await client.start_task(self.calling.tool, self.calling.arguments)
        return await task.result() if task.id is None else task.id

    def show(self, result: str | CallToolResult, revision: Revision) -> int:
        """Print the id of the task, or the tool's result if there is no task."""
        if not isinstance(result, str):
            say("the server responded without a task")
            return self.calling.show(result, revision)
        print_line(result)
        return ENDED_WELL


@click.command(cls=TargetCommand)
@_target
@click.argument("uri", type=URI)
@_as_json
@request_options
def read(uri: str, as_json: bool) -> ReadResource:
    """Read a resource of a server and print its contents.

    TARGET is the same as for `trio-mcp inspect`. If it is a command, its words come last, after --.

    \b
        trio-mcp read server.py note://today
        trio-mcp read ws://127.0.0.1:8765/mcp file:///logo.png > logo.png
        trio-mcp read note://today -- python server.py

    On a terminal, text is printed and other contents are described. A file or another program receives the contents
    byte for byte, one part after another.

    Progress, log messages, questions, Ctrl-C and the exit status work as in `trio-mcp call`.
    """

    return ReadResource(uri=uri, as_json=as_json)


@define(kw_only=True)
class ReadResource(CommandRequest[ReadResourceResult]):
    """The `CommandRequest` of ``trio-mcp read``, which reads a resource.

    It doesn't look the resource up in the server's list first, because servers needn't list all resources.
    """

    uri: str

    async def send(self, client: Client, on_progress: OnProgress) -> ReadResourceResult:
        """Read the resource from the server, and return its contents."""
        return await client.read_resource(self.uri, on_progress=on_progress)

    def show(self, result: ReadResourceResult, revision: Revision) -> int:
        """Print the resource's contents: as text on a terminal, and byte for byte elsewhere."""
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
        """Return the text of the resource as lines. Contents that aren't text are described in a line."""
        return map(resource_text, result.contents)


def _bytes(contents: ResourceContents) -> bytes:
    if isinstance(contents, TextResourceContents):
        return contents.text.encode()
    return base64.b64decode(contents.blob, validate=True)


@click.command(cls=TargetCommand)
@_target
@click.argument("name", metavar="PROMPT", type=PROMPT)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@_as_json
@request_options
def prompt(name: str, arguments: tuple[str, ...], as_json: bool) -> GetPrompt:
    """Get a prompt from a server and print its messages.

    TARGET is the same as for `trio-mcp inspect`. If it is a command, its words come last, after --.

    \b
        trio-mcp prompt server.py praise dish=soup
        trio-mcp prompt praise dish=soup --json -- python server.py

    Values are strings, and are taken literally.

    Progress, log messages, questions, Ctrl-C and the exit status work as in `trio-mcp call`.
    """

    return GetPrompt(prompt=name, pairs=arguments, as_json=as_json)


@define(kw_only=True)
class GetPrompt(CommandRequest[GetPromptResult]):
    """The `CommandRequest` of ``trio-mcp prompt``, which gets a prompt. The method `prepare` raises `NotOffered` and
    `WrongArgument`."""

    prompt: str
    pairs: Sequence[str]
    _arguments: dict[str, str] = attrs.field(init=False)

    async def prepare(self, client: Client) -> None:
        """Find the prompt on the server, and check that it has the typed arguments."""
        declared = client.server_capabilities.prompts is not None
        prompt = await found("prompt", self.prompt, client.list_prompts(), declared)
        self._arguments = texts_typed(self.pairs)
        known = [argument.name for argument in prompt.arguments or ()]
        for stray in self._arguments.keys() - set(known):
            raise no_such_argument("prompt", stray, known)

    async def send(self, client: Client, on_progress: OnProgress) -> GetPromptResult:
        """Get the prompt with its arguments from the server."""
        return await client.get_prompt(self.prompt, self._arguments or None, on_progress=on_progress)

    def lines(self, result: GetPromptResult) -> Iterable[str]:
        """Return the prompt's messages as lines, each message after its role (user or assistant)."""
        return (f"{message.role}: {block_text(message.content)}" for message in result.messages)


@click.command(cls=TargetCommand)
@_target
# Complete prompts only, because resource templates contain braces, which would need quotes in a shell.
@click.argument("name", metavar="NAME", type=PROMPT)
@click.argument("arguments", nargs=-1, metavar="ARGUMENT=BEGINNING [KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the suggestions and their total as JSON.")
@request_options
def complete(name: str, arguments: tuple[str, ...], as_json: bool) -> CompleteArgument:
    """Print the values that a server suggests for an argument.

    TARGET is the same as for `trio-mcp inspect`. If it is a command, its words come last, after --. NAME is a prompt,
    or a resource template as shown by `trio-mcp inspect`. The first argument is the one to complete. BEGINNING is the
    part typed so far, and may be empty. The other arguments are already known.

    \b
        trio-mcp complete server.py praise dish=so
        trio-mcp complete server.py 'menu://{day}/{dish}' dish= day=monday

    Log messages, Ctrl-C and the exit status work as in `trio-mcp call`.
    """

    return CompleteArgument(name=name, pairs=arguments, as_json=as_json)


@define(kw_only=True)
class CompleteArgument(CommandRequest[Completion]):
    """The `CommandRequest` of ``trio-mcp complete``, which gets suggestions for an argument of a prompt or resource
    template.

    The first of the ``pairs`` is the argument to complete, and the others are known arguments. `prepare` raises
    `NotOffered` and `WrongArgument`.
    """

    name: str
    pairs: Sequence[str]
    _reference: PromptReference | ResourceTemplateReference = attrs.field(init=False)
    _typed: dict[str, str] = attrs.field(init=False)

    async def prepare(self, client: Client) -> None:
        """Find the prompt or the resource template on the server."""
        self._typed = texts_typed(self.pairs)
        if not self._typed:
            raise WrongArgument("the argument to complete must be like ARGUMENT=BEGINNING, or ARGUMENT= for all values")
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
        """Request suggestions for the argument from the server."""
        (argument, beginning), *settled = self._typed.items()
        return await client.complete(self._reference, argument, beginning, settled=dict(settled) if settled else None)

    def lines(self, result: Completion) -> Iterable[str]:
        """Return the suggested values, one per line."""
        yield from result.values
        if result.has_more or (result.total is not None and result.total > len(result.values)):
            say(f"there are more: {result.total}" if result.total is not None else "there are more")


_ANY_ID: Final = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
"""Settings for commands with a task id, because the ids of some servers begin with a hyphen."""

_task = click.argument("task", metavar="ID")


@click.group()
def tasks() -> None:
    """List, wait for and cancel the tasks of a server.

    ID is the line that `trio-mcp call --task` prints. TARGET is the same as for `trio-mcp inspect`. If it is a command,
    its words come last, after --.

    \b
        id=$(trio-mcp call https://mcp.example.com/mcp roast kilos=20 --task)
        trio-mcp tasks get https://mcp.example.com/mcp $id
        trio-mcp tasks result https://mcp.example.com/mcp $id

    Exit status: as for `trio-mcp call`. If a task is unknown, has expired or belongs to another user, the server
    responds with an error: 4.
    """


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@_as_json
@request_options
def get(task: str, as_json: bool) -> GetTask:
    """Show the status, last message and times of a task."""

    return GetTask(task=task, as_json=as_json)


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@_as_json
@request_options
def result(task: str, as_json: bool) -> GetTaskResult:
    """Wait until a task has ended, and print its result.

    Messages and questions of the task are printed to standard error, and you answer the questions, as in `trio-mcp
    call`. Ctrl-C or the end of --timeout ends the command, but not the task.
    """

    return GetTaskResult(task=task, as_json=as_json)


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@request_options
def cancel(task: str) -> CancelTask:
    """Cancel a task. This has no effect on a task that has ended."""

    return CancelTask(task=task)


@tasks.command("list", cls=TargetCommand)
@_target
@_as_json
@request_options
def list_(as_json: bool) -> ListTasks:
    """List your tasks, one per line: id, status, time of the last change, message.

    Only servers of revision 2025-11-25 can list tasks, so --era is legacy by default, and only those that can tell
    callers apart. For other servers, keep the ids that `trio-mcp call --task` prints.
    """

    return ListTasks(as_json=as_json)


R = TypeVar("R")

_LONGEST_ID: Final = 2000
_INSTEAD: Final = "keep the ids that `trio-mcp call --task` prints, and use `trio-mcp tasks get TARGET ID`"


@define(kw_only=True)
class _TaskRequest(CommandRequest[R], Generic[R]):
    answers_tasks = False

    async def prepare(self, client: Client) -> None:
        """Raise `NotOffered` if the server doesn't support tasks."""
        declared = client.server_capabilities
        if declared.tasks is None and TASKS_EXTENSION not in (declared.extensions or {}):
            raise NotOffered("the server does not support tasks")


@define(kw_only=True)
class GetTask(_TaskRequest[TaskState]):
    """The `CommandRequest` of ``trio-mcp tasks get``, which gets the state of a task."""

    task: str

    async def send(self, client: Client, on_progress: OnProgress) -> TaskState:
        """Request the state of the task from the server."""
        return await client.resume_task(self.task).get()

    def plain(self, result: TaskState, revision: Revision) -> JSONObject:
        """Return the state of the task as plain data for JSON output."""
        return _plain(result)

    def lines(self, result: TaskState) -> Iterable[str]:
        """Return the state of the task as lines, with one field per line."""
        return (f"{label:<9}{on_one_line(words)}" for label, words in _facts(result))


@define(kw_only=True)
class GetTaskResult(_TaskRequest[CallToolResult]):
    """The `CommandRequest` of ``trio-mcp tasks result``, which waits for the result of a task. Meanwhile the user can
    answer the task's input requests."""

    task: str
    cancels = False
    answers_tasks = True

    async def send(self, client: Client, on_progress: OnProgress) -> CallToolResult:
        """Wait until the task has ended, and return its result."""
        return await client.resume_task(self.task).result(on_progress=on_progress)

    def show(self, result: CallToolResult, revision: Revision) -> int:
        """Print the task's result: see `CommandRequest.show`."""
        show_result(result, revision, as_json=self.as_json)
        if not result.is_error:
            return ENDED_WELL
        say("the tool failed")
        return TOOL_FAILED


@define(kw_only=True)
class CancelTask(_TaskRequest[str]):
    """The `CommandRequest` of ``trio-mcp tasks cancel``, which cancels a task."""

    task: str

    async def send(self, client: Client, on_progress: OnProgress) -> str:
        """Send the cancellation of the task to the server, and return the task's id."""
        await client.resume_task(self.task).cancel()
        return self.task

    def show(self, result: str, revision: Revision) -> int:
        """Print that the server has received the cancellation of the task."""
        say("the server was asked to cancel the task")
        return ENDED_WELL


@define(kw_only=True)
class ListTasks(_TaskRequest["list[TaskState]"]):
    """The `CommandRequest` of ``trio-mcp tasks list``, which lists the user's tasks. Only servers of the protocol
    revision 2025-11-25 can list tasks."""

    era = "legacy"

    async def prepare(self, client: Client) -> None:
        """Raise `NotOffered` if the server can't list tasks."""
        await super().prepare(client)
        declared = client.server_capabilities.tasks
        if client.revision.tasks != "core":
            raise NotOffered(f"servers of revision {client.revision} cannot list tasks: {_INSTEAD}")
        if declared is None or declared.list is None:
            raise NotOffered(f"the server cannot list tasks: {_INSTEAD}")

    def advice(self, error: Exception) -> str | None:
        """Return advice for the user if an error may mean that the server can't list tasks."""
        return f"some servers cannot list tasks: {_INSTEAD}" if isinstance(error, PeerError | HTTPError) else None

    async def send(self, client: Client, on_progress: OnProgress) -> list[TaskState]:
        """Request the list of tasks, all pages of it."""
        return [state async for state in client.list_tasks()]

    def show(self, result: list[TaskState], revision: Revision) -> int:
        """Print the tasks, or a possible reason why there are none."""
        if not result:
            say(f"no tasks; without a token, only tasks of this connection are listed: {_INSTEAD}")
        return super().show(result, revision)

    def plain(self, result: list[TaskState], revision: Revision) -> list[JSONObject]:
        """Return the tasks as plain data for JSON output."""
        return [_plain(state) for state in result]

    def lines(self, result: list[TaskState]) -> Iterable[str]:
        """Return the tasks, one per line: id, status, time of the last change, and message."""
        for state in result:
            words = (state.status, state.updated_at, state.message or "")
            yield "  ".join((name_shown(state.id, _LONGEST_ID), *map(on_one_line, words))).rstrip()


def _facts(state: TaskState) -> Iterable[tuple[str, str]]:
    yield "status", state.status
    if state.message:
        yield "message", state.message
    yield "created", state.created_at
    yield "updated", state.updated_at
    yield "kept", "for ever" if state.ttl is None else f"{state.ttl:g} s from its creation"


def _plain(state: TaskState) -> JSONObject:
    return {
        "id": state.id,
        "status": state.status,
        "message": state.message,
        "createdAt": state.created_at,
        "updatedAt": state.updated_at,
        "ttlSeconds": state.ttl,
        "pollIntervalSeconds": state.poll_interval,
    }
