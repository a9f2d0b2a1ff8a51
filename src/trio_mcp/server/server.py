"""Server: the tools, resources and prompts for clients, and the methods with which authors register each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from inspect import isasyncgenfunction, isgeneratorfunction, signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeVar, Unpack, cast, overload

import attrs

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.fair_share import Callers
from ..concurrency.nurseries import open_service_nursery
from ..protocol.converters import unstructure
from ..protocol.revisions import MODERN_REVISIONS
from ..protocol.types.lifecycle import (
    Icon,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    TasksCapability,
    ToolsCapability,
)
from ..protocol.types.tools import TASKS_EXTENSION
from ..runtime.limits import DEFAULT_LIMITS, Limits, Load, Statistics
from ..runtime.replies import Replies
from ..runtime.requests.host import RequestHost
from ..stores.task_store import TaskStore
from ..tasks.record_writers import Outcomes
from ..tasks.records import TaskRecords
from ..tasks.settings import DEFAULT_TASKS, TaskSettings
from .connected_clients import ConnectedClient, Observers
from .kept_tasks import KeptTasks
from .prompts import Completions, Prompts
from .registration import (
    NOT_CACHED,
    CacheHints,
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    check_options,
    hints_by_method,
    switch,
)
from .request_state import StateCipher
from .resources import Resources
from .results import encoders_of
from .running_tasks import RunningTasks
from .tools import Tools

if TYPE_CHECKING:
    from ..otel import OpenTelemetry
    from .around import Around, Arounds
    from .provider import Provider

    A = TypeVar("A", bound=Around)

F = TypeVar("F", bound=Callable[..., Any])

Lifespan = Callable[["Server"], AbstractAsyncContextManager[Any]]
RootsChanged = Callable[[ConnectedClient], Any]


class Server:
    """Tools, resources and prompts under one name. A server holds nothing of any connection, so one server may serve
    many connections.

    ``name``, ``version``, ``title``, ``description``, ``icons`` and ``website_url`` are shown to people;
    ``instructions`` to the model. ``lifespan`` takes the server and gives an async context manager, entered once before
    the first request and left after the last; the yielded value is ``ctx.lifespan``. ``limits`` bound each connection.
    ``page_size`` is the number of things in a page of a listing, `None` for all. ``logging=False``: the logs of
    handlers are never sent. ``require_initialized``: refuse legacy requests before the handshake is complete (-32002).
    ``tracing``: the observer that is told of requests, `trio_mcp.otel.OpenTelemetry` for example.
    ``expose_errors``, for development: error replies give the type and text of unexpected exceptions, instead of
    "internal error" alone.
    ``secrets``, of 32 bytes or more each, seal the state that modern clients carry from round to round: the first
    seals, all open. Processes that serve the same clients share a secret; without ``secrets``, a random secret is made.
    ``cache``: how modern clients may cache the results of discovering, listing and reading, by default not at all;
    ``cache_by_method`` overrides ``cache`` for single methods, ``{"tools/list": CacheHints(60_000, "public")}``.
    ``tasks``: the store and the bounds of tasks.
    ``encoders`` write values of classes without a JSON form in results: ``{Frame: rows_of}``, where the annotation of
    what the function returns gives the schema. An encoder holds for subclasses, too, and goes before what is known of
    pydantic and numpy. Raises `TypeError` for a class that has a JSON form, such as a dataclass.
    """

    def __init__(
        self,
        name: str,
        version: str = "0.0.0",
        *,
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        icons: Sequence[Icon] | None = None,
        website_url: str | None = None,
        lifespan: Lifespan | None = None,
        limits: Limits = DEFAULT_LIMITS,
        page_size: int | None = None,
        logging: bool = True,
        require_initialized: bool = False,
        tracing: OpenTelemetry | None = None,
        expose_errors: bool = False,
        secrets: Sequence[bytes] = (),
        cache: CacheHints = NOT_CACHED,
        cache_by_method: Mapping[str, CacheHints] = MappingProxyType({}),
        tasks: TaskSettings = DEFAULT_TASKS,
        encoders: Mapping[type, Callable[[Any], Any]] = MappingProxyType({}),
        **foreign: Never,
    ) -> None:
        if foreign:
            _refuse(foreign)
        if " " in version.strip():
            raise ValueError(f"a version is like '1.0', not {version[:100]!r}; write instructions=...")
        if isgeneratorfunction(lifespan) or isasyncgenfunction(lifespan):
            raise TypeError(f"the lifespan {lifespan.__name__} needs @asynccontextmanager above it")
        if hasattr(lifespan, "__aenter__") and not isinstance(lifespan, type):
            raise TypeError(
                "a lifespan is called with the server at each start:\n"
                "    wrong:  Server('name', lifespan=lifespan(None))\n"
                "    right:  Server('name', lifespan=lifespan)"
            )
        if page_size is not None and page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {page_size}")
        self.info = Implementation(name, version, title, description, list(icons) if icons else None, website_url)
        self.instructions = instructions
        self.limits = limits
        self.logging = logging
        self.require_initialized = require_initialized
        self.tracing = tracing
        self.expose_errors = expose_errors
        written = encoders_of(encoders)
        self.tools = Tools(page_size, written)
        self.cache_hints = hints_by_method(cache, cache_by_method)
        self.resources = Resources(page_size, self.cache_hints["resources/read"], written)
        self.prompts = Prompts(page_size)
        self.completions = Completions(self.prompts, self.resources)
        self.state_cipher = StateCipher(name, secrets)
        self._has_secrets = bool(secrets)
        self.load = Load()
        """Counters that all connections share, read by `statistics`."""
        self._lifespan = lifespan
        self._tasks = tasks
        self.tasks = _kept_tasks(tasks)
        """The tasks of all callers, for code outside of handlers that ends tasks: see `KeptTasks`. Between runs of the
        server there are only the tasks in `TaskSettings.store`."""
        self._mounted: list[Server] = []
        self._lifespans: dict[RequestHost, Any] = {}
        """The values of the lifespan, by the home of the handlers, which there may be several of."""
        self.observers = Observers()
        self.roots_changed: RootsChanged | None = None
        """The function given to `on_roots_changed`."""
        self._arounds: list[tuple[frozenset[str], Around]] = []
        """Functions given to `around`, outermost first, each with its methods."""

    def __repr__(self) -> str:
        return f"<Server {self.info.name} {self.info.version}>"

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that are declared to clients: the kinds of things that exist at this moment, disabled ones
        included."""
        has_resources = self.resources.registry.is_used or self.resources.templates.is_used
        has_tasks = self.tools.has_tasks
        return ServerCapabilities(
            logging={} if self.logging else None,
            completions={} if len(self.completions) else None,
            prompts=PromptsCapability(list_changed=True) if self.prompts.registry.is_used else None,
            resources=ResourcesCapability(subscribe=True, list_changed=True) if has_resources else None,
            tools=ToolsCapability(list_changed=True) if self.tools.registry.is_used else None,
            tasks=TasksCapability({}, {}, {"tools": {"call": {}}}) if has_tasks else None,
            extensions={TASKS_EXTENSION: {}} if has_tasks else None,
        )

    # Offering

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
        """Offer a function as a tool. `ToolOptions` documents the keywords.

        The function's parameters, checked before each call, give the input schema: attrs classes, dataclasses,
        TypedDicts, models of pydantic, Literal, Enum, unions, and constraints as ``Annotated[int, msgspec.Meta(ge=1)]``
        or ``Field(ge=1)``; a plain string in ``Annotated`` describes a parameter. A parameter annotated
        `RequestContext` (`WorkerContext` in a plain ``def``) gets the context.

        ``Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})]`` has modern clients repeat a text,
        an integer or a boolean in the header ``Mcp-Param-Region`` over HTTP, where intermediaries see the value: no
        secrets (2026-07-28 tools, x-mcp-header).

        The return annotation gives the output schema, and the returned value is structured content, repeated as JSON
        text. Text, content blocks, `Image`, `Audio` and `File`, alone or in a list or tuple, are content and have no
        schema; `None` and an empty list of blocks give empty content. Without an annotation a list or tuple is content
        when there is a block inside.

        ``replay=True``: the handler is safe to run again. A question to a modern client then stops the handler, its
        cleanup runs, and the handler runs from the top when the client comes back, with all answers so far at once.
        Nothing is kept in between, so the client may come back to another process that shares a secret. Ask the same
        questions in the same words each time. Without ``replay``, a handler that asks is parked: the handler waits at
        its question.

        ``task="optional"``: a call may be a task, which outlives its request, where the client knows tasks: in revision
        2025-11-25 where the client asks for a task, later where the call takes longer than `TaskSettings.grace`, or the
        handler calls `TaskContext.start`. The handler is the same for both, and for ordinary calls, in which
        ``ctx.task`` is `None`. ``"required"``: always a task; other clients are refused. ``on_restart``: the fate of a
        task whose process ends before the task, where `TaskSettings.store` outlives the process. With ``"fail"`` a
        handler runs at most once; with ``"again"`` and ``"resume"`` at least once.

        Raises `ValueError` when the name is taken or not allowed (2025-11-25 tools, Tool Names: up to 128 letters,
        digits, ``_``, ``-`` and ``.``), or a schema or a key of ``meta`` is invalid, `TypeError` for a signature that
        cannot be used. Clients are told of a tool that is added at run time.
        """
        check_options("@server.tool", options, ToolOptions)
        register = self._registration("tools", partial(self.tools.add, options=options))
        return register if function is None else register(function)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Offer a function as the resource ``uri``, or as a family of resources if ``uri`` is a template.
        `ResourceOptions` documents the keywords.

        ``{name}`` in a template is one path segment, ``{+name}`` may hold slashes; the function's parameters are the
        names of the template, with values converted from text. The function may rely on these rules: the text of a
        value is not empty, was percent-decoded once, after the match, and holds no control characters; ``{name}`` is no
        ``.`` or ``..`` and holds no slash or backslash; ``{+name}`` does not begin with a slash or backslash, and
        ``..`` is none of its segments. A URI that does not fit is not found. Links in a file system are the handler's
        own business.

        The function returns text, bytes, JSON data, `ResourceContents` or a list of `ResourceContents`, or a complete
        `ReadResourceResult`, with cache hints of its own if need be. Raises as `tool`, and `ValueError` for a template
        that is ambiguous: between two names there must be a ``/``, ``?`` or ``#``, or, behind a ``{name}``, one of
        ``:@!$&'()*+,;=[]``, which then ends the name; and at most one name can be a ``{+name}``.
        """
        if callable(uri):
            raise TypeError(
                "a resource has a URI of its own, and its decorator takes it:\n"
                "    wrong:  @server.resource\n"
                '    right:  @server.resource("note://{name}")'
            )
        check_options("@server.resource", options, ResourceOptions)
        return self._registration("resources", partial(self.resources.add, uri, options=options))

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: F | None = None, /, **options: Unpack[PromptOptions]) -> F | Callable[[F], F]:
        """Offer a function as a prompt. Its parameters are the prompt's arguments, converted from text; the function
        returns text, a content block, `PromptMessage`, a list of texts, blocks and messages, or a `GetPromptResult`.
        `PromptOptions` documents the keywords. Raises as `tool`."""
        check_options("@server.prompt", options, PromptOptions)
        register = self._registration("prompts", partial(self.prompts.add, options=options))
        return register if function is None else register(function)

    def _registration(self, kind: str, add: Callable[[Callable[..., Any]], None]) -> Callable[[F], F]:
        """Return the decorator that has ``add`` register a function, and tells the clients that a list changed."""

        def register(function: F) -> F:
            add(function)
            self.list_changed(f"notifications/{kind}/list_changed")
            return function

        return register

    def completion(self, *, argument: str, prompt: str | None = None, resource: str | None = None) -> Callable[[F], F]:
        """Offer a function as the completer of one ``argument`` of a ``prompt`` or of a ``resource`` template.

        The function takes ``value``, the text typed so far, and, as an option, ``arguments``, the arguments settled
        already. The function returns suggestions, best first, of which 100 at most are sent. Raises `TypeError` for
        both or neither of ``prompt`` and ``resource`` and for other parameters, and `ValueError` when the argument has
        a completer already.
        """

        def register(function: F) -> F:
            self.completions.add(function, prompt=prompt, resource=resource, argument=argument)
            return function

        return register

    def mount(self, other: Server, *, prefix: str) -> None:
        """Offer what another server offers, now and at any later time, besides what this server has.

            server.mount(git, prefix="git")  # the tool "log" of the other server is "git_log" here

        Names of tools and prompts get ``prefix`` and an underscore before them; an empty ``prefix`` leaves the names.
        URIs stay as they are, since handlers, texts and links name them. What comes to ``other`` or goes from it later
        comes and goes here, too, and clients are told. All keywords of an offer hold here. Its handlers get the
        lifespan of ``other``, which is entered after that of this server, once, and left before. All else is the
        business of this server: instructions, limits, tasks, secrets, `on_roots_changed`.

        Raises `ValueError`, with nothing mounted, for a name or URI that is taken or not allowed here, and for a server
        that would be mounted in itself; `RuntimeError` while this server runs, since its lifespan has begun. A later
        addition to ``other`` raises `ValueError`, too, and adds nothing anywhere.
        """
        if not isinstance(other, Server):  # pyright: ignore[reportUnnecessaryIsInstance] - as authors call it
            raise TypeError(f"a server is mounted, not {repr(other)[:200]}")
        if self in other.parts():
            raise ValueError(f"{self!r} cannot be mounted in itself")
        if self._lifespans:
            raise RuntimeError(f"{self!r} runs already, and {other!r} would have no lifespan: mount before serving")
        from .mounting import show  # late: most servers stand alone

        show(other.offers, self.offers, prefix, other.lifespan_in)
        self._mounted.append(other)
        other.observers.add(self)

    def searchable(self, *, pinned: Sequence[str] = ()) -> None:
        """List two tools in the place of all: ``search_tools``, which finds tools by what they do, and ``call_tool``,
        which calls one of them; besides the ``pinned`` ones, by their names, also those that come later. All tools can
        still be called by their names. Raises `ValueError` when one of the two names is taken, now or later."""
        from .searching import ToolSearch  # late: most servers have few tools

        search = ToolSearch(self.tools, pinned)
        self.tools.list_instead(search.listed, search.beyond)
        self.list_changed("notifications/tools/list_changed")

    @property
    def offers(self) -> tuple[Tools, Resources, Prompts, Completions]:
        """All that clients can name."""
        return self.tools, self.resources, self.prompts, self.completions

    def parts(self) -> list[Server]:
        """Return this server, and each server that is mounted here or in one of these, once."""
        return list(dict.fromkeys([self, *(part for each in self._mounted for part in each.parts())]))

    def provided_once(self) -> Iterator[Provider]:
        """Return the providers that are entered with the server, for parameters of what the server itself offers."""
        registries = (self.tools.registry, self.resources.registry, self.resources.templates, self.prompts.registry)
        for handler in (
            *(offer.handler for each in registries for offer in each.including_disabled()),
            *self.completions.handlers(),
        ):
            yield from handler.once

    def lifespan_in(self, host: RequestHost) -> Any:
        """Return the value that the lifespan yielded for the server that runs with ``host``."""
        return self._lifespans[host]

    def on_roots_changed(self, function: F) -> F:
        """Have ``function`` called with the `ConnectedClient` when a legacy client tells that its roots changed.

            @server.on_roots_changed
            async def changed(client: ConnectedClient) -> None:
                watch(client.session_id, await client.list_roots())

        The function is async, or a plain ``def`` that is quick, since a plain function runs in trio's thread. For each
        client one call runs at a time, beside the requests, and one more call follows for all changes told meanwhile;
        the end of the connection cancels the call. Exceptions of the function are logged. Modern clients tell nothing:
        ask with `RequestContext.list_roots` each time. Raises `ValueError` when there is such a function already.
        """
        if self.roots_changed is not None:
            raise ValueError("this server has a function for changed roots already: let that one call both")
        self.roots_changed = function
        return function

    @overload
    def around(self, function: A, /) -> A: ...
    @overload
    def around(self, /, *methods: str) -> Callable[[A], A]: ...
    def around(self, *methods: Any) -> Any:
        """Have a function run around each request of these ``methods``, by default of all: to check, to change, or to
        observe.

            @server.around("tools/call")
            async def logged(request: ServerRequest, next: Next) -> Any:
                result = await next(request)
                print(request.params.name, result.is_error)
                return result

        ``next`` gives the result, a `CallToolResult` for example, or raises the handler's exception. The function
        refuses a request by raising `CodedError`, or `ToolError` in a call; hands on other arguments by
        ``next(request.with_arguments({...}))``; answers by itself when ``next`` is not called; and returns the result,
        changed by `attrs.evolve` or not. The first declaration is outermost. The function runs in the scope of the
        request: a cancel reaches the function, and the time of the function is time of the request. Around a handler
        that is parked, the function waits as well; where a handler runs again (``replay``, a task after a restart), so
        does the function. A round that asks the client is a result, too: an `InputRequiredResult`.

        Methods are all with a task for each request, listings, streams and ``tasks/...`` included.
        Functions are composed when the server starts: a later declaration counts from the next start on. Raises
        `ValueError` for any other method, `TypeError` for a function that is not ``async def`` of two parameters.
        """
        from .around import check_around, methods_of  # late: only servers with arounds need it

        is_bare = len(methods) == 1 and callable(methods[0])
        names = methods_of(() if is_bare else methods)

        def register(function: A) -> A:
            check_around(function)
            self._arounds.append((names, function))
            return function

        return register(cast("Any", methods[0])) if is_bare else register

    def remove_tool(self, name: str) -> None:
        """Withdraw a tool and tell the clients. Calls under way go on. Raises `KeyError`."""
        self.tools.registry.remove(name)
        self.list_changed("notifications/tools/list_changed")

    def remove_resource(self, uri: str) -> None:
        """Withdraw a resource or template and tell the clients. Raises `KeyError`."""
        self.resources.remove(uri)
        self.list_changed("notifications/resources/list_changed")

    def remove_prompt(self, name: str) -> None:
        """Withdraw a prompt and tell the clients. Raises `KeyError`."""
        self.prompts.registry.remove(name)
        self.list_changed("notifications/prompts/list_changed")

    def disable(self, *tags: str) -> None:
        """Withdraw all tools, resources, templates and prompts that have one of ``tags``, and tell the clients.

        From then on they are in no listing and are unknown to requests, until all their tags are enabled again, also
        those that are added later. Calls under way go on, rounds of parked handlers and tasks included; a handler that
        would run from the top is not found. Raises `ValueError`, with nothing changed, for a tag that nothing has had.
        """
        self._switch(tags, enabled=False)

    def enable(self, *tags: str) -> None:
        """Offer again what `disable` has withdrawn for ``tags``, and tell the clients. Raises as `disable`."""
        self._switch(tags, enabled=True)

    def _switch(self, tags: tuple[str, ...], *, enabled: bool) -> None:
        resources = self.resources
        registries = {
            "tools": (self.tools.registry,),
            "resources": (resources.registry, resources.templates),
            "prompts": (self.prompts.registry,),
        }
        for kind in switch(registries, frozenset(tags), enabled=enabled):
            self.list_changed(f"notifications/{kind}/list_changed")

    def list_changed(self, method: str) -> None:
        """Tell the clients that a list changed, for which ``method`` is the notification. The methods that change a
        list call this. Never waits."""
        self.observers.list_changed(method)

    def resource_updated(self, uri: str) -> None:
        """Tell the clients that subscribed to ``uri``, or listen for its changes, that the resource changed. Never
        waits. Like all calls that change a server, this call belongs to trio's thread; from another thread, use
        `trio.from_thread.run_sync`."""
        self.observers.resource_updated(uri)

    def share_secret(self, secret: bytes) -> None:
        """Seal the state of modern clients with ``secret``, which other processes have, too. Does nothing where the
        author has given ``secrets``."""
        if not self._has_secrets:
            self.state_cipher = StateCipher(self.info.name, [secret])

    def keep_tasks_in(self, store: TaskStore) -> None:
        """Keep the records of tasks in ``store``, from the next start of the server on."""
        self._tasks = attrs.evolve(self._tasks, store=store)
        self.tasks = _kept_tasks(self._tasks)

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> Any:
            from ..mistakes import SERVER_NAMES, raise_no_attribute

            raise_no_attribute(self, name, SERVER_NAMES)

    # Running

    @asynccontextmanager
    async def running(self, limits: Limits | None = None, *, stateless: bool = False) -> AsyncGenerator[RunningServer]:
        """Run the server's lifespan, and give the server to be served inside. For transports; authors call
        ``serve_stdio`` and the like. ``limits`` replace the server's own. ``stateless``: nothing is kept between
        requests, so handlers cannot wait for their client, and there is no ``resources/subscribe``.
        ``subscriptions/listen`` is one request, and is served; tasks are, where `TaskSettings.store` is given."""
        host = RequestHost(
            limits or self.limits, load=self.load, stateless=stateless, may_log=self.logging, tracing=self.tracing
        )
        info = {row: unstructure(self.info, row) for row in MODERN_REVISIONS if row.server_info_in_meta}
        replies = Replies(info, expose_errors=self.expose_errors)
        async with AsyncExitStack() as parts:
            for part in self.parts():
                await parts.enter_async_context(part.living(host))
            value = self._lifespans[host]
            if once := [provider for part in self.parts() for provider in part.provided_once()]:
                from .provided import entered_once  # late: few servers need it

                await parts.enter_async_context(entered_once(once, host))
            services = await parts.enter_async_context(open_service_nursery("the server has ended"))
            await services.start(host.run)
            outcomes, arounds = Outcomes(expose_errors=self.expose_errors), self._composed()
            tasks = RunningTasks(self.tools, host, outcomes, self._tasks, value, arounds)
            await services.start(tasks.host.run)
            for part in self.parts():
                parts.enter_context(part.tasks.running(tasks.records))
            yield RunningServer(self, value, host, replies, tasks, arounds)
            await tasks.host.drain()

    @asynccontextmanager
    async def living(self, host: RequestHost) -> AsyncGenerator[None]:
        """Run the lifespan, for the server that runs with ``host``: this one, or one that this one is mounted in."""
        async with self._lifespan(self) if self._lifespan is not None else nullcontext() as value:
            self._lifespans[host] = value
            try:
                yield
            finally:
                del self._lifespans[host]

    def _composed(self) -> Arounds | None:
        """Return the arounds of all methods, composed; `None` where there are none. Raises `RuntimeError` for those of
        a mounted server, which would not run here, though its authors may rely on the checks."""
        if skipped := [part for part in self.parts() if part is not self and part._arounds]:
            raise RuntimeError(f"{skipped[0]!r} is mounted, and has arounds of its own: declare them on {self!r}")
        if not self._arounds:
            return None
        from .around import Arounds

        return Arounds(self._arounds, self.tools, self.resources, self.prompts)

    def statistics(self) -> Statistics:
        """Return the numbers of connections and requests, at present and so far, over all transports, for hosts to
        export."""
        return self.load.statistics()


def _refuse(foreign: Mapping[str, Any]) -> NoReturn:
    from ..mistakes import SERVER_OPTIONS, raise_no_option

    known = ", ".join(name for name in signature(Server).parameters if name != "foreign")
    raise_no_option("Server", next(iter(foreign)), SERVER_OPTIONS, known)


def _kept_tasks(settings: TaskSettings) -> KeptTasks:
    return KeptTasks(() if settings.store is None else (TaskRecords(settings),))


@frozen(eq=False)
class RunningServer:
    """A server inside its lifespan."""

    server: Server
    lifespan: Any
    """The value that the lifespan yielded."""
    host: RequestHost
    """The nursery of the handlers, and all that connections share."""
    replies: Replies
    """The writer of reply lines."""
    tasks: RunningTasks
    """The tasks of the server."""
    arounds: Arounds | None
    """The functions around requests; `None` where there are none, and nothing is paid for any."""

    @property
    def callers(self) -> Callers:
        """The parties that call the server."""
        return self.host.load.callers

    @property
    def limits(self) -> Limits:
        """The limits of each connection."""
        return self.host.limits

    @property
    def stateless(self) -> bool:
        """True: nothing is kept between requests."""
        return self.host.stateless
