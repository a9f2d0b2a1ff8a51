"""The client class, and the state that a legacy server keeps for a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from ..protocol.types.offers import (
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptParams,
    GetPromptResult,
    PageParams,
    Prompt,
    PromptReference,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    ResourceTemplateReference,
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
from .current_call import CallContexts, CallHandlers, CallRecord, check_handlers
from .listing import ListMethod, Pages
from .options import ClientSettings, UnreadableMessages
from .requests import Requests, meta_in, open_stream
from .results import structured
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

    You may call methods from any task, any number of them concurrently. To give up on a call, cancel it, by a deadline
    for example: the server stops the handler and the handler's tasks, and the connection stays usable. trio's
    `Cancelled` and `trio.TooSlowError` pass through unchanged.

    When a modern server requires input (sampling, elicitation, roots) for a call, your handlers run in tasks of the
    call, and the client repeats the request with their answers. An exception of such a handler propagates from the call
    unchanged.

    Raises:
        PeerError: The server answers with an error.
        ConnectionLost: The connection is lost before or during the call.
        HTTPError: Over HTTP, the exchange of the call brings no reply.
        ProtocolViolation: The answer is malformed.
        MethodUnavailable: The protocol revision lacks the method; nothing is sent.
        ValueError: A key of ``meta`` is invalid; nothing is sent.
    """

    if not TYPE_CHECKING:  # define these names of other SDKs only at run time: type checkers report unknown names
        initialize = Renamed("nothing: async with open_stdio(...) as client has done it")
        session = Renamed("the client itself")
        is_connected = Renamed("client.lost")
        close = Renamed("nothing: the block of async with open_stdio(...) as client closes the client")
        send_ping = Renamed("client.ping()")
        call_tool_mcp = Renamed("client.call_tool(name, arguments)")
        list_tools_mcp = Renamed("client.list_tools()")

    def __init__(self, transport: FramedTransport, settings: ClientSettings, timeouts: CallTimeouts) -> None:
        self._host = RequestHost(settings.limits, tracing=settings.tracing)
        """Runs the handlers that answer a legacy server's requests, and the callbacks for notifications."""
        graces = Graces(settings.limits.cleanup_grace)
        answers = Answers(settings, self._host.workers.share(Caller(alone=True)), graces, timeouts)
        contexts = CallContexts(names_calls=transport.names_calls)
        callbacks = Callbacks(settings, contexts)
        self._unreadable = UnreadableMessages(settings.on_unreadable)
        self._state = ConnectionState("client", _vocabulary_of(settings))
        messages = ServerMessages(answers, callbacks, self._host)
        self._question_tasks = messages.tasks
        """The sampling and elicitation requests that the client answers as tasks; `None` if the client has no such
        tasks."""
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
        super().__init__(self._connection.outbound, answers, callbacks)
        self._callbacks.watchers += [self._tool_calls.changed, self._output_schemas.changed]
        if settings.cache is not None:
            self._callbacks.watchers.append(settings.cache._changed)
        self._change_streams = ChangeStreams(self._connection, self._callbacks, timeouts)
        self._knows_skills = False
        """True if the client can send the methods of the skills extension."""
        self._legacy_session = LegacySession()
        self.server_info: Implementation | None = None
        """The name and version that the server reports about itself. Use them for display, never for decisions."""
        self.instructions: str | None = None
        """The server's instructions for the model."""
        self._discovered: Discovered | None = None
        """The response to ``server/discover``, and when it expires; `None` for a legacy server."""
        self._target: str | None = None
        """The address or command of the server; `None` if the transport has neither."""

    def _received_unreadable(self, reason: str, line: bytes | bytearray) -> None:
        self._connection.outbound.record_stray(line)
        Context().run(self._unreadable.add, reason, line)

    @property
    def lost(self) -> ConnectionLost | None:
        """The error that ended the connection; `None` while the connection seems to be open."""
        return self._connection.outbound.closed_error

    @property
    def unreadable_messages(self) -> int:
        """The number of lines in the server's output so far that weren't JSON-RPC messages: see
        `ClientSettings.on_unreadable`."""
        return self._unreadable.count

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that this client declares to the server."""
        return self._answers.capabilities_in(self.revision)

    @property
    def discovery(self) -> JSONObject | None:
        """The server's response to ``server/discover``, as a JSON object that you can save. `None` if the server has a
        legacy protocol revision.

        Pass it as the option ``prior`` of a later client of the same server, which then connects without a round trip.
        The object contains the server's description of itself, and a hash of its address or command, but no
        credentials.
        """
        if self._discovered is None:
            return None
        from .prior import saved  # lazy import: few programs save the discovery response

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
        """Call a tool and return its result. If the tool itself fails, the result has ``is_error``, and no exception is
        raised.

        If the server continues the call as a task, this method polls the task until it ends. Meanwhile your handlers
        answer its questions and ``on_progress`` gets its messages. Cancelling this method cancels the task; to start a
        task that outlives the call, use `start_task`.

        In revision 2025-11-25 the client decides: it calls a tool as a task if the tool is listed with
        ``execution.taskSupport`` "required". For that, the client lists the tools of a server that has tasks once,
        unless you did, and again after the list has changed.

        If you have listed the tools before, the structured content is checked against the tool's output schema. A
        result that doesn't match has `CallToolResult.schema_error`. Annotations of tools are only hints: base no
        decision on them unless you trust the server.

        Args:
            name: Name of the tool.
            arguments: Arguments of the tool, as JSON data.
            on_progress: Called with each `Progress`, in order, in the calling task, before this method returns. If it
                raises, the call is cancelled and the exception propagates.
            on_task: Called with the id of the task as soon as there is one, before waiting for anything else. If it
                raises, the task is cancelled and the exception propagates.
            meta: Additional keys of the request's ``_meta``.
            value: Any value for the handlers and callbacks of this call, which read it as ``current_call().value``.
            handlers: Handlers that replace those of the client for this call only: ``sampling``, ``elicitation``,
                ``elicitation_url``, ``roots`` and ``on_log``.

        Raises:
            PeerError: The server answers with an error, or the task failed with that error.
            TaskCancelled: The task was cancelled by another client or by the server.
            ValueError: A handler was passed for a kind of request that the client hasn't declared.
        """
        if handlers:
            check_handlers(Client.call_tool, handlers, self.settings)
        data: JSONObject = {"name": name, "arguments": dict(arguments) if arguments else {}}
        call: CallRecord = ("tools/call", data, value, handlers)
        called = self._request_plain(call, on_progress=on_progress, meta=meta, on_task=on_task)
        plain = await (self._with_handlers(handlers, called) if handlers else called)
        result = structured("tools/call", plain, CallToolResult, self._faults)
        return self._output_schemas.checked(name, result) if self._output_schemas.known else result

    def list_tasks(self) -> AsyncIterator[TaskState]:
        """Iterate over the tasks that the server runs or keeps for this client, page by page, like `list_tools`.

        Revision 2025-11-25 only; in other revisions the first step raises `MethodUnavailable`.
        """
        return Pages(self, "tasks/list", refresh=True)

    async def read_resource(
        self, uri: str, *, on_progress: OnProgress | None = None, meta: JSONObject | None = None, refresh: bool = False
    ) -> ReadResourceResult:
        """Read a resource and return its contents.

        Raises `PeerError` if the resource is unknown, with code -32002 in legacy revisions and -32602 in modern
        revisions. For ``on_progress``, see `call_tool`; for ``refresh``, see `request`.
        """
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
        """Return a prompt with its arguments filled in.

        Raises `PeerError` (-32602) if the prompt or an argument is unknown. For ``on_progress``, see `call_tool`.
        """
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
        """Return completion suggestions for an argument of a prompt or resource template. The list is empty if the
        server has no suggestions.

        Args:
            ref: The prompt or resource template.
            argument: Name of the argument.
            value: What the user has typed so far.
            settled: Arguments that have their values already.

        Raises:
            PeerError: ``ref`` is unknown (-32602).
        """
        context = CompletionContext(dict(settled)) if settled is not None else None
        params = CompleteParams(ref, CompletionArgument(argument, value), context)
        return (await self.request("completion/complete", params, CompleteResult)).completion

    # Listing

    def list_tools(self, *, refresh: bool = False) -> AsyncIterator[Tool]:
        """Iterate over the server's tools: ``async for tool in client.list_tools()``. For ``refresh``, see `request`.

        Each page is requested when its first tool is needed. You may stop the iteration anywhere, and repeat a step
        that was cancelled. Raises the same errors as a call. If the server's list never ends (it repeats a cursor, has
        a page with nothing new, or more than ``max_pages`` pages), the iteration stops with a warning, and returns each
        tool once.
        """
        return Pages(self, "tools/list", refresh=refresh)

    def list_resources(self, *, refresh: bool = False) -> AsyncIterator[Resource]:
        """Iterate over the server's resources, page by page, like `list_tools`."""
        return Pages(self, "resources/list", refresh=refresh)

    def list_resource_templates(self, *, refresh: bool = False) -> AsyncIterator[ResourceTemplate]:
        """Iterate over the server's resource templates, page by page, like `list_tools`."""
        return Pages(self, "resources/templates/list", refresh=refresh)

    def list_prompts(self, *, refresh: bool = False) -> AsyncIterator[Prompt]:
        """Iterate over the server's prompts, page by page, like `list_tools`."""
        return Pages(self, "prompts/list", refresh=refresh)

    # Skills

    def list_skills(self, *, refresh: bool = False) -> AsyncIterator[Skill]:
        """Iterate over the skills that the server lists, page by page, like `list_tools`. The skills' files aren't
        read.

        The list may be empty, or lack skills that `get_skill` finds (SEP-2640). If the server hasn't declared the
        extension, the first step raises `MethodUnavailable`.
        """
        from ..protocol.types.skills import ListSkillsResult  # lazy import: few servers have skills

        listing = ListMethod(ListSkillsResult, "skills", "uri")
        return Pages(self, "skills/list", refresh=refresh, request=partial(request_skills, self), listing=listing)

    async def get_skill(self, uri: str, *, refresh: bool = False) -> Skill:
        """Return the skill whose ``SKILL.md`` has this URI, whether the server lists the skill or not. For ``refresh``,
        see `request`.

        Raises:
            PeerError: The skill is unknown (-32602).
            MethodUnavailable: The server hasn't declared the extension.
        """
        from ..protocol.types.skills import GetSkillParams, GetSkillResult

        return (await request_skills(self, "skills/get", GetSkillParams(uri), GetSkillResult, refresh=refresh)).skill

    async def load_skill(self, skill: Skill) -> LoadedSkill:
        """Read the ``SKILL.md`` of a skill, and check that the file is the one that the server announced: its size,
        digest and front matter.

        ``skill`` comes from `list_skills` or `get_skill` (SEP-2640, Integrity and Verification). `LoadedSkill.read`
        reads the other files when you need them. Needs the extra ``trio-mcp[skills]``. Raises the errors of a call as
        well.

        Raises:
            SkillChanged: The file isn't the one that the server announced.
            ProtocolViolation: The skill's list of files is invalid.
        """
        from ..skills.loading import load

        may_be_kept = self.settings.cache is not None and self.revision.cache_hints
        anew = partial(self.read_resource, refresh=True)
        return await load((self.read_resource, anew) if may_be_kept else (anew,), skill)

    def list_directory(self, uri: str) -> AsyncIterator[Resource]:
        """Iterate over the files and folders in a folder of a skill, page by page. Folders have the type
        ``inode/directory``.

        ``uri`` is the URI of the folder, without a slash at the end. The first step raises `MethodUnavailable` if the
        server doesn't list folders, and `PeerError` (-32602) if ``uri`` isn't a folder.
        """
        from ..protocol.types.skills import ReadDirectoryParams, ReadDirectoryResult

        async def ask(method: str, page: PageParams, kind: type[Any], *, refresh: bool) -> Any:
            return await request_skills(self, method, ReadDirectoryParams(uri, page.cursor), kind, refresh=refresh)

        call = "file async for file in client.list_directory(uri)"
        listing = ListMethod(ReadDirectoryResult, "resources", "uri", call=call)
        return Pages(self, "resources/directory/read", refresh=False, request=ask, listing=listing)

    # Changes, logs, health

    def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[Changes]:
        """Listen for changes of the server's lists and resources: ``async with client.listen(tools=True) as changes:
        async for change in changes``.

        The block is entered when the server has acknowledged; `Changes.acknowledged` lists the changes that the server
        agreed to report. Leaving the block sends one cancel. You may have any number of blocks open. Modern revisions
        only; in legacy revisions this raises `MethodUnavailable`. With servers of all revisions, you can use
        ``on_list_changed`` for lists, and `subscribe` with ``on_resource_updated`` for resources.

        Args:
            tools: Report changes of the list of tools.
            prompts: Report changes of the list of prompts.
            resources: Report changes of the list of resources.
            uris: Report changes of these resources.
        """
        if isinstance(uris, str):
            raise TypeError(f"uris must be a list of URIs: write uris=[{uris!r}], not uris={uris!r}")
        asked = SubscriptionFilter(tools or None, prompts or None, resources or None, list(uris) or None)
        return self._change_streams.listen(asked, partial(open_stream, self))

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource. From now on, the client calls ``on_resource_updated`` whenever the resource changes.

        In modern revisions this opens a stream for the resource. If the server ends the stream, the client reopens it
        after a delay, and calls the callback then, since changes may have been missed. Raises `PeerError` in all
        revisions if the server can't report changes of this resource.
        """
        if self.revision.changes == "listen":
            await self._change_streams.subscribe(uri, partial(open_stream, self))
        else:
            await self.request("resources/subscribe", SubscribeParams(uri), EmptyResult)
            self._legacy_session.uris[uri] = None

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource that `subscribe` has started.

        In modern revisions, wait until the resource's stream has ended, if there is one. In legacy revisions, send a
        request to the server.
        """
        if self.revision.changes == "listen":
            await self._change_streams.unsubscribe(uri)
        else:
            self._legacy_session.uris.pop(uri, None)
            await self.request("resources/unsubscribe", SubscribeParams(uri), EmptyResult)

    async def set_log_level(self, level: LogLevel | str) -> None:
        """Make the server send log messages of ``level`` and above from now on. Raises `ValueError` if the level is
        unknown.

        A legacy server gets a request with the level at once. A modern server gets the level with each later request,
        and sends no log messages before.
        """
        level = LogLevel(level)
        if self.revision.log_level == "request":
            await trio.lowlevel.checkpoint()
            self._log_level = {LOG_LEVEL: level.value}
        else:
            await self.request("logging/setLevel", SetLevelParams(level), EmptyResult)
            self._legacy_session.log_level = level

    async def ping(self) -> None:
        """Wait until the server has answered a ping. Protocol revisions from 2026-07-28 have no ping, so
        ``server/discover`` is sent in its place."""
        if "ping" in self.revision._methods:
            await self.request("ping", None, EmptyResult)
        else:
            await self.request("server/discover", None, DiscoverResult, refresh=True)

    async def until_lost(self) -> NoReturn:
        """Wait until the connection is lost, and then raise `ConnectionLost` with the reason."""
        with self._connection.outbound.while_connected():
            await trio.sleep_forever()

    async def roots_changed(self) -> None:
        """Notify the server that the client's roots have changed. Only servers with a legacy protocol revision get this
        notification.

        Waits while the queue of outgoing messages is full. If cancelled meanwhile, sends nothing.

        Nothing is sent to modern servers, which request the roots each time they need them. Nothing is sent either
        unless the client declared ``list_changed`` of roots: without ``roots``, or with ``forwards`` that lack it.
        """
        self._connection.outbound.check_run()
        await trio.lowlevel.checkpoint()
        declared = self.capabilities.supports("roots.list_changed")
        if declared and "notifications/roots/list_changed" in self.revision._methods:
            await self._connection.outbox.room()
            self._connection.notify("notifications/roots/list_changed")

    # Any message

    def server_extension(self, extension: Extension[S, Any]) -> S | None:
        """Return the settings that the server declared for ``extension``; `None` if the server didn't declare the
        extension."""
        return extension._settings_in(self.server_capabilities.extensions, "server")

    @overload
    async def send_notification(self, method: ExtensionNotification[P], params: P) -> None: ...
    @overload
    async def send_notification(self, method: str, params: JSONObject | None = None) -> None: ...
    async def send_notification(self, method: str | ExtensionNotification[Any], params: Any = None) -> None:
        """Send any notification to the server.

        Waits while the queue of outgoing messages is full. If cancelled meanwhile, sends nothing.

        For a notification of an extension, pass an instance of its parameter class as ``params``. If this raises,
        nothing was sent.

        Raises:
            MethodUnavailable: Clients don't send this notification of the specification in this revision, or the server
                hasn't declared the extension.
            NotSerializable: The parameters can't be written as JSON.
            ConnectionLost: The connection is lost.
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

    # Methods with which other code of this package opens clients and forwards requests

    def _adopt_prior(self) -> bool:
        """Use the revision and capabilities of the earlier discovery response (``prior``), if there is one.

        Return whether the response was used. Overridden in `PriorClient`.
        """
        return False


async def request_skills(client: Client, method: str, params: Any, kind: type[T], *, refresh: bool = False) -> T:
    """Send a request of the skills extension from ``client``, and return its result.

    The client needn't have declared the extension, since SEP-2640 defines no settings for clients.
    """
    from ..skills.loading import SKILLS

    row = next(each for each in SKILLS._rows if each.name == method)
    await client._check_declared(row)
    if not SKILLS._serves(row, client.server_capabilities):
        raise MethodUnavailable(method, client.revision, f"{SKILLS.name} with directoryRead")
    learn_skills(client)
    return await client.request(method, params, kind, refresh=refresh)


def learn_skills(client: Client) -> None:
    """Let ``client`` send the methods of the skills extension, even if ``client`` doesn't declare the extension."""
    if client._knows_skills:
        return
    from ..skills.loading import SKILLS

    client._knows_skills = True
    client._cacheable |= {row.name for row in SKILLS._rows if row.cacheable}
    if not any(SKILLS.name == extension.name for extension in client.settings.extensions):
        client._state.learn(_vocabulary_of(client.settings, SKILLS))


