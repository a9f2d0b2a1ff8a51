"""TokenCheck: asks a verifier about tokens, once about each, and keeps the answers for a while."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import attrs
import trio

from ...runtime.principal import Principal
from .defects import log_defect
from .refusal import Refusal
from .refusing import broken, unavailable
from .single_flight import SingleFlight
from .verifiers.verifier import VerifierUnavailable, Verify

logger = logging.getLogger("trio_mcp")

_PATIENCE: Final = 30.0
"""Seconds in which a verifier has to answer."""
_BAD_FOR: Final = 10.0
"""Seconds for which a bad token stays bad: long enough that to send one again and again costs nothing, and short enough
for one that becomes good, as by a new key of its issuer."""
_UNKNOWN_FOR: Final = 60.0
"""Seconds for which a token is good of which nobody knows when it expires."""

Finding: TypeAlias = Principal | Literal["bad"] | Refusal
"""The party that a token speaks for; ``"bad"`` for a token that speaks for nobody; a refusal where nobody knows."""


@attrs.frozen
class _Kept:
    finding: Principal | Literal["bad"]
    until: float


class TokenCheck:
    """Asks ``verify`` about tokens, at most ``most_at_once`` at a time, and keeps at most ``max_cached`` good ones, and
    as many bad ones, by their hashes. The oldest make room for new ones.

    A good token is kept until it expires, and for ``cache_for`` seconds at most; for a minute where nobody knows when
    it expires. ``now`` tells the time in seconds since the epoch.
    """

    def __init__(
        self,
        verify: Verify,
        *,
        max_cached: int,
        cache_for: float,
        most_at_once: int,
        now: Callable[[], float],
    ) -> None:
        self._verify = verify
        self._max_cached = max_cached
        self._cache_for = cache_for
        self._now = now
        # Bad tokens have a place of their own: whoever invents tokens must not drive out the good ones.
        self._good: OrderedDict[bytes, _Kept] = OrderedDict()
        self._bad: OrderedDict[bytes, _Kept] = OrderedDict()
        self._asked = SingleFlight[bytes, Finding](most_at_once)

    def known(self, token: str) -> Principal | Literal["bad"] | None:
        """Return the kept finding about ``token``, `None` without one. Synchronous."""
        return self._kept(_digest(token))

    async def find(self, token: str) -> Finding:
        """Return the kept finding about ``token``, or ask for one. Never raises but for a cancel."""
        digest = _digest(token)
        return self._kept(digest) or await self._asked.ask(digest, lambda: self._ask(digest, token), unavailable())

    def _kept(self, digest: bytes) -> Principal | Literal["bad"] | None:
        found = self._good.get(digest) or self._bad.get(digest)
        return found.finding if found is not None and self._now() < found.until else None

    async def _ask(self, digest: bytes, token: str) -> Finding:
        with trio.move_on_after(_PATIENCE):
            try:
                return self._keep(digest, await self._verify(token))
            except VerifierUnavailable as error:
                logger.warning("tokens cannot be verified: %s", str(error).replace(token, "<token>"))
                return unavailable()
            except Exception as error:
                log_defect("the verifier of tokens failed", error, token)
                return broken()
        logger.warning("tokens cannot be verified: the verifier did not answer within %g s", _PATIENCE)
        return unavailable()

    def _keep(self, digest: bytes, principal: Principal | None) -> Principal | Literal["bad"]:
        now = self._now()
        self._good.pop(digest, None)
        self._bad.pop(digest, None)
        if principal is None or (principal.expires_at is not None and principal.expires_at <= now):
            _add(self._bad, digest, _Kept("bad", now + _BAD_FOR), self._max_cached)
            return "bad"
        expires_at = now + _UNKNOWN_FOR if principal.expires_at is None else principal.expires_at
        until = min(expires_at, now + self._cache_for)
        if until > now and not math.isnan(until):
            _add(self._good, digest, _Kept(principal, until), self._max_cached)
        return principal


def _add(kept: OrderedDict[bytes, _Kept], digest: bytes, found: _Kept, most: int) -> None:
    kept[digest] = found
    if len(kept) > most:
        kept.popitem(last=False)


def _digest(token: str) -> bytes:
    # Tokens themselves are not kept: what is kept might be seen, and takes 32 bytes each. In the course of a request,
    # BLAKE2 takes two thirds of the time of SHA-256 in OpenSSL.
    return hashlib.blake2b(token.encode(), digest_size=32).digest()
