"""Server: what is offered under one name, alone or with other servers, and how it runs."""

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
    from ..tasks.records import TaskRecords
    from ..tasks.settings import TaskSettings
    from .calling.provider import Provider
    from .context.tasks import StoredTasks
    from .middleware import MiddlewareChains
    from .sharing import Fleet, SharedStorage

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P")

FROM_LIFESPAN: Final = "the lifespan of the server failed"
"""Note of an `OSError` from a lifespan, which would look like one of an address."""

Lifespan: TypeAlias = Callable[["Server"], AbstractAsyncContextManager[Any]]
"""A function that returns the context manager around the life of a server."""


class Server(Offering):
    """Tools, resources and prompts under one name. A server holds nothing of any connection, so one server may serve
    many connections.

    Methods may be called from any thread, for example a file watcher's. While the server runs, a change waits until
    trio's thread has made it. If trio's thread doesn't begin the change within 10 seconds, the call raises
    `RuntimeError`, and nothing changes. `resource_updated`, `everything_changed` and `notify` never
    wait. While two threads serve one server, each in its own ``trio.run``, changes raise `RuntimeError`.

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
    ``extensions`` are declared to clients; `handles` registers the handlers of their methods. The extensions of a
    mounted server are not offered. Raises `ValueError` for two extensions of one name, or with one method.
    ``asyncio=True``: async handlers, with what is provided for them, the lifespan and the author's own middleware run
    on asyncio, in one event loop in a thread of the server's, unless an offer says ``asyncio=False``.
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
        self.instructions = instructions
        self.limits = limits or DEFAULT_LIMITS
        self.logging = logging
        self.require_initialized = require_initialized
        self.tracing, self.expose_errors = tracing, expose_errors
        self._cache_hints = hints_by_method(cache or NOT_CACHED, cache_by_method or {})
        hints, encode = self._cache_hints["resources/read"], Encoders(encoders) if encoders else None
        super().__init__(page_size, hints, encode, asyncio=asyncio)
        self.extensions = tuple(extensions)
        self._vocabulary = CORE
        """The methods of the specification and of the extensions."""
        self._acknowledges: CancelAcknowledged | None = None
        self._extend(cache or NOT_CACHED)
        self._state_cipher = StateCipher(name, secrets)
        self._secrets = tuple(secrets)
        self._load = Load()
        """Counters that all connections share, read by `statistics`."""
        self._lifespan, self._tasks = lifespan, tasks
        self._stored: TaskRecords | None = None
        """The records in `TaskSettings.store`, between runs; `None` until they are asked for."""
        self._running_tasks: list[RunningTasks] = []
        """The tasks of each run of this server, or of one that this server is mounted in."""
        self._mounted: list[Server] = []
        self._lifespans: dict[RequestHost, Any] = {}
        """The values of the lifespan, by the home of the handlers, which there may be several of."""

    def __repr__(self) -> str:
        return f"<Server {self.info.name} {self.info.version}>"

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that are declared to modern clients: the kinds of things that exist at this moment, disabled
        ones included."""
        return self._capabilities_in(LATEST_MODERN)

    def _capabilities_in(self, revision: Revision) -> ServerCapabilities:
        """Return the capabilities that are declared to clients of ``revision``."""
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
        """The tasks of all callers, for code outside of handlers that ends tasks: see `StoredTasks`. Between runs of
        the server there are only the tasks in `TaskSettings.store`."""
        from .context.tasks import StoredTasks  # late: most servers have no tasks

        return StoredTasks(self._task_records)

    def _task_records(self) -> Sequence[TaskRecords]:
        if self._running_tasks:
            # A host is made in the thread of its run alone, and this may be another.
            return [tasks.records for tasks in self._running_tasks if tasks.has_host]
        if self._tasks is None or self._tasks.store is None:
            return ()
        if self._stored is None:
            from ..tasks.records import TaskRecords  # late, see `tasks`

            self._stored = TaskRecords(self._tasks)
        return (self._stored,)

    # Extensions

    def _extend(self, cache: CacheHints) -> None:
        if not self.extensions:
            return
        from ..protocol.extensions import vocabulary_of  # late: most servers have no extension
        from .calling.extension_handlers import ExtensionHandlers

        self._vocabulary = vocabulary_of(self.extensions)
        self._extension_handlers = ExtensionHandlers(self.extensions, cache)
        for extension in self.extensions:
            extension._register(self)

    def _acknowledge_cancels(self, extension: CancelAcknowledged) -> None:
        """Remember how calls end, for clients that have left them. For the extension, when the server is made."""
        self._acknowledges = extension

    def handles(self, row: ExtensionRequest[Any, Any] | ExtensionNotification[Any]) -> Callable[[F], F]:
        """Register a function for a method of one of the extensions: ``@server.handles(query)``.

        The function takes the parameters, an object of the class of the method, and, if wanted, a `RequestContext`
        (`WorkerContext` in a plain ``def``), and returns the result. A handler is one like the handler of a tool: with
        progress, logs, questions, `Provide`, bounds, and a cancel scope. The function for a notification takes the
        parameters and, if wanted, a `ConnectedClient`, and is called as the function of `on_roots_changed` is.

        Raises `ValueError` for a method of no extension of this server, for one that clients do not send, and for one
        that has a function; `TypeError` for a signature that does not fit.
        """
        if self._extension_handlers is None:
            raise ValueError(f"{row.name} is of an extension that {self!r} does not have: Server(extensions=[...])")
        register = self._extension_handlers.registration(row, asyncio=self._asyncio)
        return lambda function: self._active_runs.call_in_run(lambda: register(function))

    def notify(self, row: ExtensionNotification[P], params: P) -> None:
        """Tell all clients that have declared the extension: legacy clients at once, and modern clients on the streams
        that ask for the extension, as clients of this package with ``on_notification`` do. Where replicas share a
        storage, the clients of all are told, soon after those of this one: sealed, about 3 KiB long at most, and as
        long as no more than 1,000 wait for the storage. Others are logged, and told to the clients of this process.

        Never waits: a client that reads so slowly that its outbox is full is not told. Raises `ValueError` for a
        notification of no extension of this server, for one that servers do not send, and for one that belongs to a
        request, for which there is `RequestContext.send_notification`.
        """
        if self._extension_handlers is None:
            raise ValueError(f"{row.name} is of an extension that {self!r} does not have: Server(extensions=[...])")
        self._extension_handlers.check_broadcast(row)
        self._observers.send_extension_notification(row, params)

    # The whole, of several servers

    @in_active_run
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
        if self in other._all_servers():
            raise ValueError(f"{self!r} cannot be mounted in itself")
        if self._lifespans:
            raise RuntimeError(f"{self!r} runs already, and {other!r} would have no lifespan: mount before serving")
        from .offers.mounting import mount_offers  # late: most servers stand alone

        mount_offers(other._offers, self._offers, prefix, other._lifespan_in)
        self._mounted.append(other)
        other._observers.add_server(self._observers)

    @in_active_run
    def searchable(self, *, pinned: Sequence[str] = ()) -> None:
        """List two tools in the place of all: ``search_tools``, which finds tools by what they do, and ``call_tool``,
        which calls one of them; besides the ``pinned`` ones, by their names, also those that come later. All tools can
        still be called by their names. Raises `ValueError` when one of the two names is taken, now or later."""
        from .offers.searching import ToolSearch  # late: most servers have few tools

        search = ToolSearch(self._tools, pinned)
        self._tools.replace_listing(search.listed, search.resolve_call)
        self._observers.list_changed("notifications/tools/list_changed")

    def _all_servers(self) -> list[Server]:
        """Return this server, and each server that is mounted here or in one of these, once."""
        return list(dict.fromkeys([self, *(part for each in self._mounted for part in each._all_servers())]))

    def _server_providers(self) -> Iterator[Provider]:
        """Return the providers that are entered with the server, for parameters of what the server itself offers."""
        registries = (self._tools.registry, self._resources.registry, self._resources.templates, self._prompts.registry)
        for handler in (
            *(offer.handler for each in registries for offer in each.including_disabled()),
            *self._completions.handlers(),
        ):
            yield from handler.once

    def _lifespan_in(self, host: RequestHost) -> Any:
        """Return the value that the lifespan yielded for the server that runs with ``host``."""
        return self._lifespans[host]

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> Any:
            from ..mistakes import SERVER_NAMES, raise_no_attribute

            raise_no_attribute(self, name, SERVER_NAMES)

    # Running

    @asynccontextmanager
    async def _running(
        self, limits: Limits | None = None, *, stateless: bool = False, shared: SharedStorage | None = None
    ) -> AsyncGenerator[RunningServer]:
        """Run the server's lifespan, and give the server to be served inside. For transports; authors call
        ``serve_stdio`` and the like. ``limits`` replace the server's own. ``stateless``: nothing is kept between
        requests, so handlers cannot wait for their client, and there is no ``resources/subscribe``.
        ``subscriptions/listen`` is one request, and is served; tasks are, where `TaskSettings.store` is given.
        ``shared``: the storage that this server shares with others of its name, as one replica among them; its tasks
        are kept there, unless `TaskSettings.store` is given, and its states are sealed by the secret of the storage,
        unless the author has given ``secrets``."""
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
                extensions = self._extension_handlers
                broadcasts = {} if extensions is None else extensions.broadcast_rows
                fleet = shared._make_fleet(replica, host, cipher, self._observers, self._vocabulary, broadcasts)
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
        """Return the host of the requests of one run. See `_running`."""
        host = RequestHost(
            limits,
            load=self._load,
            stateless=stateless,
            may_log=self.logging,
            tracing=self.tracing,
            replica=replica,
        )
        if self._secrets:
            host.state_keys = lambda: cipher.keys_for(b"trio-mcp caller state 1 ")
        if self._acknowledges is not None:
            from ..runtime.requests.endings import Endings

            host.endings = Endings(host.alarms, host.limits, self._acknowledges.max_wait)
        return host

    async def _enter_lifespans(self, host: RequestHost, parts: AsyncExitStack) -> None:
        """Enter the lifespans of this server and of the mounted ones, and their providers for all of the run."""
        for part in self._all_servers():
            try:
                await parts.enter_async_context(part._open_lifespan(host))
            except OSError as error:
                error.add_note(FROM_LIFESPAN)
                raise
            part._completions.check()
        if once := [provider for part in self._all_servers() for provider in part._server_providers()]:
            from .calling.provided import open_server_providers  # late: few servers need it

            await parts.enter_async_context(open_server_providers(once, host))

    @asynccontextmanager
    async def _open_lifespan(self, host: RequestHost) -> AsyncGenerator[None]:
        """Run the lifespan, for the server that runs with ``host``: this one, or one that this one is mounted in."""
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
        """Return the arounds of all methods, composed; `None` where there are none. Raises `RuntimeError` for those of
        a mounted server, which would not run here, though its authors may rely on the checks."""
        if skipped := [part for part in self._all_servers() if part is not self and part._middleware]:
            raise RuntimeError(f"{skipped[0]!r} is mounted, and has middleware of its own: declare them on {self!r}")
        if not self._middleware:
            return None
        from .middleware import MiddlewareChains, on_asyncio

        declared = self._middleware
        if self._asyncio:
            declared = [(methods, on_asyncio(each)) for methods, each in declared]
        return MiddlewareChains(declared, self._tools, self._resources, self._prompts)

    def statistics(self) -> Statistics:
        """Return the numbers of connections and requests, at present and so far, over all transports, for hosts to
        export."""
        return self._load.statistics()


