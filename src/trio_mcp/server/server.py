"""`Server`: a collection of tools, resources and prompts, its lifespan, and mounted servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from inspect import isasyncgenfunction, isgeneratorfunction, signature
from typing import TYPE_CHECKING, Any, Final, Never, NoReturn, TypeAlias, TypeVar

import attrs

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.fair_share import Callers
from ..concurrency.nurseries import open_service_nursery
from ..concurrency.threads import in_active_run
from ..concurrency.time_limits import Graces
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import CORE, LATEST_MODERN, MODERN_REVISIONS, Revision, Vocabulary
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
from .calling.results import Encoders
from .offering import Offering
from .options import NOT_CACHED, CacheHints, hints_by_method
from .request_state import StateCipher
from .running_tasks import RunningTasks

if TYPE_CHECKING:
    from ..otel import OpenTelemetry
    from ..protocol.cancel_acknowledged import CancelAcknowledged
    from ..protocol.extensions import Extension, ExtensionNotification, ExtensionRequest
    from ..stores.shared import Replica
    from ..stores.task_store import TaskStore
    from ..tasks.records import TaskRecords, TaskSettings
    from .calling.provided import Provider
    from .context.tasks import StoredTasks
    from .middleware import MiddlewareChains
    from .sharing import Fleet, SharedStorage

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P")

FROM_LIFESPAN: Final = "the lifespan of the server failed"
"""Note that is added to an `OSError` raised by a lifespan. Without the note, the error would look like a failure to
bind an address."""

Lifespan: TypeAlias = Callable[["Server"], AbstractAsyncContextManager[Any]]
"""A function that takes the server and returns an async context manager, which is entered once per run of the
server."""


class Server(Offering):
    """An MCP server: tools, resources and prompts under one name.

        server = Server("demo")

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b

        run(server)

    A server holds no state of any connection, so one server can serve many connections.

    Args:
        name: Name of the server, shown to people.
        version: Version of the server, shown to people.
        title: Display name, shown to people instead of ``name``.
        description: Description of the server, shown to people.
        instructions: Instructions for the model on how to use the server.
        icons: Icons, shown to people.
        website_url: Address of a web page, shown to people.
        lifespan: Function that takes the server and returns an async context manager. The server enters it once before
            the first request and closes it after the last. The value that it yields is ``ctx.lifespan``.
        limits: Limits of each connection.
        page_size: Number of entries in each page of a listing. `None` puts all entries in one page.
        logging: If false, clients never get the log messages of handlers.
        require_initialized: If true, the server refuses legacy requests before the handshake is complete (error
            -32002).
        tracing: Observer that is notified of requests, for example `trio_mcp.otel.OpenTelemetry`.
        expose_errors: For development: if true, error responses contain the type and text of unexpected exceptions. By
            default they contain only "internal error".
        secrets: Keys, of at least 32 bytes each, that encrypt the state that modern clients carry between rounds. The
            first key encrypts, all keys decrypt. Processes that serve the same clients must share a key. By default,
            the server generates a random key.
        cache: How long modern clients may cache the results of discovery, listings and reads. By default, they may not
            cache them.
        cache_by_method: Overrides ``cache`` for single methods, for example ``{"tools/list": CacheHints(60_000,
            "public")}``.
        tasks: The store and the limits of tasks.
        encoders: Functions that convert results of classes without a JSON form, by class: ``{Frame: rows_of}``. The
            return annotation of the function gives the schema. An encoder also applies to subclasses, and takes
            precedence over the built-in support for pydantic and numpy.
        extensions: Extensions that the server declares to clients. Register their handlers with `handles`. A mounted
            server's extensions are not offered.
        asyncio: If true, these run on asyncio, in one event loop in a thread of the server: async handlers with their
            dependencies, the lifespan, and your middleware. A tool, resource or prompt declared with ``asyncio=False``
            stays on trio.

    Raises:
        TypeError: If a class in ``encoders`` already has a JSON form, for example a dataclass.
        ValueError: If two ``extensions`` have the same name or define the same method.

    You can call the methods from any thread, for example from a file watcher. While the server runs, a change made in
    another thread waits until trio's thread has applied it. If trio's thread doesn't start on the change within 10
    seconds, the call raises `RuntimeError`, and nothing changes. `resource_updated`, `everything_changed` and `notify`
    never wait. While two threads serve one server, each in its own ``trio.run``, changes raise `RuntimeError`.
    """

    _vocabulary: Vocabulary = CORE
    """The methods of the specification and of the server's extensions."""
    _acknowledges: CancelAcknowledged | None = None
    """The extension that lets clients ask how a call that they cancelled has ended. `None` if the server lacks it."""
    _stored: TaskRecords | None = None
    """The task records in `TaskSettings.store`, used while the server isn't running. `None` until they are first
    needed."""

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
        limits: Limits | None = None,
        page_size: int | None = None,
        logging: bool = True,
        require_initialized: bool = False,
        tracing: OpenTelemetry | None = None,
        expose_errors: bool = False,
        secrets: Sequence[bytes] = (),
        cache: CacheHints | None = None,
        cache_by_method: Mapping[str, CacheHints] | None = None,
        tasks: TaskSettings | None = None,
        encoders: Mapping[type, Callable[[Any], Any]] | None = None,
        extensions: Sequence[Extension[Any, Any]] = (),
        asyncio: bool = False,
        **foreign: Never,
    ) -> None:
        _check_usable(version, lifespan, page_size, foreign)
        self.info = Implementation(name, version, title, description, list(icons) if icons else None, website_url)
        """The name, version and other facts that clients get about the server."""
        self.instructions = instructions
        """Instructions for the model."""
        self.limits = limits or DEFAULT_LIMITS
        """The limits of each connection."""
        self.logging = logging
        """True if the server sends log messages of handlers to clients."""
        self.require_initialized = require_initialized
        """True if the server refuses legacy requests before the handshake is complete."""
        self.tracing, self.expose_errors = tracing, expose_errors
        self._cache_hints = hints_by_method(cache or NOT_CACHED, cache_by_method or {})
        encode = Encoders(encoders) if encoders else None
        super().__init__(page_size, self._cache_hints["resources/read"], encode, asyncio=asyncio)
        self.extensions = tuple(extensions)
        """The extensions that the server declares to clients."""
        self._extend(cache or NOT_CACHED)
        self._state_cipher = StateCipher(name, secrets)
        self._secrets = tuple(secrets)
        self._load = Load()
        """Counters shared by all connections of the server, which `statistics` reads."""
        self._lifespan, self._tasks = lifespan, tasks
        self._running_tasks: list[RunningTasks] = []
        """The tasks of each run of this server, and of each run of another server that mounts this server."""
        self._mounted: list[Server] = []
        self._lifespans: dict[RequestHost, Any] = {}
        """The values that the lifespan yielded, by the host of each run. The server may run several times at once."""

    def __repr__(self) -> str:
        return f"<Server {self.info.name} {self.info.version}>"

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that clients of modern protocol revisions see. The server has a capability for tools,
        resources or prompts if it has any, including disabled ones."""
        return self._capabilities_in(LATEST_MODERN)

    def _capabilities_in(self, revision: Revision) -> ServerCapabilities:
        """Return the capabilities that the server declares to clients that use the protocol ``revision``."""
        methods = self._extension_handlers
        extensions: JSONObject = {} if methods is None else methods.declared_in(revision)
        has_resources = self._resources.is_used
        has_tasks = self._tools.has_tasks
        if has_tasks and revision.tasks == "extension":
            extensions[TASKS_EXTENSION] = {}
        return ServerCapabilities(
            logging={} if self.logging else None,
            completions={} if len(self._completions) else None,
            prompts=PromptsCapability(list_changed=True) if self._prompts.registry.is_used else None,
            resources=ResourcesCapability(subscribe=True, list_changed=True) if has_resources else None,
            tools=ToolsCapability(list_changed=True) if self._tools.registry.is_used else None,
            tasks=TasksCapability({}, {}, {"tools": {"call": {}}}) if has_tasks else None,
            extensions=extensions or None,
        )

    @property
    def tasks(self) -> StoredTasks:
        """The MCP tasks of all callers, for code outside of handlers that completes, fails or cancels tasks.

        See `StoredTasks`. While the server isn't running, only the tasks in `TaskSettings.store` are available.
        """
        from .context.tasks import StoredTasks  # lazy import: most servers have no MCP tasks

        return StoredTasks(self._task_records)

    def _task_records(self) -> Sequence[TaskRecords]:
        if self._running_tasks:
            # Skip a server whose `TaskHost`, which runs its tasks, doesn't exist yet: it has no task records.
            # Don't create a `TaskHost` here: it must be created in its server's trio run, maybe in another thread.
            return [tasks.records for tasks in self._running_tasks if tasks.has_host]
        if self._tasks is None or self._tasks.store is None:
            return ()
        if self._stored is None:
            from ..tasks.records import TaskRecords  # lazy import, see `tasks`

            self._stored = TaskRecords(self._tasks)
        return (self._stored,)

    # Extensions

    def _extend(self, cache: CacheHints) -> None:
        if not self.extensions:
            return
        from ..protocol.extensions import vocabulary_of  # lazy import: most servers have no extensions
        from .calling.extension_handlers import ExtensionHandlers

        self._vocabulary = vocabulary_of(self.extensions)
        self._extension_handlers = ExtensionHandlers(self.extensions, cache)
        for extension in self.extensions:
            extension._register(self)

    def _acknowledge_cancels(self, extension: CancelAcknowledged) -> None:
        """From now on, record how calls end, because a client may later request how a call that it cancelled has ended.

        The extension calls this method when the server is created.
        """
        self._acknowledges = extension

    def handles(self, row: ExtensionRequest[Any, Any] | ExtensionNotification[Any]) -> Callable[[F], F]:
        """Register a handler for a method of one of the server's extensions: ``@server.handles(query)``.

        The handler of a request takes the parameters, as an instance of the method's parameter class, and returns the
        result. It can also take a `RequestContext` (`WorkerContext` in a plain ``def``). It has everything that the
        handler of a tool has: progress, logging, questions to the client, `Provide`, limits and a cancel scope.

        The handler of a notification takes the parameters and, optionally, a `ConnectedClient`. It is called under the
        same rules as the function of `on_roots_changed`.

        Raises:
            ValueError: If the method belongs to no extension of this server, isn't one that clients send, or already
                has a handler.
            TypeError: If the function's signature doesn't fit the method.
        """
        if self._extension_handlers is None:
            raise ValueError(f"{row.name} belongs to an extension that {self!r} lacks: use Server(extensions=[...])")
        register = self._extension_handlers.registration(row, asyncio=self._asyncio)
        return lambda function: self._active_runs.call_in_run(lambda: register(function))

    def notify(self, row: ExtensionNotification[P], params: P) -> None:
        """Send an extension notification to all clients that have declared the extension.

        - Legacy clients get it at once.
        - Modern clients get it on the streams that subscribe to the extension. Clients of this package subscribe when
          you pass them ``on_notification``.
        - If replicas share a storage, clients of the other replicas get it soon afterwards. The sealed notification
          may be about 3 KiB long, and at most 1,000 may be waiting for the storage. Beyond either limit, only the
          clients of this process get the notification, and that is logged.

        Never waits: a client whose outbox is full, because it reads slowly, doesn't get the notification.

        Raises:
            ValueError: If the notification belongs to no extension of this server, isn't one that servers send, or is
                tied to a request. For the last, use `RequestContext.send_notification`.
        """
        if self._extension_handlers is None:
            raise ValueError(f"{row.name} belongs to an extension that {self!r} lacks: use Server(extensions=[...])")
        self._extension_handlers.check_broadcast(row)
        self._observers.send_extension_notification(row, params)

    # Composition of several servers

    @in_active_run
    def mount(self, other: Server, *, prefix: str) -> None:
        """Compose servers: add the current and future tools, resources and prompts of the server ``other`` to this
        server.

            server.mount(git, prefix="git")  # the other server's tool "log" is "git_log" here

        Args:
            other: The server to mount. If it gains or loses a tool, resource or prompt later, so does this server, and
                clients are notified.
            prefix: Put before the names of tools and prompts, with an underscore. An empty prefix leaves the names
                unchanged. URIs never change, because handlers, texts and links contain them.

        All options of the mounted tools, resources and prompts still apply. Their handlers get the lifespan value of
        ``other``. Its lifespan is entered once, after this server's, and closed before it. This server's own
        instructions, limits, tasks, secrets and `on_roots_changed` apply; those of ``other`` are not used.

        Raises:
            ValueError: If a name or URI is already taken or not allowed here, or if a server would be mounted in
                itself. Nothing is mounted then. If something added to ``other`` later conflicts, the addition raises
                this error too, and is added nowhere.
            RuntimeError: If this server is running, since its lifespan has already begun.
        """
        if not isinstance(other, Server):  # pyright: ignore[reportUnnecessaryIsInstance] - for untyped code
            raise TypeError(f"server.mount(other, prefix=...) takes a Server, not {repr(other)[:200]}")
        if self in other._all_servers():
            raise ValueError(f"{self!r} cannot be mounted in itself")
        if self._lifespans:
            raise RuntimeError(
                f"{self!r} is already running, so the lifespan of {other!r} could not start: mount before serving"
            )
        from .offers.mounting import mount_offers  # lazy import: most servers mount no other server

        mount_offers(other._offers, self._offers, prefix, other._lifespans.__getitem__)
        self._mounted.append(other)
        other._observers.add_server(self._observers)

    @in_active_run
    def searchable(self, *, pinned: Sequence[str] = ()) -> None:
        """Enable tool search: the list of tools contains only ``search_tools``, ``call_tool`` and the ``pinned`` tools.

        ``search_tools`` finds tools by what they do; ``call_tool`` calls one of them. All tools can still be called by
        name. ``pinned`` lists further tools by name, including tools that you add later. Raises `ValueError` if a tool
        is already called ``search_tools`` or ``call_tool``; adding such a tool later raises it too.
        """
        from .offers.searching import ToolSearch  # lazy import: most servers have few tools

        search = ToolSearch(self._tools, pinned)
        self._tools.replace_listing(search.listed, search.resolve_call)
        self._observers.list_changed("notifications/tools/list_changed")

    def _all_servers(self) -> list[Server]:
        """Return this server and all servers mounted in it, directly or indirectly. Each server is included once."""
        return list(dict.fromkeys([self, *(part for each in self._mounted for part in each._all_servers())]))

    def _server_providers(self) -> Iterator[Provider]:
        """Return the providers with ``once=True`` that the handlers of this server need, without the providers of
        mounted servers."""
        registries = (self._tools.registry, self._resources.registry, self._resources.templates, self._prompts.registry)
        for handler in (
            *(offer.handler for each in registries for offer in each.including_disabled()),
            *self._completions.handlers(),
        ):
            yield from handler.once

    if not TYPE_CHECKING:  # hide this method from type checkers, so that they report unknown attributes

        def __getattr__(self, name: str) -> Any:
            from ..mistakes import SERVER_NAMES, raise_no_attribute

            raise_no_attribute(self, name, SERVER_NAMES)

    # Running

    @asynccontextmanager
    async def _running(
        self, limits: Limits | None = None, *, stateless: bool = False, shared: SharedStorage | None = None
    ) -> AsyncGenerator[RunningServer]:
        """Run the server during the ``async with`` block: enter its lifespan, and yield the running server, which is
        ready to serve connections.

        For transports; authors call ``serve_stdio`` and the like.

        Args:
            limits: Replace the server's own limits.
            stateless: If true, nothing is kept between requests. Handlers cannot wait for an answer from their client,
                and ``resources/subscribe`` is unavailable. ``subscriptions/listen`` is one request, so it works; tasks
                work if `TaskSettings.store` is given.
            shared: The storage that this server shares, as one replica, with other servers of its name. The storage
                holds the tasks, unless `TaskSettings.store` is given. Its secret seals request states, unless the
                author passed ``secrets``.
        """
        async with AsyncExitStack() as parts:
            replica, settings, cipher = None, self._tasks, self._state_cipher
            if shared is not None:
                replica = await parts.enter_async_context(shared.join(self.info.name, self._secrets))
                if settings is None or settings.store is None:
                    settings = _settings_with(settings, replica.tasks)
                cipher = cipher if self._secrets else StateCipher(self.info.name, [replica.secret])
            if self._extension_handlers is not None:
                self._extension_handlers.check_complete(self)
            host = self._host(limits or self.limits, cipher, replica, stateless=stateless)
            parts.push_async_callback(host.end_asyncio)
            info = {row: unstructure(self.info, row) for row in MODERN_REVISIONS if row.server_info_in_meta}
            replies = Replies(info, expose_errors=self.expose_errors)
            await self._enter_lifespans(host, parts)
            value = self._lifespans[host]
            services = await parts.enter_async_context(open_service_nursery("the server has ended"))
            await services.start(host.run)
            fleet = None
            if shared is not None and replica is not None:
                from .sharing import ServedReplica

                extensions = self._extension_handlers
                broadcasts = {} if extensions is None else extensions.broadcast_rows
                served = ServedReplica(replica, host, cipher, self._observers, self._vocabulary, broadcasts)
                fleet = shared._make_fleet(served)
                parts.enter_context(self._load.links.counting(replica.counts, fleet.count_sent))
                await services.start(fleet.run)
            arounds = self._middleware_chains()
            tasks = RunningTasks(
                self._tools, host, settings, value, arounds, services, expose_errors=self.expose_errors
            )
            for part in self._all_servers():
                part._running_tasks.append(tasks)
                parts.callback(part._running_tasks.remove, tasks)
            yield RunningServer(self, value, host, replies, tasks, arounds, cipher, fleet)
            await tasks.drain()
            if fleet is not None:
                await fleet.drain()

    def _host(self, limits: Limits, cipher: StateCipher, replica: Replica | None, *, stateless: bool) -> RequestHost:
        """Return the `RequestHost` that runs all request handlers while this server runs. See `_running` for the
        parameters."""
        host = RequestHost(
            limits, load=self._load, stateless=stateless, may_log=self.logging, tracing=self.tracing, replica=replica
        )
        if self._secrets:
            host.state_keys = lambda: cipher.keys_for(b"trio-mcp caller state 1 ")
        if self._acknowledges is not None:
            from ..runtime.requests.endings import Endings

            host.endings = Endings(host.alarms, host.limits, self._acknowledges.max_wait)
        return host

    async def _enter_lifespans(self, host: RequestHost, parts: AsyncExitStack) -> None:
        """Enter the lifespans of this server and of all mounted servers, and then the providers with ``once=True``."""
        for part in self._all_servers():
            try:
                await parts.enter_async_context(part._open_lifespan(host))
            except OSError as error:
                error.add_note(FROM_LIFESPAN)
                raise
            part._completions.check()
        if once := [provider for part in self._all_servers() for provider in part._server_providers()]:
            from .calling.provided import open_server_providers  # lazy import: few servers have providers

            await parts.enter_async_context(open_server_providers(once, host))

    @asynccontextmanager
    async def _open_lifespan(self, host: RequestHost) -> AsyncGenerator[None]:
        """Enter this server's lifespan while the server that uses ``host`` is running. That may be another server,
        which mounts this server."""
        with self._active_runs.register():
            lifespan = self._lifespan(self) if self._lifespan is not None else nullcontext()
            if self._lifespan is not None and self._asyncio:
                lifespan = host.asyncio.opened(lifespan, Graces(host.limits.cleanup_grace))
            async with lifespan as value:
                self._lifespans[host] = value
                try:
                    yield
                finally:
                    del self._lifespans[host]

    def _middleware_chains(self) -> MiddlewareChains | None:
        """Return the middleware of a running server, composed to one function for each method. Return `None` if the
        server has no middleware.

        Raises `RuntimeError` if a mounted server has middleware: it wouldn't run here, and its authors may rely on its
        checks.
        """
        if skipped := [part for part in self._all_servers() if part is not self and part._middleware]:
            raise RuntimeError(
                f"{skipped[0]!r} is mounted and has middleware, which would not run: declare the middleware on {self!r}"
            )
        if not self._middleware:
            return None
        from .middleware import MiddlewareChains, on_asyncio

        declared = self._middleware
        if self._asyncio:
            declared = [(methods, on_asyncio(each)) for methods, each in declared]
        return MiddlewareChains(declared, self._tools, self._resources, self._prompts)

    def statistics(self) -> Statistics:
        """Return current and total counts of connections and requests over all transports, for example to export them
        as metrics."""
        return self._load.statistics()


@in_active_run
def share_secret(server: Server, secret: bytes) -> None:
    """From now on, encrypt each ``requestState`` with ``secret``, which all replicas of the server share.

    Does nothing if ``secrets`` were passed to the server.
    """
    if not server._secrets:
        server._state_cipher = StateCipher(server.info.name, [secret])


@in_active_run
def store_tasks_in(server: Server, store: TaskStore) -> None:
    """Store the records of the server's MCP tasks in ``store``. Takes effect the next time the server is started."""
    server._tasks = _settings_with(server._tasks, store)
    server._stored = None


