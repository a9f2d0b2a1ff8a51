"""SeenProofs: the proofs that were used, so that none is used twice (RFC 9449 section 11.1)."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Hashable

from ...concurrency.fair_share import leaves_enough


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
