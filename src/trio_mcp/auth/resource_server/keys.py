"""The public keys of token issuers and of clients, read from JWKs (RFC 7517). Their number and size are limited.

A `KeySource` has the keys of one issuer, and fetches them when needed, but not too often. `fetch_keys` fetches them
from the URL in the metadata of the issuer (RFC 8414). Checking signatures needs joserfc.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import attrs
import msgspec
import trio

from ...classes import frozen
from ...jsonrpc.codec import check_levels, decode_base64url
from ...lazy import extra, require
from ...protocol.authorization import InvalidDocument, ServerMetadata
from ..fetching import Fetch, Fetcher, FetchFailed, server_metadata_urls
from .verification import Signed, VerifierUnavailable, check_url

if TYPE_CHECKING:
    from joserfc import jwk as jose_jwk
    from joserfc import jws
    from joserfc.jwk import ECKey, OKPKey, RSAKey
else:
    _MISSING: Final = "checking signatures needs joserfc: install trio-mcp[auth]"
    jose_jwk, jws = extra("joserfc.jwk", _MISSING), extra("joserfc.jws", _MISSING)


_ALGORITHMS: Final[Mapping[tuple[str, str | None], tuple[str, ...]]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("Ed25519", "EdDSA"),
}
"""The signature algorithms for each type and curve of a key (RFC 7518 section 3.1, RFC 9864). A key of another type has
no algorithm, so a public key is never used as the secret of an HMAC."""

ASYMMETRIC: Final = tuple(algorithm for algorithms in _ALGORITHMS.values() for algorithm in algorithms)
"""All signature algorithms that can be checked."""

_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",)}
_PRIVATE: Final = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))
_RSA_BITS: Final = range(2048, 8192 + 1)
"""The minimum and maximum length of an RSA key in bits: at least 2048 (RFC 7518 section 3.3). The time for a check
grows with the square of the length."""
_LONGEST_MEMBER: Final = 1400
"""The maximum length of a field of a JWK, in characters (8192 bits)."""
_LONGEST_EXPONENT: Final = 6
"""The maximum length of an RSA key's exponent, in characters (32 bits). The time for a check grows with that length."""
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
_MOST_KEYS: Final = 100


def check_extra() -> None:
    """Raise `ImportError` unless the package joserfc is installed. It is part of the extra ``trio-mcp[auth]``."""
    require(jws)


class UnusableKey(ValueError):
    """The JWK isn't a public key that this server can use to check signatures. The error's message contains no part of
    the key."""


@frozen
class VerificationKey:
    """A public key with which signatures are checked."""

    kid: str | None
    """The id of the key (``kid``), which the key's owner has chosen."""
    algorithms: frozenset[str]
    """The algorithms for which the key may be used."""
    _key: RSAKey | ECKey | OKPKey = attrs.field(repr=False)

    @property
    def thumbprint(self) -> str:
        """The SHA-256 thumbprint of the key, which identifies the key (RFC 7638)."""
        return self._key.thumbprint()

    def has_signed(self, signed: Signed) -> bool:
        """Return whether ``signed`` was signed with the private key that belongs to this key. The algorithm must be one
        that this key allows."""
        if signed.algorithm not in self.algorithms:
            return False
        return jws.JWSRegistry.algorithms[signed.algorithm].verify(signed.signed, signed.signature, self._key)


def read_key(jwk: Mapping[str, Any]) -> VerificationKey:
    """Return the public key in ``jwk``.

    Raises `UnusableKey` if the JWK isn't a supported public key. A JWK with a private key is refused as well, since a
    disclosed private key proves nothing.
    """
    kind, curve, kid, algorithm = (jwk.get(name) for name in ("kty", "crv", "kid", "alg"))
    if not isinstance(kind, str) or not (curve is None or isinstance(curve, str)):
        raise UnusableKey("the kty of a JWK must be a string, and its crv must be a string or missing")
    algorithms = _ALGORITHMS.get((kind, None if kind == "RSA" else curve))
    if algorithms is None:
        raise UnusableKey("the type or curve of the key is not supported (kty, crv)")
    if not _PRIVATE.isdisjoint(jwk):
        raise UnusableKey("a private key")
    operations = jwk.get("key_ops")  # RFC 7517 sections 4.2 and 4.3 define the fields use and key_ops
    if jwk.get("use", "sig") != "sig" or not (operations is None or _has(operations, "verify")):
        raise UnusableKey("the use or key_ops of the key forbids checking signatures with it")
    if algorithm is not None and algorithm not in algorithms:
        raise UnusableKey("the algorithm of the key is not supported (alg)")
    if kid is not None and not isinstance(kid, str):
        raise UnusableKey("the kid of a key must be a string")
    members = {name: _member(jwk, name) for name in _MEMBERS[kind]}
    allowed = frozenset(algorithms if algorithm is None else (str(algorithm),))
    return VerificationKey(kid, allowed, _imported(kind, curve, members))


