"""Gets the OAuth tokens of a client for one server: the current tokens, the stored record, and the steps to get new
tokens.

`TokensInUse` are the tokens with which requests are sent, and what is known about them. `Record` is the record in the
storage, and the grant that could not be stored. A `TokenSource` creates the machine (a generator) of a grant, and
`drive` carries out its steps. A machine that has begun is always finished: once an authorization server may have
consumed a code or a refresh token, `CompletionShield` shields the rest, even if no caller waits any longer. An
`Acquisition` is one such run, with all its waiters.
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
from ...jsonrpc.codec import decode_base64url
from ..credentials import AuthorizationError, calling_user_code
from ..fetching import Fetch, Fetcher, FetchFailed
from ..signing import ProofKey
from ..storage.records import IssuerRecord, StoredAuthorization, Tokens, TokenStorage
from .grants import Grant, GrantContext, Machine, Step, Visit

_REFRESH_MARGIN: Final = 20.0
"""Long-lived tokens are refreshed this number of seconds before they expire."""
_REFRESH_SHARE: Final = 0.25
"""The fraction of a short-lived token's lifetime, at its end, in which the token is refreshed."""


@define(eq=False)
class TokensInUse:
    """The tokens that the client currently uses, from one authorization server."""

    _tokens: Tokens = attrs.field(repr=False)
    requested_scopes: tuple[str, ...]
    """All scopes that were requested so far, granted or not."""
    key: ProofKey | None
    """The DPoP key that the tokens are bound to; `None` if they aren't bound to a key."""
    since: float = -math.inf
    """The time at which the tokens were acquired, on trio's clock; ``-inf`` if another client or process acquired
    them."""
    is_granted: bool = False
    """True if the tokens come from a sign-in or from machine credentials; false if they come from a refresh."""
    refresh_at: float = math.inf
    """The time at which to refresh the tokens, before the server refuses them, in seconds since the epoch. ``inf``
    means that they are refreshed only when the server refuses the token."""

    @classmethod
    def of(
        cls, stored: StoredAuthorization, now: float, *, since: float = -math.inf, is_granted: bool = False
    ) -> TokensInUse | None:
        """Return a `TokensInUse` object with the tokens in the stored record ``stored``.

        ``now`` is the time in seconds since the epoch. Returns `None` if the record has no tokens, or if they are bound
        to a DPoP key that is lost.
        """
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
        """The current access token."""
        return self._tokens.access_token

    @property
    def is_refreshable(self) -> bool:
        """True if there is a refresh token that the authorization server hasn't refused."""
        return self._tokens.refresh_token is not None

    def forget_refresh_token(self) -> None:
        """Record that the refresh token is no longer usable. The access token may still be valid."""
        self._tokens = attrs.evolve(self._tokens, refresh_token=None)

    def headers(self, method: str, url: str, nonce: str | None, now: float) -> list[tuple[bytes, bytes]]:
        """Return the authorization headers for one request with the HTTP method ``method`` to ``url``.

        They include a new DPoP proof if the tokens are bound to a key (RFC 9449 section 7.1).
        """
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
    """Return the access token in ``sent``, the authorization headers of a request. Returns `None` if there are no
    headers."""
    found = next((value for name, value in sent if name == b"Authorization"), None)
    return None if found is None else found.partition(b" ")[2].decode("ascii")


class _NonceClaim(msgspec.Struct):
    nonce: str | None = None


