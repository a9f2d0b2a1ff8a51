"""Connections to Redis, made with coredis, and checks of the commands that may be sent on a shared connection.

Only this module depends on the kind of address, and on the errors of coredis. coredis is imported with the first
client, because the import takes 0.2 s.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import math
import re
from binascii import crc_hqx
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import attrs

from ....classes import frozen
from ....concurrency.contexts import asynccontextmanager, contextmanager
from ....concurrency.nurseries import sole_exception
from .address import AddressKind, RedisAddress

if TYPE_CHECKING:
    from coredis.connection import TCPLocation

Value: TypeAlias = bytes | str | int
"""An argument of a Redis command. Text is sent as UTF-8."""

_FORBIDDEN: Final = frozenset(
    {
        # BLPOP and similar commands block the connection. XREAD and XREADGROUP block only with their option BLOCK.
        *("BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "WAIT", "WAITAOF"),
        # SUBSCRIBE and similar commands make Redis send messages that aren't replies to commands.
        *("MONITOR", "PSUBSCRIBE", "PSYNC", "PUNSUBSCRIBE", "SSUBSCRIBE", "SUBSCRIBE", "SUNSUBSCRIBE", "SYNC"),
        "UNSUBSCRIBE",
        # AUTH and similar commands change the state of the connection, which another caller uses next.
        *("ASKING", "AUTH", "CLIENT", "DISCARD", "EXEC", "HELLO", "MULTI", "QUIT", "READONLY", "READWRITE", "RESET"),
        *("SELECT", "UNWATCH", "WATCH"),
    }
)
_MAY_BLOCK: Final = frozenset({"XREAD", "XREADGROUP"})

_SCRIPTS: Final = frozenset({"EVAL", "EVALSHA", "FCALL"})
_KEY_OF_SCRIPT: Final = 3
"""Index of the first key in a command that runs a script, after the number of keys."""

_REFUSED: Final = frozenset(
    {
        *("ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH"),
        *("NOREPLICAS", "NOSCRIPT", "OOM", "READONLY", "TRYAGAIN"),
    }
)
"""Error codes with which Redis refuses a script before its first change.

Redis checks memory, disk and role at the first command of a script that writes, and not again after the script has
changed something.
"""
_NOT_COMPILED: Final = "Error compiling script"
_FORBIDDEN_WITHIN: Final = "in script"


@frozen
class Script:
    """A Lua script for Redis. While it runs, Redis runs no other commands.

    If a script fails, the changes that it made before stay. Therefore a script should report errors in its result.
    """

    name: str
    """Name of the script, for error texts."""
    text: str = attrs.field(repr=False)


_SECTION: Final = re.compile(r"^--- (library|script) (\w+)(?:: ([\w, ]+))?\n", re.MULTILINE)


def load_scripts(name: str) -> Mapping[str, Script]:
    """Load the Lua scripts in the file ``name``.lua of this folder, and return them by name.

    A line ``--- script NAME: LIBRARIES`` begins a script, and names the libraries that are put before its text. A line
    ``--- library NAME`` begins a library.
    """
    _, *parts = _SECTION.split(Path(__file__).with_name(f"{name}.lua").read_text())
    libraries, scripts = dict[str, str](), dict[str, Script]()
    for kind, title, uses, text in zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True):
        if kind == "library":
            libraries[title] = text
        else:
            texts = [libraries[each.strip()] for each in (uses or "").split(",") if each]
            scripts[title] = Script(title, "".join((*texts, text)))
    return scripts


@cache
def digest(text: str) -> str:
    """Return the SHA-1 digest that identifies the Lua script ``text`` in Redis."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def check_argument_types(words: Iterable[object]) -> None:
    """Raise `TypeError` unless all arguments of a Redis command are bytes, strings or integers.

    With other types, coredis would close the connection.
    """
    for word in words:
        if not isinstance(word, (bytes, str, int)):
            raise TypeError(f"an argument of a Redis command must be bytes, str or int, not {type(word).__name__}")


def check(command: Sequence[Value]) -> None:
    """Raise `ValueError` if a Redis command would block a shared connection or change its state.

    Raises `TypeError` as `check_argument_types` does.
    """
    check_argument_types(command)
    if (name := _name(command)) in _FORBIDDEN or (name in _MAY_BLOCK and "BLOCK" in map(_upper, command)):
        raise ValueError(
            f"the Redis command {name} isn't allowed: it blocks the shared connection, or changes its state"
        )


def runs_script(command: Sequence[Value]) -> bool:
    """Return whether a Redis command runs a Lua script. A script may change data before it fails."""
    return _name(command) in _SCRIPTS


def key_of(command: Sequence[Value]) -> bytes | None:
    """Return the key that decides which cluster node a command is sent to.

    This is the command's first argument or, for a script, its first key.

    Returns `None` if the command can be sent to any node.
    """
    place = 1
    if runs_script(command):
        place = _KEY_OF_SCRIPT
        if not int(command[place - 1]):
            return None
    if len(command) <= place:
        return None
    word = command[place]
    return word if isinstance(word, bytes) else str(word).encode()


