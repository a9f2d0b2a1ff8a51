"""Member: a server of a group, and the trio task that keeps the connection to it open.

The `MemberListing` of a member reads the lists of its server, and reads them again after changes. `current_member`
returns the member that asks or logs, for handlers and callbacks that all members share.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar, cast

import attrs
import trio

from ..auth.credentials import AuthorizationError, ClientAuth, Credentials, UserIsAsked
from ..classes import frozen
from ..client.cache import Change
from ..client.client import Client
from ..client.current_call import CallHandlers, variable_set
from ..client.listing import SILENT, Collected, collect_each
from ..client.options import ClientOptions, ClientSettings
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import sole_exception
from ..connecting.bad_target import BadTarget
from ..connecting.credentials import trusted_http_hosts
from ..connecting.stdio import Command, NotReady
from ..connecting.targets import Address, Target
from ..diagnostics.log import peer_log_share
from ..jsonrpc.errors import MCPError
from ..runtime.transport import ConnectionLost
from ..transports.process import LastLines
from .catalogue import Catalogue, ListName
from .descriptions import MemberDescription, MemberState, MemberStatus, MemberUnavailable

_current_member: ContextVar[str | None] = ContextVar("trio_mcp.member", default=None)


def current_member() -> str | None:
    """Return the name of the group's server that has sent the current request or notification.

    This works inside a client's handlers and callbacks. Elsewhere, return `None`.

    Use it in the handlers and callbacks of a group; it also works in their child tasks and threads.
    """
    return _current_member.get()


_MEMBER_CALLBACKS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots"})


Options = TypeVar("Options", ClientOptions, CallHandlers)


def options_for_member(name: str, options: Options) -> Options:
    """Return a copy of the client ``options`` for the server ``name``. The handlers and callbacks are wrapped, so that
    `current_member` returns ``name`` inside them."""
    return cast("Options", {key: _wrapped_option(name, key, value) for key, value in options.items()})


def _wrapped_option(name: str, key: str, option: Any) -> Any:
    if not callable(option) or not (key in _MEMBER_CALLBACKS or key.startswith("on_")):
        return option
    function = cast("Callable[..., Any]", option)

    async def run(*args: Any) -> Any:
        with variable_set(_current_member, name):
            return await function(*args)

    def call(*args: Any) -> Any:
        with variable_set(_current_member, name):
            answer = function(*args)
        return _await_as_member(name, answer) if inspect.isawaitable(answer) else answer

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return run if is_async else call


async def _await_as_member(name: str, answer: Awaitable[Any]) -> Any:
    with variable_set(_current_member, name):
        return await answer


logger = logging.getLogger("trio_mcp")

_GONE: Final = {MemberState.FAILED: "has failed", MemberState.CLOSED: "was removed"}


class Member:
    """The connection to one server of a group. If the server fails, `run` raises no exception: the server's status
    shows the failure.

    ``changed`` is called with each new status.
    """

    def __init__(
        self,
        name: str,
        description: MemberDescription,
        options: ClientOptions,
        catalogue: Catalogue,
        changed: Callable[[MemberStatus], None],
    ) -> None:
        self.description = description
        self.status = MemberStatus(name, MemberState.STARTING)
        # Always pass a callback, because a modern server reports list changes only to a client with a callback.
        # The callback does nothing: `MemberListing` has already handled the change of the list when the callback runs.
        given: ClientOptions = {"on_list_changed": lambda _: None, **options, **description.options}
        self._options = options_for_member(name, given)
        settings = ClientSettings(**self._options)
        self._connect_timeout = settings.connect_timeout
        if settings.record is not None:  # all connections to this server share one recorder
            self._options["record"] = settings.record
        self._listing = MemberListing(name, catalogue)
        self._changed = changed
        self._client: Client | None = None
        self._stderr = LastLines()
        self._failures = 0
        self._ready_since: float | None = None
        self._user_was_asked = False
        """True if the user was asked to sign in for the current connection."""
        self._scope = trio.CancelScope()
        self._present_scope = trio.CancelScope()
        self._news = trio.lowlevel.ParkingLot()
        self.ended = trio.Event()
        """This event is set when the member has ended completely."""

    @property
    def present(self) -> Client | None:
        """The `Client` that is connected to the server. `None` while the server isn't connected.

        It may be `None` because of a lost connection that the member's own task hasn't noticed yet.
        """
        client = self._client
        return client if client is not None and client.lost is None else None

    # For callers

    async def client(self) -> Client:
        """Wait until the server is connected, and return the client of the current connection.

        Raises `MemberUnavailable` if the server has failed or was removed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if (client := self.present) is not None:
                return client
            status = self.status
            if status.state in _GONE:
                raise MemberUnavailable(status.name, _GONE[status.state], error=status.error, stderr=status.stderr)
            await self._news.park()

    async def settled(self) -> None:
        """Wait until the server's lists of tools, prompts and resources were read, or the server has failed at least
        once."""
        while self.status.state is MemberState.STARTING or (self.present is not None and not self._listing.read):
            await self._news.park()

    async def listed(self) -> None:
        """Wait until the server's lists of tools, prompts and resources were read.

        The server may have to be restarted for that. Also return if the lists will never be read.
        """
        while self.status.state not in _GONE and (self.present is None or not self._listing.read):
            await self._news.park()

    # Life

    def reconnect_as_legacy(self) -> None:
        """Reconnect to the server in a legacy protocol revision.

        This does nothing if the server's `MemberDescription` sets ``era`` or the revision.
        """
        named = self._options.get("revision") or getattr(self.description.target, "revision", None)
        if self.present is None or named is not None or self._options.get("era", "auto") != "auto":
            return
        self._options["era"] = "legacy"
        self._client = None
        self._set_status(attrs.evolve(self.status, state=MemberState.RESTARTING, retry_in=0.0))
        self._present_scope.cancel(reason="the member is reconnected in a legacy revision")

    def close(self) -> None:
        """Refuse further calls to the server, and start to close its connection.

        Calls in flight raise `ConnectionLost`. The member's own trio task closes the connection later.
        """
        self._client = None
        self._listing.stop()
        self._set_status(attrs.evolve(self.status, state=MemberState.CLOSED, retry_in=None))
        self._scope.cancel(reason="the member was removed")

    def _set_status(self, status: MemberStatus) -> None:
        if self.status.state is not MemberState.CLOSED:
            self.status = status
            self._changed(status)
            self._news.unpark_all()

    def _has_problems(self, problems: Mapping[str, str]) -> None:
        if self.status.state is MemberState.READY:
            self._set_status(attrs.evolve(self.status, problems=problems))

    async def run(self) -> None:
        """Connect to the server, and reconnect as its restart policy allows, until `close` is called."""
        try:
            with self._scope, peer_log_share():
                while True:
                    await self._run_once()
                    if self.status.state is MemberState.FAILED:
                        await trio.sleep_forever()
                    await trio.sleep(self.status.retry_in or 0)
        except Exception:
            logger.exception("member %s failed while it was closed", self.status.name)
        finally:
            self.ended.set()

    async def _run_once(self) -> None:
        failure: Exception | None = None
        try:
            async with self._connected() as client:
                try:
                    with trio.CancelScope() as self._present_scope:
                        await client.until_lost()
                except ConnectionLost as error:
                    failure = error
                    self._failed(error)
        except Exception as error:
            if failure is not None:
                logger.exception("member %s failed while it was closed", self.status.name)
            elif isinstance(sole_exception(error), NotReady):
                self._failed(cast("NotReady", sole_exception(error)).lost)
            elif isinstance(sole_exception(error), trio.TooSlowError):
                reason = f"the server was not ready within {self._connect_timeout:g} s"
                self._failed(ConnectionLost(reason, stderr=self._stderr.lines))
            else:
                self._failed(error)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Client]:
        # Limit the time to connect only if the target (the server's command or address) has no time limit of its own.
        # The time limit of an address with ``auth`` pauses while a user signs in.
        # Don't use `trio.fail_after`: it is built with contextlib, whose context managers leave reference cycles.
        target = self._target()
        limited = not (isinstance(target, Command) or (isinstance(target, Address) and target.auth is not None))
        with trio.move_on_after(self._connect_timeout if limited else math.inf) as connecting:
            async with target.open(**self._options) as client, trio.open_nursery() as nursery:
                connecting.deadline = math.inf
                self._listing.start(client)
                nursery.start_soon(self._listing.run, client, self._news, self._has_problems)
                self._client, self._ready_since = client, trio.current_time()
                self._set_status(MemberStatus(self.status.name, MemberState.READY, restarts=self._failures))
                yield client
                nursery.cancel_scope.cancel(reason="the connection is lost")
        if connecting.cancelled_caught:
            raise trio.TooSlowError

    def _target(self) -> Target:
        """Return the target of the connection, such as the server's command or address. If an address has an
        authorization, this `Member` object is notified when a user has to sign in.

        If the target is a command, the object also keeps the last lines of the command's standard error.
        """
        target = self.description.target
        self._user_was_asked = False
        match target:
            case Command():
                self._stderr = LastLines(target.stderr)
                return attrs.evolve(target, stderr=self._stderr)
            case Address() if target.auth is not None:
                return attrs.evolve(target, auth=_ObservedAuth(target.auth, self._record_question))
            case _:
                return target

    def _record_question(self) -> None:
        self._user_was_asked = True

    def _failed(self, failure: Exception) -> None:
        """Decide whether to restart a server that has failed, and publish its new status.

        This happens before the connection is cleaned up.
        """
        self._client = None
        error = cast("Exception", sole_exception(failure))
        expected = isinstance(error, MCPError)
        if not expected:
            logger.error("member %s failed", self.status.name, exc_info=failure)
        policy, now = self.description.restart, trio.current_time()
        if policy is not None and self._ready_since is not None and now - self._ready_since >= policy.stable_after:
            self._failures = 0
        self._ready_since = None
        stderr = error.stderr if isinstance(error, ConnectionLost) and error.stderr else self._stderr.lines
        status = MemberStatus(self.status.name, MemberState.FAILED, error, stderr, self._failures)
        # Don't restart if the configuration is invalid, or if the user would have to sign in again.
        hopeless = isinstance(error, BadTarget) or (isinstance(error, AuthorizationError) and self._user_was_asked)
        if policy is not None and expected and not hopeless and self._failures < policy.attempts:
            self._failures += 1
            delay = policy._delay(self._failures)
            status = attrs.evolve(status, state=MemberState.RESTARTING, restarts=self._failures, retry_in=delay)
        self._set_status(status)


