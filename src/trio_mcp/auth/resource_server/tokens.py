"""TokenCheck: verifies access tokens with a verifier, and caches the results for a while.

Concurrent requests with the same token share one verification. If a verifier of the author fails, that is logged,
without the token.
"""

from __future__ import annotations

import hashlib
import logging
import math
import traceback
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import trio

from ...classes import frozen
from ...concurrency.bounded import BoundedDict
from ...runtime.peer import Principal
from .refusals import Refusal, broken, unavailable
from .verification import VerifierUnavailable, Verify

logger = logging.getLogger("trio_mcp")

_PATIENCE: Final = 30.0
"""The number of seconds within which a verifier has to answer."""
_BAD_FOR: Final = 10.0
"""The number of seconds for which an invalid token is cached. That is long enough that sending the token repeatedly
costs nothing, and short enough for a token that becomes valid, for example because its issuer has a new key."""
_UNKNOWN_FOR: Final = 60.0
"""The number of seconds for which a valid token with an unknown expiry is cached."""

Verdict: TypeAlias = Principal | Literal["bad"] | Refusal
"""The result of verifying a token: its principal; ``"bad"`` for an invalid token; a refusal if tokens can't be verified
at the moment."""


@frozen
class _CachedVerdict:
    finding: Principal | Literal["bad"]
    until: float


class TokenCheck:
    """Verifies tokens by calling ``verify``, with at most ``max_concurrent`` concurrent calls.

    Caches the results of up to ``max_cached`` valid tokens and of as many invalid tokens, by the tokens' hashes. The
    oldest results are dropped first.

    A valid token is cached until it expires, but at most for ``cache_for`` seconds; if its expiry is unknown, for a
    minute. ``now`` returns the time in seconds since the epoch.
    """

    def __init__(
        self, verify: Verify, *, max_cached: int, cache_for: float, max_concurrent: int, now: Callable[[], float]
    ) -> None:
        self._verify = verify
        self._cache_for = cache_for
        self._now = now
        # Cache invalid tokens separately: a client that invents tokens must not displace valid tokens from the cache.
        self._good = BoundedDict[bytes, _CachedVerdict](max_cached)
        self._bad = BoundedDict[bytes, _CachedVerdict](max_cached)
        self._max_concurrent = max_concurrent
        self._running: dict[bytes, tuple[trio.Event, list[Verdict]]] = {}
        """For each running verification, the event of its end and its result. The result is missing if the calling task
        was cancelled."""

    def known(self, token: str) -> Principal | Literal["bad"] | None:
        """Return the cached verification result for ``token``: its principal, or ``"bad"`` for an invalid token.
        Returns `None` if nothing is cached.

        Synchronous.
        """
        return self._cached(_digest(token))

    async def find(self, token: str) -> Verdict:
        """Return the verification result for ``token``, from the cache or, if nothing is cached, from the verifier.

        If another task is verifying the token, wait for its result. If that task is cancelled, one of the waiting tasks
        calls the verifier again. Raises nothing except a cancellation.
        """
        digest = _digest(token)
        if (cached := self._cached(digest)) is not None:
            return cached
        while (running := self._running.get(digest)) is not None:
            over, verdicts = running
            await over.wait()
            if verdicts:
                return verdicts[0]
        if len(self._running) >= self._max_concurrent:
            return unavailable()
        over, verdicts = self._running[digest] = trio.Event(), list[Verdict]()
        try:
            verdicts.append(await self._ask(digest, token))
            return verdicts[0]
        finally:
            del self._running[digest]
            over.set()

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
                log_defect("the token verifier failed", error, token)
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
    # Store only a hash of the token: a hash takes 32 bytes and can't leak the token. BLAKE2 is faster than SHA-256.
    return hashlib.blake2b(token.encode(), digest_size=32).digest()


def log_defect(what: str, error: Exception, token: str) -> None:
    """Log ``error`` with its traceback. The ``token`` is masked in the log, since the exception's message may contain
    the token."""
    text = "".join(traceback.format_exception(error))
    if token in text:
        logger.error("%s\n%s", what, text.replace(token, "<token>").rstrip())
    else:
        logger.error("%s", what, exc_info=error)
