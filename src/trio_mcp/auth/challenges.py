"""Challenges of ``WWW-Authenticate``: read and written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from ..classes import frozen
from ..lazy import lazy_pattern

RESOURCE_METADATA: Final = "/.well-known/oauth-protected-resource"
"""The place of the metadata that challenges name (RFC 9728 section 3)."""

_LONGEST: Final = 32 * 1024
_MOST_CHALLENGES: Final = 16
_MOST_PARAMS: Final = 32
"""Parameters of one challenge."""
_MOST_PARTS: Final = 600
"""Parts of a value that are looked at."""

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*+"'
"""RFC 9110 section 5.6.4. No expression here goes back, so each character is read a few times at most."""
_END: Final = r"[ \t]*+(?=,|\Z)"

_NAME: Final = lazy_pattern(_TOKEN)
_GAP: Final = lazy_pattern(r"[ \t,]*+")
_SCHEME: Final = lazy_pattern(rf"({_TOKEN})(?:{_END}|[ ]++)")
_TOKEN68: Final = lazy_pattern(rf"([A-Za-z0-9._~+/-]++=*+){_END}")
_PARAM_NAME: Final = lazy_pattern(rf"({_TOKEN})[ \t]*+=[ \t]*+")
_VALUE: Final = lazy_pattern(rf"(?:({_TOKEN})|({_QUOTED}))(?:{_END}|[ \t]++(?={_TOKEN}[ \t]*+=))")
"""Some servers forget the comma before the next parameter."""
_ELEMENT: Final = lazy_pattern(rf'(?:[^",]|{_QUOTED})*+(?=,|\Z)')
"""The text up to the next comma outside of quotes."""
_ESCAPED: Final = lazy_pattern(r"\\(.)")
_WRITTEN: Final = lazy_pattern(r"[\x20-\x7e]*")


@frozen
class Challenge:
    """A way to authenticate that a server offers (RFC 9110 section 11.3)."""

    scheme: str
    """The name of the scheme, in lower case."""
    params: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Values by names in lower case. Read-only."""
    token68: str | None = attrs.field(default=None, repr=False)
    """The text that some schemes have in place of parameters."""


def parse_challenges(value: str) -> list[Challenge]:
    """Return the challenges in the value of ``WWW-Authenticate``, of repeated headers joined with commas, in their
    order (RFC 9110 section 11.6.1). Schemes may be any.

    Never raises: a part that cannot be read is left out, as are a parameter that comes a second time, and all beyond
    the bounds. A value of more than 32 KiB is not read at all. Costs linear time.
    """
    return [] if len(value) > _LONGEST else list(_challenges(value))


def _challenges(value: str) -> Iterator[Challenge]:
    scheme: str | None = None
    token68: str | None = None
    params: dict[str, str] = {}
    found = parts = 0
    at = _match_end(_GAP, value, 0)
    while at < len(value) and found < _MOST_CHALLENGES and parts < _MOST_PARTS:
        parts += 1
        if name := _PARAM_NAME.match(value, at):
            at = name.end()
            if read := _VALUE.match(value, at):
                token, quoted = read.groups()
                key = name[1].lower()
                if scheme is not None and key not in params and len(params) < _MOST_PARAMS:
                    params[key] = token if quoted is None else _ESCAPED.sub(r"\1", quoted[1:-1])
                at = _match_end(_GAP, value, read.end())
                continue
        else:
            if scheme is not None:
                yield Challenge(scheme, MappingProxyType(params), token68)
                found += 1
            scheme, token68, params = None, None, {}
            if begun := _SCHEME.match(value, at):
                scheme, at = begun[1].lower(), begun.end()
                if text := _TOKEN68.match(value, at):
                    token68, at = text[1], text.end()
                elif _PARAM_NAME.match(value, at):
                    continue
        # Beyond an open quote nobody knows what is a comma, so nothing is read.
        rest = _ELEMENT.match(value, at)
        at = len(value) if rest is None else _match_end(_GAP, value, rest.end())
    if scheme is not None and found < _MOST_CHALLENGES:
        yield Challenge(scheme, MappingProxyType(params), token68)


def _match_end(pattern: re.Pattern[str], value: str, at: int) -> int:
    match = pattern.match(value, at)
    return at if match is None else match.end()


def challenge_text(scheme: str, params: Mapping[str, str]) -> str:
    """Return the challenge as a part of ``WWW-Authenticate``. All values are quoted. Raises `ValueError` for a name
    that is no token, and for a value that has other than printable ASCII characters; the value is not in the text."""
    for name in (scheme, *params):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is no name of a scheme or parameter of WWW-Authenticate")
    for name, value in params.items():
        if not _WRITTEN.fullmatch(value):
            raise ValueError(f"the parameter {name} of WWW-Authenticate must have printable ASCII characters only")
    texts = [f'{name}="{_escaped(value)}"' for name, value in params.items()]
    return f"{scheme} {', '.join(texts)}" if texts else scheme


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"")