def _settings_with(settings: TaskSettings | None, store: TaskStore) -> TaskSettings:
    from ..tasks.records import DEFAULT_TASKS  # lazy import: most servers have no MCP tasks

    return attrs.evolve(settings or DEFAULT_TASKS, store=store)


def _check_usable(version: str, lifespan: object, page_size: int | None, foreign: Mapping[str, Any]) -> None:
    """Raise `ValueError` or `TypeError` for constructor arguments that servers of other SDKs accept but this server
    doesn't."""
    if foreign:
        _refuse(foreign)
    if len(version.split()) > 4:  # in other SDKs, the second argument of a server is its instructions
        raise ValueError(
            f"version must be like '1.0', not {version[:100]!r}; to pass instructions, write instructions=..."
        )
    if isgeneratorfunction(lifespan) or isasyncgenfunction(lifespan):
        raise TypeError(f"the lifespan {lifespan.__name__} is a generator function: put @asynccontextmanager above it")
    if hasattr(lifespan, "__aenter__") and not isinstance(lifespan, type):
        raise TypeError(
            "lifespan must be a function, because the server calls it at each start:\n"
            "    wrong:  Server('name', lifespan=lifespan(None))\n"
            "    right:  Server('name', lifespan=lifespan)"
        )
    if page_size is not None and page_size < 1:
        raise ValueError(f"page_size must be at least 1, not {page_size}")


