"""The address of Redis: one server, the primary that Sentinel names, or a cluster; and connections to it by coredis.

Here is all that depends on the kind of address. coredis is imported with the first client: that takes 0.2 s.
"""

from __future__ import annotations

import logging
import math
import ssl
from binascii import crc_hqx
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import attrs

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager, contextmanager
from ...concurrency.nurseries import only_member

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_SLOTS: Final = 16384
_POOL: Final = 8
"""Connections of one client to one server, at most. Commands of all callers share one, as long as it is usable."""

_TLS_SETTINGS: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})
_SENTINEL_SETTINGS: Final = frozenset({"sentinel_username", "sentinel_password"})
_WORDS: Final = (
    "redis://HOST:PORT/DB, rediss:// for TLS, unix:///PATH?db=DB, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE?db=DB or"
    " redis+cluster://HOST:PORT,HOST:PORT"
)


class Kind(Enum):
    """The kinds of addresses."""

    SERVER = "redis"
    SOCKET = "unix"
    SENTINEL = "redis+sentinel"
    CLUSTER = "redis+cluster"


@frozen
class Address:
    """Where Redis is, and who we are there. As text, without credentials."""

    kind: Kind
    hosts: Sequence[tuple[str, int]] = ()
    """Hosts and ports: the server, the sentinels, or nodes of the cluster to ask first."""
    path: str = ""
    """Path of the Unix socket."""
    service: str = ""
    """Name by which Sentinel knows the servers."""
    db: int = 0
    credentials: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    sentinel_credentials: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    ssl_context: ssl.SSLContext | None = attrs.field(default=None, repr=False)

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.service} of {hosts}" if self.kind is Kind.SENTINEL else hosts or self.path

    @asynccontextmanager
    async def open_client(self, *, limit: float, max_idle: float) -> AsyncGenerator[Client]:
        """Open connections, for calls of up to ``limit`` seconds; one that is silent for ``max_idle`` seconds is
        closed. Only a cluster is asked something at once. Raises what coredis raises: `RedisError`, `OSError` or a
        group of these."""
        from coredis import Sentinel  # late: imports of 0.2 s
        from coredis.connection import TCPConnection, TCPLocation, UnixDomainSocketConnection, UnixDomainSocketLocation
        from coredis.pool import ClusterConnectionPool, ConnectionPool, SentinelConnectionPool

        hosts = [TCPLocation(host, port) for host, port in self.hosts]
        options: dict[str, Any] = {"connect_timeout": limit, "max_idle_time": math.ceil(max_idle), **self.credentials}
        if self.ssl_context is not None:
            options["ssl_context"] = self.ssl_context
        if self.kind is Kind.CLUSTER:
            nodes = ClusterConnectionPool(
                hosts,
                max_connections=_POOL,
                max_connections_per_node=True,
                skip_full_coverage_check=True,  # by CONFIG, which users may not call
                stream_timeout=limit,  # also of the first questions, which nobody else limits
                **options,
            )
            async with nodes:
                yield Client(nodes, nodes.cluster_layout)
            return
        options |= {"db": self.db, "max_connections": _POOL}
        if self.kind is Kind.SENTINEL:
            patience = limit / (len(hosts) + 1)  # several may be silent, one after the other
            asked: dict[str, Any] = {
                "connect_timeout": patience,
                "stream_timeout": patience,
                **self.sentinel_credentials,
            }
            if self.ssl_context is not None:
                asked["ssl_context"] = self.ssl_context
            sentinel = Sentinel(hosts, sentinel_kwargs=asked)
            async with sentinel, SentinelConnectionPool(self.service, sentinel, **options) as pool:
                yield Client(pool)
            return
        if self.kind is Kind.SOCKET:
            kind: Any = UnixDomainSocketConnection
            location: Any = UnixDomainSocketLocation(self.path)
        else:
            kind, location = TCPConnection, hosts[0]
        async with ConnectionPool(connection_class=kind, location=location, **options) as pool:
            yield Client(pool)


class Client:
    """Connections to Redis. Of a cluster, to each node of ``layout``; a node is `None` elsewhere."""

    def __init__(self, pool: Any, layout: Any = None) -> None:
        self._pool = pool
        self._layout = layout

    def nodes(self) -> Sequence[Any]:
        """Return the nodes that answer for keys."""
        return [None] if self._layout is None else self._layout.primaries

    def node_of(self, key: bytes | None) -> Any:
        """Return the node of a key; any node for `None`. Raises `RedisError` where nobody has the slot of the key."""
        if self._layout is None:
            return None
        return self._layout.random_node() if key is None else self._layout.node_for_slot(_slot(key))

    def redirected(self, node: Any, answer: Any) -> Any:
        """Return the node that ``answer`` of ``node`` names in its place, where the cluster moves keys; else `None`."""
        if self._layout is None or not hasattr(answer, "host"):
            return None
        from coredis.connection import TCPLocation

        self._layout.report_errors(node, answer)
        return self._layout.node_for_location(TCPLocation(answer.host, answer.port))

    async def connection(self, node: Any) -> Any:
        """Return a connection to ``node`` that is usable now: give it back by `release` before the next checkpoint,
        once commands were put on it. Raises `RedisError` or `OSError` where none can be made. A cancel may cost one
        of the connections: whoever cancels this drops the client soon."""
        with _silent():
            return await self._pool.get_connection(node=node)

    def release(self, connection: Any) -> None:
        """Give a connection back."""
        self._pool.release(connection)

    def renew_connections(self) -> None:
        """Close all connections, so that the next call makes another one."""
        self._pool.disconnect()


