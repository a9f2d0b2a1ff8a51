"""Verification: a verifier tells for whom a token speaks, by its signature or by a question to its issuer.

All verifiers of this package share the classes here: the claims that an issuer makes of a token, checked, and the
principal that follows (RFC 7519 section 4.1, RFC 9068); the parts of a signed token or proof, read before a word of
either is believed (RFC 7515 section 3.1); and the fetcher that asks an issuer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import attrs
import msgspec

from ...classes import frozen
from ...jsonrpc.base64url import decode_base64url
from ...jsonrpc.codec import check_levels
from ...lazy import lazy_pattern
from ...protocol.fields import as_object
from ...runtime.peer import Principal
from ...transports.http_client.origins import is_local_host, split_url

if TYPE_CHECKING:
    from ..fetching import Fetcher


def check_resource(url: str, trusted_http_hosts: Collection[str] = ()) -> str:
    """Return ``url``, which a client can be told as the URL of a resource. Raises `ValueError`."""
    return _checked("resource", url, trusted_http_hosts)


def check_issuer(url: str, trusted_http_hosts: Collection[str] = ()) -> str:
    """Return ``url``, which may name an authorization server. Raises `ValueError`."""
    if "?" in url:  # RFC 8414 section 2
        raise ValueError(f"an authorization server is named by its issuer, a URL without query, not {url[:300]!r}")
    return _checked("authorization server", url, trusted_http_hosts)


def check_endpoint(url: str, trusted_http_hosts: Collection[str] = ()) -> str:
    """Return ``url``, which may be an endpoint of an authorization server. Raises `ValueError`."""
    return _checked("endpoint", url, trusted_http_hosts)


def _checked(what: str, url: str, trusted_http_hosts: Collection[str]) -> str:
    origin, _ = split_url(url)
    # 2026-07-28 authorization, Communication Security: https, but for what stays on this machine, or in a network that
    # the author answers for.
    if not origin.secure and not is_local_host(origin.host) and origin.host not in trusted_http_hosts:
        raise ValueError(
            f"the URL of the {what} must begin with https://, or with http:// on this machine or at a host in "
            f"trusted_http_hosts, not {url[:300]!r}"
        )
    return url


def canonical(url: str) -> str:
    """Return ``url`` as all ways to write the same URL are compared (RFC 3986 sections 6.2.2.1 and 6.2.3): the letters
    of scheme and host small, no port that the scheme implies, no empty path. Raises `ValueError`."""
    origin, target = split_url(url)
    return f"{origin}{target}"


Verify: TypeAlias = Callable[[str], Awaitable[Principal | None]]
"""An async function that returns the principal of a token; `None` for a token that isn't valid."""


class VerifyingObject(Protocol):
    """An object with the function that verifies."""

    async def verify(self, token: str) -> Principal | None:
        """Return the party that ``token`` speaks for, `None` for a token that is not good here. The issuer must
        have meant the token for this server: a token for another resource is not good. Raises
        `VerifierUnavailable`."""
        ...


Verifier: TypeAlias = Verify | VerifyingObject
"""A function ``verify``, or an object with such a method."""


class VerifierUnavailable(Exception):
    """No verdict on a token is possible now: the client is asked to come back later, and keeps its token. The
    message is for the log."""


class BuiltInVerifier(ABC):
    """A verifier of this package, which learns from `Protected` for which resource the tokens have to be."""

    @property
    def _holds_for(self) -> float:
        """Seconds for which an answer holds."""
        return math.inf

    @abstractmethod
    def _at(
        self,
        resource: str,
        authorization_servers: Sequence[str],
        now: Callable[[], float],
        trusted_http_hosts: frozenset[str] = frozenset(),
    ) -> VerifyingObject:
        """Return the verifier for ``resource``, whose tokens come from ``authorization_servers`` unless the author has
        said otherwise. ``now`` tells the time in seconds since the epoch. ``trusted_http_hosts``: those of `Protected`.
        Raises `ValueError` where the two do not fit."""