@in_active_run
def share_secret(server: Server, secret: bytes) -> None:
    """Seal the state of modern clients with ``secret``, which other processes have, too. Does nothing if the author has
    given ``secrets``."""
    if not server._secrets:
        server._state_cipher = StateCipher(server.info.name, [secret])


@in_active_run
def store_tasks_in(server: Server, store: TaskStore) -> None:
    """Keep the records of the server's tasks in ``store``, from the next start of the server on."""
    server._tasks = _settings_with(server._tasks, store)
    server._stored = None


def _settings_with(settings: TaskSettings | None, store: TaskStore) -> TaskSettings:
    from ..tasks.settings import DEFAULT_TASKS  # late: most servers have no tasks

    return attrs.evolve(settings or DEFAULT_TASKS, store=store)


def _check_usable(version: str, lifespan: object, page_size: int | None, foreign: Mapping[str, Any]) -> None:
    """Raise `ValueError` or `TypeError` for arguments of a server that other SDKs take, and this one cannot."""
    if foreign:
        _refuse(foreign)
    if len(version.split()) > 4:  # a sentence, which other SDKs take in the second place
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


def _refuse(foreign: Mapping[str, Any]) -> NoReturn:
    from ..mistakes import SERVER_OPTIONS, raise_no_option

    known = [name for name in signature(Server).parameters if name != "foreign"]
    raise_no_option("Server", next(iter(foreign)), SERVER_OPTIONS, known)


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
    middleware: MiddlewareChains | None
    """The functions around requests; `None` where there are none, and nothing is paid for any."""
    cipher: StateCipher
    """Seals the states of modern clients."""
    fleet: Fleet | None
    """The other replicas; `None` if nothing is shared."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The methods that clients may use."""
        return self.server._vocabulary

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
