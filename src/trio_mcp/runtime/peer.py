"""Peer describes the other end of a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import attrs

from ..concurrency.fair_share import Caller
from ..jsonrpc.codec import decode_value, pack_value
from .principal import Auth, PrincipalId

CheckScopes: TypeAlias = Callable[[frozenset[str]], None]
"""Raises `CodedError` for a caller who lacks one of the scopes."""

_CREDENTIALS: Final = frozenset(("authorization", "cookie", "dpop", "proxy-authorization"))


class Headers(Mapping[str, str]):
    """The headers of an HTTP request, found by their names in any case, and listed in lower case (RFC 9110 section
    5.1)."""

    __slots__ = ("_packed",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._packed: Mapping[str, str] | bytes = {name.lower(): value for name, value in values.items()}

    @classmethod
    def of_lower_case(cls, values: Mapping[str, str]) -> Headers:
        """Return the headers ``values``, whose names are in lower case already."""
        headers = cls.__new__(cls)
        headers._packed = values
        return headers

    def pack(self) -> None:
        """Keep the headers as text until the next look: the objects take three times as much memory."""
        if not isinstance(self._packed, bytes):
            self._packed = pack_value(self._packed)

    @property
    def _values(self) -> Mapping[str, str]:
        packed = self._packed
        if isinstance(packed, bytes):
            packed = self._packed = decode_value(packed)
        return packed

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        """Return the headers without credentials, which are not for logs."""
        shown = {name: "…" if name in _CREDENTIALS else value for name, value in self._values.items()}
        return f"Headers({shown!r})"


@attrs.frozen(eq=False)
class Peer:
    """The client, as far as known to the transport; nothing is known on stdio and in memory."""

    session_id: str | None = None
    """Name of this connection, made by us."""
    headers: Mapping[str, str] | None = None
    """Headers of the HTTP request that the client came with, preferably as `Headers`."""
    principal: PrincipalId | None = None
    """Identity of the caller, where the transport knows one; answers to questions must come from the same principal."""
    auth: Auth | None = None
    """The caller, as authorization has found; `None` where no authorization is configured. ``principal`` is the
    identity of its principal then."""
    caller: Caller | None = None
    """The party whose share of the bounds of the server the requests take; `None`: the connection is one by itself."""
    alone: bool = False
    """True when no other client can come while this client is connected, as on stdio: no resources need be kept free
    for others."""
    everybody: bool = False
    """True for all clients of an endpoint together, each of whose requests stands for itself: the bounds of a
    connection hold for none of the clients, but those of the whole server."""
    check_scopes: CheckScopes | None = None
    """The check of scopes that are found to be needed only while a request is answered; `None` where nobody knows
    scopes."""

    @property
    def name(self) -> str | None:
        """The caller in a word, for the log: the subject of the principal, else the network address; `None` where
        nobody knows."""
        if self.principal is not None:
            return self.principal.subject
        return None if self.caller is None else self.caller.address

    @property
    def is_told_apart(self) -> bool:
        """True when requests of this client can be told from those of any other client, on other connections, too."""
        return self.principal is not None or (self.alone and not self.everybody)

    def pack(self) -> None:
        """Keep the headers as text: see `Headers.pack`."""
        if isinstance(self.headers, Headers):
            self.headers.pack()


NOBODY_KNOWN = Peer()
THE_ONLY_ONE = Peer(alone=True)
EVERYBODY = Peer(alone=True, everybody=True)
