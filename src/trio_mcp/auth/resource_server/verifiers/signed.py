"""Signed: the parts of a signed token or proof (RFC 7515 section 3.1), read before anything of them is believed."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import attrs
import msgspec

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]+")


class Untrusted(Exception):
    """The token or proof is not to be believed. The message is for the log of the server, and has nothing secret."""


@attrs.frozen
class Signed:
    """A token whose signature nobody has looked at yet."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any] = attrs.field(repr=False)
    algorithm: str
    """The algorithm of the signature, one of those that were allowed."""
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
        decoded = urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
        if urlsafe_b64encode(decoded).rstrip(b"=").decode("ascii") == segment:
            return decoded
    raise Untrusted("a part is not in base64url")


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Untrusted("a part is no JSON") from None
    if not isinstance(value, dict):
        raise Untrusted("a part is no JSON object")
    return cast("dict[str, Any]", value)
