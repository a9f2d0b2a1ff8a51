"""Clients and groups for asyncio programs: `open_stdio`, `open_http`, `open_websocket`, `open_tcp`, `open_unix`,
`open_memory`, `open_group`.

    async with aio.open_stdio(["python", "server.py"]) as client:
        async with asyncio.timeout(10):
            result = await client.call_tool("search", {"text": "trio"})

trio runs in a thread of its own, so nothing depends on the task in which a client was opened: any task may call, and
any other may close. Cancelling a task that waits for a call, by `asyncio.timeout` for example, cancels the call in the
server, and the task goes on when that cancel is on its way. Handlers and callbacks may be asyncio functions, which run
in the event loop that opened the client, and are cancelled when the server cancels its request; plain handlers run in
worker threads, plain callbacks in the event loop. Clients that nobody closes end with their event loop.

Each member is made of the member that trio's own classes have, by one line that says how a task of asyncio comes to it:
docstrings, parameters and types are those of the original.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from .bridging.asyncio_side import Opened, Steps, run_in_trio
from .bridging.calls import Begin, run_at_once
from .bridging.thread import TrioThread
from .bridging.views import Same, View
from .client import client as of_client
from .client import remote_tasks as of_tasks
from .client import subscriptions as of_streams
from .client.cache import Change
from .client.options import ClientSettings
from .concurrency.misuse import entered
from .connecting import lines, memory, stdio, websocket
from .connecting.http import opening as http
from .protocol.revisions import Revision
from .protocol.types.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from .protocol.types.notifications import SubscriptionFilter
from .runtime.transport import ConnectionLost

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=View)


def awaited(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that runs the async original in the trio thread."""

    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(self._original, method.__name__)
        return await run_in_trio(self._begin, lambda call: original(*args, **call.with_callbacks(kwargs)))

    return cast("Any", call)


def viewed(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, V]]:
    """Return a method as of `awaited`, with a ``view`` of the result."""
    call = awaited(method)

    @wraps(method)
    async def call_for_view(self: Any, *args: Any, **kwargs: Any) -> V:
        return view(await cast("Any", call)(self, *args, **kwargs), self._begin)

    return cast("Any", call_for_view)


def at_once(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the original, which waits for nothing, in the trio thread."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> T:
        return run_at_once(self._begin, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return cast("Any", call)


def iterated(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Return a method that iterates as the original does, which begins with the first step."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return Steps(self._begin, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return cast("Any", call)


def opened_by(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[V]]:
    """Return a method whose context manager has a ``view`` of the value of the original's."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self._original, method.__name__)(*args, **kwargs)
        return Opened(lambda _: manager, view, self._begin)

    return cast("Any", call)


def opening(
    function: Callable[P, AbstractAsyncContextManager[Any]], view: type[V], name: str
) -> Callable[P, AbstractAsyncContextManager[V]]:
    """Return a function that opens as the original, an ``open_*``, does, and gives a ``view`` of what it opens."""

    @entered(name)
    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[V]:
        manager = function
        return Opened(lambda loop: manager(*args, **loop.adapt(kwargs)), view, TrioThread.begin)

    return opened


class RunningTask(View):
    """`trio_mcp.RunningTask` for tasks of asyncio."""

    id = Same[str | None]()
    """The id of the task; `None` where there is none. See `trio_mcp.RunningTask.id`."""
    get = awaited(of_tasks.RunningTask.get)
    result = awaited(of_tasks.RunningTask.result)
    cancel = awaited(of_tasks.RunningTask.cancel)


class Changes(View, AsyncIterator[Change]):
    """`trio_mcp.Changes` for tasks of asyncio."""

    acknowledged = Same[SubscriptionFilter]()
    """Changes that the server agreed to tell of. See `trio_mcp.Changes`."""
    dropped = Same[int]()
    """Number of changes that had no room."""
    take_all = at_once(of_streams.Changes.take_all)

    def __init__(self, original: of_streams.Changes, begin: Begin) -> None:
        super().__init__(original, begin)
        self._steps = Steps(begin, lambda: original)

    def __anext__(self) -> Coroutine[Any, Any, Change]:
        return anext(self._steps)


class Client(View):
    """`trio_mcp.Client` for tasks of asyncio, any number at a time."""

    server_info = Same[Implementation | None]()
    """The server's name and version. Self-reported: for display, never for decisions."""
    server_capabilities = Same[ServerCapabilities]()
    """The capabilities of the server."""
    instructions = Same[str | None]()
    """The server's advice to the model."""
    revision = Same[Revision]()
    """The protocol revision of the connection."""
    settings = Same[ClientSettings]()
    """The settings that the client was opened with."""
    capabilities = Same[ClientCapabilities]()
    """The capabilities that the client declares to servers."""
    lost = Same[ConnectionLost | None]()
    """The reason why the connection is gone; `None` while the connection is open, as far as known."""
    unreadable_messages = Same[int]()
    """The number of lines of the server that were no messages so far."""

    call_tool = awaited(of_client.Client.call_tool)
    start_task = viewed(of_client.Client.start_task, RunningTask)
    list_tasks = iterated(of_client.Client.list_tasks)
    read_resource = awaited(of_client.Client.read_resource)
    get_prompt = awaited(of_client.Client.get_prompt)
    complete = awaited(of_client.Client.complete)
    list_tools = iterated(of_client.Client.list_tools)
    list_resources = iterated(of_client.Client.list_resources)
    list_resource_templates = iterated(of_client.Client.list_resource_templates)
    list_prompts = iterated(of_client.Client.list_prompts)
    listen = opened_by(of_client.Client.listen, Changes)
    subscribe = awaited(of_client.Client.subscribe)
    unsubscribe = awaited(of_client.Client.unsubscribe)
    set_log_level = awaited(of_client.Client.set_log_level)
    ping = awaited(of_client.Client.ping)
    until_lost = awaited(of_client.Client.until_lost)
    roots_changed = awaited(of_client.Client.roots_changed)
    request = awaited(of_client.Client.request)
    send_notification = awaited(of_client.Client.send_notification)

    @wraps(of_client.Client.resume_task)
    def resume_task(self, task_id: str) -> RunningTask:
        return RunningTask(self._original.resume_task(task_id), self._begin)


open_stdio = opening(stdio.open_stdio, Client, "client")
open_http = opening(http.open_http, Client, "client")
open_websocket = opening(websocket.open_websocket, Client, "client")
open_tcp = opening(lines.open_tcp, Client, "client")
open_unix = opening(lines.open_unix, Client, "client")
open_memory = opening(memory.open_memory, Client, "client")
