"""ProofChecks: checks that the sender of a token has the private key that the token is bound to (DPoP, RFC 9449 section
4.3).

`ProofNonces` creates values that clients repeat in their proofs (section 9). `ProofReplayGuard` remembers the proofs
that were used (section 11.1). The module needs joserfc.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, cast

from ...classes import frozen
from ...concurrency.bounded import BoundedDict
from ...concurrency.fair_share import leaves_enough
from ...jsonrpc.codec import decode_base64url
from ...runtime.peer import Principal
from ...stores.sealing import derived_key
from .keys import ASYMMETRIC, UnusableKey, VerificationKey, check_extra, read_key
from .refusals import USED_BEFORE
from .verification import Signed, Untrusted, canonical, read_signed

_LONGEST: Final = 8 * 1024
"""The maximum length of a DPoP proof, in characters. Proofs with the largest keys have 4 KiB."""
_WINDOW: Final = 60.0
"""The maximum age of a proof in seconds if no nonces are used, and by how much the clocks may differ."""
_MOST_PROOFS: Final = 100_000
_MOST_KEYS: Final = 1000


@frozen
class UsedProof:
    """A valid DPoP proof that was just used. It must not be accepted again."""

    digest: bytes
    """SHA-256 hash of the proof's id and key."""
    ttl: int
    """Milliseconds until the proof is too old for every process, however much their clocks differ."""


class ProofChecks:
    """Checks the DPoP proofs of requests to ``resource``.

    With ``nonces``, each proof must contain a nonce that the server has created, and the client's clock doesn't matter.
    ``now`` returns the time in seconds since the epoch.
    """

    algorithms = ASYMMETRIC
    """The accepted signature algorithms of DPoP proofs."""

    def __init__(self, resource: str, nonces: ProofNonces | None, now: Callable[[], float]) -> None:
        check_extra()
        self._target = _without_query(resource)
        self._nonces = nonces
        self._now = now
        self._seen = ProofReplayGuard(_MOST_PROOFS)
        self._keys = BoundedDict[str, tuple[Mapping[str, Any], VerificationKey]](_MOST_KEYS)
        """The public keys that have signed a proof, with their JWKs, by thumbprint. Only the most recently used keys
        are stored."""

    def share(self, secret: bytes) -> None:
        """Derive DPoP nonces from ``secret``. All replicas share the secret, so that each replica accepts the nonces of
        the others.

        Has no effect without nonces, or if the server's author has passed a secret for nonces.
        """
        if self._nonces is not None:
            self._nonces.share(secret)

    def check(self, proof: str, method: str, token: str, principal: Principal) -> UsedProof:
        """Check the DPoP ``proof`` of a request with the HTTP method ``method``, mark the proof as used, and return it.

        The proof must be made for this request, with the key that ``token`` of ``principal`` is bound to, and must not
        have been used before. Raises `Untrusted` if the proof is invalid, `NonceNeeded` if it needs another nonce, and
        `TooManyProofs` if the client used too many proofs recently.
        """
        # The numbers in the following comments refer to the list in RFC 9449 section 4.3.
        signed = read_signed(proof, self.algorithms, _LONGEST)  # 2, 5
        if signed.header.get("typ") != "dpop+jwt":  # 4
            raise Untrusted("the typ of a DPoP proof must be dpop+jwt")
        thumbprint = principal.key_thumbprint
        if thumbprint is None:
            raise Untrusted("the token is not bound to a DPoP key")
        jwk, key = self._key(signed, thumbprint)  # 7, 12
        proof_id = self._checked_claims(signed.claims, method, token)  # 3, 8, 9, 12
        now = self._now()
        ends_at = self._expires_at(signed.claims, now)  # 10, 11
        if not key.has_signed(signed):  # 6
            raise Untrusted("the DPoP proof was not signed with the key in its header")
        self._keys[thumbprint] = jwk, key
        # Store a hash of the proof's id: the id may be of any length, but hashes have a fixed size.
        digest = hashlib.sha256(f"{thumbprint} {proof_id}".encode()).digest()
        if not self._seen.add(principal.id, digest, ends_at, now):  # section 11.1
            raise Untrusted(USED_BEFORE)
        return UsedProof(digest, math.ceil((ends_at - now + _WINDOW) * 1000))

    def _key(self, signed: Signed, thumbprint: str) -> tuple[Mapping[str, Any], VerificationKey]:
        """Return the public key in the header of a DPoP proof, as a JWK and as a key object.

        Raises `Untrusted` if the key doesn't have the given ``thumbprint``.
        """
        jwk: object = signed.header.get("jwk")
        if not isinstance(jwk, dict):
            raise Untrusted("the DPoP proof has no key (jwk)")
        # Cache the key: parsing a key takes as long as checking a signature, and clients rarely change keys.
        known = self._keys.get(thumbprint)
        if known is not None and known[0] == jwk:
            return known
        found = cast("dict[str, Any]", jwk)
        try:
            key = read_key(found)
        except UnusableKey as error:
            raise Untrusted(f"the key of the DPoP proof is not usable: {error}") from None
        if key.thumbprint != thumbprint:
            raise Untrusted("the token is not bound to the key of the DPoP proof")
        return found, key

    def _checked_claims(self, claims: Mapping[str, Any], method: str, token: str) -> str:
        """Check the claims of a DPoP proof, and return the proof's id. Raises `Untrusted` if the proof was made for
        another request."""
        proof_id, target, ath = (claims.get(name) for name in ("jti", "htu", "ath"))
        if not isinstance(proof_id, str) or not proof_id:
            raise Untrusted("the DPoP proof has no id (jti)")
        if claims.get("htm") != method:
            raise Untrusted("the DPoP proof is for another HTTP method")
        if not isinstance(target, str) or self._target != _without_query(target):
            raise Untrusted("the DPoP proof is for another URL")
        hashed = urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=")
        if not isinstance(ath, str) or not hmac.compare_digest(ath.encode(), hashed):
            raise Untrusted("the DPoP proof is for another token")
        return proof_id

    def _expires_at(self, claims: Mapping[str, Any], now: float) -> float:
        """Return the time after which a DPoP proof is too old to be accepted."""
        issued_at = claims.get("iat")
        if isinstance(issued_at, bool) or not isinstance(issued_at, int | float):
            raise Untrusted("the DPoP proof has no time (iat)")
        if self._nonces is None:
            if not now - _WINDOW <= issued_at <= now + _WINDOW:
                raise Untrusted("the DPoP proof is too old, or its time is in the future")
            return issued_at + _WINDOW
        nonce = claims.get("nonce")
        ends_at = self._nonces.ends_at(nonce) if isinstance(nonce, str) else None
        if ends_at is None or ends_at <= now:
            raise NonceNeeded(self._nonces.make(now))
        return ends_at