def nonce_in(sent: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the nonce of the DPoP proof in ``sent``, the headers of a request. Returns `None` if there is no proof, or
    if the proof has no nonce."""
    proof = next((value for name, value in sent if name == b"DPoP"), None)
    if proof is None:
        return None
    claims = proof.decode("ascii").split(".")[1]
    return msgspec.json.decode(decode_base64url(claims, padded=False), type=_NonceClaim).nonce


logger = logging.getLogger("trio_mcp")


@define(eq=False)
class Record:
    """The stored record of the client's tokens and registration for the MCP server at ``server_url``."""

    _server_url: str
    _storage: TokenStorage
    _unsaved: Grant | None = attrs.field(default=None, init=False)

    def lock(self) -> AbstractAsyncContextManager[None]:
        """Lock the stored record, so that no other task or process changes it inside the block: see
        `TokenStorage.lock`."""
        return self._storage.lock(self._server_url)

    async def load(self) -> StoredAuthorization:
        """Return the stored record of the client's authorization. If the storage has failed to save the newest tokens,
        add them from memory."""
        with calling_user_code("the storage of tokens"):
            stored = await self._storage.load(self._server_url) or StoredAuthorization()
        return stored if self._unsaved is None else stored._with_record(self._unsaved.issuer, self._unsaved.record)

    async def save(self, grant: Grant, stored: StoredAuthorization) -> None:
        """Add the new tokens in ``grant`` to the record ``stored``, and save the record.

        Load the record under the lock first. If the storage fails, the failure is only logged: the new tokens are
        valid, and the old tokens may be invalid.
        """
        self._unsaved = grant
        try:
            with calling_user_code("the storage of tokens"):
                await self._storage.save(self._server_url, stored._with_record(grant.issuer, grant.record))
        except AuthorizationError as error:
            logger.warning("the new tokens could not be stored, but are used: %s", error)
        else:
            self._unsaved = None


Visitor: TypeAlias = Callable[[Visit], Awaitable[str]]
"""A function that sends the user to a URL, and returns the URL that the browser was redirected to. Raises
`AuthorizationError` if the user doesn't arrive there."""


RunMachine: TypeAlias = Callable[[Machine[Grant], Visitor | None], Awaitable[None]]
"""A function that runs a `Machine` (the generator of an OAuth grant) to its end, and stores the resulting grant. Its
visitor is `None` if no user takes part."""


class TokenSource(ABC):
    """Base class of the OAuth grants, the ways to get tokens. An object also contains the client's credentials for the
    grant.

    By default a grant needs no user, and its tokens aren't refreshed.
    """

    asks_user: ClassVar[bool] = False
    """True if a user must sign in for each grant."""

    def _turn(self) -> AbstractAsyncContextManager[None]:
        """Inside the block, only this task may send the user to the server's sign-in page. Waits while another task is
        signing the same user in."""
        return nullcontext()

    @abstractmethod
    async def _acquire(self, context: GrantContext, run: RunMachine) -> None:
        """Get new tokens by passing the steps of an OAuth grant to the function ``run``.

        ``run`` carries the steps out, and may send the user to the sign-in page. Raises `AuthorizationError` if the
        grant fails.
        """

    def _refreshing(self, context: GrantContext) -> Machine[Grant] | None:
        """Return the generator that refreshes the stored tokens. Returns `None` if the client should get new tokens in
        another way.

        If the machine raises `AuthorizationError`, its code is the code of the server's refusal; `None` if no server
        has refused.
        """
        return None


T = TypeVar("T")


async def drive(
    machine: Machine[T],
    fetcher: Fetcher,
    visitor: Visitor | None,
    before_secrets: Callable[[], None],
    settle: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Run the generator ``machine``, and return its result. The generator yields steps, such as HTTP requests and
    visits to the sign-in page, which this function carries out.

    Always closes the generator. Raises `AuthorizationError` if a step fails.

    Args:
        before_secrets: Called before each request with credentials, codes or tokens: from then on an authorization
            server may have consumed a code or a token.
        settle: Stores what the machine has recorded, before each step.
    """
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
                # Drop the traceback, because its frames contain the request with its secrets.
                error.__traceback__ = None
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
        raise AuthorizationError("a user must sign in, but this client is non-interactive")
    return await visitor(step)


_SHIELDED_SECONDS: Final = 60.0
_CLOSING_SECONDS: Final = 5.0


class CompletionShield:
    """Shields a token request from cancellation while a cancellation would lose tokens.

    The shield begins when the authorization server may have consumed an authorization code or a refresh token. It ends
    when the new tokens are stored.
    """

    def __init__(self) -> None:
        self._seconds = _SHIELDED_SECONDS
        self._started: set[trio.CancelScope] = set()

    @contextmanager
    def shielded_after_start(self) -> Generator[Callable[[], None]]:
        """Yield a function that starts the shield. Once it is called, the rest of the block is shielded from
        cancellation for at most a minute.

        Raises `AuthorizationError` if the shielded part takes longer than that.
        """
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
            raise AuthorizationError("the authorization server or the token storage did not respond in time")

    def shorten(self) -> None:
        """End all shields against cancellation after a few more seconds, since the client is being closed."""
        self._seconds = _CLOSING_SECONDS
        end = trio.current_time() + _CLOSING_SECONDS
        for scope in self._started:
            scope.deadline = min(scope.deadline, end)


class Acquisition:
    """One attempt to get a token, shared by all requests that wait for the token.

    It runs in its own task, so if one waiter is cancelled, the others still get the token. When the last waiter has
    left, the acquisition is cancelled, as far as that is harmless. ``is_refresh``: the user isn't asked.
    """

    def __init__(self, *, is_refresh: bool) -> None:
        self.is_refresh = is_refresh
        self.failure: AuthorizationError | None = None
        """The error because of which there is no token; `None` if the acquisition is running, was successful, or was
        cancelled."""
        self.failed = -math.inf
        """The time at which the acquisition failed, on trio's clock."""
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._waiters = 0

    async def run(self, acquire: Callable[[], Awaitable[None]]) -> None:
        """Get a token by calling ``acquire``, and store the outcome, including an error, for `wait`. Raises
        `trio.Cancelled` if the caller is cancelled, and no other exception."""
        try:
            with self._scope:
                await acquire()
        except AuthorizationError as error:
            # Drop the traceback, because its frames contain secrets and keep objects alive.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            self._fail(error)
        except Exception as error:
            # Log only the exception's type and the stack trace, because the exception's message may contain a secret.
            places = "".join(traceback.format_tb(error.__traceback__))
            logger.error("getting a token failed: %s\n%s", type(error).__name__, places)  # noqa: TRY400 -- see above
            words = str(error) if isinstance(error, ImportError) else type(error).__name__
            self._fail(AuthorizationError(f"getting a token failed: {words}"))
        finally:
            self._ended.set()

    def _fail(self, error: AuthorizationError) -> None:
        self.failure, self.failed = error, trio.current_time()

    async def wait(self) -> None:
        """Wait until the attempt to get a token has ended.

        If the attempt was cancelled, there is no new token. Raises the `AuthorizationError` with which the attempt
        failed.
        """
        self._waiters += 1
        try:
            await self._ended.wait()
        finally:
            self._waiters -= 1
            if not self._waiters and not self._ended.is_set():
                self._scope.cancel(reason="no request waits for the token")
        if self.failure is not None:
            raise copy.copy(self.failure)