def _has(operations: object, operation: str) -> bool:
    return isinstance(operations, list) and operation in operations


def _member(jwk: Mapping[str, Any], name: str) -> str:
    value = jwk.get(name)
    longest = _LONGEST_EXPONENT if name == "e" else _LONGEST_MEMBER
    if not isinstance(value, str) or len(value) > longest or not _BASE64URL.fullmatch(value):
        raise UnusableKey(f"the field {name} of a JWK must be a number in base64url, and not too large")
    return value


def _imported(kind: str, curve: str | None, members: Mapping[str, str]) -> RSAKey | ECKey | OKPKey:
    kinds = {"RSA": jose_jwk.RSAKey, "EC": jose_jwk.ECKey, "OKP": jose_jwk.OKPKey}
    named = {"kty": kind} if kind == "RSA" else {"kty": kind, "crv": str(curve)}
    if kind == "RSA" and (bits := _bits(members["n"])) not in _RSA_BITS:
        raise UnusableKey(f"an RSA key must have 2048 to 8192 bits, not {bits}")
    try:
        return kinds[kind].import_key({**named, **members})
    except Exception:  # joserfc raises many kinds of errors for broken keys, some with the key in their message
        raise UnusableKey("the fields of the JWK do not form a valid key") from None


def _bits(modulus: str) -> int:
    try:
        return int.from_bytes(decode_base64url(modulus, padded=False), "big").bit_length()
    except ValueError:  # no base64url text has this length
        return 0


def read_key_set(document: bytes | str | Mapping[str, Any]) -> tuple[VerificationKey, ...]:
    """Return the usable keys of a JWK set, ignoring unusable ones (RFC 7517 section 5).

    Raises `UnusableKey` unless the set has 1 to 100 keys, at least one of them usable.
    """
    try:
        found: object = document
        if isinstance(document, bytes | str):
            found = msgspec.json.decode(document)
            check_levels(document)
        jwks: object = cast("Mapping[str, Any]", found).get("keys") if isinstance(found, Mapping) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        jwks = None
    if not isinstance(jwks, list) or len(cast("list[Any]", jwks)) > _MOST_KEYS:
        raise UnusableKey(f"a JWK set must have 1 to {_MOST_KEYS} keys")
    keys, reason = list[VerificationKey](), "the set contains no keys"
    for jwk in cast("list[Any]", jwks):
        try:
            if isinstance(jwk, dict):
                keys.append(read_key(cast("dict[str, Any]", jwk)))
        except UnusableKey as error:
            reason = str(error)
    if not keys:
        raise UnusableKey(f"the JWK set contains no usable key: {reason}")
    return tuple(keys)


logger = logging.getLogger("trio_mcp")

_PAUSE_WITH_KEYS: Final = 30.0
"""The minimum number of seconds between two requests for keys. Without this limit, a client that invents key ids would
cause a request for each token."""
_PAUSE_WITHOUT_KEYS: Final = 5.0
"""The minimum number of seconds between two requests while there are no keys, so that no token can be verified."""
_MAX_AGE: Final = 600.0
"""The number of seconds after which the keys are fetched again, since an issuer may have withdrawn one."""
_DEADLINE: Final = 10.0
"""The number of seconds within which the issuer has to respond."""


@frozen
class FixedKeys:
    """A fixed set of public keys, with which the signatures of tokens are checked."""

    _keys: Sequence[VerificationKey]

    async def has_signed(self, signed: Signed) -> bool:
        """Return whether a token was signed with one of the keys in this object."""
        return any(key.has_signed(signed) for key in self._keys if _may_be(key, signed))


