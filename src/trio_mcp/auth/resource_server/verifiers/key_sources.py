"""KeySource: the keys of an issuer, which are asked for when needed, and not too often."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import trio

from ...fetching.exchange import FetchFailed
from .keys import UnusableKey, VerificationKey
from .signed import Signed
from .verifier import VerifierUnavailable

logger = logging.getLogger("trio_mcp")

_PAUSE: Final = 30.0
"""Seconds between two questions about keys: else whoever invents names of keys has us ask the issuer all the time."""
_PAUSE_WITHOUT: Final = 5.0
"""The same while there are no keys at all, and nobody can be let in."""
_MAX_AGE: Final = 600.0
"""Seconds after which keys are asked for again: an issuer may have withdrawn one."""
_DEADLINE: Final = 10.0
"""Seconds in which the issuer has to answer."""


class KeySource(Protocol):
    """The keys of one issuer."""

    async def has_signed(self, signed: Signed) -> bool:
        """Return whether one of the keys has signed. Raises `VerifierUnavailable` where nobody can tell now."""
        ...


class FixedKeys:
    """Keys that never change."""

    def __init__(self, keys: Sequence[VerificationKey]) -> None:
        self._keys = keys

    async def has_signed(self, signed: Signed) -> bool:
        """Return whether one of the keys has signed: see `KeySource`."""
        return any(key.has_signed(signed) for key in self._keys if _may_be(key, signed))


class FetchedKeys:
    """The keys that ``fetch`` gets from ``issuer``.

    Keys are asked for before the first check, when they are old, and for a signature by none of the known ones; in any
    case once in half a minute at most. Known keys stay good while the issuer does not answer.
    """

    def __init__(self, issuer: str, fetch: Callable[[], Awaitable[Sequence[VerificationKey]]]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._keys: Sequence[VerificationKey] = ()
        self._asked_at = self._got_at = -math.inf
        """Times of `trio.current_time`."""
        self._failed = False
        """Whether the issuer has not answered the last time."""
        self._asking = trio.Lock()

    async def has_signed(self, signed: Signed) -> bool:
        """Return whether one of the keys has signed: see `KeySource`."""
        if trio.current_time() >= self._got_at + _MAX_AGE and not (self._keys and self._asking.locked()):
            await self._refresh()  # one client waits for that; the others go on with the old keys
        if not self._keys:
            raise VerifierUnavailable(f"the keys of {self._issuer} are not known")
        candidates = [key for key in self._keys if _may_be(key, signed)]
        if any(key.has_signed(signed) for key in candidates):
            return True
        # The signature may be made with a new key. A name that is known is no reason to ask.
        if candidates and signed.kid is not None and all(key.kid is not None for key in candidates):
            return False
        before = self._keys
        await self._refresh()
        if self._keys is not before:
            return any(key.has_signed(signed) for key in self._keys if _may_be(key, signed))
        if self._failed:
            raise VerifierUnavailable(f"a key of {self._issuer} is not known, and the new ones are not")
        return False

    async def _refresh(self) -> None:
        """Ask for the keys, unless that was done lately, and keep the old ones where there is no answer."""
        async with self._asking:
            now = trio.current_time()
            if now < self._asked_at + (_PAUSE if self._keys else _PAUSE_WITHOUT):
                return
            self._asked_at = now
            self._failed = True
            # Clients that leave at once would otherwise keep the keys from ever being known.
            with trio.move_on_after(_DEADLINE, shield=True):
                try:
                    self._keys = await self._fetch()
                    self._got_at = trio.current_time()
                    self._failed = False
                except (FetchFailed, UnusableKey) as error:
                    logger.warning("the keys of %s cannot be fetched: %s", self._issuer, error)
                return
            logger.warning("the keys of %s cannot be fetched: no answer within %g s", self._issuer, _DEADLINE)


def _may_be(key: VerificationKey, signed: Signed) -> bool:
    """Return whether ``key`` is one that a token of this header may be signed with."""
    if signed.algorithm not in key.algorithms:
        return False
    return signed.kid is None or key.kid is None or key.kid == signed.kid
