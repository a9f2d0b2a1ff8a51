"""ProofNonces: values that clients repeat in their proofs, so that no proof is older than the server knows (RFC 9449
section 9)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

_GOOD_FOR: Final = 300
"""Seconds from the making of a nonce to its end."""
_TIME: Final = 8
_SEAL: Final = 16
_LENGTH: Final = (_TIME + _SEAL) * 4 // 3
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
        time = int(now).to_bytes(_TIME, "big")
        return urlsafe_b64encode(time + self._seal(time)).decode("ascii")

    def ends_at(self, nonce: str) -> float | None:
        """Return the time at which ``nonce`` ends; `None` for one that was not made here."""
        if len(nonce) != _LENGTH or not nonce.isascii():
            return None
        try:
            data = urlsafe_b64decode(nonce)
        except ValueError:
            return None
        time = data[:_TIME]
        if not hmac.compare_digest(data[_TIME:], self._seal(time)):
            return None
        return float(int.from_bytes(time, "big") + _GOOD_FOR)

    def _seal(self, time: bytes) -> bytes:
        return hmac.digest(self._secret, b"DPoP-Nonce" + time, hashlib.sha256)[:_SEAL]
