"""Records: what a client stores of its authorization at one server, as versioned JSON.

`TokenStorage` is the interface to store such records, and `MemoryTokenStorage` keeps them in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import attrs
import msgspec
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager
from ..credentials import AuthorizationError

_VERSION: Final = 1
BINDING: Final = "urn:trio-mcp:client:"
"""Prefix of the names of records that don't belong to a server: they say which issuer a client's secret belongs to."""


class UnreadableTokens(ValueError):
    """The text isn't a record of this version. The message contains nothing of the text."""


@frozen(kw_only=True)
class RegisteredClient:
    """A client as registered at one authorization server (RFC 7591 section 3.2.1)."""

    client_id: str
    """The client id there."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    """The secret of the client; `None` for a public client."""
    secret_expires_at: float | None = None
    """When the secret expires, in seconds since the epoch; `None`: never."""
    auth_method: str = "none"
    """How the client authenticates at the token endpoint (RFC 7591 section 2, ``token_endpoint_auth_method``)."""
    redirect_uris: tuple[str, ...] = ()
    """The redirect URIs that the server has accepted."""
    scopes: tuple[str, ...] | None = None
    """The scopes that the client may request, if the server has listed them; `None`: any."""


@frozen(kw_only=True)
class Tokens:
    """The tokens that a token endpoint has issued (RFC 6749 section 5.1)."""

    access_token: str = attrs.field(repr=False)
    """The access token, a secret."""
    token_type: str = "Bearer"
    """``Bearer`` or ``DPoP``."""
    scopes: tuple[str, ...] = ()
    """The granted scopes; the requested ones if the server didn't say."""
    expires_at: float | None = None
    """When the access token expires, in seconds since the epoch; `None` if the server didn't say."""
    refresh_token: str | None = attrs.field(default=None, repr=False)
    """The refresh token, a secret; `None` if there is none."""


@frozen(kw_only=True)
class IssuerRecord:
    """The record of one authorization server. Nothing of it is ever sent to another (2026-07-28 authorization,
    Authorization Server Binding)."""

    client: RegisteredClient | None = None
    """The registration; `None` if the client isn't registered here."""
    tokens: Tokens | None = None
    """The tokens; `None` before the first sign-in, and after the last token was refused."""
    requested_scopes: tuple[str, ...] = ()
    """All scopes that were requested so far; a step-up adds to them."""
    resource: str | None = None
    """The resource of the tokens, as in the server's metadata (RFC 9728 section 2); `None` before the first sign-in."""
    proof_key: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    """The private DPoP key as a JWK, without which the tokens are useless; `None` without DPoP."""


@frozen(kw_only=True)
class StoredAuthorization:
    """What a client stores of its authorization at one server, by authorization server."""

    issuers: Mapping[str, IssuerRecord] = attrs.field(factory=dict[str, IssuerRecord])
    """The record of each authorization server, by its issuer."""
    current: str | None = None
    """The issuer whose tokens the client used last; `None` before the first sign-in."""

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of the `current` issuer."""
        record = self.issuers.get(self.current or "")
        return None if record is None else record.tokens

    def _with_record(self, issuer: str, record: IssuerRecord) -> StoredAuthorization:
        """Return a copy with ``record`` for ``issuer``, which becomes the current issuer."""
        return StoredAuthorization(issuers={**self.issuers, issuer: record}, current=issuer)

    def to_json(self) -> bytes:
        """Return the record as JSON, including secrets."""
        return msgspec.json.encode(_File(_VERSION, self))

    @classmethod
    def from_json(cls, data: bytes) -> StoredAuthorization:
        """Read a record that `to_json` has written. Raises `UnreadableTokens`."""
        try:
            return _files.decode(data).stored
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableTokens(f"not a record of version {_VERSION}: {type(error).__name__}") from None


def _is_version(_: Any, __: Any, version: int) -> None:
    if version != _VERSION:
        raise ValueError("another version")


@frozen
class _File:
    version: int = attrs.field(validator=_is_version)
    stored: StoredAuthorization


# Created here: if two threads prepare to decode a class at the same moment, the process crashes (msgspec 0.22).
_files: Final = msgspec.json.Decoder(_File)


class TokenStorageFailed(AuthorizationError):
    """The token storage can't be used, or contains something other than a token record."""


def name_of_record(server_url: str) -> str:
    """Return a file name for the record of the server, of 32 hexadecimal digits: URLs are long, and contain characters
    that file names can't have."""
    return hashlib.sha256(server_url.encode()).hexdigest()[:32]


class TokenStorage(Protocol):
    """The interface for storing token records, each under the URL of an MCP server, or under a name like
    ``urn:trio-mcp:client:…`` for the credentials of a client.

    All methods may be cancelled at any checkpoint, and leave a complete record, the old or the new one. All raise
    `TokenStorageFailed`.
    """

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the record; `None` if there is none."""
        ...

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Store ``stored`` instead of the previous record, durably if the storage is durable."""
        ...

    async def remove(self, server_url: str) -> bool:
        """Delete the record, and return whether there was one."""
        ...

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Lock the record for this task, among all tasks and processes that share the storage."""
        ...


class MemoryTokenStorage(TokenStorage):
    """Keeps token records in memory: a user signs in again each time the process is started."""

    def __init__(self) -> None:
        self._records: dict[str, StoredAuthorization] = {}
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<MemoryTokenStorage, {len(self._records)} records>"

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the record: see `TokenStorage.load`."""
        await trio.lowlevel.checkpoint()
        return self._records.get(server_url)

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Store ``stored`` instead of the previous record: see `TokenStorage.save`."""
        await trio.lowlevel.checkpoint()
        self._records[server_url] = stored

    async def remove(self, server_url: str) -> bool:
        """Delete the record: see `TokenStorage.remove`."""
        await trio.lowlevel.checkpoint()
        return self._records.pop(server_url, None) is not None

    @asynccontextmanager
    async def lock(self, server_url: str) -> AsyncGenerator[None]:
        """Lock the record for this task: see `TokenStorage.lock`."""
        lock = self._locks.setdefault(server_url, trio.Lock())
        async with lock:
            yield