def forward_to(client: Client, relay: Relay) -> None:
    """From now on, pass the server's notifications and requests (sampling, elicitation, roots) to ``relay``, such as a
    proxy.

    Notifications go to ``relay`` as well as to the callbacks. Questions that the client declared to forward go to
    ``relay`` instead of the handlers. Raises `RuntimeError` if the client already has a relay.
    """
    if client._callbacks.relay is not None:
        raise RuntimeError("another proxy already uses this client; use one client for each proxy")
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
    """Set the protocol revision that ``client`` uses from now on. ``discovered`` is the server's response to
    ``server/discover``, if there was one."""
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
    # Import extensions only here, because most clients have none.
    from ..protocol.extensions import UNKNOWN, vocabulary_of, with_unknown

    if settings.forwards is None:
        return vocabulary_of(extensions)
    return with_unknown(vocabulary_of(extensions)) if extensions else UNKNOWN


@define(eq=False)
class LegacySession:
    """The state of a client's session with a server of a legacy protocol revision: log level and subscriptions. If the
    server loses the session, the client restores this state."""

    log_level: LogLevel | None = None
    """The lowest level of log messages that the client has requested; `None` if the client never set a level."""
    uris: dict[str, None] = attrs.field(factory=dict[str, None])
    """The resources that the client has subscribed to, in order."""
