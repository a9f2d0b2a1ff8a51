"""The tools, resources and prompts of a server, and the decorators that register them.

`required_scopes` returns the OAuth scopes that a request needs: those of every tool, resource or prompt it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack, cast, overload

from ..concurrency.threads import ActiveRuns, in_active_run
from ..protocol.fields import JSONObject, as_object
from ..runtime.limits import Limits
from ..runtime.peer import Auth, Peer
from ..state.requests import InboundRequest
from .connected_clients import ConnectedClient, Observers
from .offers.prompts import Completions, Prompts, RegisteredPrompt
from .offers.registration import set_enabled
from .offers.resources import RegisteredResource, Resources
from .offers.tools import RegisteredTool, Tools
from .options import CacheHints, PromptOptions, ResourceOptions, ToolOptions, check_options

if TYPE_CHECKING:
    from .calling.extension_handlers import ExtensionHandlers
    from .calling.results import Encoders
    from .middleware import DeclaredMiddleware, MiddlewareFunction

    A = TypeVar("A", bound=MiddlewareFunction)

F = TypeVar("F", bound=Callable[..., Any])

RootsChanged: TypeAlias = Callable[[ConnectedClient], Any]
"""A function that is called when a client's roots have changed."""


class Offering:
    """Holds the tools, resources and prompts of a server, and notifies clients when they change. Base class of
    `Server`.

    All methods may be called from any thread. While the server runs, changes are made in trio's thread only.
    """

    limits: Limits

    def __init__(
        self, page_size: int | None, hints: CacheHints, encoders: Encoders | None, *, asyncio: bool = False
    ) -> None:
        self._asyncio = asyncio
        """If true, async handler functions run on asyncio by default."""
        self._active_runs = ActiveRuns()
        """The trio runs that currently serve this server."""
        self._tools = Tools(page_size, encoders)
        self._resources = Resources(page_size, hints, encoders)
        self._prompts = Prompts(page_size)
        self._completions = Completions(self._prompts, self._resources)
        self._observers = Observers()
        self._roots_changed: RootsChanged | None = None
        """The function registered with `on_roots_changed`."""
        self._extension_handlers: ExtensionHandlers | None = None
        """The handlers of extension methods. `None` if the server has no extensions."""
        self._middleware: list[DeclaredMiddleware] = []
        """The middleware functions, outermost first, each with the methods it applies to."""

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
        """Register a function as a tool. See `ToolOptions` for the keywords.

            @server.tool
            async def add(a: int, b: int) -> int:
                "Add two numbers."
                return a + b

        Parameters: the input schema is generated from the function's parameters, and arguments are validated before
        each call. Annotations may use attrs classes, dataclasses, TypedDicts, pydantic models, Literal, Enum and
        unions. Write constraints as ``Annotated[int, msgspec.Meta(ge=1)]`` or ``Field(ge=1)``. A plain string in
        ``Annotated`` is the description of the parameter. Two kinds of parameters are special:

        - A parameter annotated `RequestContext` (`WorkerContext` in a plain ``def``) gets the context.
        - ``Annotated[str, Header("Region")]`` makes modern clients repeat the argument in an HTTP header: see `Header`.

        Results: the output schema is generated from the return annotation. The returned value is structured content,
        repeated as JSON text. Text, content blocks, `Image`, `Audio` and `File`, alone or in a list or tuple, are
        content without a schema. `None` and an empty list of blocks give empty content. Without an annotation, a list
        or tuple that contains a block is content.

        ``replay=True`` declares that the handler is safe to run again. When it requests input from a modern client, it
        is stopped and cleans up. When the client retries with the answer, the handler runs from the top, with all
        answers so far. Nothing is kept in between, so the client may retry at another process that shares a secret.
        Each run must make the same requests with identical text. Without ``replay``, the handler is parked: it waits
        for the answer.

        ``task="optional"`` lets calls become tasks, which outlive their request, if the client supports tasks. In
        revision 2025-11-25, a call becomes a task if the client requests one. In later revisions, it becomes a task if
        it takes longer than `TaskSettings.grace` or the handler calls `TaskContext.start`. The same handler serves
        ordinary calls, in which ``ctx.task`` is `None`. ``task="required"`` makes every call a task, and refuses
        clients without task support.

        ``on_restart`` decides what happens to a task whose process ends before the task does, if `TaskSettings.store`
        outlives the process. With ``"fail"``, a handler runs at most once. With ``"again"`` and ``"resume"``, which
        need ``task``, it runs at least once.

        Clients are notified of a tool that is added while the server runs.

        Raises:
            ValueError: If the name is taken or not allowed (2025-11-25 tools, Tool Names: up to 128 letters, digits,
                ``_``, ``-`` and ``.``), or if a schema or a key of ``meta`` is invalid.
            TypeError: If the function's signature cannot be used.
        """
        check_options("@server.tool", options, ToolOptions)
        register = self._registration("tools", self._adding(self._tools.add, options))
        return register if function is None else register(function)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Register a function as the resource with this ``uri``, or as a resource template if ``uri`` has parameters in
        braces.

            @server.resource("note://{name}")
            async def note(name: str) -> str:
                return await read_note(name)

        See `ResourceOptions` for the keywords. The function returns text, bytes, JSON data, `ResourceContents` or a
        list of them, or a complete `ReadResourceResult`, which can have its own cache hints.

        The function's parameters are the names in the template; values are converted from text. Further parameters need
        defaults. The template may contain:

        - ``{name}``: one path segment.
        - ``{+name}``: a path that may contain slashes. At most one name can have this form.
        - ``{?name,other}``, at the end: query parameters, each of which may be missing.

        URIs are compared in normal form (RFC 3986, 6.2.2): the case of the scheme and host, and needless
        percent-encodings, make no difference. A URI that doesn't match is answered as "not found". The function can
        rely on these rules:

        - A value is percent-decoded exactly once, after the match, and contains no control characters.
        - A value is not empty, except that of a query parameter.
        - ``{name}`` isn't ``.`` or ``..`` and contains no slash or backslash.
        - The other forms don't begin with a slash or backslash, and have no ``..`` segment.

        The handler itself must check links in a file system.

        Raises:
            ValueError: As `tool`, and if the URI is invalid, is already registered in another spelling, or is an
                ambiguous template. Between two names there must be a ``/``, ``?`` or ``#``. After a ``{name}``, one of
                ``:@!$&'()*+,;=[]`` is also allowed, and ends the name.
            TypeError: As `tool`.
        """
        if callable(uri):
            raise TypeError(
                "@server.resource needs the URI of the resource:\n"
                "    wrong:  @server.resource\n"
                '    right:  @server.resource("note://{name}")'
            )
        check_options("@server.resource", options, ResourceOptions)
        return self._registration("resources", self._adding(partial(self._resources.add, uri), options))

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: F | None = None, /, **options: Unpack[PromptOptions]) -> F | Callable[[F], F]:
        """Register a function as a prompt. See `PromptOptions` for the keywords.

        The function's parameters are the prompt's arguments, converted from text. It returns text, a content block, a
        `PromptMessage`, a list of strings, blocks and messages, or a `GetPromptResult`. Raises the same errors as
        `tool`.
        """
        check_options("@server.prompt", options, PromptOptions)
        register = self._registration("prompts", self._adding(self._prompts.add, options))
        return register if function is None else register(function)

    def _adding(self, add: Callable[..., None], options: PromptOptions) -> Callable[[Callable[..., Any]], None]:
        """Return a function that registers a handler by calling ``add`` with the handler and ``options``.

        If ``options`` lacks ``asyncio``, the server's default applies.
        """
        if not self._asyncio or "asyncio" in options:
            return partial(add, options=options)
        return lambda function: add(function, options={**options, "asyncio": iscoroutinefunction(function)})

    def _registration(self, kind: str, add: Callable[[Callable[..., Any]], None]) -> Callable[[F], F]:
        """Return a decorator that registers a function with ``add``, and then notifies clients that the list
        changed."""

        def change(function: F) -> None:
            add(function)
            self._observers.list_changed(f"notifications/{kind}/list_changed")

        def register(function: F) -> F:
            self._active_runs.call_in_run(partial(change, function))
            return function

        return register

    def completion(
        self, *, argument: str, prompt: str | None = None, resource: str | None = None, asyncio: bool | None = None
    ) -> Callable[[F], F]:
        """Register a completion function, which suggests values for one ``argument`` of a ``prompt`` or of a
        ``resource`` template.

        The function takes ``value``, the text typed so far. It may also take ``arguments``, the arguments that are
        already filled in. It returns suggestions, best first; at most 100 are sent. Numbers and enums are sent as text.
        ``asyncio`` has the same meaning as for a tool.

        Raises:
            TypeError: If both or neither of ``prompt`` and ``resource`` are given, or if the function has other
                parameters.
            ValueError: If the argument already has a completion function. The server raises it at its start if the
                prompt, the template or the argument doesn't exist.
        """

        def register(function: F) -> F:
            in_loop = self._asyncio and iscoroutinefunction(function) if asyncio is None else asyncio
            add = partial(self._completions.add, function, prompt=prompt, resource=resource, argument=argument)
            self._active_runs.call_in_run(partial(add, asyncio=in_loop))
            return function

        return register

    @property
    def _offers(self) -> tuple[Tools, Resources, Prompts, Completions]:
        """The registries of tools, resources, resource templates and prompts."""
        return self._tools, self._resources, self._prompts, self._completions

    @in_active_run
    def on_roots_changed(self, function: F) -> F:
        """Register a function that is called with the `ConnectedClient` when a client reports that its roots changed.
        Only clients of legacy protocol revisions report this.

            @server.on_roots_changed
            async def changed(client: ConnectedClient) -> None:
                watch(client.session_id, await client.list_roots())

        The function is async, or a fast plain ``def``: a plain function runs in trio's thread. For each client, only
        one call runs at a time, concurrently with requests. If more changes are reported meanwhile, one further call
        follows for all of them. The call is cancelled when the connection closes. Exceptions in the function are
        logged.

        Modern clients don't report changes: call `RequestContext.list_roots` each time you need the roots.

        Raises `ValueError` if the server already has such a function.
        """
        if self._roots_changed is not None:
            raise ValueError(
                "on_roots_changed already has a function on this server: register one function that calls both"
            )
        self._roots_changed = function
        return function

    @overload
    def middleware(self, function: A, /) -> A: ...
    @overload
    def middleware(self, /, *methods: str) -> Callable[[A], A]: ...
    def middleware(self, *methods: Any) -> Any:
        """Register middleware: a function that runs around each request, to check, change or observe it.

            @server.middleware("tools/call")
            async def logged(request: ServerRequest, next: Next) -> Any:
                result = await next(request)
                print(request.params.name, result.is_error)
                return result

        ``methods`` are the methods that it applies to, by default all. The middleware declared first is outermost.
        ``await next(request)`` returns the result, for example a `CallToolResult`, or raises the handler's exception.
        The function can:

        - return the result unchanged, or changed with `attrs.evolve`;
        - refuse the request by raising `CodedError`, or `ToolError` in a tool call;
        - pass other arguments with ``next(request.with_arguments({...}))``;
        - return a result without calling ``next``.

        The function runs in the request's cancel scope: a cancelled request cancels it, and its time counts as part of
        the request. While a handler is parked, its middleware waits too. If a handler runs again (``replay``, or a task
        after a restart), so does the middleware. If the handler requests input from the client, the middleware gets an
        `InputRequiredResult` as the result.

        Middleware applies to every method that runs in a task of its own, including listings, streams, ``tasks/...``
        and the methods of the server's extensions. For an extension, results are instances of the extension's classes.
        The functions are composed when the server starts, so middleware that you add later is used from the next start.

        Raises:
            ValueError: If a method is unknown, or has no task of its own.
            TypeError: If the function isn't an ``async def`` with two parameters.
        """
        from .middleware import check_middleware, methods_of  # lazy import: only servers with middleware need it

        is_bare = len(methods) == 1 and callable(methods[0])
        extended = self._extension_handlers
        of_extensions = frozenset[str]() if extended is None else extended.middleware_methods
        names = methods_of(() if is_bare else methods, of_extensions)

        def register(function: A) -> A:
            check_middleware(function)
            # the server composes its middleware when it starts, so a new function runs only after the next start
            self._middleware.append((names, function))
            return function

        return register(cast("Any", methods[0])) if is_bare else register

    @in_active_run
    def remove_tool(self, name: str) -> None:
        """Remove a tool and notify clients. Running calls of the tool continue. Raises `KeyError` if the server has no
        such tool."""
        self._tools.registry.remove(name)
        self._observers.list_changed("notifications/tools/list_changed")

    @in_active_run
    def remove_resource(self, uri: str) -> None:
        """Remove a resource or template and notify clients. Raises `KeyError` if the server has no such URI."""
        self._resources.remove(uri)
        self._observers.list_changed("notifications/resources/list_changed")

    @in_active_run
    def remove_prompt(self, name: str) -> None:
        """Remove a prompt and notify clients. Raises `KeyError` if the server has no such prompt."""
        self._prompts.registry.remove(name)
        self._observers.list_changed("notifications/prompts/list_changed")

    def disable(self, *tags: str) -> None:
        """Hide all tools, resources, templates and prompts that have one of ``tags``, and notify clients.

        Hidden offers are left out of listings, and requests for them are answered as for unknown names. They stay
        hidden until all their tags are enabled again. Offers with these tags that you add later are hidden as well.
        Running calls continue, including tasks and parked handlers. A handler that would run again from the top isn't
        found. Raises `ValueError`, with nothing changed, if one of the tags was never used.
        """
        self._switch(tags, enabled=False)

    def enable(self, *tags: str) -> None:
        """Undo `disable` for ``tags``: show the tools, resources, templates and prompts again, and notify clients.
        Raises the same errors as `disable`."""
        self._switch(tags, enabled=True)

    @in_active_run
    def _switch(self, tags: tuple[str, ...], *, enabled: bool) -> None:
        registries = {
            "tools": (self._tools.registry,),
            "resources": self._resources.registries,
            "prompts": (self._prompts.registry,),
        }
        for kind in set_enabled(registries, frozenset(tags), enabled=enabled):
            self._observers.list_changed(f"notifications/{kind}/list_changed")

    def resource_updated(self, uri: str) -> None:
        """Notify all clients that have subscribed to the resource ``uri`` that the resource has changed.

        Returns without waiting until the notifications are sent.
        """
        self._observers.resource_updated(uri)

    def everything_changed(self) -> None:
        """Notify all clients that all lists, and all resources that they have subscribed to, may have changed.

        Returns without waiting until the notifications are sent.
        """
        self._observers.everything_changed()


NO_SCOPES: Final = frozenset[str]()


def required_scopes(offering: Offering, method: str, params: object, auth: Auth | None) -> frozenset[str]:
    """Return the OAuth scopes that a request needs.

    These are the scopes of all tools, resources and prompts that the request names and that exist for this caller.

    The request itself isn't validated.
    """
    if method not in _NAMING or not isinstance(params, dict):
        extended = offering._extension_handlers
        return NO_SCOPES if extended is None else extended.scopes.get(method, NO_SCOPES)
    named = _named(offering, method, cast("JSONObject", params), auth)
    return NO_SCOPES.union(*(offer.scopes for offer in named if offer is not None))


_NAMING: Final = frozenset(("tools/call", "prompts/get", "resources/read", "resources/subscribe")) | {
    "completion/complete",
    "subscriptions/listen",
    "skills/get",
    "resources/directory/read",
}
"""The methods whose requests name a tool, resource, resource template or prompt."""


def _named(
    offering: Offering, method: str, params: JSONObject, auth: Auth | None
) -> Iterable[RegisteredTool | RegisteredPrompt | RegisteredResource | None]:
    """Return the tools, resources, templates and prompts that a request names. A `None` stands for each name that
    doesn't exist for this caller.

    Disabled entries are included: a client may have to retry a request whose tool was disabled meanwhile, and still
    needs the tool's scopes.
    """
    match method:
        case "tools/call":
            return (offering._tools.named(params, auth),)
        case "prompts/get":
            return (offering._prompts.registry.get_for(auth, _text(params.get("name")), disabled=True),)
        case "completion/complete":  # reading suggested values needs the scopes of the prompt or template
            ref = as_object(params.get("ref"))
            uri = _text(ref.get("uri"))
            prompt = offering._prompts.registry.get_for(auth, _text(ref.get("name")))
            template = offering._resources.templates.get_for(auth, offering._resources.name_of(uri))
            return prompt, template or _resource(offering, uri, auth)
        case "subscriptions/listen":  # subscriptions/listen names the resources whose changes the client wants
            uris = as_object(params.get("notifications")).get("resourceSubscriptions")
            if not isinstance(uris, list) or not offering._resources.has_scopes:
                return ()
            asked = list(dict.fromkeys(map(_text, cast("list[Any]", uris))))[: offering.limits.max_subscriptions]
            return [_resource(offering, uri, auth) for uri in asked]
        case _:
            return (_resource(offering, _text(params.get("uri")), auth),)


def _resource(offering: Offering, uri: str, auth: Auth | None) -> RegisteredResource | None:
    found = offering._resources.find(uri, auth, disabled=True)
    return None if found is None else found[0]


def all_exist(offering: Offering, request: InboundRequest, peer: Peer) -> bool:
    """Return whether all tools, resources and prompts that a retried request names still exist for its caller."""
    name = request.method.name
    return name not in _NAMING or None not in _named(offering, name, request.params, peer.auth)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