def is_refusal(error: str) -> bool:
    """Return whether ``error``, an error text from Redis, shows that the Lua script was refused before it changed
    anything."""
    code = error.partition(" ")[0]
    return code in _REFUSED or error.startswith(_NOT_COMPILED) or (code == "NOPERM" and _FORBIDDEN_WITHIN not in error)


def _name(command: Sequence[Value]) -> str:
    return _upper(command[0])


def _upper(word: Value) -> str:
    return (word.decode(errors="replace") if isinstance(word, bytes) else str(word)).upper()


_SLOTS: Final = 16384
_NEVER: Final = 1_000_000_000
"""Number of errors after which coredis reads the cluster layout in the background."""
_POOL: Final = 8
"""Maximum connections of one client to one server. Commands of all callers share a usable one."""


@asynccontextmanager
async def open_client(address: RedisAddress, *, limit: float, max_idle: float) -> AsyncGenerator[RedisClient]:
    """Open a pool of connections to Redis. Each Redis command takes at most ``limit`` seconds.

    A connection that is silent for ``max_idle`` seconds is closed. Only a cluster gets a command at once. Raises the
    errors in `failures`, and groups of them.
    """
    from coredis import connection  # import coredis only here, because its import takes 0.2 s
    from coredis.pool import ConnectionPool

    hosts = [connection.TCPLocation(host, port) for host, port in address.hosts]
    secured: dict[str, Any] = {} if address.ssl_context is None else {"ssl_context": address.ssl_context}
    timing = {"connect_timeout": limit, "max_idle_time": math.ceil(max_idle)}
    options: dict[str, Any] = {**timing, **secured, **address.credentials}
    if address.kind is AddressKind.CLUSTER:
        opened: AbstractAsyncContextManager[Any] = _open_cluster(hosts, limit, options)
    else:
        options |= {"db": address.db, "max_connections": _POOL}
        if address.kind is AddressKind.SENTINEL:
            opened = _open_primary(address, hosts, limit, {**secured, **address.sentinel_credentials}, options)
        else:
            if address.kind is AddressKind.SOCKET:
                kind: Any = connection.UnixDomainSocketConnection
                location: Any = connection.UnixDomainSocketLocation(address.path)
            else:
                kind, location = connection.TCPConnection, hosts[0]
            opened = ConnectionPool(connection_class=_closing_buffers(kind), location=location, **options)
    async with opened as pool:
        try:
            yield RedisClient(pool, getattr(pool, "cluster_layout", None))
        finally:
            # Refuse new connections: a call that is still waiting would open one, and nothing would close it.
            pool.connection_class = cast("Any", _refuse_connection)


@asynccontextmanager
async def _open_cluster(hosts: list[TCPLocation], limit: float, options: dict[str, Any]) -> AsyncGenerator[Any]:
    """Open connections to all nodes of a cluster. ``hosts`` are some of the nodes."""
    from coredis.connection import ClusterConnection
    from coredis.pool import ClusterConnectionPool

    nodes = ClusterConnectionPool(
        hosts,
        connection_class=_closing_buffers(ClusterConnection),
        max_connections=_POOL,
        max_connections_per_node=True,
        skip_full_coverage_check=True,  # coredis's check calls CONFIG, which many Redis users may not call
        # Don't read the cluster layout after each error: redirects update it, and each new client reads it.
        reinitialize_steps=_NEVER,
        # `stream_timeout` also limits coredis's own queries for the cluster layout, which have no other timeout.
        stream_timeout=limit,
        **options,
    )
    try:
        async with nodes:
            yield nodes
    finally:
        _close_buffers(nodes.cluster_layout)


@asynccontextmanager
async def _open_primary(
    address: RedisAddress, hosts: list[TCPLocation], limit: float, secured: dict[str, Any], options: dict[str, Any]
) -> AsyncGenerator[Any]:
    """Open connections to the Redis primary that the sentinels at ``hosts`` name."""
    from coredis import Sentinel, connection
    from coredis.pool import SentinelConnectionPool

    class Pool(SentinelConnectionPool):
        async def _construct_connection(self) -> connection.SentinelManagedConnection:
            primary = await self.get_primary_location()
            return self.connection_class(primary, self.service_name, True, **self.connection_kwargs)

    patience = limit / (len(hosts) + 1)  # divide the time limit, because several sentinels may fail one after the other
    sentinel = Sentinel(hosts, sentinel_kwargs={"connect_timeout": patience, "stream_timeout": patience, **secured})
    for each in sentinel.sentinels:
        each.connection_pool.connection_class = _closing_buffers(connection.TCPConnection)
    primary_pool = Pool(address.service, sentinel, **options)
    primary_pool.connection_class = _closing_buffers(connection.SentinelManagedConnection)
    async with sentinel, primary_pool as pool:
        yield pool


def _refuse_connection(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOTCONN, "the connections to Redis were closed")


class _ClosesBuffers:
    """A connection that closes its anyio memory streams when it ends.

    coredis leaves the buffers of a failed connection open, and anyio would warn about each.
    """

    async def run(self, **options: Any) -> None:
        try:
            await cast("Any", super()).run(**options)
        finally:
            _close_buffers(self)


