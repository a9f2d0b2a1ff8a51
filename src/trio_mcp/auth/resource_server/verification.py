"""Finds the principal of an access token, from the token's signed claims or with a request to its issuer.

All verifiers of this package share the classes here: the checked claims of a token, and the principal that follows from
them (RFC 7519 section 4.1, RFC 9068); and the parts of a signed token or proof, which aren't trusted yet (RFC 7515
section 3.1).

`TokenCheck` calls a verifier, and caches its results for a while. Concurrent requests with the same token share one
verification. If a verifier of the author fails, that is logged, without the token.
"""

from __future__ import annotations

import hashlib
import logging
import math
import traceback
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

import attrs
import msgspec
import trio

from ...classes import frozen
from ...concurrency.bounded import BoundedDict
from ...jsonrpc.codec import check_levels, decode_base64url
from ...lazy import lazy_pattern
from ...protocol.fields import as_object
from ...runtime.peer import Principal
from ...transports.http_client.origins import is_local_host, split_url
from .refusals import Refusal, broken, unavailable

logger = logging.getLogger("trio_mcp")


def check_issuer(url: str, trusted_http_hosts: Collection[str] = ()) -> str:
    """Return ``url`` if it is valid as the issuer of an authorization server. Otherwise raise `ValueError`."""
    if "?" in url:  # RFC 8414 section 2
        raise ValueError(f"the issuer URL of an authorization server must not have a query, not {url[:300]!r}")
    return check_url("authorization server", url, trusted_http_hosts)


def check_url(what: str, url: str, trusted_http_hosts: Collection[str]) -> str:
    """Return ``url`` if it is valid as the URL of ``what``: of an authorization server, of its endpoint, or of a
    protected resource. Otherwise raise `ValueError`."""
    origin, _ = split_url(url)
    # 2026-07-28 authorization, Communication Security: require https, except on this machine or for trusted hosts.
    if not origin.secure and not is_local_host(origin.host) and origin.host not in trusted_http_hosts:
        raise ValueError(
            f"the URL of the {what} must begin with https://, or with http:// on this machine or at a host in "
            f"trusted_http_hosts, not {url[:300]!r}"
        )
    return url


def canonical(url: str) -> str:
    """Return ``url`` normalized, so that equivalent URLs compare equal (RFC 3986 sections 6.2.2.1 and 6.2.3).

    The result has scheme and host in lower case, no default port, and no empty path.

    Raises `ValueError` if the URL is invalid.
    """
    origin, target = split_url(url)
    return f"{origin}{target}"


Verify: TypeAlias = Callable[[str], Awaitable[Principal | None]]
"""An async function that returns the principal of a token; `None` if the token isn't valid."""


class VerifyingObject(Protocol):
    """Interface for objects that verify tokens."""

    async def verify(self, token: str) -> Principal | None:
        """Return the principal of ``token``; `None` if the token isn't valid for this server.

        A token that was issued for another resource isn't valid. Raises `VerifierUnavailable` if the token can't be
        verified now.
        """
        ...


Verifier: TypeAlias = Verify | VerifyingObject
"""An async function that verifies tokens, or an object with such a method ``verify``."""


class VerifierUnavailable(Exception):
    """Raise this exception in a token verifier if a token can't be verified now.

    The client gets status 503, and keeps its token. The exception's message appears only in the log.
    """


class BuiltInVerifier(ABC):
    """Base class of the token verifiers in this package. `Protected` tells the verifier for which resource a token must
    have been issued."""

    @property
    def _holds_for(self) -> float:
        """The number of seconds for which the verifier's result for a token is cached."""
        return math.inf

    @abstractmethod
    def _at(
        self,
        resource: str,
        authorization_servers: Sequence[str],
        now: Callable[[], float],
        trusted_http_hosts: frozenset[str] = frozenset(),
    ) -> VerifyingObject:
        """Return the verifier for tokens that are issued for ``resource``. By default, one of the
        ``authorization_servers`` must have issued the token.

        ``now`` returns the time in seconds since the epoch. ``trusted_http_hosts`` are those of `Protected`. Raises
        `ValueError` if the settings of the verifier and of `Protected` contradict each other.
        """