def _refuse(foreign: Mapping[str, Any]) -> NoReturn:
    from ..mistakes import SERVER_OPTIONS, raise_no_option

    known = [name for name in signature(Server).parameters if name != "foreign"]
    raise_no_option("Server", next(iter(foreign)), SERVER_OPTIONS, known)


@frozen(eq=False)
class RunningServer:
    """A server that is running: its lifespan context manager has been entered."""

    server: Server
    lifespan: Any
    """The value that the server's lifespan yielded."""
    host: RequestHost
    """Contains the nursery in which handlers run, and the other state that all connections share."""
    replies: Replies
    """Encodes responses as JSON lines."""
    tasks: RunningTasks
    """The tasks of the server."""
    middleware: MiddlewareChains | None
    """The composed middleware of each method. `None` if the server has no middleware, so that requests skip it at no
    cost."""
    cipher: StateCipher
    """Encrypts and decrypts the request states of modern clients."""
    fleet: Fleet | None
    """This server's interface to its other replicas. `None` if the server shares no storage."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The methods that clients may call on this server."""
        return self.server._vocabulary

    @property
    def callers(self) -> Callers:
        """The callers of the server. The server's limits are divided among them."""
        return self.host.load.callers

    @property
    def limits(self) -> Limits:
        """The limits of each connection."""
        return self.host.limits

    @property
    def stateless(self) -> bool:
        """True if the server keeps no state between requests."""
        return self.host.stateless
