"""Client state: the authorization of a client at one server, in use and in storage.

`HeldTokens` are the tokens that requests are sent with, and what is known of the tokens. `Record` is the record in the
storage, and the grant that could not be stored.
"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import attrs
import msgspec

from ...classes import define
from ..errors import AuthorizationError, calling_user_code
from ..signing import ProofKey
from ..storage.records import IssuerRecord, Storage, Stored, Tokens
from .grants import Grant

_REFRESH_MARGIN: Final = 20.0
"""Seconds before the end of tokens with a long life in which the tokens are refreshed."""
_REFRESH_SHARE: Final = 0.25
"""The last part of the life of other tokens in which the tokens are refreshed."""


@define(eq=False)
class HeldTokens:
    """The tokens of one authorization server, in use."""

    _tokens: Tokens = attrs.field(repr=False)
    requested_scopes: tuple[str, ...]
    """The scopes that were asked for so far, granted or not."""
    key: ProofKey | None
    """The key that the tokens are bound to; `None` for tokens that anybody may use."""
    since: float = -math.inf
    """Time on trio's clock when the tokens were gotten; ``-inf`` where somebody else got them."""
    is_granted: bool = False
    """True for tokens that a user was asked for, or the credentials of a machine; false for refreshed ones."""
    _refresh_at: float = math.inf

    @classmethod
    def of(cls, stored: Stored, now: float, *, since: float = -math.inf, is_granted: bool = False) -> HeldTokens | None:
        """Return the tokens in ``stored`` that are in use, at ``now`` in seconds since the epoch; `None` where there
        are none, or their key is lost."""
        record = stored.issuers.get(stored.current or "")
        tokens = None if record is None else record.tokens
        if record is None or tokens is None:
            return None
        key = _key_of(record) if tokens.token_type == "DPoP" else None
        if key is None and tokens.token_type == "DPoP":
            return None
        refresh_at = math.inf
        if tokens.expires_at is not None and tokens.refresh_token is not None:
            refresh_at = tokens.expires_at - min(_REFRESH_MARGIN, _REFRESH_SHARE * max(tokens.expires_at - now, 0))
        return cls(tokens, record.requested_scopes, key, since, is_granted, refresh_at)

    @property
    def token(self) -> str:
        """The access token."""
        return self._tokens.access_token

    @property
    def is_refreshable(self) -> bool:
        """True where there is a refresh token that nobody has refused."""
        return self._tokens.refresh_token is not None

    def is_to_be_refreshed(self, now: float) -> bool:
        """Return whether a refresh before the server refuses the token is due, at ``now`` in seconds since the
        epoch."""
        return now >= self._refresh_at

    def refresh_no_more(self) -> None:
        """Leave it to the server to say when the token is of no use any more."""
        self._refresh_at = math.inf

    def forget_refresh_token(self) -> None:
        """Note that the refresh token is of no use. The access token may be good all the same."""
        self._tokens = attrs.evolve(self._tokens, refresh_token=None)

    def headers(self, method: str, url: str, nonce: str | None, now: float) -> list[tuple[bytes, bytes]]:
        """Return the headers of one request by ``method`` to ``url``, with a proof of its own where the tokens need
        one (RFC 9449 section 7.1)."""
        if self.key is None:
            return [(b"Authorization", b"Bearer " + self.token.encode("ascii"))]
        proof = self.key.proof(method, url, token=self.token, nonce=nonce, now=now)
        return [(b"Authorization", b"DPoP " + self.token.encode("ascii")), (b"DPoP", proof.encode("ascii"))]


def _key_of(record: IssuerRecord) -> ProofKey | None:
    try:
        return None if record.proof_key is None else ProofKey.from_jwk(record.proof_key)
    except ValueError:
        return None


def token_in(sent: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the access token in the headers that `HeldTokens.headers` has returned; `None` for no headers."""
    found = next((value for name, value in sent if name == b"Authorization"), None)
    return None if found is None else found.partition(b" ")[2].decode("ascii")


class _NonceClaim(msgspec.Struct):
    nonce: str | None = None


def nonce_in(sent: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the nonce in the proof of the headers; `None` without a proof, or without a nonce."""
    proof = next((value for name, value in sent if name == b"DPoP"), None)
    if proof is None:
        return None
    claims = proof.split(b".")[1]
    return msgspec.json.decode(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)), type=_NonceClaim).nonce


logger = logging.getLogger("trio_mcp")


class Record:
    """The record of the server at ``server_url`` in ``storage``."""

    def __init__(self, server_url: str, storage: Storage) -> None:
        self._server_url = server_url
        self._storage = storage
        self._unkept: Grant | None = None

    def lock(self) -> AbstractAsyncContextManager[None]:
        """Hold the record for this task alone, among all processes: see `Storage.lock`."""
        return self._storage.lock(self._server_url)

    async def load(self) -> Stored:
        """Return the record, the last grant included even where the storage has failed."""
        with calling_user_code("the storage of tokens"):
            stored = await self._storage.load(self._server_url) or Stored()
        return stored if self._unkept is None else stored.with_record(self._unkept.issuer, self._unkept.record)

    async def keep(self, grant: Grant, stored: Stored) -> None:
        """Put ``grant`` into ``stored``, which was loaded under the lock, and save that. A failure of the storage is
        logged: the tokens are good, and the old ones may be so no more."""
        self._unkept = grant
        try:
            with calling_user_code("the storage of tokens"):
                await self._storage.save(self._server_url, stored.with_record(grant.issuer, grant.record))
        except AuthorizationError as error:
            logger.warning("the tokens are used, but were not stored: %s", error)
        else:
            self._unkept = None
