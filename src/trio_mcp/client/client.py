"""Client: a server, as seen by its callers; LegacySession: what a legacy server keeps for a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, overload

import attrs
import trio

from ..classes import Renamed, define
from ..concurrency.fair_share import Caller
from ..concurrency.time_limits import Graces
from ..jsonrpc.codec import frame_notification
from ..protocol.converters import unstructure
from ..protocol.errors import MethodUnavailable
from ..protocol.fields import JSONObject
from ..protocol.meta import LOG_LEVEL
from ..protocol.revisions import CORE, Revision, Vocabulary, lacks_notification
from ..protocol.types.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    EmptyResult,
    Implementation,
    ServerCapabilities,
)
from ..protocol.types.notifications import LogLevel, SetLevelParams, SubscriptionFilter
from ..protocol.types.prompts import (
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptParams,
    GetPromptResult,
    Prompt,
    PromptReference,
    ResourceTemplateReference,
)
from ..protocol.types.resources import (
    PageParams,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SubscribeParams,
)
from ..protocol.types.tools import CallToolResult, Tool
from ..runtime.calls import OnProgress
from ..runtime.connection import Connection
from ..runtime.outbound import CallSettings
from ..runtime.requests.host import RequestHost
from ..runtime.transport import ConnectionLost, FramedTransport
from ..state.connection import ConnectionState
from ..tasks.task_state import TaskState
from .answers import Answers, Relay
from .current_call import CallContexts, CallHandlers, check_handlers
from .listing import ListMethod, Pages
from .options import ClientSettings, UnreadableMessages
from .requests import Requests, meta_in, open_stream
from .server_messages import Callbacks, ServerMessages
from .subscriptions import Changes, ChangeStreams
from .timeouts import CallTimeouts

if TYPE_CHECKING:
    from ..protocol.extensions import Extension, ExtensionNotification
    from ..protocol.types.skills import Skill
    from ..skills.loading import LoadedSkill
    from .prior import Discovered

T = TypeVar("T")
S = TypeVar("S")
P = TypeVar("P")


class Client(Requests):
    """A connection to one server, open until the end of its ``open_*`` block.

    Methods may be called from any task, any number at a time. Leaving a call by cancellation, by a deadline for
    example, stops the handler in the server and the handler's tasks; the connection stays usable. Every call raises
    `PeerError` when the server answers with an error, `ConnectionLost` when the connection is lost before or during the
    call, over HTTP `HTTPError` when the exchange of the call brings no reply, `ProtocolViolation` when the answer is
    malformed, and, with nothing sent, `MethodUnavailable` for anything that the revision lacks, and `ValueError` for a
    bad key of ``meta``. Cancellation and time limits stay trio's.

    A modern server asks by answering a call: the handlers then run in tasks of that call, their exceptions leave the
    call unchanged, and the server is called again with their answers.
    """

    if not TYPE_CHECKING:  # type checkers know what there is
        initialize = Renamed("nothing: async with open_stdio(...) as client has done it")
        session = Renamed("the client itself")
        is_connected = Renamed("client.lost")
        close = Renamed("nothing: the block of async with open_stdio(...) as client closes the client")
        send_ping = Renamed("client.ping()")
        call_tool_mcp = Renamed("client.call_tool(name, arguments)")
        list_tools_mcp = Renamed("client.list_tools()")

    def __init__(
        self, transport: FramedTransport, settings: ClientSettings, timeouts: CallTimeouts | None = None
    ) -> None:
        self._host = RequestHost(settings.limits, tracing=settings.tracing)
        """The nursery of the handlers that answer a legacy server."""
        graces = Graces(settings.limits.cleanup_grace)
        timeouts = timeouts or CallTimeouts(settings.call_timeout)
        answers = Answers(settings, self._host.workers.share(Caller(alone=True)), graces, timeouts)
        contexts = CallContexts(names_calls=transport.names_calls)
        callbacks = Callbacks(settings, contexts)
        self._unreadable = UnreadableMessages(settings.on_unreadable)
        self._state = ConnectionState("client", _vocabulary_of(settings))
        messages = ServerMessages(answers, callbacks, self._host, settings.question_tasks, contexts)
        self._question_tasks = messages.tasks
        """The questions that are answered as tasks; `None`: there are none."""
        self._connection = Connection(
            transport,
            self._state,
            messages,
            self._host,
            graces=graces,
            calls=CallSettings(settings.tell_deadlines, settings.send_cancels),
            on_unreadable=self._received_unreadable,
        )
        contexts.connection = self._connection
        callbacks.outbound = self._connection.outbound
        super().__init__(self._connection.outbound, answers, timeouts, settings, callbacks, contexts)
        self._callbacks.watchers += [self._tool_calls.changed, self._output_schemas.changed]
        if settings.cache is not None:
            self._callbacks.watchers.append(settings.cache._changed)
        self._change_streams = ChangeStreams(self._connection, self._callbacks, timeouts)
        self._knows_skills = False
        """True where the methods of the extension for skills can be sent."""
        self._legacy_session = LegacySession()
        self.server_info: Implementation | None = None
        """The server's name and version. Self-reported: for display, never for decisions."""
        self.instructions: str | None = None
        """The server's advice to the model."""
        self._discovered: Discovered | None = None
        """The answer to ``server/discover``, and when it expires; `None` for a legacy server."""
        self._target: str | None = None
        """The address or the command of the server; `None` where it has none."""

    def _received_unreadable(self, reason: str, line: bytes | bytearray) -> None:
        self._connection.outbound.record_stray(line)
        Context().run(self._unreadable.add, reason, line)

    @property
    def lost(self) -> ConnectionLost | None:
        """The reason why the connection is gone; `None` while the connection is open, as far as known."""
        return self._connection.outbound.closed_error

    @property
    def unreadable_messages(self) -> int:
        """The number of lines of the server that were no messages so far: see `ClientSettings.on_unreadable`."""
        return self._unreadable.count

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declares to the server."""
        return self._answers.capabilities_in(self.revision)

    @property
    def discovery(self) -> JSONObject | None:
        """The server's answer to ``server/discover`` as a JSON object that you can save: the option ``prior`` of a
        later client of the same server, which then connects without a round trip. `None` for a legacy server.

        Whoever has the object knows what the server told this client of itself. The object has a hash of the address or
        command, and no credentials.
        """
        if self._discovered is None:
            return None
        from .prior import saved  # late: few programs save it

        return saved(self._discovered, self.server_info, self._target)

    # Calling

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_task: Callable[[str], None] | None = None,
        meta: JSONObject | None = None,
        value: Any = None,
        **handlers: Unpack[CallHandlers],
    ) -> CallToolResult:
        """Call a tool. A failure of the tool itself is a result with ``is_error``, not an exception.

        ``on_progress`` is called with each `Progress`, in order, in the calling task, before this method returns; an
        exception of ``on_progress`` cancels the call and propagates. A server's hints about its tools are hints: base
        no decision on the hints of an untrusted server.

        Where the server goes on with the call as a task, this method asks how the task is until its end, has its
        questions answered by the handlers, and gives its messages to ``on_progress``; leaving the method cancels the
        task. See `start_task` for a task that goes on by itself. ``on_task`` is called with the id of the task as soon
        as there is one, before anything is waited for; an exception of ``on_task`` cancels the task and propagates.
        Raises `PeerError` with the error of a task that failed, and `TaskCancelled` for a task that somebody else has
        cancelled.

        If the tools were listed before, the structured content is checked against the output schema of the tool. A
        result that doesn't fit is returned with `CallToolResult.schema_error`.

        In revision 2025-11-25 the caller decides: a tool that is listed with ``execution.taskSupport`` "required" is
        called as a task. Where a server has tasks, its tools are listed once for that, unless they were listed before,
        and again after a change of the list.

        ``value`` is any value for the handlers and callbacks of this call: see `current_call`, which returns it as
        `CurrentCall.value`. ``handlers`` (``sampling``, ``elicitation``, ``elicitation_url``, ``roots``, ``on_log``)
        replace the client's handlers for this call only. Raises `ValueError` for a handler of a kind that the client
        hasn't declared.
        """
        if handlers:
            check_handlers(Client.call_tool, handlers, self.settings)
        data: JSONObject = {"name": name, "arguments": dict(arguments) if arguments else {}}
        called = self._request_plain(
            "tools/call",
            data,
            CallToolResult,
            on_progress=on_progress,
            meta=meta,
            on_task=on_task,
            value=value,
            handlers=handlers,
        )
        result = await (self._with_handlers(handlers, called) if handlers else called)
        return self._output_schemas.checked(name, result) if self._output_schemas.known else result

    def list_tasks(self) -> AsyncIterator[TaskState]:
        """Iterate over the tasks that the server runs or keeps for this client, page by page, as `list_tools`. Revision
        2025-11-25 only; elsewhere the first step raises `MethodUnavailable`."""
        return Pages(self, "tasks/list", refresh=True)

    async def read_resource(
        self, uri: str, *, on_progress: OnProgress | None = None, meta: JSONObject | None = None, refresh: bool = False
    ) -> ReadResourceResult:
        """Read a resource. An unknown resource is a `PeerError`: code -32002 in legacy revisions, -32602 in modern
        revisions. ``on_progress``: see `call_tool`; ``refresh``: see `request`."""
        params = ReadResourceParams(uri)
        return await self.request(
            "resources/read", params, ReadResourceResult, on_progress=on_progress, meta=meta, refresh=refresh
        )

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
    ) -> GetPromptResult:
        """Get a prompt with its arguments filled in. An unknown prompt or argument is a `PeerError` (-32602).
        ``on_progress``: see `call_tool`."""
        params = GetPromptParams(name, dict(arguments) if arguments is not None else None)
        return await self.request("prompts/get", params, GetPromptResult, on_progress=on_progress, meta=meta)

    async def complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        settled: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return suggestions for an ``argument`` of which ``value`` was typed; ``settled`` are arguments given before.
        An argument without suggestions gives an empty list; an unknown ``ref`` is a `PeerError` (-32602)."""
        context = CompletionContext(dict(settled)) if settled is not None else None
        params = CompleteParams(ref, CompletionArgument(argument, value), context)
        return (await self.request("completion/complete", params, CompleteResult)).completion

    # Listing

    def list_tools(self, *, refresh: bool = False) -> AsyncIterator[Tool]:
        """Iterate over the tools, page by page: ``async for tool in client.list_tools()``. ``refresh``: see `request`.

        Each page is requested when its first tool is needed. The iteration may be left anywhere, and a step that was
        cancelled can be repeated. Raises as a call. A list that never ends is ended with a warning, and returns each
        tool once. Such a list has a repeated cursor, a page with nothing new, or more than ``max_pages`` pages.
        """
        return Pages(self, "tools/list", refresh=refresh)

    def list_resources(self, *, refresh: bool = False) -> AsyncIterator[Resource]:
        """Iterate over the resources, page by page, as `list_tools`."""
        return Pages(self, "resources/list", refresh=refresh)

    def list_resource_templates(self, *, refresh: bool = False) -> AsyncIterator[ResourceTemplate]:
        """Iterate over the resource templates, page by page, as `list_tools`."""
        return Pages(self, "resources/templates/list", refresh=refresh)

    def list_prompts(self, *, refresh: bool = False) -> AsyncIterator[Prompt]:
        """Iterate over the prompts, page by page, as `list_tools`."""
        return Pages(self, "prompts/list", refresh=refresh)

    # Skills

    def list_skills(self, *, refresh: bool = False) -> AsyncIterator[Skill]:
        """Iterate over the skills that the server lists, page by page, as `list_tools`; no file is read. The list may
        be empty or lack skills that `get_skill` finds (SEP-2640). The first step raises `MethodUnavailable` where the
        server has not declared the extension."""
        from ..protocol.types.skills import ListSkillsResult  # late: few servers have skills

        listing = ListMethod(ListSkillsResult, "skills", "uri")
        return Pages(self, "skills/list", refresh=refresh, request=self._request_skills, listing=listing)

    async def get_skill(self, uri: str, *, refresh: bool = False) -> Skill:
        """Return the skill whose ``SKILL.md`` has this URI, whether it is listed or not. An unknown one is a
        `PeerError` (-32602). ``refresh``: see `request`. Raises `MethodUnavailable` as `list_skills`."""
        from ..protocol.types.skills import GetSkillParams, GetSkillResult

        return (await self._request_skills("skills/get", GetSkillParams(uri), GetSkillResult, refresh=refresh)).skill

    async def load_skill(self, skill: Skill) -> LoadedSkill:
        """Read the ``SKILL.md`` of a skill of `list_skills` or `get_skill`, and compare size, digest and front matter
        with what the server has said (SEP-2640, Integrity and Verification). `LoadedSkill.read` reads its other files
        when they are needed.

        Raises `SkillChanged` for a file that is not what was said, `ProtocolViolation` for a skill whose files make no
        sense, and as a call. Needs the extra ``trio-mcp[skills]``.
        """
        from ..skills.loading import load

        may_be_kept = self.settings.cache is not None and self.revision.cache_hints
        anew = partial(self.read_resource, refresh=True)
        return await load((self.read_resource, anew) if may_be_kept else (anew,), skill)

    def list_directory(self, uri: str) -> AsyncIterator[Resource]:
        """Iterate over what is directly in a folder of a skill, page by page; folders have the type
        ``inode/directory``. ``uri`` is that of the folder, without a slash behind. The first step raises
        `MethodUnavailable` where the server does not list folders, and a `PeerError` (-32602) for what is none."""
        from ..protocol.types.skills import ReadDirectoryParams, ReadDirectoryResult

        async def ask(method: str, page: PageParams, kind: type[Any], *, refresh: bool) -> Any:
            return await self._request_skills(method, ReadDirectoryParams(uri, page.cursor), kind, refresh=refresh)

        call = "file async for file in client.list_directory(uri)"
        listing = ListMethod(ReadDirectoryResult, "resources", "uri", call=call)
        return Pages(self, "resources/directory/read", refresh=False, request=ask, listing=listing)

    # Changes, logs, health

    def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[Changes]:
        """Listen for changes: ``async with client.listen(tools=True) as changes: async for change in changes``.

        ``tools``, ``prompts``, ``resources``: changes of these lists; ``uris``: changes of these resources. The block
        is entered when the server has acknowledged; `Changes.acknowledged` gives the changes that the server agreed to.
        Leaving the block sends one cancel. Any number of blocks may be open at once. Modern revisions only; legacy
        revisions raise `MethodUnavailable`. In both eras ``on_list_changed`` works for lists, and `subscribe` with
        ``on_resource_updated`` for resources.
        """
        if isinstance(uris, str):
            raise TypeError(f"uris is a list of URIs: uris=[{uris!r}], not uris={uris!r}")
        asked = SubscriptionFilter(tools or None, prompts or None, resources or None, list(uris) or None)
        return self._change_streams.listen(asked, partial(open_stream, self))

    async def subscribe(self, uri: str) -> None:
        """Have ``on_resource_updated`` called when this resource changes. In modern revisions this opens a stream for
        the resource, and opens the stream anew, after a while, when the server ends the stream: the callback is called
        then, too, since changes may have been missed. A resource that the server cannot tell of is a `PeerError` in all
        revisions."""
        if self.revision.changes == "listen":
            await self._change_streams.subscribe(uri, partial(open_stream, self))
        else:
            await self.request("resources/subscribe", SubscribeParams(uri), EmptyResult)
            self._legacy_session.uris[uri] = None

    async def unsubscribe(self, uri: str) -> None:
        """Undo `subscribe`. In modern revisions the call waits until the stream is over, and does nothing without a
        stream; in legacy revisions the server is asked."""
        if self.revision.changes == "listen":
            await self._change_streams.unsubscribe(uri)
        else:
            self._legacy_session.uris.pop(uri, None)
            await self.request("resources/unsubscribe", SubscribeParams(uri), EmptyResult)

    async def set_log_level(self, level: LogLevel | str) -> None:
        """Get log messages of ``level`` and above from now on. Raises `ValueError` for an unknown level.

        Legacy servers are told at once; modern servers learn the level from each later request, and send no logs
        before.
        """
        level = LogLevel(level)
        if self.revision.log_level == "request":
            await trio.lowlevel.checkpoint()
            self._log_level = {LOG_LEVEL: level.value}
        else:
            await self.request("logging/setLevel", SetLevelParams(level), EmptyResult)
            self._legacy_session.log_level = level

    async def ping(self) -> None:
        """Return when the server has answered. Modern revisions have no ping: ``server/discover`` stands in."""
        if "ping" in self.revision._methods:
            await self.request("ping", None, EmptyResult)
        else:
            await self.request("server/discover", None, DiscoverResult, refresh=True)

    async def until_lost(self) -> NoReturn:
        """Wait for the end of the connection, and raise its `ConnectionLost`."""
        with self._connection.outbound.while_connected():
            await trio.sleep_forever()

    async def roots_changed(self) -> None:
        """Tell a legacy server that the client's roots changed, once there is room in the outbox; cancelled before
        that, the call sends nothing. The call sends nothing to modern servers, which ask anew each time, and nothing
        without a declared ``list_changed`` of roots: without ``roots``, or with ``forwards`` that lack
        ``list_changed``."""
        self._connection.outbound.check_run()
        await trio.lowlevel.checkpoint()
        declared = self.capabilities.supports("roots.list_changed")
        if declared and "notifications/roots/list_changed" in self.revision._methods:
            await self._connection.outbox.room()
            self._connection.notify("notifications/roots/list_changed")

    # Any message

    def server_extension(self, extension: Extension[S, Any]) -> S | None:
        """Return the settings with which the server has declared ``extension``; `None` where it has not."""
        return extension._settings_in(self.server_capabilities.extensions, "server")

    @overload
    async def send_notification(self, method: ExtensionNotification[P], params: P) -> None: ...
    @overload
    async def send_notification(self, method: str, params: JSONObject | None = None) -> None: ...
    async def send_notification(self, method: str | ExtensionNotification[Any], params: Any = None) -> None:
        """Send any notification, once there is room in the outbox; cancelled before that, the call sends nothing. One
        of an extension takes an object of the class of its parameters.

        Raises, with nothing sent, `MethodUnavailable` for a method of the specification that a client does not send as
        a notification in this revision, and for one of an extension that the server has not declared,
        `NotSerializable`, and `ConnectionLost`.
        """
        if not isinstance(method, str):
            await self._check_declared(method)
            method, params = method.name, unstructure(params, self.revision)
        if lacks_notification(method, "client", self.revision):
            raise MethodUnavailable(method, self.revision)
        line = frame_notification(method, params) + b"\n"
        with self._connection.outbound.while_connected():
            await trio.lowlevel.checkpoint()
            await self._connection.room()
            self._connection.outbox.put_sealed(line)

    # For code that opens clients, and code that forwards

    def _adopt_prior(self) -> bool:
        """Speak as a prior answer says, if there is one. Return whether that was done: see `PriorClient`."""
        return False

    async def _request_skills(self, method: str, params: Any, kind: type[T], *, refresh: bool = False) -> T:
        """Send a request of the extension for skills, which need not be one of the client's (SEP-2640 knows no settings
        of clients)."""
        from ..skills.loading import SKILLS

        row = next(each for each in SKILLS._rows if each.name == method)
        await self._check_declared(row)
        if not SKILLS._serves(row, self.server_capabilities):
            raise MethodUnavailable(method, self.revision, f"{SKILLS.name} with directoryRead")
        self._learn_skills()
        return await self.request(method, params, kind, refresh=refresh)

    def _learn_skills(self) -> None:
        """Let this client send the methods of the extension for skills, whether it declares the extension or not."""
        if self._knows_skills:
            return
        from ..skills.loading import SKILLS

        self._knows_skills = True
        self._cacheable |= {row.name for row in SKILLS._rows if row.cacheable}
        if not any(SKILLS.name == extension.name for extension in self.settings.extensions):
            self._state.learn(_vocabulary_of(self.settings, SKILLS))