def node_name(node: Any) -> str:
    """Return the host and port of a node of a cluster; an empty text elsewhere."""
    return "" if node is None else node.name


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of coredis that mean that Redis cannot be used, for an ``except``."""
    from coredis.exceptions import RedisError

    return RedisError, OSError


def is_failure(error: Exception) -> bool:
    """Return whether ``error`` is one of `failures`, or a group of nothing else."""
    if isinstance(error, ExceptionGroup):
        return all(is_failure(each) for each in cast("ExceptionGroup[Exception]", error).exceptions)
    return isinstance(error, failures())


def told(failure: BaseException) -> str:
    """Return what to tell people of an exception of `failures`: its deepest cause, without credentials."""
    failure = only_member(failure)
    while failure.__cause__ is not None and isinstance(failure.__cause__, failures()):
        failure = only_member(failure.__cause__)
    words = error_words(failure) if isinstance(failure, Exception) else None
    return words or str(failure) or type(failure).__name__


def error_words(answer: Exception) -> str | None:
    """Return the words of an error that Redis has answered, with the code in front; `None` for another failure."""
    from coredis import exceptions
    from coredis.parser import Parser

    if not isinstance(answer, exceptions.RedisError) or (
        isinstance(answer, exceptions.ConnectionError) and not isinstance(answer, exceptions.BusyLoadingError)
    ):
        return None
    code = next((code for code, kind in Parser.EXCEPTION_CLASSES.items() if kind is type(answer)), "")
    # coredis keeps the code of an error that it has no class for, but for ERR.
    return f"{code} {answer}".strip()


def _slot(key: bytes) -> int:
    """Return the slot of a key in a cluster: of the part in the first braces, if any."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return crc_hqx(key[start + 1 : end] if end > start + 1 else key, 0) % _SLOTS


_is_ours: ContextVar[bool] = ContextVar("trio_mcp.redis_connection", default=False)


@contextmanager
def _silent() -> Generator[None]:
    """Have coredis log nothing of connections that are made in the block: the link tells loss and return itself, once
    each, and coredis would add a traceback for each try."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


def silence() -> None:
    """Have coredis log nothing of the connections that the present task, and the tasks it starts, make."""
    logger = logging.getLogger("coredis")
    if _not_ours not in logger.filters:
        logger.addFilter(_not_ours)
    _is_ours.set(True)


def _not_ours(_: logging.LogRecord) -> bool:
    return not _is_ours.get()


def parse_url(url: str, ssl_context: ssl.SSLContext | None = None) -> Address:
    """Return the address that ``url`` means. With ``rediss``, ``ssl_context`` is used, or a context of the settings in
    the query: ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile`` and ``ssl_check_hostname=no``; the certificate of the
    server is checked in any case. Raises `ValueError`, which shows no credentials."""
    split = urlsplit(url)
    is_tls = split.scheme.startswith("rediss")
    try:
        kind = Kind(split.scheme.replace("rediss", "redis", 1))
    except ValueError:
        raise ValueError(f"{split.scheme}:// is no address of Redis; write {_WORDS}") from None
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    allowed = [*(_TLS_SETTINGS if is_tls else ()), *(_SENTINEL_SETTINGS if kind is Kind.SENTINEL else ()), "db"]
    if unknown := query.keys() - allowed:
        raise ValueError(f"the address of Redis has unknown settings: {', '.join(sorted(unknown))}")
    userinfo, _, hosts = split.netloc.rpartition("@")
    path = unquote(split.path)
    db = query.get("db") or ("" if kind in (Kind.SOCKET, Kind.SENTINEL) else path.strip("/")) or "0"
    if not (db.isascii() and db.isdigit()) or (kind is Kind.CLUSTER and int(db)):
        raise ValueError("the database of Redis is a number; a cluster has the database 0 alone")
    if kind is Kind.SENTINEL and not path.strip("/"):
        raise ValueError(f"the address names no service; write {_WORDS}")
    username, _, password = userinfo.partition(":")
    return Address(
        kind,
        hosts=() if kind is Kind.SOCKET else _hosts(hosts, kind),
        path=path if kind is Kind.SOCKET else "",
        service=path.strip("/") if kind is Kind.SENTINEL else "",
        db=int(db),
        credentials=_credentials(unquote(username), unquote(password)),
        sentinel_credentials=_credentials(query.get("sentinel_username", ""), query.get("sentinel_password", "")),
        ssl_context=(ssl_context or _context(query)) if is_tls else None,
    )


def _hosts(text: str, kind: Kind) -> Sequence[tuple[str, int]]:
    default = _SENTINEL_PORT if kind is Kind.SENTINEL else _PORT
    hosts = list[tuple[str, int]]()
    for each in text.split(","):
        parts = SplitResult("", each, "", "", "")
        try:
            hosts.append((parts.hostname or "127.0.0.1", parts.port or default))
        except ValueError:
            raise ValueError(f"the address of Redis has a port that is no number; write {_WORDS}") from None
    if len(hosts) > 1 and kind is Kind.SERVER:
        raise ValueError(f"several hosts are of Sentinel or of a cluster; write {_WORDS}")
    return hosts


def _credentials(username: str, password: str) -> Mapping[str, str]:
    given = {"username": username, "password": password}
    return {name: value for name, value in given.items() if value}


def _context(query: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=query.get("ssl_ca_certs"))
    if certificate := query.get("ssl_certfile"):
        context.load_cert_chain(certificate, query.get("ssl_keyfile"))
    if query.get("ssl_check_hostname") in ("no", "false", "0"):
        context.check_hostname = False
    return context
