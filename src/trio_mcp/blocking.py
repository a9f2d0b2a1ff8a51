"""Clients and groups for scripts and notebooks, without ``async``: `open_stdio`, `open_http`, `open_websocket`,
`open_tcp`, `open_unix`, `open_memory`, `open_group`.

    with blocking.open_stdio(["python", "server.py"]) as client:
        result = client.call_tool("search", {"text": "trio"})

trio runs in a thread of its own. Each method blocks the thread that calls it, even if an event loop runs there, as in
notebooks.

Ctrl-C cancels only the call that the main thread waits for, also on the server. `KeyboardInterrupt` is raised when the
call has ended; the client stays usable. Handlers and callbacks must be plain functions: they run in worker threads, and
may make calls themselves. ``on_progress`` runs in the thread that calls. The end of the interpreter closes everything
that is open. All names, parameters and types are those of `trio_mcp`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import attrs
import trio

from .bridging.calls import (
    CALL_HANDLERS,
    CALLBACKS,
    METHOD_TABLES,
    BridgedItems,
    StartWork,
    TrioPortal,
    call_contained,
    is_async,
    run_blocking,
    run_sync,
    with_contained,
)
from .bridging.views import (
    BridgedContext,
    ChangesView,
    ClientView,
    LoadedSkillView,
    PassThrough,
    RunningTaskView,
    Wrapper,
    forwarding,
    view_method,
    wrapping,
)
from .client import client as of_client
from .client import remote_tasks as of_tasks
from .client import subscriptions as of_streams
from .client.cache import Change
from .client.options import ClientOptions
from .concurrency.misuse import check_keywords
from .connecting import lines, memory, stdio, websocket
from .connecting.http import opening as http
from .hosting import catalogue as of_catalogue
from .hosting import group as of_group
from .hosting.catalogue import CatalogueEntry
from .hosting.descriptions import HeldTool, MemberDescription, MemberStatus
from .protocol.types.offers import Prompt, Resource, ResourceTemplate
from .protocol.types.tools import Tool
from .skills import loading as of_skills

__all__ = [
    "Catalogue",
    "Changes",
    "Client",
    "Group",
    "GroupTask",
    "LoadedSkill",
    "RunningTask",
    "open_group",
    "open_http",
    "open_memory",
    "open_stdio",
    "open_tcp",
    "open_unix",
    "open_websocket",
]

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Wrapper)


class BridgedIterator(BridgedItems[T], Iterator[T]):
    """A plain iterator over the items of a trio iterator.

    Only one thread may use the iterator at a time. If fetching an item is interrupted, the item isn't lost.
    """

    def __next__(self) -> T:
        if not self.items:
            try:
                run_blocking(self.start, self.fetch)
            except StopAsyncIteration:
                raise StopIteration from None
        return self.items.popleft()


_HANDLERS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots", "on_unreadable"})


def with_threaded_handlers(options: dict[str, Any]) -> dict[str, Any]:
    """Return a client's ``options``, with the callbacks wrapped so that they run in worker threads.

    Handlers need no such wrapper, because the client always runs synchronous handlers in worker threads.

    Raises `TypeError` if an option is an async function.
    """
    for name in options.keys() & (CALLBACKS | _HANDLERS):
        if is_async(options[name]):
            raise TypeError(f"write {name} with def, not with async def: blocking programs have no event loop")
    return {key: _threaded(key, value) for key, value in options.items()}


def _threaded(key: str, value: Any) -> Any:
    if key in CALLBACKS and value is not None:
        return partial(_in_thread, value)
    if key in METHOD_TABLES and value is not None:
        return with_contained(value)
    return with_contained({key: value})[key] if key in _HANDLERS else value


async def _in_thread(callback: Callable[..., Any], *args: Any) -> None:
    await trio.to_thread.run_sync(partial(call_contained, callback, *args), abandon_on_cancel=True)


def blocking_method(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking version of an async trio method. The blocking version runs the trio method in the trio thread,
    and waits until it returns."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(self._original, method.__name__)
        if not CALL_HANDLERS.isdisjoint(kwargs):
            kwargs = with_threaded_handlers(kwargs)
        return run_blocking(self._begin, lambda call: original(*args, **call.with_callbacks(kwargs)))

    return cast("Any", call)


def wrapped_method(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], V]:
    """Return a blocking version of an async trio method, like `blocking_method`. In addition, the result is wrapped in
    the class ``view``."""
    call = blocking_method(method)

    @wraps(method)
    def call_for_view(self: Any, *args: Any, **kwargs: Any) -> V:
        return view(cast("Any", call)(self, *args, **kwargs), self._begin)

    return cast("Any", call_for_view)


def iterator_method(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return a blocking version of a trio method that returns an async iterator. The blocking version returns a plain
    iterator.

    The original is called when the first item is requested.
    """
    return forwarding(method, lambda self, call: BridgedIterator(self._begin, call))


