"""Keys: public keys of issuers and of clients, from their JWK (RFC 7517), within bounds."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs
import msgspec

from .signed import Signed

try:
    from joserfc.jwk import ECKey, OKPKey, RSAKey
    from joserfc.jws import JWSRegistry
except ImportError:
    raise ImportError("checking signatures needs joserfc: install trio-mcp[auth]") from None


_ALGORITHMS: Final[Mapping[tuple[str, str | None], tuple[str, ...]]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("Ed25519", "EdDSA"),
}
"""Algorithms by type and curve of the key (RFC 7518 section 3.1, RFC 9864): a key of another type is good for none, so
that no public key is ever taken for the secret of an HMAC."""

ASYMMETRIC: Final = tuple(algorithm for algorithms in _ALGORITHMS.values() for algorithm in algorithms)
"""All algorithms that can be checked here."""

_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",)}
_PRIVATE: Final = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))
_RSA_BITS: Final = range(2048, 8192 + 1)
"""RFC 7518 section 3.3: 2048 bits or more. A check takes time in the square of the length."""
_LONGEST_MEMBER: Final = 1400
"""Characters of a member: 8192 bits."""
_LONGEST_EXPONENT: Final = 6
"""Characters of the exponent, 32 bits: the time of a check grows with the exponent, too."""
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
_MOST_KEYS: Final = 100


class UnusableKey(ValueError):
    """The JWK is no public key that checks signatures here. Nothing of the key is in the message."""


@attrs.frozen
class VerificationKey:
    """A public key."""

    kid: str | None
    """The name that its owner has given to the key."""
    algorithms: frozenset[str]
    """Algorithms that the key may be used with."""
    _key: RSAKey | ECKey | OKPKey = attrs.field(repr=False)

    @property
    def thumbprint(self) -> str:
        """The name of the key that follows from the key itself (RFC 7638)."""
        return self._key.thumbprint()

    def has_signed(self, signed: Signed) -> bool:
        """Return whether the signature was made with this key, by an algorithm of the key."""
        if signed.algorithm not in self.algorithms:
            return False
        return JWSRegistry.algorithms[signed.algorithm].verify(signed.signed, signed.signature, self._key)


def read_key(jwk: Mapping[str, Any]) -> VerificationKey:
    """Return the public key in ``jwk``. Raises `UnusableKey`: for private keys, too, since a key that was shown proves
    nothing."""
    kind, curve, kid, algorithm = (jwk.get(name) for name in ("kty", "crv", "kid", "alg"))
    if not isinstance(kind, str) or not (curve is None or isinstance(curve, str)):
        raise UnusableKey("the type of a key is missing")
    algorithms = _ALGORITHMS.get((kind, None if kind == "RSA" else curve))
    if algorithms is None:
        raise UnusableKey("no type of keys that signatures are checked with here")
    if not _PRIVATE.isdisjoint(jwk):
        raise UnusableKey("a private key")
    operations = jwk.get("key_ops")  # RFC 7517 sections 4.2 and 4.3
    if jwk.get("use", "sig") != "sig" or not (operations is None or _has(operations, "verify")):
        raise UnusableKey("a key for another use")
    if algorithm is not None and algorithm not in algorithms:
        raise UnusableKey("a key for an algorithm that is not used here")
    if kid is not None and not isinstance(kid, str):
        raise UnusableKey("the kid of a key is no text")
    members = {name: _member(jwk, name) for name in _MEMBERS[kind]}
    allowed = frozenset(algorithms if algorithm is None else (str(algorithm),))
    return VerificationKey(kid, allowed, _imported(kind, curve, members))


def _has(operations: object, operation: str) -> bool:
    return isinstance(operations, list) and operation in operations


def _member(jwk: Mapping[str, Any], name: str) -> str:
    value = jwk.get(name)
    longest = _LONGEST_EXPONENT if name == "e" else _LONGEST_MEMBER
    if not isinstance(value, str) or len(value) > longest or not _BASE64URL.fullmatch(value):
        raise UnusableKey(f"the member {name} of a key is no number in base64url, or too large")
    return value


def _imported(kind: str, curve: str | None, members: Mapping[str, str]) -> RSAKey | ECKey | OKPKey:
    kinds = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    named = {"kty": kind} if kind == "RSA" else {"kty": kind, "crv": str(curve)}
    if kind == "RSA" and (bits := _bits(members["n"])) not in _RSA_BITS:
        raise UnusableKey(f"an RSA key of {bits} bits")
    try:
        return kinds[kind].import_key({**named, **members})
    except Exception:  # broken keys raise all kinds of errors, some with the key in them
        raise UnusableKey("a key of wrong numbers") from None


def _bits(modulus: str) -> int:
    try:
        return int.from_bytes(urlsafe_b64decode(modulus + "=" * (-len(modulus) % 4)), "big").bit_length()
    except ValueError:  # of a text whose length no number has
        return 0


def read_key_set(document: bytes | str | Mapping[str, Any]) -> tuple[VerificationKey, ...]:
    """Return the keys of a JWK set that can be used here (RFC 7517 section 5: others are ignored). Raises
    `UnusableKey` for what is no set of 1 to 100 keys, and where none of the keys can be used."""
    try:
        found: object = msgspec.json.decode(document) if isinstance(document, bytes | str) else document
        jwks: object = cast("Mapping[str, Any]", found).get("keys") if isinstance(found, Mapping) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        jwks = None
    if not isinstance(jwks, list) or len(cast("list[Any]", jwks)) > _MOST_KEYS:
        raise UnusableKey(f"no JWK set of at most {_MOST_KEYS} keys")
    keys, reason = list[VerificationKey](), "there is none"
    for jwk in cast("list[Any]", jwks):
        try:
            if isinstance(jwk, dict):
                keys.append(read_key(cast("dict[str, Any]", jwk)))
        except UnusableKey as error:
            reason = str(error)
    if not keys:
        raise UnusableKey(f"no key of the set can be used: {reason}")
    return tuple(keys)
