"""Replays of proofs: no proof of DPoP is older than the server knows, and none is used twice.

`ProofNonces` makes values that clients repeat in their proofs (RFC 9449 section 9); `SeenProofs` remembers the proofs
that were used (section 11.1). Neither needs joserfc, so a server without DPoP can import them; `proof_checks` does.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Hashable
from typing import Final

from ...concurrency.fair_share import leaves_enough

_GOOD_FOR: Final = 300
"""Seconds from the making of a nonce to its end."""
_TIME_BYTES: Final = 8
_SEAL_BYTES: Final = 16
_NONCE_LENGTH: Final = (_TIME_BYTES + _SEAL_BYTES) * 4 // 3
"""Characters in base64url; there is no padding, since the bytes are a multiple of three."""


class NonceNeeded(Exception):
    """The proof is to be made again, with this ``nonce``."""

    def __init__(self, nonce: str) -> None:
        super().__init__("a proof with a nonce is needed")
        self.nonce = nonce


class ProofNonces:
    """Makes nonces, and knows its own ones without keeping any: a nonce is its time, sealed with ``secret``. Processes
    that share the secret know each other's nonces; `None` makes a secret for this process."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret

    def make(self, now: float) -> str:
        """Return a nonce that is good from ``now`` on, in seconds since the epoch, for five minutes."""
        time = int(now).to_bytes(_TIME_BYTES, "big")
        return urlsafe_b64encode(time + self._seal(time)).decode("ascii")

    def ends_at(self, nonce: str) -> float | None:
        """Return the time at which ``nonce`` ends; `None` for one that was not made here."""
        if len(nonce) != _NONCE_LENGTH or not nonce.isascii():
            return None
        try:
            data = urlsafe_b64decode(nonce)
        except ValueError:
            return None
        time = data[:_TIME_BYTES]
        if not hmac.compare_digest(data[_TIME_BYTES:], self._seal(time)):
            return None
        return float(int.from_bytes(time, "big") + _GOOD_FOR)

    def _seal(self, time: bytes) -> bytes:
        return hmac.digest(self._secret, b"DPoP-Nonce" + time, hashlib.sha256)[:_SEAL_BYTES]


class TooManyProofs(Exception):
    """The client has used so many proofs lately that no more can be remembered."""


class SeenProofs:
    """Remembers at most ``most`` proofs, each until the proof is too old to be used again.

    No proof is forgotten before: else whoever uses many would make room for a replay. A principal that has a fair share
    of the places, with however many keys, is refused further ones until the first proofs are too old; nothing is taken
    from other principals.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = set[bytes]()
        self._ending: dict[int, list[tuple[Hashable, bytes]]] = {}
        """Principals and proofs by the second after which the proofs are too old."""
        self._held = Counter[Hashable]()
        """Number of proofs by principal."""
        self._looked_at = -1

    def __len__(self) -> int:
        """Return the number of remembered proofs."""
        return len(self._seen)

    def add(self, principal: Hashable, key: str, proof_id: str, ends_at: float, now: float) -> bool:
        """Remember a proof of ``key``, which ``principal`` has used and which is too old from ``ends_at`` on. Return
        whether the proof is new. Raises `TooManyProofs`."""
        self._forget_what_is_over(now)
        # As a hash, every proof takes the same room, however long its name.
        digest = hashlib.sha256(f"{key} {proof_id}".encode()).digest()
        if digest in self._seen:
            return False
        if not leaves_enough(self._held[principal], self._most - len(self._seen)):
            raise TooManyProofs
        self._seen.add(digest)
        self._held[principal] += 1
        self._ending.setdefault(math.ceil(ends_at), []).append((principal, digest))
        return True

    def _forget_what_is_over(self, now: float) -> None:
        second = int(now)
        if second == self._looked_at:
            return
        self._looked_at = second
        for end in [end for end in self._ending if end < second]:
            for principal, digest in self._ending.pop(end):
                self._seen.discard(digest)
                self._held[principal] -= 1
                if not self._held[principal]:
                    del self._held[principal]
