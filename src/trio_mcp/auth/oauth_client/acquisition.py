"""The authorization of a client at one server: the tokens in use, their record in the storage, and how new ones come.

`TokensInUse` are the tokens that requests are sent with, and what is known of the tokens. `Record` is the record in the
storage, and the grant that could not be stored. A `TokenSource` makes the machine of a grant, and `drive` carries out
its steps. A machine that has begun is brought to its end: once an authorization server may have used up a code or a
refresh token, `CompletionShield` shields the rest, although nobody waits any more. An `Acquisition` is one such run,
with all its waiters.
"""

from __future__ import annotations

import copy
import logging
import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import ClassVar, Final, TypeAlias, TypeVar

import attrs
import msgspec
import trio

from ...classes import define
from ...concurrency.contexts import contextmanager
from ...jsonrpc.base64url import decode_base64url
from ..credentials import AuthorizationError, calling_user_code
from ..fetching import Fetch, Fetcher, FetchFailed
from ..signing import ProofKey
from ..storage.records import IssuerRecord, StoredAuthorization, Tokens, TokenStorage
from .grants import Grant, GrantContext, Machine, Step, Visit

_REFRESH_MARGIN: Final = 20.0
"""Seconds before the end of tokens with a long life in which the tokens are refreshed."""
_REFRESH_SHARE: Final = 0.25
"""The last part of the life of other tokens in which the tokens are refreshed."""


@define(eq=False)
class TokensInUse:
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
    refresh_at: float = math.inf
    """Time in seconds since the epoch at which a refresh is due, before the server refuses the token; ``inf``: the
    server says when the token is of no use any more."""

    @classmethod
    def of(
        cls, stored: StoredAuthorization, now: float, *, since: float = -math.inf, is_granted: bool = False
    ) -> TokensInUse | None:
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
    """Return the access token in the headers that `TokensInUse.headers` has returned; `None` for no headers."""
    found = next((value for name, value in sent if name == b"Authorization"), None)
    return None if found is None else found.partition(b" ")[2].decode("ascii")


class _NonceClaim(msgspec.Struct):
    nonce: str | None = None