def request_skills(client: Client, method: str, params: Any, kind: type[T]) -> Awaitable[T]:
    """Send a request of the extension for skills."""
    return client._request_skills(method, params, kind)


def learn_skills(client: Client) -> None:
    """Let ``client`` send the methods of the extension for skills, whether it declares the extension or not."""
    client._learn_skills()


def forward_to(client: Client, relay: Relay) -> None:
    """From now on, have ``client`` pass notifications of the server to ``relay`` as well as to the callbacks, and
    questions to ``relay`` instead of the handlers where questions are forwarded. Raises `RuntimeError` if there is
    another relay."""
    if client._callbacks.relay is not None:
        raise RuntimeError("this client forwards to another already")
    client._answers.relay = relay
    client._callbacks.forward_to(relay)


def adopt(
    client: Client,
    revision: Revision,
    info: Implementation | None,
    capabilities: ServerCapabilities,
    instructions: str | None,
    discovered: Discovered | None = None,
) -> None:
    """Have ``client`` speak ``revision`` from now on. ``discovered``: the answer of a modern server."""
    client.revision = client._connection.state.revision = revision
    client._meta = {} if revision.handshake else meta_in(client, revision)
    client._tool_calls.adopt(revision, capabilities)
    client._timeouts.asked_in_calls = not revision.server_requests
    client.server_info = info
    client.server_capabilities = capabilities
    client.instructions = instructions
    client._discovered = discovered


def _vocabulary_of(settings: ClientSettings, *more: Extension[Any, Any]) -> Vocabulary:
    extensions = (*settings.extensions, *more)
    if not extensions and settings.forwards is None:
        return CORE
    from ..protocol.extensions import UNKNOWN, vocabulary_of, with_unknown  # late: most clients have no extension

    if settings.forwards is None:
        return vocabulary_of(extensions)
    return with_unknown(vocabulary_of(extensions)) if extensions else UNKNOWN


@define(eq=False)
class LegacySession:
    """The state that a legacy server keeps for a client, which the client sets up anew where the server has forgotten
    the session."""

    log_level: LogLevel | None = None
    """Least severe level of the logs that the client wants; `None` where the client never said."""
    uris: dict[str, None] = attrs.field(factory=dict[str, None])
    """Resources that the client is subscribed to, in the order of subscribing."""
