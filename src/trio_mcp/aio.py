"""Clients and groups for asyncio programs: `open_stdio`, `open_http`, `open_websocket`, `open_tcp`, `open_unix`,
`open_memory`, `open_group`.

    async with aio.open_stdio(["python", "server.py"]) as client:
        async with asyncio.timeout(10):
            result = await client.call_tool("search", {"text": "trio"})

trio runs in a thread of its own, so clients aren't bound to a task: any task may call, and any task may close them.

Cancelling a task that waits for a call, by `asyncio.timeout` for example, cancels the call on the server; the task
continues when that cancel has been sent. Handlers and callbacks may be asyncio functions: they run in the event loop
that opened the client, and are cancelled if the server cancels its request. Plain handlers run in worker threads, plain
callbacks in the event loop. Clients that you don't close are closed with their event loop.

All names, parameters and types are those of `trio_mcp`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
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
    run_sync,
    with_contained,
)
from .bridging.event_loop import AsyncBridgedContext, run_in_trio, running_loop
from .bridging.views import (
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
from .concurrency.asyncio_thread import LoopTask
from .concurrency.misuse import async_with_only
from .connecting import lines, memory, stdio, websocket
from .connecting.http import opening as http
from .connecting.targets import Address
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


class AsyncBridgedIterator(BridgedItems[T], AsyncIterator[T]):
    """An asyncio iterator over the items of a trio iterator.

    Only one task may use the iterator at a time. If fetching an item is cancelled, the item isn't lost.
    """

    async def __anext__(self) -> T:
        if not self.items:
            await run_in_trio(self.start, self.fetch)
        return self.items.popleft()


_HANDLERS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots"})
_MOST_POSTED: Final = 100
_PATIENCE: Final = 5.0


class HandlerLoop:
    """The asyncio event loop in which the handlers and callbacks of a client run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._room = threading.BoundedSemaphore(_MOST_POSTED)

    def adapt(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the ``options`` of a client, with the handlers and callbacks wrapped so that trio can call them."""
        return {key: self._adapted(key, value) for key, value in options.items()}

    def _adapted(self, key: str, value: Any) -> Any:
        if key in METHOD_TABLES and value is not None:
            return with_contained(value)
        if not callable(value):
            return value
        if key in CALLBACKS or (key in _HANDLERS and is_async(value)):
            return partial(self._run, value)
        if key in _HANDLERS:
            return partial(self._in_worker, value)
        if key == "on_unreadable" and not is_async(value):
            return partial(self._call_soon, value)
        return value

    def _in_worker(self, handler: Callable[..., Any], *args: Any) -> Any:
        answer = call_contained(handler, *args)
        return self._run(lambda: answer) if inspect.isawaitable(answer) else answer

    def _call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Schedule a synchronous callback in the event loop. If the event loop is so busy that a hundred callbacks are
        waiting, drop the callback."""
        if self._room.acquire(blocking=False):
            self._loop.call_soon_threadsafe(self._run_posted, callback, args)

    def _run_posted(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._room.release()
        callback(*args)

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in an asyncio task of the event loop, and return its result.

        Cancelling this method cancels the task. The cancellation is raised when the task has ended, or after five
        seconds.
        """
        running = LoopTask[Any](self._loop, partial(function, *args), copy_context())
        try:
            await running.over.wait()
        except trio.Cancelled as cancelled:
            running.cancel(cancelled.reason)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _PATIENCE):
                await running.over.wait()
            raise
        return running.result()


def async_method(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return an asyncio version of an async trio method. The asyncio version runs the trio method in the trio
    thread."""

    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(self._original, method.__name__)
        if not CALL_HANDLERS.isdisjoint(kwargs):
            kwargs = HandlerLoop(running_loop()).adapt(kwargs)
        return await run_in_trio(self._begin, lambda call: original(*args, **call.with_callbacks(kwargs)))

    return cast("Any", call)


def wrapped_method(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, V]]:
    """Return an asyncio version of an async trio method, like `async_method`. In addition, the result is wrapped in the
    class ``view``."""
    call = async_method(method)

    @wraps(method)
    async def call_for_view(self: Any, *args: Any, **kwargs: Any) -> V:
        return view(await cast("Any", call)(self, *args, **kwargs), self._begin)

    return cast("Any", call_for_view)


def iterator_method(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Return an asyncio version of a trio method that returns an async iterator.

    The original is called when the first item is requested.
    """
    return forwarding(method, lambda self, call: AsyncBridgedIterator(self._begin, call))


def context_method(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[V]]:
    """Return an asyncio version of a trio method that returns an async context manager.

    It enters the trio context manager that the original method returns, and wraps its value with ``view``.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self._original, method.__name__)(*args, **kwargs)
        return AsyncBridgedContext(lambda: manager, view, self._begin)

    return cast("Any", call)


def open_function(
    function: Callable[P, AbstractAsyncContextManager[Any]],
    view: type[V],
    name: str,
    adapted: Callable[[HandlerLoop, Any], Any] | None = None,
) -> Callable[P, AbstractAsyncContextManager[V]]:
    """Return an asyncio version of ``function``, which opens a client or a group. The asyncio version yields the client
    or group wrapped in the class ``view``. ``adapted`` converts the positional arguments."""

    @async_with_only(name)
    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[V]:
        def manager() -> AbstractAsyncContextManager[Any]:
            loop = HandlerLoop(running_loop())
            given: Any = args if adapted is None else [adapted(loop, each) for each in args]
            return function(*given, **loop.adapt(kwargs))

        return AsyncBridgedContext(manager, view, TrioPortal.start)

    return opened


class RunningTask(RunningTaskView):
    """An MCP task that runs on a server. This is the asyncio version of `trio_mcp.types.RunningTask`."""

    get = async_method(of_tasks.RunningTask.get)
    result = async_method(of_tasks.RunningTask.result)
    cancel = async_method(of_tasks.RunningTask.cancel)


class Changes(ChangesView, AsyncIterator[Change]):
    """An asyncio iterator over the changes that a server reports. The trio version is `trio_mcp.types.Changes`."""

    def __init__(self, original: of_streams.Changes, begin: StartWork) -> None:
        super().__init__(original, begin)
        self._iterator = AsyncBridgedIterator(begin, lambda: original)

    def __anext__(self) -> Coroutine[Any, Any, Change]:
        return anext(self._iterator)


class LoadedSkill(LoadedSkillView):
    """A skill that a client has loaded from a server. This is the asyncio version of `trio_mcp.types.LoadedSkill`."""

    read = async_method(of_skills.LoadedSkill.read)


class Client(ClientView):
    """A connection to one server, for asyncio programs. Any number of asyncio tasks may use it.

    See `trio_mcp.Client`.
    """

    call_tool = async_method(of_client.Client.call_tool)
    start_task = wrapped_method(of_client.Client.start_task, RunningTask)
    list_tasks = iterator_method(of_client.Client.list_tasks)
    read_resource = async_method(of_client.Client.read_resource)
    get_prompt = async_method(of_client.Client.get_prompt)
    complete = async_method(of_client.Client.complete)
    list_tools = iterator_method(of_client.Client.list_tools)
    list_resources = iterator_method(of_client.Client.list_resources)
    list_resource_templates = iterator_method(of_client.Client.list_resource_templates)
    list_prompts = iterator_method(of_client.Client.list_prompts)
    list_skills = iterator_method(of_client.Client.list_skills)
    get_skill = async_method(of_client.Client.get_skill)
    load_skill = wrapped_method(of_client.Client.load_skill, LoadedSkill)
    list_directory = iterator_method(of_client.Client.list_directory)
    listen = context_method(of_client.Client.listen, Changes)
    subscribe = async_method(of_client.Client.subscribe)
    unsubscribe = async_method(of_client.Client.unsubscribe)
    set_log_level = async_method(of_client.Client.set_log_level)
    ping = async_method(of_client.Client.ping)
    until_lost = async_method(of_client.Client.until_lost)
    roots_changed = async_method(of_client.Client.roots_changed)
    request = async_method(of_client.Client.request)
    send_notification = async_method(of_client.Client.send_notification)
    resume_task = view_method(of_client.Client.resume_task, RunningTask)


open_stdio = open_function(stdio.open_stdio, Client, "client")
open_http = open_function(http.open_http, Client, "client")
open_websocket = open_function(websocket.open_websocket, Client, "client")
open_tcp = open_function(lines.open_tcp, Client, "client")
open_unix = open_function(lines.open_unix, Client, "client")
open_memory = open_function(memory.open_memory, Client, "client")


class Catalogue(Wrapper):
    """The tools, prompts and resources of a group's servers. This is the asyncio version of
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
    """An MCP task on a member server of a group. This is the asyncio version of `trio_mcp.hosting.GroupTask`."""

    member = PassThrough[str]()
    """The name of the member that runs the task."""
    id = PassThrough[str | None]()
    """The id for `Group.resume_task`; `None` if the server answered without a task."""
    get = async_method(of_group.GroupTask.get)
    result = async_method(of_group.GroupTask.result)
    cancel = async_method(of_group.GroupTask.cancel)


class Group(Wrapper):
    """A client for many servers at once, for asyncio programs. Any number of asyncio tasks may use it.

    See `trio_mcp.hosting.Group`.
    """

    remove = async_method(of_group.Group.remove)
    client = wrapped_method(of_group.Group.client, Client)
    watch = iterator_method(of_group.Group.watch)
    settled = async_method(of_group.Group.settled)
    approve_tools = async_method(of_group.Group.approve_tools)
    call_tool = async_method(of_group.Group.call_tool)
    call_from_app = async_method(of_group.Group.call_from_app)
    start_task = wrapped_method(of_group.Group.start_task, GroupTask)
    resume_task = view_method(of_group.Group.resume_task, GroupTask)
    get_prompt = async_method(of_group.Group.get_prompt)
    read_resource = async_method(of_group.Group.read_resource)
    skills = async_method(of_group.Group.skills)
    load_skill = wrapped_method(of_group.Group.load_skill, LoadedSkill)

    @wrapping(of_group.Group.add)
    def add(self, name: str, description: MemberDescription) -> None:
        described = _described(HandlerLoop(running_loop()), description)
        run_sync(self._begin, lambda: self._original.add(name, described))

    @property
    def statuses(self) -> dict[str, MemberStatus]:
        """The status of each member server of the group, in the order in which the servers were added."""
        return run_sync(self._begin, lambda: self._original.statuses)

    @property
    def catalogue(self) -> Catalogue:
        """The tools, prompts and resources of all member servers of the group."""
        return Catalogue(self._original.catalogue, self._begin)


def _described_members(
    loop: HandlerLoop, members: Mapping[str, MemberDescription] | None
) -> dict[str, MemberDescription]:
    return {name: _described(loop, description) for name, description in (members or {}).items()}


def _described(loop: HandlerLoop, description: MemberDescription) -> MemberDescription:
    target = description.target
    if isinstance(target, Address):  # the hooks for HTTP requests run in the event loop, like callbacks
        hooks = loop.adapt({"on_request": target.on_request, "on_response": target.on_response})
        target = attrs.evolve(target, **hooks)
    return attrs.evolve(description, target=target, options=cast("ClientOptions", loop.adapt({**description.options})))


open_group = open_function(of_group.open_group, Group, "group", _described_members)
