"""Parses the URL of Redis: a single server, a primary found by Sentinel, or a cluster."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import attrs

from ....classes import frozen

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_TLS_SETTINGS: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})
_SENTINEL_SETTINGS: Final = frozenset({"sentinel_username", "sentinel_password"})
_WORDS: Final = (
    "redis://HOST:PORT/DB, rediss:// for TLS, unix:///PATH?db=DB, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE?db=DB or"
    " redis+cluster://HOST:PORT,HOST:PORT"
)
_ESCAPES: Final = "in a password, write @, :, /, ?, #, [ and ] as %40, %3A, %2F, %3F, %23, %5B and %5D"


class AddressKind(Enum):
    """The kinds of Redis deployments, as named by the scheme of a Redis URL."""

    SERVER = "redis"
    SOCKET = "unix"
    SENTINEL = "redis+sentinel"
    CLUSTER = "redis+cluster"


@frozen
class RedisAddress:
    """The hosts and credentials of Redis. ``str()`` and ``repr()`` don't contain credentials."""

    kind: AddressKind
    hosts: Sequence[tuple[str, int]] = ()
    """Hosts and ports: of the server, of the sentinels, or of the first cluster nodes to query."""
    path: str = ""
    """Path of the Unix socket."""
    service: str = ""
    """The name of the service in Sentinel."""
    db: int = 0
    credentials: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    sentinel_credentials: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    ssl_context: ssl.SSLContext | None = attrs.field(default=None, repr=False)

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.service} of {hosts}" if self.kind is AddressKind.SENTINEL else hosts or self.path


def parse_url(url: str, ssl_context: ssl.SSLContext | None = None) -> RedisAddress:
    """Parse the Redis URL ``url``. Raises `ValueError` if the URL is invalid. The error's message doesn't contain the
    URL's credentials.

    For ``rediss`` (TLS), ``ssl_context`` is used, or a context made from the query: ``ssl_ca_certs``, ``ssl_certfile``,
    ``ssl_keyfile`` and ``ssl_check_hostname=no``. The certificate of the server is verified in any case.
    """
    split = _split(url)
    is_tls = split.scheme.startswith("rediss")
    try:
        kind = AddressKind(split.scheme.replace("rediss", "redis", 1))
    except ValueError:
        raise ValueError(f"unknown scheme {split.scheme}:// in the Redis URL; write {_WORDS}") from None
    if ssl_context is not None and not is_tls:
        raise ValueError(
            f"ssl_context is only for TLS, not for {split.scheme}://; write {kind.value.replace('redis', 'rediss')}://"
        )
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    allowed = [*(_TLS_SETTINGS if is_tls else ()), *(_SENTINEL_SETTINGS if kind is AddressKind.SENTINEL else ()), "db"]
    # Don't quote unknown parameters in the error, because they may be a part of the password.
    if query.keys() - allowed:
        raise ValueError(
            f"unknown parameters in the query of the Redis URL; allowed are {', '.join(allowed)}; {_ESCAPES}"
        )
    userinfo, _, hosts = split.netloc.rpartition("@")
    path = unquote(split.path)
    db = query.get("db") or ("" if kind in (AddressKind.SOCKET, AddressKind.SENTINEL) else path.strip("/")) or "0"
    if not (db.isascii() and db.isdigit()) or (kind is AddressKind.CLUSTER and int(db)):
        raise ValueError("the database in the Redis URL must be a number; for a cluster, it must be 0")
    if kind is AddressKind.SENTINEL and not path.strip("/"):
        raise ValueError(f"the Redis URL must contain the name of the Sentinel service; write {_WORDS}")
    username, _, password = userinfo.partition(":")
    return RedisAddress(
        kind,
        hosts=() if kind is AddressKind.SOCKET else _hosts(hosts, kind),
        path=path if kind is AddressKind.SOCKET else "",
        service=path.strip("/") if kind is AddressKind.SENTINEL else "",
        db=int(db),
        credentials=_credentials(unquote(username), unquote(password)),
        sentinel_credentials=_credentials(query.get("sentinel_username", ""), query.get("sentinel_password", "")),
        ssl_context=(ssl_context or _context(query)) if is_tls else None,
    )


def _split(url: str) -> SplitResult:
    """Split the Redis URL ``url`` into its parts.

    Error messages quote some parts. Raises `ValueError` if one of those parts may contain a piece of the password.
    """
    try:
        split = urlsplit(url)
    except ValueError:  # don't chain the original error, because its text may contain the password
        raise ValueError(f"invalid Redis URL; write {_WORDS}; {_ESCAPES}") from None
    if split.fragment or (split.netloc and "@" in split.path):
        raise ValueError(f"the Redis URL must not contain # or @ after its host; {_ESCAPES}")
    return split


def _hosts(text: str, kind: AddressKind) -> Sequence[tuple[str, int]]:
    default = _SENTINEL_PORT if kind is AddressKind.SENTINEL else _PORT
    hosts = list[tuple[str, int]]()
    for each in text.split(","):
        parts = SplitResult("", each, "", "", "")
        try:
            hosts.append((parts.hostname or "127.0.0.1", parts.port or default))
        except ValueError:
            raise ValueError(f"the port in the Redis URL must be a number; write {_WORDS}") from None
    if len(hosts) > 1 and kind is AddressKind.SERVER:
        raise ValueError(f"only the Redis URL of sentinels or of a cluster may contain several hosts; write {_WORDS}")
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
