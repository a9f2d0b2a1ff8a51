"""TokenCheck: asks a verifier about tokens, once about each, and keeps the answers for a while.

Requests that come with the same token at once share one question (`SingleFlight`). A verifier of the author that fails
is told to the log, without the token.
"""

from __future__ import annotations

import hashlib
import logging
import math
import traceback
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import trio

from ...classes import frozen
from ...concurrency.bounded import BoundedDict
from ...runtime.peer import Principal
from .refusals import Refusal, broken, unavailable
from .verification import VerifierUnavailable, Verify

logger = logging.getLogger("trio_mcp")

_PATIENCE: Final = 30.0
"""Seconds in which a verifier has to answer."""
_BAD_FOR: Final = 10.0
"""Seconds for which a bad token stays bad: long enough that to send one again and again costs nothing, and short enough
for one that becomes good, as by a new key of its issuer."""
_UNKNOWN_FOR: Final = 60.0
"""Seconds for which a token is good of which nobody knows when it expires."""

Verdict: TypeAlias = Principal | Literal["bad"] | Refusal
"""The party that a token speaks for; ``"bad"`` for a token that speaks for nobody; a refusal where nobody knows."""


@frozen
class _CachedVerdict:
    finding: Principal | Literal["bad"]
    until: float


class TokenCheck:
    """Asks ``verify`` about tokens, at most ``max_concurrent`` at a time, and keeps at most ``max_cached`` good ones,
    and as many bad ones, by their hashes. The oldest make room for new ones.

    A good token is kept until it expires, and for ``cache_for`` seconds at most; for a minute where nobody knows when
    it expires. ``now`` tells the time in seconds since the epoch.
    """

    def __init__(
        self, verify: Verify, *, max_cached: int, cache_for: float, max_concurrent: int, now: Callable[[], float]
    ) -> None:
        self._verify = verify
        self._cache_for = cache_for
        self._now = now
        # Bad tokens have a place of their own: whoever invents tokens must not drive out the good ones.
        self._good = BoundedDict[bytes, _CachedVerdict](max_cached)
        self._bad = BoundedDict[bytes, _CachedVerdict](max_cached)
        self._asked = SingleFlight[bytes, Verdict](max_concurrent)

    def known(self, token: str) -> Principal | Literal["bad"] | None:
        """Return the kept finding about ``token``, `None` without one. Synchronous."""
        return self._cached(_digest(token))

    async def find(self, token: str) -> Verdict:
        """Return the kept finding about ``token``, or ask for one. Never raises but for a cancel."""
        digest = _digest(token)
        return self._cached(digest) or await self._asked.ask(digest, lambda: self._ask(digest, token), unavailable())

    def _cached(self, digest: bytes) -> Principal | Literal["bad"] | None:
        found = self._good.get(digest) or self._bad.get(digest)
        return found.finding if found is not None and self._now() < found.until else None

    async def _ask(self, digest: bytes, token: str) -> Verdict:
        with trio.move_on_after(_PATIENCE):
            try:
                return self._cache(digest, await self._verify(token))
            except VerifierUnavailable as error:
                logger.warning("tokens cannot be verified: %s", str(error).replace(token, "<token>"))
                return unavailable()
            except Exception as error:
                log_defect("the verifier of tokens failed", error, token)
                return broken()
        logger.warning("tokens cannot be verified: the verifier did not answer within %g s", _PATIENCE)
        return unavailable()

    def _cache(self, digest: bytes, principal: Principal | None) -> Principal | Literal["bad"]:
        now = self._now()
        self._good.pop(digest, None)
        self._bad.pop(digest, None)
        if principal is None or (principal.expires_at is not None and principal.expires_at <= now):
            self._bad[digest] = _CachedVerdict("bad", now + _BAD_FOR)
            return "bad"
        expires_at = now + _UNKNOWN_FOR if principal.expires_at is None else principal.expires_at
        until = min(expires_at, now + self._cache_for)
        if until > now and not math.isnan(until):
            self._good[digest] = _CachedVerdict(principal, until)
        return principal


def _digest(token: str) -> bytes:
    # Tokens themselves are not kept: what is kept might be seen, and takes 32 bytes each. In the course of a request,
    # BLAKE2 takes two thirds of the time of SHA-256 in OpenSSL.
    return hashlib.blake2b(token.encode(), digest_size=32).digest()


K = TypeVar("K")
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Questions by key, each of which one task asks for all that want to know, at most ``limit`` at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[K, tuple[trio.Event, list[T]]] = {}
        """The end of each open question, and the answer; none where the task that asked has left without one."""

    async def ask(self, key: K, question: Callable[[], Awaitable[T]], too_many: T) -> T:
        """Return the answer to the ``question`` with this ``key``, the answer that another task waits for already if
        one does. When that task leaves, by a cancel or an exception, one of those that still wait asks anew.
        Returns ``too_many`` at once when the question would be one too many."""
        while (waiting := self._open.get(key)) is not None:
            over, answers = waiting
            await over.wait()
            if answers:
                return answers[0]
        if len(self._open) >= self._limit:
            return too_many
        over, answers = self._open[key] = trio.Event(), list[T]()
        try:
            answers.append(await question())
            return answers[0]
        finally:
            del self._open[key]
            over.set()


def log_defect(what: str, error: Exception, token: str) -> None:
    """Log ``error`` with its traceback, in which ``token`` does not stand: authors put values into their errors."""
    text = "".join(traceback.format_exception(error))
    if token in text:
        logger.error("%s\n%s", what, text.replace(token, "<token>").rstrip())
    else:
        logger.error("%s", what, exc_info=error)
