"""Objects of a client as callers in other threads see them.

A `Wrapper` is a trio object as seen from another thread: a `PassThrough` is an attribute that is the same there, and
`sync_method` creates a method that doesn't wait. A `BridgedContext` is a context manager for threads. The classes with
names in ``View`` have the attributes that the wrappers for asyncio and for blocking code have in common.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from ..client import client as of_client
from ..client import subscriptions as of_streams
from ..client.options import ClientSettings
from ..protocol.fields import JSONObject
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from ..protocol.types.notifications import SubscriptionFilter
from ..protocol.types.skills import Skill
from ..runtime.transport import ConnectionLost
from .calls import (
    BridgedCall,
    Callback,
    EnteredContext,
    OpenContext,
    StartWork,
    check_may_block,
    deferred_interrupts,
    reason_of,
    run_sync,
    start_call,
    wait_for,
)

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound="Wrapper")


class Wrapper:
    """Wraps the trio object ``original``. The wrapper's methods call ``begin`` to run the trio object's methods in the
    trio thread."""

    def __init__(self, original: Any, begin: StartWork) -> None:
        self._original = original
        self._begin = begin


def wrapping(original: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator like `functools.wraps` for the method ``original``. In addition, type checkers see the
    decorated function as a method."""
    return cast("Any", wraps(original))


class PassThrough(Generic[T]):
    """An attribute of a `Wrapper` whose value is the attribute of the same name of the wrapped trio object. The value
    must be safe to read in any thread."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, view: None, owner: type) -> PassThrough[T]: ...

    @overload
    def __get__(self, view: Wrapper, owner: type) -> T: ...

    def __get__(self, view: Wrapper | None, owner: type) -> T | PassThrough[T]:
        return self if view is None else getattr(view._original, self._name)


class BridgedContext(EnteredContext[V], AbstractContextManager[V]):
    """A context manager for threads around a trio context manager: one thread can enter it, and another thread can exit
    it.

    An object that is garbage-collected is closed, and so are all others at the end of the interpreter. A first Ctrl-C
    is raised when everything has ended, a second one at once.
    """

    _finished: threading.Event

    def __enter__(self) -> V:
        check_may_block()
        manager, news = self._begin(), threading.Event()
        self._finished = ended = threading.Event()

        # This function must not refer to the context manager, so that garbage collection can close the manager.
        def tell(_: Callback | None) -> None:
            ended.set()
            news.set()

        hold = OpenContext(manager, news.set)
        self._call = call = BridgedCall(hold.run, tell)
        try:
            with deferred_interrupts():
                hold.portal = start_call(call, self._start)
                self._context = hold
            wait_for(news)
        except BaseException as error:
            if call.has_started:
                call.cancel(reason_of(error))
                self._close(hold)
            raise
        if ended.is_set():
            hold.portal.join()
            call.result()
        return self._view(hold.value, self.start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._context is not None, "it was entered"
        self._close(self._context)
        self._call.raise_failure()

    def __del__(self) -> None:
        if self._context is not None:
            self._context.close()

    def _close(self, hold: OpenContext[Any]) -> None:
        hold.close()
        if hold.portal.is_inherited:
            return
        try:
            wait_for(self._finished)
        except KeyboardInterrupt:
            wait_for(self._finished)
            hold.portal.join()
            raise
        hold.portal.join()


def forwarding(method: Callable[..., Any], run: Callable[[Any, Callable[[], Any]], Any]) -> Any:
    """Return a version of ``method`` for a `Wrapper`. It calls ``run`` with the wrapper, and with a function that calls
    the trio object's own method with the arguments."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return call


def sync_method(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the original synchronous method in the trio thread."""
    return forwarding(method, lambda self, call: run_sync(self._begin, call))


def view_method(method: Callable[Concatenate[Any, P], Any], view: type[V]) -> Callable[Concatenate[Any, P], V]:
    """Return a method that calls the original synchronous method in the thread of its caller, and wraps the result in
    the class ``view``."""
    return forwarding(method, lambda self, call: view(call(), self._begin))


class RunningTaskView(Wrapper):
    """The attributes of an MCP task that runs on a server."""

    id = PassThrough[str | None]()
    """The id of the task; `None` if the server answered without a task. See `trio_mcp.types.RunningTask.id`."""


class ChangesView(Wrapper):
    """The attributes of the changes that a server reports."""

    acknowledged = PassThrough[SubscriptionFilter]()
    """The changes that the server agreed to report. See `trio_mcp.types.Changes`."""
    dropped = PassThrough[int]()
    """How many changes were dropped because too many were waiting."""
    take_all = sync_method(of_streams.Changes.take_all)


class LoadedSkillView(Wrapper):
    """The attributes of a skill that a client has loaded from a server."""

    entry = PassThrough[Skill]()
    """The skill's entry in the server's list, which all files are verified against."""
    text = PassThrough[str]()
    """The text of the skill's ``SKILL.md``, including its front matter."""


class ClientView(Wrapper):
    """The attributes of a connection to one server."""

    server_info = PassThrough[Implementation | None]()
    """The name and version that the server reports about itself. Use them for display, never for decisions."""
    server_capabilities = PassThrough[ServerCapabilities]()
    """The capabilities that the server has declared."""
    instructions = PassThrough[str | None]()
    """The server's instructions for the model."""
    discovery = PassThrough[JSONObject | None]()
    """The server's response to ``server/discover``, for ``prior=`` of a later client. See
    `trio_mcp.Client.discovery`."""
    revision = PassThrough[Revision]()
    """The protocol revision of the connection."""
    settings = PassThrough[ClientSettings]()
    """The settings that the client was opened with."""
    capabilities = PassThrough[ClientCapabilities]()
    """The capabilities that this client declares to the server."""
    lost = PassThrough[ConnectionLost | None]()
    """The error that ended the connection; `None` while the connection seems to be open."""
    unreadable_messages = PassThrough[int]()
    """The number of lines, so far, in the server's output that weren't messages."""

    server_extension = sync_method(of_client.Client.server_extension)