@frozen(kw_only=True)
class ExpectedClaims:
    """The values that the claims of a valid token must have."""

    issuers: Collection[str]
    audiences: frozenset[str]
    """The accepted audiences, which are names of this resource: see `audiences`."""
    leeway: float
    """How many seconds the clocks of the issuer and of this machine may differ."""

    def check_times(self, claims: Mapping[str, Any], now: float) -> None:
        """Raise `Untrusted` if the token has expired, or isn't valid yet, at the time ``now``."""
        expires_at, begins_at, issued_at = (_time(claims, name) for name in ("exp", "nbf", "iat"))
        if expires_at is not None and now >= expires_at + self.leeway:
            raise Untrusted(f"the token expired {now - expires_at:g} s ago")
        for name, begins in (("nbf", begins_at), ("iat", issued_at)):
            if begins is not None and begins > now + self.leeway:
                raise Untrusted(f"the time {name} in the token is {begins - now:g} s in the future")

    def check_issuer(self, claims: Mapping[str, Any]) -> str:
        """Return the issuer in the token's ``claims``. Raises `Untrusted` if tokens of this issuer aren't accepted."""
        issuer = claims.get("iss")
        # RFC 9068 section 4: the issuer must be identical, character by character.
        if not isinstance(issuer, str) or issuer not in self.issuers:
            raise Untrusted(f"the issuer of the token is {issuer!a:.200}, which this server does not accept")
        return issuer

    def check_audience(self, claims: Mapping[str, Any]) -> None:
        """Raise `Untrusted` unless the audience in the token's ``claims`` is this resource."""
        # 2026-07-28 authorization, Access Token Privilege Restriction: refuse tokens for other servers.
        names, own = _texts(claims, "aud"), self.audiences
        if own.isdisjoint(names) and own.isdisjoint(map(_comparable, _at_hosts_of(own, names))):
            raise Untrusted(f"the audience of the token is {claims.get('aud')!a:.200}, not this server")

    def principal(self, claims: Mapping[str, Any], issuer: str | None) -> Principal:
        """Return the principal that the token's validated ``claims`` describe. Raises `Untrusted` if the claims contain
        neither a subject nor a client id."""
        subject = _text(claims, "sub")
        client_id = next(filter(None, (_text(claims, name) for name in _CLIENT_CLAIMS)), None)
        if not subject and not client_id:
            raise Untrusted("the token has neither a sub nor a client_id")
        expires_at = _time(claims, "exp")
        return Principal(
            issuer=issuer,
            subject=subject,
            client_id=client_id,
            scopes=frozenset(
                scope for name in ("scope", "scp") for text in _texts(claims, name) for scope in text.split()
            ),
            claims=claims,
            expires_at=None if expires_at is None else expires_at + self.leeway,
            key_thumbprint=_thumbprint(claims),
        )


_CLIENT_CLAIMS: Final = ("client_id", "azp", "cid", "appid")
"""Claims that contain the client id: those of RFC 9068 section 2.2, OpenID Connect, Okta and Entra ID v1, in this
order. Without the client id, a program without a user would be mistaken for a user."""


def audiences(names: Iterable[str]) -> frozenset[str]:
    """Return the audiences that tokens for a resource may have. ``names`` are the resource's names: each is allowed
    both unchanged and as a normalized URL."""
    return frozenset(form for name in names for form in (name, _canonical(name)))


def _at_hosts_of(own: frozenset[str], names: Iterable[str]) -> Iterable[str]:
    """Return those ``names`` that begin with the scheme and host of a URL in ``own``, without duplicates.

    Only these names need to be parsed, which is slow: a token may contain any number of audiences.
    """
    starts = _starts(own)
    return {name for name in names if name.lower().startswith(starts)}


@lru_cache
def _starts(own: frozenset[str]) -> tuple[str, ...]:
    """Return the beginnings of the URLs in ``own``: scheme and host, in lower case.

    For a host that is an IPv6 address, which can be written in many ways, the result has only the scheme and ``[``.
    """
    starts = set[str]()
    for name in own:
        try:
            origin, _ = split_url(name)
        except ValueError:  # not a URL
            continue
        starts.add(f"{origin.scheme}://{'[' if ':' in origin.host else origin.host}")
    return tuple(starts)


def _comparable(audience: str) -> str:
    """Return the ``audience`` of a token, normalized so that equivalent URLs compare equal.

    A string with non-ASCII characters is returned unchanged, so that an untrusted token can't cause slow conversions of
    international domain names.
    """
    return _canonical(audience) if audience.isascii() else audience


