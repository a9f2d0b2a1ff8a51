"""Peer describes the other end of a connection; Principal, PrincipalId and Auth say who calls, as authorization
has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import msgspec

from ..classes import frozen
from ..concurrency.fair_share import Caller
from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.errors import CodedError

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


@frozen(eq=False)
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
    user: int | None = None
    """User id of the process at the other end of a Unix socket, where the system tells."""

    @property
    def name(self) -> str | None:
        """The caller in a word, for the log: the subject of the principal, else the network address; `None` where
        nobody knows."""
        if self.principal is not None:
            return self.principal.subject
        return None if self.caller is None else self.caller.address

    def has_scopes(self, needed: frozenset[str]) -> bool:
        """Return whether the caller has the scopes; true where nobody knows scopes."""
        if not needed or self.check_scopes is None:
            return True
        try:
            self.check_scopes(needed)
        except CodedError:
            return False
        return True

    @property
    def is_distinguishable(self) -> bool:
        """True when requests of this client can be told from those of any other client, on other connections, too."""
        return self.principal is not None or (self.alone and not self.everybody)

    def pack(self) -> None:
        """Keep the headers as text: see `Headers.pack`."""
        if isinstance(self.headers, Headers):
            self.headers.pack()


UNKNOWN_PEER = Peer()
SOLE_CLIENT = Peer(alone=True)
ANY_CLIENT = Peer(alone=True, everybody=True)


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def _read_only(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values if isinstance(values, MappingProxyType) else MappingProxyType(dict(values))


def _scopes(scopes: str | Iterable[str]) -> frozenset[str]:
    return frozenset(scopes.split() if isinstance(scopes, str) else scopes)


class PrincipalId(NamedTuple):
    """The identity of a principal: the issuer, and a name in the words of the issuer. Two tokens speak for the same
    principal when issuer and name are equal, and all else may differ. Never joined into one text, since a name may
    contain any separator."""

    issuer: str | None
    """The authorization server that vouches for the subject."""
    subject: str
    """The name of the user, or of the client."""
    is_client: bool = False
    """True for a client that speaks for itself: no user of the same name is meant (RFC 9068 section 5)."""

    def to_json(self) -> str:
        """Return the identity as JSON text, for records and other places that keep text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> PrincipalId:
        """Return the identity that `to_json` has written. Raises `ValueError` for other text."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"no identity of a principal: {error}") from None


def _identity_of(principal: Principal) -> PrincipalId:
    name = principal.subject or principal.client_id
    if not name:
        raise ValueError("a principal has a subject or a client_id")
    return PrincipalId(principal.issuer, name, name == principal.client_id)


@frozen(kw_only=True)
class Principal:
    """The party that a token speaks for, as a verifier has found. Raises `ValueError` for one without a name: neither
    ``subject`` nor ``client_id``."""

    issuer: str | None = None
    """The authorization server that vouches for the rest."""
    subject: str | None = None
    """The user, or the client itself, in the words of the issuer."""
    client_id: str | None = None
    """The OAuth client that holds the token."""
    scopes: frozenset[str] = attrs.field(default=frozenset[str](), converter=_scopes)
    """Permissions of the token; text is split at blanks."""
    claims: Mapping[str, Any] = attrs.field(default=_NOTHING, converter=_read_only, repr=False, eq=False)
    """The claims of the token, or of its issuer. Read-only."""
    expires_at: float | None = None
    """Time until which this server takes the token, in seconds since the epoch, the leeway of its verifier included;
    `None` where nothing is known."""
    key_thumbprint: str | None = None
    """The key that the token is bound to (RFC 9449, ``cnf.jkt``); `None` for a token that whoever has it may use."""

    @classmethod
    def _known_by(cls, identity: PrincipalId) -> Principal:
        """Return the principal with this ``id``, of which nothing else is known."""
        if identity.is_client:
            return cls(issuer=identity.issuer, client_id=identity.subject)
        return cls(issuer=identity.issuer, subject=identity.subject)

    id: PrincipalId = attrs.field(
        init=False, repr=False, eq=False, default=attrs.Factory(_identity_of, takes_self=True)
    )
    """The identity to which sessions, waiting handlers, states and tasks belong: the issuer and the subject. A client
    that speaks for itself, with its own name as the subject or without a subject (RFC 9068 section 2.2), is never equal
    to a user."""


@frozen
class Auth:
    """The caller of one request. Read-only; belongs to the request, never to the connection."""

    token: str = attrs.field(repr=False)
    """The token as it came. Nobody but its issuer and this server may see it (2026-07-28 authorization, Access Token
    Privilege Restriction). Empty in a run of a task after a restart: only the `Principal.id` of the caller is kept, and
    no scopes or claims are known."""
    principal: Principal
    """The caller, as the verifier of the token knows it."""
    extra: Mapping[str, Any] = attrs.field(default=_NOTHING, converter=_read_only, repr=False)
    """Facts that the server's own ``on_authenticated`` has added."""

    @property
    def client_id(self) -> str | None:
        """The OAuth client that holds the token."""
        return self.principal.client_id

    @property
    def scopes(self) -> frozenset[str]:
        """Permissions of the token."""
        return self.principal.scopes

    @property
    def claims(self) -> Mapping[str, Any]:
        """The claims of the token, or of its issuer."""
        return self.principal.claims