class FetchedKeys:
    """The public keys of ``issuer``, with which the signatures of tokens are checked. The function ``fetch`` fetches
    them.

    Keys are fetched before the first check, when they are old, and for a signature that none of the known keys has
    made; in any case at most once in half a minute. Known keys stay valid while the issuer doesn't respond.
    """

    def __init__(self, issuer: str, fetch: Callable[[], Awaitable[Sequence[VerificationKey]]]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._keys: Sequence[VerificationKey] = ()
        self._asked_at = self._got_at = -math.inf
        """The times of the last request for keys and of the last response with keys, on trio's clock."""
        self._failed = False
        """True if the last request for keys failed."""
        self._asking = trio.Lock()

    async def has_signed(self, signed: Signed) -> bool:
        """Return whether a token was signed with one of the issuer's keys, which are fetched if necessary. Raises
        `VerifierUnavailable` if they can't be fetched now."""
        if trio.current_time() >= self._got_at + _MAX_AGE and not (self._keys and self._asking.locked()):
            await self._refresh()  # one caller waits for the new keys, and the other callers use the old keys
        if not self._keys:
            raise VerifierUnavailable(f"the keys of {self._issuer} could not be fetched")
        candidates = [key for key in self._keys if _may_be(key, signed)]
        if any(key.has_signed(signed) for key in candidates):
            return True
        # The token may be signed with a new key, so fetch the keys, unless the token names a known key.
        if candidates and signed.kid is not None and all(key.kid is not None for key in candidates):
            return False
        before = self._keys
        await self._refresh()
        if self._keys is not before:
            return any(key.has_signed(signed) for key in self._keys if _may_be(key, signed))
        if self._failed:
            raise VerifierUnavailable(
                f"the token was signed with an unknown key, and the new keys of {self._issuer} could not be fetched"
            )
        return False

    async def _refresh(self) -> None:
        """Fetch the issuer's keys, unless they were fetched recently. If the issuer doesn't respond, the old keys stay
        in use."""
        async with self._asking:
            now = trio.current_time()
            if now < self._asked_at + (_PAUSE_WITH_KEYS if self._keys else _PAUSE_WITHOUT_KEYS):
                return
            self._asked_at = now
            self._failed = True
            # Shield the fetch from cancellation: otherwise clients that disconnect at once could prevent it.
            with trio.move_on_after(_DEADLINE, shield=True):
                try:
                    self._keys = await self._fetch()
                    self._got_at = trio.current_time()
                    self._failed = False
                except (FetchFailed, UnusableKey) as error:
                    logger.warning("the keys of %s cannot be fetched: %s", self._issuer, error)
                return
            logger.warning("the keys of %s cannot be fetched: no answer within %g s", self._issuer, _DEADLINE)


KeySource: TypeAlias = FixedKeys | FetchedKeys
"""The public keys of one issuer."""


def _may_be(key: VerificationKey, signed: Signed) -> bool:
    """Return whether the token ``signed`` may have been signed with ``key``, as far as the token's header shows."""
    if signed.algorithm not in key.algorithms:
        return False
    return signed.kid is None or key.kid is None or key.kid == signed.kid


def check_jwks_uri(url: str, trusted_http_hosts: Collection[str]) -> str:
    """Return ``url`` if keys may be fetched from it. Otherwise raise a `ValueError` whose message suggests a
    solution."""
    try:
        return check_url("endpoint", url, trusted_http_hosts)
    except ValueError as error:
        raise ValueError(f"jwks_uri: {error}. Or pass the key set itself: JWTVerifier(keys=...)") from None


async def fetch_keys(
    issuer: str, jwks_uri: str | None, fetcher: Fetcher, trusted_http_hosts: Collection[str] = ()
) -> Sequence[VerificationKey]:
    """Fetch and return the issuer's keys from ``jwks_uri``.

    If ``jwks_uri`` is `None`, get the URL of the keys from the metadata of ``issuer``. Raises `FetchFailed` if there is
    no response, and `UnusableKey` if there is no usable key.
    """
    uri = await _jwks_uri(issuer, fetcher) if jwks_uri is None else jwks_uri
    try:
        return read_key_set(await _fetched(uri, fetcher))
    except FetchFailed:
        try:
            check_jwks_uri(uri, trusted_http_hosts)
        except ValueError as error:
            raise FetchFailed(str(error)) from None
        raise


async def _jwks_uri(issuer: str, fetcher: Fetcher) -> str:
    failures = list[str]()
    for url in server_metadata_urls(issuer):
        try:
            return _jwks_uri_in(await _fetched(url, fetcher), issuer)
        except FetchFailed as error:  # try the next URL, since many servers answer any path with an HTML page
            failures.append(str(error))
    raise FetchFailed("; ".join(failures))


def _jwks_uri_in(body: bytes, issuer: str) -> str:
    try:
        metadata = ServerMetadata.from_json(body)
    except InvalidDocument as error:
        raise FetchFailed(f"{issuer}: {error}") from None
    if metadata.issuer != issuer:  # RFC 8414 section 3.3: the metadata must contain exactly this issuer
        raise FetchFailed(f"the metadata of {issuer} contains the wrong issuer, {metadata.issuer!a:.200}")
    if metadata.jwks_uri is None:
        raise FetchFailed(f"the metadata of {issuer} contains no jwks_uri")
    return metadata.jwks_uri


async def _fetched(url: str, fetcher: Fetcher) -> bytes:
    fetched = await fetcher.fetch(Fetch(method="GET", url=url, headers=(("accept", "application/json"),)))
    if fetched.status != HTTPStatus.OK:
        raise FetchFailed(f"{url}: status {fetched.status}")
    return fetched.body