def _canonical(audience: str) -> str:
    try:
        return canonical(audience)
    except ValueError:  # not a URL
        return audience


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Untrusted(f"the claim {name} must be a number")
    try:
        return float(value)
    except OverflowError:  # an integer with hundreds of digits raises OverflowError
        raise Untrusted(f"the number in the claim {name} is too large for a time") from None


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise Untrusted(f"the claim {name} must be a string")
    return value


def _texts(claims: Mapping[str, Any], name: str) -> list[str]:
    value: object = claims.get(name)
    values = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in values if isinstance(text, str)]
    if len(texts) < len(values):
        raise Untrusted(f"the claim {name} must be a string or a list of strings")
    return texts


def _thumbprint(claims: Mapping[str, Any]) -> str | None:
    """Return the thumbprint of the key that the token is bound to (RFC 9449 section 6.1); `None` if the token isn't
    bound to a key.

    Raises `Untrusted` if the token is bound with another confirmation method (RFC 7800), which isn't supported.
    """
    confirmation: object = claims.get("cnf")
    if confirmation is None:
        return None
    thumbprint = as_object(confirmation).get("jkt")
    if not isinstance(thumbprint, str) or not thumbprint:
        raise Untrusted("the claim cnf of the token uses an unsupported method: only DPoP (jkt) is supported")
    return thumbprint


_SEGMENT: Final = lazy_pattern(r"[A-Za-z0-9_-]+")


class Untrusted(Exception):
    """The access token or DPoP proof can't be trusted. The error's message is meant for the server's log and contains
    no secrets."""


async def none_if_untrusted(verified: Awaitable[Principal]) -> Principal | None:
    """Return the principal that awaiting ``verified`` returns. If that raises `Untrusted`, log the reason, and return
    `None`."""
    try:
        return await verified
    except Untrusted as reason:
        logger.warning("an access token was refused: %s", reason)
        return None


@frozen
class Signed:
    """A parsed JWT or DPoP proof whose signature hasn't been verified yet."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any] = attrs.field(repr=False)
    algorithm: str
    """The algorithm of the signature, which is one of the accepted algorithms."""
    kid: str | None
    """The id of the key that the token was signed with (``kid``)."""
    signed: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)


def read_signed(text: str, algorithms: Collection[str], longest: int) -> Signed:
    """Parse ``text``, a JWS in compact form of at most ``longest`` characters, and return its parts.

    Raises `Untrusted` unless ``text`` contains a JSON object, signed with one of ``algorithms``.

    Only ``alg``, ``kid`` and ``typ`` of the header are used: a key that is sent with a token proves nothing.
    """
    if len(text) > longest:
        raise Untrusted(f"the token is longer than {longest} characters")
    parts = text.split(".")
    if len(parts) != 3:  # an encrypted token has five parts (RFC 7516 section 3.1)
        raise Untrusted("the token is not a signed JWT in compact form")
    header, claims = _object(_decoded(parts[0])), _decoded(parts[1])
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise Untrusted(f"the signature algorithm {algorithm!a:.100} is not accepted")
    if "crit" in header:  # RFC 7515 section 4.1.11: refuse a token with extensions that must be understood
        raise Untrusted("the JWT header has critical extensions (crit), which are not supported")
    if kid is not None and not isinstance(kid, str):
        raise Untrusted("the kid in the JWT header must be a string")
    signed = text.rpartition(".")[0].encode("ascii")
    return Signed(header, _object(claims), algorithm, kid, signed, _decoded(parts[2]))


def _decoded(segment: str) -> bytes:
    """Decode ``segment``, a base64url-encoded part of a token.

    Raises `Untrusted` unless the encoding is canonical, since otherwise the same token could be written in several
    valid forms.
    """
    if _SEGMENT.fullmatch(segment) and len(segment) % 4 != 1:
        decoded = decode_base64url(segment, padded=False)
        if urlsafe_b64encode(decoded).rstrip(b"=").decode("ascii") == segment:
            return decoded
    raise Untrusted("a part of the token is not base64url")


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        value: object = msgspec.json.decode(text)
        check_levels(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Untrusted("a part of the token is not JSON") from None
    if not isinstance(value, dict):
        raise Untrusted("a part of the token is not a JSON object")
    return cast("dict[str, Any]", value)


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