def _without_query(url: str) -> str:
    """Return ``url`` without query, fragment and trailing slash, in a form in which equivalent URLs compare equal.

    Endpoints also respond at the URL with the slash.
    """
    try:
        return canonical(url.partition("#")[0].partition("?")[0]).rstrip("/")
    except ValueError:
        raise Untrusted("the htu of a DPoP proof must be a URL") from None


_GOOD_FOR: Final = 300
"""The number of seconds for which a nonce is valid."""
_TIME_BYTES: Final = 8
_SEAL_BYTES: Final = 16
_NONCE_LENGTH: Final = (_TIME_BYTES + _SEAL_BYTES) * 4 // 3
"""The length of a nonce in base64url characters. There is no padding, since the number of bytes is a multiple of
three."""


class NonceNeeded(Exception):
    """The client must send its request again, with a new DPoP proof that contains ``nonce``."""

    def __init__(self, nonce: str) -> None:
        super().__init__("a DPoP proof with a nonce is needed")
        self.nonce = nonce


class ProofNonces:
    """Creates DPoP nonces, and recognizes them by their signature, so that nonces needn't be stored.

    Each nonce is its creation time, signed with ``secret``.

    Processes that share the secret accept each other's nonces. If ``secret`` is `None`, a random secret is generated.
    """

    def __init__(self, secret: bytes | None) -> None:
        self._is_own = secret is None
        self._secret = secrets.token_bytes(32) if secret is None else secret

    def share(self, secret: bytes) -> None:
        """Derive the secret for DPoP nonces from ``secret``, which all replicas share. If the server's author has
        passed a secret for nonces, keep that one."""
        if self._is_own:
            self._secret = derived_key(secret, b"trio-mcp DPoP-Nonce 1")

    def make(self, now: float) -> str:
        """Return a new DPoP nonce, created at ``now`` (seconds since the epoch) and valid for five minutes."""
        time = int(now).to_bytes(_TIME_BYTES, "big")
        return urlsafe_b64encode(time + self._seal(time)).decode("ascii")

    def ends_at(self, nonce: str) -> float | None:
        """Return the time at which the DPoP ``nonce`` expires; `None` if ``nonce`` wasn't created with this object's
        secret."""
        if len(nonce) != _NONCE_LENGTH or not nonce.isascii():
            return None
        try:
            data = decode_base64url(nonce)
        except ValueError:
            return None
        time = data[:_TIME_BYTES]
        if not hmac.compare_digest(data[_TIME_BYTES:], self._seal(time)):
            return None
        return float(int.from_bytes(time, "big") + _GOOD_FOR)

    def _seal(self, time: bytes) -> bytes:
        return hmac.digest(self._secret, b"DPoP-Nonce" + time, hashlib.sha256)[:_SEAL_BYTES]


class TooManyProofs(Exception):
    """The client has used so many DPoP proofs recently that the server can't remember another proof."""


class ProofReplayGuard:
    """Detects replayed DPoP proofs. It remembers at most ``limit`` used proofs, each until the proof is too old to be
    accepted.

    No proof is forgotten earlier; otherwise a client that uses many proofs could make room for a replay. A principal
    that has its fair share of the places, with however many keys, is refused further proofs until its first ones are
    too old. Other principals keep their places.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen = set[bytes]()
        self._by_expiry: dict[int, list[tuple[Hashable, bytes]]] = {}
        """Principals and their used proofs, by the second after which the proofs are too old."""
        self._counts = Counter[Hashable]()
        """The number of remembered proofs, by principal."""
        self._looked_at = -1

    def __len__(self) -> int:
        """Return the number of used DPoP proofs that are remembered."""
        return len(self._seen)

    def add(self, principal: Hashable, digest: bytes, ends_at: float, now: float) -> bool:
        """Remember the ``digest`` of a DPoP proof that ``principal`` has used, and return whether the proof is new.

        The digest is forgotten at ``ends_at``, when the proof is too old to be accepted. Raises `TooManyProofs` if no
        more proofs can be remembered.
        """
        self._discard_expired(now)
        if digest in self._seen:
            return False
        if not leaves_enough(self._counts[principal], self._limit - len(self._seen)):
            raise TooManyProofs
        self._seen.add(digest)
        self._counts[principal] += 1
        self._by_expiry.setdefault(math.ceil(ends_at), []).append((principal, digest))
        return True

    def _discard_expired(self, now: float) -> None:
        second = int(now)
        if second == self._looked_at:
            return
        self._looked_at = second
        for end in [end for end in self._by_expiry if end < second]:
            for principal, digest in self._by_expiry.pop(end):
                self._seen.discard(digest)
                self._counts[principal] -= 1
                if not self._counts[principal]:
                    del self._counts[principal]
