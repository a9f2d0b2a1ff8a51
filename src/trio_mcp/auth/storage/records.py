"""Records: what a client keeps of its authorization at one server, as versioned JSON.

`TokenStorage` is a place for such records, and `MemoryTokenStorage` is the place that ends with the process.
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
"""Beginning of the names of records that belong to no server: whose the secret of a client is."""


class UnreadableTokens(ValueError):
    """The text is no record of this version. Nothing of the text is in the message."""


@frozen(kw_only=True)
class RegisteredClient:
    """A client as one authorization server knows it (RFC 7591 section 3.2.1)."""

    client_id: str
    """The name of the client there."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    """The secret of the client; `None` for a public client."""
    secret_expires_at: float | None = None
    """Time in seconds since the epoch; `None`: never."""
    auth_method: str = "none"
    """Method of the client at the token endpoint (RFC 7591 section 2, ``token_endpoint_auth_method``)."""
    redirect_uris: tuple[str, ...] = ()
    """The redirect URIs that the server has agreed to."""
    scopes: tuple[str, ...] | None = None
    """The scopes that the client may ask for, as far as the server has said; `None`: any."""


@frozen(kw_only=True)
class Tokens:
    """The grant of a token endpoint (RFC 6749 section 5.1)."""

    access_token: str = attrs.field(repr=False)
    """The access token, a secret."""
    token_type: str = "Bearer"
    """``Bearer`` or ``DPoP``."""
    scopes: tuple[str, ...] = ()
    """The granted scopes; where the server did not say, the requested ones."""
    expires_at: float | None = None
    """Time in seconds since the epoch; `None` where the server did not say."""
    refresh_token: str | None = attrs.field(default=None, repr=False)
    """The refresh token, a secret; `None` where there is none."""


@frozen(kw_only=True)
class IssuerRecord:
    """The record of one authorization server, of which nothing is ever shown to another (2026-07-28 authorization,
    Authorization Server Binding)."""

    client: RegisteredClient | None = None
    """The registration; `None` where the client was not registered here."""
    tokens: Tokens | None = None
    """The tokens; `None` before the first sign-in, and after the last token was refused."""
    requested_scopes: tuple[str, ...] = ()
    """All scopes that were asked for so far, which a step-up adds to."""
    resource: str | None = None
    """The resource of the tokens, as the metadata of the server say (RFC 9728 section 2); `None` before the first."""
    proof_key: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    """The private key of DPoP as a JWK, without which the tokens are useless; `None` without DPoP."""


@frozen(kw_only=True)
class StoredAuthorization:
    """The authorization of a client at one server, as a client keeps it, by authorization server."""

    issuers: Mapping[str, IssuerRecord] = attrs.field(factory=dict[str, IssuerRecord])
    """The record of each authorization server, by the issuer."""
    current: str | None = None
    """The issuer whose tokens the client used last; `None` before the first."""

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of the `current` issuer."""
        record = self.issuers.get(self.current or "")
        return None if record is None else record.tokens

    def _with_record(self, issuer: str, record: IssuerRecord) -> StoredAuthorization:
        """Return the same with ``record`` for ``issuer``, which is the current one then."""
        return StoredAuthorization(issuers={**self.issuers, issuer: record}, current=issuer)

    def to_json(self) -> bytes:
        """Return the record as JSON, secrets included."""
        return msgspec.json.encode(_File(_VERSION, self))

    @classmethod
    def from_json(cls, data: bytes) -> StoredAuthorization:
        """Return what `to_json` has written. Raises `UnreadableTokens`."""
        try:
            return _files.decode(data).stored
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableTokens(f"no record of version {_VERSION}: {type(error).__name__}") from None


def _is_version(_: Any, __: Any, version: int) -> None:
    if version != _VERSION:
        raise ValueError("another version")


@frozen
class _File:
    version: int = attrs.field(validator=_is_version)
    stored: StoredAuthorization


# Made here: two threads that prepare the reading of a class at the same moment end the process (msgspec 0.22).
_files: Final = msgspec.json.Decoder(_File)


class TokenStorageFailed(AuthorizationError):
    """The place of the records cannot be used, or holds something else."""


def name_of_record(server_url: str) -> str:
    """Return a name for the record of the server, of 32 hexadecimal digits: URLs are long, and have characters that
    names of files have not."""
    return hashlib.sha256(server_url.encode()).hexdigest()[:32]


class TokenStorage(Protocol):
    """A place for records, each under the URL of an MCP server, or under a name like ``urn:trio-mcp:client:…`` for the
    credentials of a client. All methods may be cancelled at
    any checkpoint, and leave a whole record, the old or the new one. All raise `TokenStorageFailed`."""

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the record; `None` where there is none."""
        ...

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Keep ``stored`` in place of the record there was, durably where the place is."""
        ...

    async def remove(self, server_url: str) -> bool:
        """Forget the record, and return whether there was one."""
        ...

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Hold the record for this task alone, among all tasks and processes that share the place."""
        ...


class MemoryTokenStorage(TokenStorage):
    """Records in memory, for a process that has a user sign in anew each time it is started."""

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
        """Keep ``stored`` in place of the record there was: see `TokenStorage.save`."""
        await trio.lowlevel.checkpoint()
        self._records[server_url] = stored

    async def remove(self, server_url: str) -> bool:
        """Forget the record: see `TokenStorage.remove`."""
        await trio.lowlevel.checkpoint()
        return self._records.pop(server_url, None) is not None

    @asynccontextmanager
    async def lock(self, server_url: str) -> AsyncGenerator[None]:
        """Hold the record for this task alone: see `TokenStorage.lock`."""
        lock = self._locks.setdefault(server_url, trio.Lock())
        async with lock:
            yield