@frozen(kw_only=True)
class ExpectedClaims:
    """The claims of tokens that are good here."""

    issuers: Collection[str]
    audiences: frozenset[str]
    """Names of this resource: see `audiences`."""
    leeway: float
    """Seconds by which clocks may differ."""

    def check_times(self, claims: Mapping[str, Any], now: float) -> None:
        """Raise `Untrusted` for a token of another time than ``now``."""
        expires_at, begins_at, issued_at = (_time(claims, name) for name in ("exp", "nbf", "iat"))
        if expires_at is not None and now >= expires_at + self.leeway:
            raise Untrusted(f"expired {now - expires_at:g} s ago")
        for name, begins in (("nbf", begins_at), ("iat", issued_at)):
            if begins is not None and begins > now + self.leeway:
                raise Untrusted(f"{name} is {begins - now:g} s in the future")

    def check_issuer(self, claims: Mapping[str, Any]) -> str:
        """Return the issuer. Raises `Untrusted` for a token of anybody else."""
        issuer = claims.get("iss")
        # RFC 9068 section 4: identical, character by character.
        if not isinstance(issuer, str) or issuer not in self.issuers:
            raise Untrusted(f"the issuer is {issuer!a:.200}")
        return issuer

    def check_audience(self, claims: Mapping[str, Any]) -> None:
        """Raise `Untrusted` for a token that was not issued for this resource."""
        # 2026-07-28 authorization, Access Token Privilege Restriction: MUST be for here.
        names, own = _texts(claims, "aud"), self.audiences
        if own.isdisjoint(names) and own.isdisjoint(map(_comparable, _at_hosts_of(own, names))):
            raise Untrusted(f"the audience is {claims.get('aud')!a:.200}")

    def principal(self, claims: Mapping[str, Any], issuer: str | None) -> Principal:
        """Return the party that checked ``claims`` speak of. Raises `Untrusted` where there is none."""
        subject = _text(claims, "sub")
        client_id = next(filter(None, (_text(claims, name) for name in _CLIENT_CLAIMS)), None)
        if not subject and not client_id:
            raise Untrusted("neither a sub nor a client_id")
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
"""Claims with the name of the client, of RFC 9068 section 2.2, OpenID Connect, Okta and Entra ID v1 in turn. Without
the name, a program without a user would pass for a user."""


def audiences(names: Iterable[str]) -> frozenset[str]:
    """Return the ``names`` of a resource in all forms in which tokens have them: as given, and as URLs are compared."""
    return frozenset(form for name in names for form in (name, _canonical(name)))


def _at_hosts_of(own: frozenset[str], names: Iterable[str]) -> Iterable[str]:
    """Return those of ``names``, each once, that may be URLs on a host in ``own``. Reading a URL takes some hundred
    instructions, and a token may name any number of audiences."""
    starts = _starts(own)
    return {name for name in names if name.lower().startswith(starts)}


@lru_cache
def _starts(own: frozenset[str]) -> tuple[str, ...]:
    """Return the first letters, in lower case, of all URLs with the scheme and host of one in ``own``. An IPv6 address
    has many forms, so its letters are left out."""
    starts = set[str]()
    for name in own:
        try:
            origin, _ = split_url(name)
        except ValueError:  # what is no URL
            continue
        starts.add(f"{origin.scheme}://{'[' if ':' in origin.host else origin.host}")
    return tuple(starts)


def _comparable(audience: str) -> str:
    """Return the ``audience`` of a token in the form in which URLs are compared. Text beyond ASCII stays unchanged:
    no word of a token is worth a look into the tables of names."""
    return _canonical(audience) if audience.isascii() else audience


def _canonical(audience: str) -> str:
    try:
        return canonical(audience)
    except ValueError:  # what is no URL
        return audience


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Untrusted(f"{name} is no number")
    try:
        return float(value)
    except OverflowError:  # of an integer of hundreds of digits
        raise Untrusted(f"{name} is no time") from None


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise Untrusted(f"{name} is no text")
    return value