def nonce_in(sent: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the nonce in the proof of the headers; `None` without a proof, or without a nonce."""
    proof = next((value for name, value in sent if name == b"DPoP"), None)
    if proof is None:
        return None
    claims = proof.decode("ascii").split(".")[1]
    return msgspec.json.decode(decode_base64url(claims, padded=False), type=_NonceClaim).nonce


logger = logging.getLogger("trio_mcp")


@define(eq=False)
class Record:
    """The record of the server at ``server_url`` in ``storage``."""

    _server_url: str
    _storage: TokenStorage
    _unsaved: Grant | None = attrs.field(default=None, init=False)

    def lock(self) -> AbstractAsyncContextManager[None]:
        """Hold the record for this task alone, among all processes: see `TokenStorage.lock`."""
        return self._storage.lock(self._server_url)

    async def load(self) -> StoredAuthorization:
        """Return the record, the last grant included even where the storage has failed."""
        with calling_user_code("the storage of tokens"):
            stored = await self._storage.load(self._server_url) or StoredAuthorization()
        return stored if self._unsaved is None else stored._with_record(self._unsaved.issuer, self._unsaved.record)

    async def save(self, grant: Grant, stored: StoredAuthorization) -> None:
        """Put ``grant`` into ``stored``, which was loaded under the lock, and save that. A failure of the storage is
        logged: the tokens are good, and the old ones may be so no more."""
        self._unsaved = grant
        try:
            with calling_user_code("the storage of tokens"):
                await self._storage.save(self._server_url, stored._with_record(grant.issuer, grant.record))
        except AuthorizationError as error:
            logger.warning("the tokens are used, but were not stored: %s", error)
        else:
            self._unsaved = None


Visitor: TypeAlias = Callable[[Visit], Awaitable[str]]
"""Has the user make a visit, and returns the URL that the browser was sent to. Raises `AuthorizationError`."""


RunMachine: TypeAlias = Callable[[Machine[Grant], Visitor | None], Awaitable[None]]
"""Brings the machine of a grant to its end, and persists the grant; `None` where no user takes part."""


class TokenSource(ABC):
    """A kind of grant, and the credentials for that kind. By default there is no user, and no refresh."""

    asks_user: ClassVar[bool] = False
    """True where a grant takes the time of a user."""

    def _turn(self) -> AbstractAsyncContextManager[None]:
        """Wait until nobody else asks the same user for tokens of the same server, and ask inside."""
        return nullcontext()

    @abstractmethod
    async def _acquire(self, context: GrantContext, run: RunMachine) -> None:
        """Have ``run`` get a new grant: a user may be asked meanwhile. Raises `AuthorizationError`."""

    def _refreshing(self, context: GrantContext) -> Machine[Grant] | None:
        """Return the machine that refreshes the stored tokens; `None` where a new grant is as good. The code of the
        machine's `AuthorizationError` is that of a refusal, and `None` where nobody has refused anything."""
        return None


T = TypeVar("T")


async def drive(
    machine: Machine[T],
    fetcher: Fetcher,
    visitor: Visitor | None,
    before_secrets: Callable[[], None],
    settle: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Return the end of ``machine``, which is closed in any case. ``before_secrets`` is called before each request
    with credentials, codes or tokens: from then on an authorization server may have used up a code or a token.
    ``settle`` keeps what the machine has noted, before each step. Raises `AuthorizationError`."""
    try:
        step = next(machine)
        while True:
            if settle is not None:
                await settle()
            if isinstance(step, Fetch) and step.secrets_of is not None:
                before_secrets()
            try:
                outcome = await _carried_out(step, fetcher, visitor)
            except FetchFailed as error:
                error.__traceback__ = None  # whose frames have the request in them
                step = machine.throw(error)
            else:
                step = machine.send(outcome)
    except StopIteration as end:
        return end.value
    finally:
        machine.close()


async def _carried_out(step: Step, fetcher: Fetcher, visitor: Visitor | None) -> object:
    if isinstance(step, Fetch):
        return await fetcher.fetch(step)
    if visitor is None:
        raise AuthorizationError("a user has to sign in, and there is none")
    return await visitor(step)


_SHIELDED_SECONDS: Final = 60.0
_CLOSING_SECONDS: Final = 5.0


class CompletionShield:
    """Shields ways to tokens, once they cannot be left without harm: the authorization server has used up a code or a
    refresh token, and the new tokens are not stored yet."""

    def __init__(self) -> None:
        self._seconds = _SHIELDED_SECONDS
        self._started: set[trio.CancelScope] = set()

    @contextmanager
    def shielded_after_start(self) -> Generator[Callable[[], None]]:
        """Give a function, from whose first call on the block is shielded for a minute. Raises `AuthorizationError`
        when that was not enough."""
        with trio.CancelScope() as scope:

            def begin() -> None:
                if not scope.shield:
                    scope.shield = True
                    scope.deadline = trio.current_time() + self._seconds
                    self._started.add(scope)

            try:
                yield begin
            finally:
                self._started.discard(scope)
        if scope.cancelled_caught:
            raise AuthorizationError("the authorization server, or the storage of tokens, was too slow")

    def shorten(self) -> None:
        """Leave no more than a few seconds from now on, since the client is closed."""
        self._seconds = _CLOSING_SECONDS
        end = trio.current_time() + _CLOSING_SECONDS
        for scope in self._started:
            scope.deadline = min(scope.deadline, end)


class Acquisition:
    """A way to a token, gone once for all who wait for the token. The acquisition has a task of its own, so a waiter
    who leaves does not end it for others; the last waiter does, as far as it can be ended. ``is_refresh``: nobody is
    asked."""

    def __init__(self, *, is_refresh: bool) -> None:
        self.is_refresh = is_refresh
        self.failure: AuthorizationError | None = None
        """The reason why there is no token; `None` where the acquisition goes on, has brought a token, or was left."""
        self.failed = -math.inf
        """Time of the failure on trio's clock."""
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._waiters = 0

    async def run(self, acquire: Callable[[], Awaitable[None]]) -> None:
        """Go ``acquire``. Never raises but for a cancel from outside."""
        try:
            with self._scope:
                await acquire()
        except AuthorizationError as error:
            # Frames have secrets in them, and keep what they belong to.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            self._fail(error)
        except Exception as error:
            # The words may have a secret in them: the log is told the type and the places.
            places = "".join(traceback.format_tb(error.__traceback__))
            logger.error("getting a token failed: %s\n%s", type(error).__name__, places)  # noqa: TRY400 -- see above
            words = str(error) if isinstance(error, ImportError) else type(error).__name__
            self._fail(AuthorizationError(f"getting a token failed: {words}"))
        finally:
            self._ended.set()

    def _fail(self, error: AuthorizationError) -> None:
        self.failure, self.failed = error, trio.current_time()

    async def wait(self) -> None:
        """Wait for the end: a new token, or none where all others who waited have left. Raises the failure."""
        self._waiters += 1
        try:
            await self._ended.wait()
        finally:
            self._waiters -= 1
            if not self._waiters and not self._ended.is_set():
                self._scope.cancel(reason="nobody waits for the token any more")
        if self.failure is not None:
            raise copy.copy(self.failure)