def context_method(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], AbstractContextManager[V]]:
    """Return a blocking version of a trio method that returns an async context manager. The blocking version returns a
    plain context manager.

    It enters the trio context manager that the original method returns, and wraps its value with ``view``.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self._original, method.__name__)(*args, **kwargs)
        return BridgedContext(lambda: manager, view, self._begin)

    return cast("Any", call)


def open_function(
    function: Callable[P, AbstractAsyncContextManager[Any]],
    view: type[V],
    adapted: Callable[[Any], Any] | None = None,
) -> Callable[P, AbstractContextManager[V]]:
    """Return a blocking version of ``function``, which opens a client or a group. The blocking version yields the
    client or group wrapped in the class ``view``. ``adapted`` converts the positional arguments."""

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[V]:
        check_keywords(function, kwargs)
        open_in_trio = cast("Callable[..., AbstractAsyncContextManager[Any]]", function)
        given: Any = args if adapted is None else [adapted(each) for each in args]
        return BridgedContext(lambda: open_in_trio(*given, **with_threaded_handlers(kwargs)), view, TrioPortal.start)

    return opened


class RunningTask(RunningTaskView):
    """An MCP task that runs on a server. This is the blocking version of `trio_mcp.types.RunningTask`."""

    get = blocking_method(of_tasks.RunningTask.get)
    result = blocking_method(of_tasks.RunningTask.result)
    cancel = blocking_method(of_tasks.RunningTask.cancel)


class Changes(ChangesView, Iterator[Change]):
    """A blocking iterator over the changes that a server reports. The trio version is `trio_mcp.types.Changes`."""

    def __init__(self, original: of_streams.Changes, begin: StartWork) -> None:
        super().__init__(original, begin)
        self._iterator = BridgedIterator(begin, lambda: original)

    def __next__(self) -> Change:
        return next(self._iterator)


class LoadedSkill(LoadedSkillView):
    """A skill that a client has loaded from a server. This is the blocking version of `trio_mcp.types.LoadedSkill`."""

    read = blocking_method(of_skills.LoadedSkill.read)


class Client(ClientView):
    """A connection to one server, for blocking code. Any number of threads may use it.

    See `trio_mcp.Client`.
    """

    call_tool = blocking_method(of_client.Client.call_tool)
    start_task = wrapped_method(of_client.Client.start_task, RunningTask)
    list_tasks = iterator_method(of_client.Client.list_tasks)
    read_resource = blocking_method(of_client.Client.read_resource)
    get_prompt = blocking_method(of_client.Client.get_prompt)
    complete = blocking_method(of_client.Client.complete)
    list_tools = iterator_method(of_client.Client.list_tools)
    list_resources = iterator_method(of_client.Client.list_resources)
    list_resource_templates = iterator_method(of_client.Client.list_resource_templates)
    list_prompts = iterator_method(of_client.Client.list_prompts)
    list_skills = iterator_method(of_client.Client.list_skills)
    get_skill = blocking_method(of_client.Client.get_skill)
    load_skill = wrapped_method(of_client.Client.load_skill, LoadedSkill)
    list_directory = iterator_method(of_client.Client.list_directory)
    listen = context_method(of_client.Client.listen, Changes)
    subscribe = blocking_method(of_client.Client.subscribe)
    unsubscribe = blocking_method(of_client.Client.unsubscribe)
    set_log_level = blocking_method(of_client.Client.set_log_level)
    ping = blocking_method(of_client.Client.ping)
    until_lost = blocking_method(of_client.Client.until_lost)
    roots_changed = blocking_method(of_client.Client.roots_changed)
    request = blocking_method(of_client.Client.request)
    send_notification = blocking_method(of_client.Client.send_notification)
    resume_task = view_method(of_client.Client.resume_task, RunningTask)


open_stdio = open_function(stdio.open_stdio, Client)
open_http = open_function(http.open_http, Client)
open_websocket = open_function(websocket.open_websocket, Client)
open_tcp = open_function(lines.open_tcp, Client)
open_unix = open_function(lines.open_unix, Client)
open_memory = open_function(memory.open_memory, Client)


class Catalogue(Wrapper):
    """The tools, prompts and resources of a group's servers. This is the blocking version of
    `trio_mcp.hosting.Catalogue`."""

    tools = PassThrough[Mapping[str, CatalogueEntry[Tool]]]()
    """The group's current tools, by name. The mapping never changes; after a change, this returns a new mapping."""
    prompts = PassThrough[Mapping[str, CatalogueEntry[Prompt]]]()
    """The group's current prompts, by name."""
    resources = PassThrough[Mapping[str, CatalogueEntry[Resource]]]()
    """The group's current resources, by URI."""
    resource_templates = PassThrough[Mapping[str, CatalogueEntry[ResourceTemplate]]]()
    """The group's current resource templates, by their URI templates."""
    held = PassThrough[Mapping[str, HeldTool]]()
    """The tools that aren't offered until `Group.approve_tools` approves them, by name."""
    watch = iterator_method(of_catalogue.Catalogue.watch)