def _texts(claims: Mapping[str, Any], name: str) -> list[str]:
    value: object = claims.get(name)
    values = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in values if isinstance(text, str)]
    if len(texts) < len(values):
        raise Untrusted(f"{name} is no text, and no list of texts")
    return texts


def _thumbprint(claims: Mapping[str, Any]) -> str | None:
    """Return the thumbprint of the key that the token is bound to (RFC 9449 section 6.1), `None` for a token that is
    bound to none. Raises `Untrusted` for a binding of another kind (RFC 7800), which nobody here could check."""
    confirmation: object = claims.get("cnf")
    if confirmation is None:
        return None
    thumbprint = as_object(confirmation).get("jkt")
    if not isinstance(thumbprint, str) or not thumbprint:
        raise Untrusted("the token is bound by other means than DPoP")
    return thumbprint


_SEGMENT: Final = lazy_pattern(r"[A-Za-z0-9_-]+")


class Untrusted(Exception):
    """The token or proof is not to be believed. The message is for the log of the server, and has nothing secret."""


@frozen
class Signed:
    """A token with a signature that nobody has looked at yet."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any] = attrs.field(repr=False)
    algorithm: str
    """The algorithm of the signature, one of the allowed algorithms."""
    kid: str | None
    """The name of the key."""
    signed: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)


def read_signed(text: str, algorithms: Collection[str], longest: int) -> Signed:
    """Return the parts of ``text``, in compact form, of at most ``longest`` characters. Raises `Untrusted` for anything
    but a JSON object signed by one of ``algorithms``.

    Of the header nothing is used but ``alg``, ``kid`` and ``typ``: a key that comes with a token proves nothing.
    """
    if len(text) > longest:
        raise Untrusted(f"longer than {longest} characters")
    parts = text.split(".")
    if len(parts) != 3:  # five are encrypted (RFC 7516 section 3.1)
        raise Untrusted("not in the compact form of a signed token")
    header, claims = _object(_decoded(parts[0])), _decoded(parts[1])
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise Untrusted(f"the algorithm is {algorithm!a:.100}")
    if "crit" in header:  # RFC 7515 section 4.1.11: extensions that have to be understood, and none is here
        raise Untrusted("the header has critical extensions")
    if kid is not None and not isinstance(kid, str):
        raise Untrusted("the kid is no text")
    signed = text.rpartition(".")[0].encode("ascii")
    return Signed(header, _object(claims), algorithm, kid, signed, _decoded(parts[2]))


def _decoded(segment: str) -> bytes:
    """Return the bytes of ``segment``, which has to be written in the one canonical way: else a token could be written
    in several ways that all are good."""
    if _SEGMENT.fullmatch(segment) and len(segment) % 4 != 1:
        decoded = decode_base64url(segment, padded=False)
        if urlsafe_b64encode(decoded).rstrip(b"=").decode("ascii") == segment:
            return decoded
    raise Untrusted("a part is not in base64url")


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        value: object = msgspec.json.decode(text)
        check_levels(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Untrusted("a part is no JSON") from None
    if not isinstance(value, dict):
        raise Untrusted("a part is no JSON object")
    return cast("dict[str, Any]", value)


_ISSUER_DEADLINE: Final = 10.0
"""Seconds in which an issuer has to answer."""


def fetcher_for(url: str, trusted_http_hosts: frozenset[str]) -> Fetcher:
    """Return a fetcher for ``url``, and for what the answer names: by ``https`` alone, and by ``http`` where both are
    on this machine, and from ``trusted_http_hosts``. Raises `ValueError`."""
    from ..fetching import HttpFetcher, UrlRules

    # The author of this server has named the URL, not a stranger: the hosts count, whatever the URL is.
    rules = attrs.evolve(UrlRules.for_server(url), trusted_http_hosts=trusted_http_hosts)
    return HttpFetcher(rules, deadline=_ISSUER_DEADLINE)
