"""Token records: what a client stores about its authorization at one server, as versioned JSON.

`TokenStorage` is the interface to store such records, and `MemoryTokenStorage` keeps them in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol
from weakref import WeakValueDictionary

import attrs
import msgspec
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager
from ..credentials import AuthorizationError

_VERSION: Final = 1
BINDING: Final = "urn:trio-mcp:client:"
"""Prefix of the names of records that don't belong to a server, but contain the issuer that a client's secret belongs
to."""


class UnreadableTokens(ValueError):
    """The stored text isn't a token record of the current format version. The error message contains no part of the
    text."""


@frozen(kw_only=True)
class RegisteredClient:
    """A client, as registered at one authorization server (RFC 7591 section 3.2.1)."""

    client_id: str
    """The client id at that authorization server."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    """The secret of the client; `None` for a public client."""
    secret_expires_at: float | None = None
    """The time at which the secret expires, in seconds since the epoch; `None` if it never expires."""
    auth_method: str = "none"
    """The method with which the client authenticates at the token endpoint (RFC 7591 section 2,
    ``token_endpoint_auth_method``)."""
    redirect_uris: tuple[str, ...] = ()
    """The redirect URIs that the authorization server has accepted."""
    scopes: tuple[str, ...] | None = None
    """The scopes that the client may request, if the server has listed them; `None` if it may request any."""


@frozen(kw_only=True)
class Tokens:
    """The tokens that a token endpoint has issued (RFC 6749 section 5.1)."""

    access_token: str = attrs.field(repr=False)
    """The access token, a secret."""
    token_type: str = "Bearer"
    """``Bearer`` or ``DPoP``."""
    scopes: tuple[str, ...] = ()
    """The granted scopes; the requested scopes if the server's response didn't list any."""
    expires_at: float | None = None
    """The time at which the access token expires, in seconds since the epoch; `None` if it is unknown."""
    refresh_token: str | None = attrs.field(default=None, repr=False)
    """The refresh token, a secret; `None` if there is none."""


@frozen(kw_only=True)
class IssuerRecord:
    """The data that a client stores about one authorization server.

    This data is never sent to another server (2026-07-28 authorization, Authorization Server Binding).
    """

    client: RegisteredClient | None = None
    """The client's registration at this authorization server; `None` if there is none."""
    tokens: Tokens | None = None
    """The current tokens; `None` before the first sign-in, and after the last token was refused."""
    requested_scopes: tuple[str, ...] = ()
    """All scopes that were requested so far. A step-up adds further scopes."""
    resource: str | None = None
    """The resource that the tokens are for, as in the server's metadata (RFC 9728 section 2); `None` before the first
    sign-in."""
    proof_key: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    """The private DPoP key as a JWK, without which the tokens are useless; `None` without DPoP."""


@frozen(kw_only=True)
class StoredAuthorization:
    """The data that a client stores about its authorization at one MCP server, with a record for each authorization
    server."""

    issuers: Mapping[str, IssuerRecord] = attrs.field(factory=dict[str, IssuerRecord])
    """The records of the authorization servers, by their issuer URLs."""
    current: str | None = None
    """The issuer whose tokens the client used last; `None` before the first sign-in."""

    @property
    def tokens(self) -> Tokens | None:
        """The tokens from the issuer that is in use (`current`); `None` if there are no tokens from this issuer."""
        record = self.issuers.get(self.current or "")
        return None if record is None else record.tokens

    def _with_record(self, issuer: str, record: IssuerRecord) -> StoredAuthorization:
        """Return a copy with ``record`` stored for ``issuer``, and with ``issuer`` as the current issuer."""
        return StoredAuthorization(issuers={**self.issuers, issuer: record}, current=issuer)

    def to_json(self) -> bytes:
        """Return the token record as a JSON document. The document contains secrets."""
        return msgspec.json.encode(_File(_VERSION, self))

    @classmethod
    def from_json(cls, data: bytes) -> StoredAuthorization:
        """Parse ``data``, a token record that `to_json` has written. Raises `UnreadableTokens` if the data isn't such a
        record."""
        try:
            return _files.decode(data).stored
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableTokens(
                f"the data is not a token record of version {_VERSION}: {type(error).__name__}"
            ) from None


@frozen
class _File:
    version: Literal[1]
    stored: StoredAuthorization


# Create the decoder at import: two threads that create a decoder for the same class concurrently crash (msgspec 0.22).
_files: Final = msgspec.json.Decoder(_File)


class TokenStorageFailed(AuthorizationError):
    """The token storage can't be used, or contains something other than a token record."""


def name_of_record(server_url: str) -> str:
    """Return a file name for the token record of a server: 32 hexadecimal digits, derived from the server's URL.

    URLs themselves can be too long, or contain characters that are invalid in file names.
    """
    return hashlib.sha256(server_url.encode()).hexdigest()[:32]


class TokenStorage(Protocol):
    """Interface for storing token records.

    The key of a record is the URL of an MCP server, or a name like ``urn:trio-mcp:client:…`` for the credentials of a
    client.

    All methods may be cancelled at any checkpoint, and leave a complete record, the old or the new one. All raise
    `TokenStorageFailed`.
    """

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the token record of a server; `None` if there is no record."""
        ...

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Replace the stored token record of a server with ``stored``. When this returns, the record is saved as
        durably as the storage allows."""
        ...

    async def remove(self, server_url: str) -> bool:
        """Delete the stored token record of a server, and return whether it existed."""
        ...

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Lock the token record of a server inside the block. Other tasks and processes that share the storage wait."""
        ...


class MemoryTokenStorage(TokenStorage):
    """Stores token records in memory. They are lost when the process ends, so the user must sign in again."""

    def __init__(self) -> None:
        self._records: dict[str, StoredAuthorization] = {}
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<MemoryTokenStorage, {len(self._records)} records>"

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the token record of a server: see `TokenStorage.load`."""
        await trio.lowlevel.checkpoint()
        return self._records.get(server_url)

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Replace the token record of a server with ``stored``: see `TokenStorage.save`."""
        await trio.lowlevel.checkpoint()
        self._records[server_url] = stored

    async def remove(self, server_url: str) -> bool:
        """Delete the token record of a server: see `TokenStorage.remove`."""
        await trio.lowlevel.checkpoint()
        return self._records.pop(server_url, None) is not None

    @asynccontextmanager
    async def lock(self, server_url: str) -> AsyncGenerator[None]:
        """Lock the token record of a server for this task: see `TokenStorage.lock`."""
        lock = self._locks.setdefault(server_url, trio.Lock())
        async with lock:
            yield