class GroupTask(Wrapper):
    """An MCP task on a member server of a group. This is the blocking version of `trio_mcp.hosting.GroupTask`."""

    member = PassThrough[str]()
    """The name of the member that runs the task."""
    id = PassThrough[str | None]()
    """The id for `Group.resume_task`; `None` if the server answered without a task."""
    get = blocking_method(of_group.GroupTask.get)
    result = blocking_method(of_group.GroupTask.result)
    cancel = blocking_method(of_group.GroupTask.cancel)


class Group(Wrapper):
    """A client for many servers at once, for blocking code. Any number of threads may use it.

    See `trio_mcp.hosting.Group`.
    """

    remove = blocking_method(of_group.Group.remove)
    client = wrapped_method(of_group.Group.client, Client)
    watch = iterator_method(of_group.Group.watch)
    settled = blocking_method(of_group.Group.settled)
    approve_tools = blocking_method(of_group.Group.approve_tools)
    call_tool = blocking_method(of_group.Group.call_tool)
    call_from_app = blocking_method(of_group.Group.call_from_app)
    start_task = wrapped_method(of_group.Group.start_task, GroupTask)
    resume_task = view_method(of_group.Group.resume_task, GroupTask)
    get_prompt = blocking_method(of_group.Group.get_prompt)
    read_resource = blocking_method(of_group.Group.read_resource)
    skills = blocking_method(of_group.Group.skills)
    load_skill = wrapped_method(of_group.Group.load_skill, LoadedSkill)

    @wrapping(of_group.Group.add)
    def add(self, name: str, description: MemberDescription) -> None:
        described = _described(description)
        run_sync(self._begin, lambda: self._original.add(name, described))

    @property
    def statuses(self) -> dict[str, MemberStatus]:
        """The status of each member server of the group, in the order in which the servers were added."""
        return run_sync(self._begin, lambda: self._original.statuses)

    @property
    def catalogue(self) -> Catalogue:
        """The tools, prompts and resources of all member servers of the group."""
        return Catalogue(self._original.catalogue, self._begin)


def _described_members(members: Mapping[str, MemberDescription] | None) -> dict[str, MemberDescription]:
    return {name: _described(description) for name, description in (members or {}).items()}


def _described(description: MemberDescription) -> MemberDescription:
    return attrs.evolve(description, options=cast("ClientOptions", with_threaded_handlers({**description.options})))


open_group = open_function(of_group.open_group, Group, _described_members)