def _closing_buffers(kind: Any) -> Any:
    return type(kind.__name__, (_ClosesBuffers, kind), {})


def _close_buffers(owner: object) -> None:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    for member in vars(owner).values():
        for each in cast("tuple[Any, ...]", member) if isinstance(member, tuple) else (member,):
            if isinstance(each, (MemoryObjectReceiveStream, MemoryObjectSendStream)):
                each.close()


class RedisClient:
    """A pool of connections to Redis.

    In its methods, ``node`` is a node of the Redis cluster, or `None` without a cluster.
    """

    def __init__(self, pool: Any, layout: Any = None) -> None:
        self._pool = pool
        self._layout = layout

    def nodes(self) -> Sequence[Any]:
        """Return the primary nodes of the cluster. Without a cluster, return ``[None]``."""
        return [None] if self._layout is None else self._layout.primaries

    def node_of(self, key: bytes | None) -> Any:
        """Return the cluster node that stores ``key``, or any node if ``key`` is `None`.

        Raises `RedisError` if no node has the key's slot.
        """
        if self._layout is None:
            return None
        return self._layout.random_node() if key is None else self._layout.node_for_slot(_slot(key))

    def redirect_node(self, node: Any, answer: Any) -> Any:
        """Return the cluster node to which the error ``answer`` redirects, because ``node`` no longer has the key.

        Returns `None` if ``answer`` isn't a redirect.
        """
        if self._layout is None or not hasattr(answer, "host"):
            return None
        from coredis.connection import TCPLocation

        self._layout.report_errors(node, answer)
        return self._layout.node_for_location(TCPLocation(answer.host, answer.port))

    async def connection(self, node: Any) -> Any:
        """Return a usable connection to the cluster node ``node``. Raises an exception in `failures` if no connection
        is usable.

        Put commands on the connection, and call `release` before the next checkpoint. A cancellation may lose a place
        in the pool, so after one the client must be dropped soon.
        """
        with _silenced_coredis_logs():
            try:
                return await self._pool.get_connection(node=node)
            except failures():
                raise
            except Exception as error:  # coredis raises various exceptions if it can't parse the replies
                raise OSError(errno.ENOTCONN, f"could not connect to Redis: {error}") from error

    def release(self, connection: Any) -> None:
        """Put a connection to Redis back into the pool."""
        self._pool.release(connection)

    def renew_connections(self) -> None:
        """Close all connections to Redis. The next call opens new ones."""
        self._pool.disconnect()


def node_name(node: Any) -> str:
    """Return the host and port of a cluster node. Return an empty string without a cluster."""
    return "" if node is None else node.name


def failures() -> tuple[type[Exception], ...]:
    """Return a tuple for ``except``: the types of the exceptions that are raised if Redis is unavailable.

    Two of them are of anyio: a connection that is being closed still counts as usable, but accepts no command.
    """
    from anyio import BrokenResourceError, ClosedResourceError
    from coredis.exceptions import RedisError

    return RedisError, OSError, BrokenResourceError, ClosedResourceError


def reason_of(failure: BaseException) -> str:
    """Follow the causes of ``failure`` while they are exceptions in `failures`, and return the text of the last one.

    The text contains no credentials.
    """
    failure = sole_exception(failure)
    while failure.__cause__ is not None and isinstance(failure.__cause__, failures()):
        failure = sole_exception(failure.__cause__)
    words = error_text(failure) if isinstance(failure, Exception) else None
    return words or str(failure) or type(failure).__name__


def error_text(answer: Exception) -> str | None:
    """Return the text of an error reply from Redis, with the error code first.

    Returns `None` if the exception isn't an error reply.
    """
    from coredis import exceptions
    from coredis.parser import Parser

    if not isinstance(answer, exceptions.RedisError) or (
        isinstance(answer, exceptions.ConnectionError) and not isinstance(answer, exceptions.BusyLoadingError)
    ):
        return None
    code = next((code for code, kind in Parser.EXCEPTION_CLASSES.items() if kind is type(answer)), "")
    # If coredis has no exception class for an error code, the exception's text begins with this code, unless it is ERR.
    return f"{code} {answer}".strip()


def _slot(key: bytes) -> int:
    """Return the cluster slot of a Redis key.

    If the key contains braces, only the text in the first pair of braces determines the slot.
    """
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return crc_hqx(key[start + 1 : end] if end > start + 1 else key, 0) % _SLOTS


_is_ours: ContextVar[bool] = ContextVar("trio_mcp.redis_connection", default=False)


@contextmanager
def _silenced_coredis_logs() -> Generator[None]:
    """Silence coredis's logs about connections that are opened inside the block.

    The link logs outages itself, one line each, and coredis would add a traceback for each attempt.
    """
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


def silence_coredis_logs() -> None:
    """Silence coredis's logs about connections that the current task and its child tasks open."""
    logger = logging.getLogger("coredis")
    if _not_ours not in logger.filters:
        logger.addFilter(_not_ours)
    _is_ours.set(True)


def _not_ours(_: logging.LogRecord) -> bool:
    return not _is_ours.get()