@frozen
class _ObservedAuth(ClientAuth):
    """Wraps the authorization ``auth``, and calls ``on_user_asked`` whenever a user has to sign in."""

    auth: ClientAuth
    on_user_asked: Callable[[], None] = attrs.field(eq=False, repr=False)

    @property
    def trusted_http_hosts(self) -> Collection[str]:
        return trusted_http_hosts(self.auth)

    def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AbstractAsyncContextManager[Credentials]:
        def asking() -> AbstractContextManager[None]:
            self.on_user_asked()
            return user_is_asked()

        return self.auth._opened(server_url, asking)


_MAX_SECONDS: Final = 60.0
_REST_TIME: Final = 0.1
_LISTS_OF: Final[dict[str, tuple[ListName, ...]]] = {
    "tools": ("tools",),
    "prompts": ("prompts",),
    "resources": ("resources", "resource_templates"),
}


class MemberListing:
    """Reads the lists of one server (tools, prompts and so on) into the catalogue. Reads a list again when it changes.

    A list may have 10,000 items and 16 MiB, and take 60 seconds. The next list waits 2 seconds for it. After reading,
    the listing pauses for 100 ms, or for as long as the reading took, whatever changes the server reports. If a list
    fails, the catalogue keeps the items that it had, or else gets the items that arrived.
    """

    def __init__(self, member: str, catalogue: Catalogue) -> None:
        self._member = member
        self._catalogue = catalogue
        self._problems: dict[str, str] = {}
        self._stale: dict[ListName, None] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self.read = False
        """True once all lists have been read over the current connection."""
        self._lost = False
        """True once the current connection is lost."""
        self._over = False
        """True once the member was removed from the group."""

    def start(self, client: Client) -> None:
        """Prepare to read the server's lists over a new connection, and to notice their changes.

        These are the tools, and all other lists that the server declares.
        """
        declared = client.server_capabilities
        self._stale = {name: None for kind, names in _LISTS_OF.items() if getattr(declared, kind) for name in names}
        self._stale["tools"] = None
        self._problems = {}
        self.read = self._lost = False
        client._callbacks.watchers.append(self._on_change)

    def stop(self) -> None:
        """Stop writing to the catalogue. From now on, a new server with the name of this server may write to it."""
        self._over = True

    def _on_change(self, change: Change) -> None:
        for name in _LISTS_OF.get(change.kind, ()):
            self._stale[name] = None
        self._changed.unpark_all()

    async def run(
        self, client: Client, after_reading: trio.lowlevel.ParkingLot, changed: Callable[[Mapping[str, str]], None]
    ) -> None:
        """Read the server's lists, and read a list again after each change.

        This ends when the connection is lost, or when it is cancelled.

        ``changed`` is called with the problems of all lists when they change: see `MemberStatus.problems`.
        """
        while True:
            began = trio.current_time()
            due, self._stale = self._stale, {}  # a list that changes while it is read must be read again
            lists: dict[ListName, AsyncIterator[Any]] = {name: getattr(client, f"list_{name}")() for name in due}
            await collect_each(lists, _MAX_SECONDS, partial(self._store_list, changed))
            if self._lost:
                return
            self.read = True
            after_reading.unpark_all()
            # Pause, because reading long lists slows down all other tasks.
            await trio.sleep(max(_REST_TIME, trio.current_time() - began))
            while not self._stale:
                await self._changed.park()

    def _store_list(self, changed: Callable[[Mapping[str, str]], None], name: ListName, found: Collected[Any]) -> None:
        """Store the items of a list that was read, and the problems with this list."""
        if isinstance(found.error, ConnectionLost):
            self._lost = True
            return
        problems = {key: words for key, words in self._problems.items() if key != name}
        if found.problem is not None:
            problems[name] = found.problem
        if problems != self._problems:
            if found.problem is not None and found is not SILENT:
                logger.warning("the %s of member %s are incomplete: %s", name, self._member, found.problem)
            self._problems = problems
            changed(problems)
        if not self._over and (found.error is None or not self._catalogue._has_any(self._member, name)):
            self._catalogue._replace(self._member, name, found.items)
