"""Offering: the tools, resources and prompts for clients, and the methods with which authors register each.

The scopes that a request needs are those of all offers that the request names: see `required_scopes`.
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
    from .middleware import MiddlewareFunction

    A = TypeVar("A", bound=MiddlewareFunction)

F = TypeVar("F", bound=Callable[..., Any])

RootsChanged: TypeAlias = Callable[[ConnectedClient], Any]
"""A function that is called when a client's roots have changed."""


class Offering:
    """The offers of a server, and the clients that are notified of changes. All methods may be called from any thread.
    While the server runs, offers only change in trio's thread."""

    limits: Limits

    def __init__(
        self, page_size: int | None, hints: CacheHints, encoders: Encoders | None, *, asyncio: bool = False
    ) -> None:
        self._asyncio = asyncio
        """True when async functions run on asyncio by default."""
        self._active_runs = ActiveRuns()
        """The runs of trio that serve the server now."""
        self._tools = Tools(page_size, encoders)
        self._resources = Resources(page_size, hints, encoders)
        self._prompts = Prompts(page_size)
        self._completions = Completions(self._prompts, self._resources)
        self._observers = Observers()
        self._roots_changed: RootsChanged | None = None
        """The function given to `on_roots_changed`."""
        self._extension_handlers: ExtensionHandlers | None = None
        """The handlers of the methods of the extensions; `None` where there are no extensions."""
        self._middleware: list[tuple[frozenset[str], MiddlewareFunction]] = []
        """Functions given to `middleware`, outermost first, each with its methods."""

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

        ``Annotated[str, Header("Region")]`` has modern clients repeat the argument in a header over HTTP: see `Header`.

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
        handler runs at most once. With ``"again"`` and ``"resume"``, which need ``task``, it runs at least once.

        Raises `ValueError` when the name is taken or not allowed (2025-11-25 tools, Tool Names: up to 128 letters,
        digits, ``_``, ``-`` and ``.``), or a schema or a key of ``meta`` is invalid, `TypeError` for a signature that
        cannot be used. Clients are told of a tool that is added at run time.
        """
        check_options("@server.tool", options, ToolOptions)
        register = self._registration("tools", self._adding(self._tools.add, options))
        return register if function is None else register(function)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Offer a function as the resource ``uri``, or as a family of resources if ``uri`` is a template.
        `ResourceOptions` documents the keywords.

        ``{name}`` in a template is one path segment, ``{+name}`` may hold slashes; ``{?name,other}`` at the end are
        query parameters, each of which may be missing. The function's parameters are the names of the template, with
        values converted from text; further parameters have defaults. A URI is found by its normal form (RFC 3986,
        6.2.2): case of the scheme and the host, and needless percent-encodings, make no difference. The function may
        rely on these rules: the text of a value is not empty, was percent-decoded once, after the match, and holds no
        control characters; ``{name}`` is no ``.`` or ``..`` and holds no slash or backslash; the others do not begin
        with a slash or backslash, and ``..`` is none of their segments; a query parameter may be empty. A URI that does
        not fit is not found. Links in a file system are the handler's own business.

        The function returns text, bytes, JSON data, `ResourceContents` or a list of `ResourceContents`, or a complete
        `ReadResourceResult`, with cache hints of its own if need be. Raises as `tool`, and `ValueError` for an invalid
        URI, one that is declared in another spelling, and a template that is ambiguous: between two names there must be
        a ``/``, ``?`` or ``#``, or, behind a ``{name}``, one of ``:@!$&'()*+,;=[]``, which then ends the name; and at
        most one name can be a ``{+name}``.
        """
        if callable(uri):
            raise TypeError(
                "a resource has a URI of its own, and its decorator takes it:\n"
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
        """Offer a function as a prompt. Its parameters are the prompt's arguments, converted from text; the function
        returns text, a content block, `PromptMessage`, a list of texts, blocks and messages, or a `GetPromptResult`.
        `PromptOptions` documents the keywords. Raises as `tool`."""
        check_options("@server.prompt", options, PromptOptions)
        register = self._registration("prompts", self._adding(self._prompts.add, options))
        return register if function is None else register(function)

    def _adding(self, add: Callable[..., None], options: PromptOptions) -> Callable[[Callable[..., Any]], None]:
        """Return the function that has ``add`` register a function with ``options``."""
        if not self._asyncio or "asyncio" in options:
            return partial(add, options=options)
        return lambda function: add(function, options={**options, "asyncio": iscoroutinefunction(function)})

    def _registration(self, kind: str, add: Callable[[Callable[..., Any]], None]) -> Callable[[F], F]:
        """Return the decorator that has ``add`` register a function, and tells the clients that a list changed."""

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
        """Offer a function as the completer of one ``argument`` of a ``prompt`` or of a ``resource`` template.

        The function takes ``value``, the text typed so far, and, as an option, ``arguments``, the arguments settled
        already. The function returns suggestions, best first, of which 100 at most are sent, numbers and enums as text.
        ``asyncio``: as for a tool.

        Raises `TypeError` for both or neither of ``prompt`` and ``resource`` and for other parameters, and `ValueError`
        when the argument has a completer already. The start of the server raises `ValueError` if the prompt, the
        template or its argument doesn't exist by then.
        """

        def register(function: F) -> F:
            in_loop = self._asyncio and iscoroutinefunction(function) if asyncio is None else asyncio
            add = partial(self._completions.add, function, prompt=prompt, resource=resource, argument=argument)
            self._active_runs.call_in_run(partial(add, asyncio=in_loop))
            return function

        return register

    @property
    def _offers(self) -> tuple[Tools, Resources, Prompts, Completions]:
        """The registrations of the things that clients can name."""
        return self._tools, self._resources, self._prompts, self._completions

    @in_active_run
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
        if self._roots_changed is not None:
            raise ValueError("this server has a function for changed roots already: let that one call both")
        self._roots_changed = function
        return function

    @overload
    def middleware(self, function: A, /) -> A: ...
    @overload
    def middleware(self, /, *methods: str) -> Callable[[A], A]: ...
    def middleware(self, *methods: Any) -> Any:
        """Have a function run around each request of these ``methods``, by default of all: to check, to change, or to
        observe.

            @server.middleware("tools/call")
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

        Methods are all with a task for each request, listings, streams, ``tasks/...`` and those of the extensions of
        the server included; around these, results are objects of the classes that the extension names.
        Functions are composed when the server starts: a later declaration counts from the next start on. Raises
        `ValueError` for any other method, `TypeError` for a function that is not ``async def`` of two parameters.
        """
        from .middleware import check_middleware, methods_of  # late: only servers with arounds need it

        is_bare = len(methods) == 1 and callable(methods[0])
        extended = self._extension_handlers
        of_extensions = frozenset[str]() if extended is None else extended.middleware_methods
        names = methods_of(() if is_bare else methods, of_extensions)

        def register(function: A) -> A:
            check_middleware(function)
            self._middleware.append((names, function))  # only read at the next start
            return function

        return register(cast("Any", methods[0])) if is_bare else register

    @in_active_run
    def remove_tool(self, name: str) -> None:
        """Withdraw a tool and tell the clients. Calls under way go on. Raises `KeyError`."""
        self._tools.registry.remove(name)
        self._observers.list_changed("notifications/tools/list_changed")

    @in_active_run
    def remove_resource(self, uri: str) -> None:
        """Withdraw a resource or template and tell the clients. Raises `KeyError`."""
        self._resources.remove(uri)
        self._observers.list_changed("notifications/resources/list_changed")

    @in_active_run
    def remove_prompt(self, name: str) -> None:
        """Withdraw a prompt and tell the clients. Raises `KeyError`."""
        self._prompts.registry.remove(name)
        self._observers.list_changed("notifications/prompts/list_changed")

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
        """Notify the clients that subscribed to ``uri``, or listen for its changes, that the resource changed. Never
        waits."""
        self._observers.resource_updated(uri)

    def everything_changed(self) -> None:
        """Tell the clients that all that they are told of may have changed: each list, and each resource. Never
        waits."""
        self._observers.everything_changed()


NO_SCOPES: Final = frozenset[str]()


def required_scopes(offering: Offering, method: str, params: object, auth: Auth | None) -> frozenset[str]:
    """Return the scopes that a request to a server needs: those of all that the request names, and that exists for
    this caller. Nothing is known here of whether the request makes sense."""
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
"""The methods that name what a server offers."""


def _named(
    offering: Offering, method: str, params: JSONObject, auth: Auth | None
) -> Iterable[RegisteredTool | RegisteredPrompt | RegisteredResource | None]:
    """Return what a request names; `None` for each name that does not exist for this caller. What is disabled counts:
    a handler that is parked goes on, and its rounds need the scopes."""
    match method:
        case "tools/call":
            return (offering._tools.named(params, auth),)
        case "prompts/get":
            return (offering._prompts.registry.get_for(auth, _text(params.get("name")), disabled=True),)
        case "completion/complete":  # the suggestions tell of the thing whose argument is completed
            ref = as_object(params.get("ref"))
            uri = _text(ref.get("uri"))
            prompt = offering._prompts.registry.get_for(auth, _text(ref.get("name")))
            template = offering._resources.templates.get_for(auth, offering._resources.name_of(uri))
            return prompt, template or _resource(offering, uri, auth)
        case "subscriptions/listen":  # the resources of which changes are told
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
    """Return whether everything that a retry names exists for its caller still."""
    name = request.method.name
    return name not in _NAMING or None not in _named(offering, name, request.params, peer.auth)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
