"""Names in the catalogue, each valid and of a single item."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

_SEPARATOR: Final = "__"
_LONGEST: Final = 128
_DIGEST: Final = 16
_STEM: Final = 24
_SCHEME: Final = "member://"
# 2025-11-25 tools, Tool Names: letters, digits, underscore, hyphen and dot; 1 to 128 of them.
_VALID: Final = re.compile(r"[A-Za-z0-9_.-]+")
_RUNS: Final = re.compile(r"[^A-Za-z0-9.-]+")  # underscores, too


def catalogue_name(member: str, name: str) -> str:
    """Return ``member__name``; if invalid or ambiguous, both parts are cut to valid characters and followed by a
    digest.

    The name depends on nothing but the two parts, so other members never change a name. In the usual form the first
    ``__`` ends the member, because a member of the usual form neither holds ``__`` nor ends in ``_``; the other form
    holds no ``__`` at all. The two forms therefore never collide, whatever names a server chooses, and within the
    second form the digest decides.
    """
    plain = f"{member}{_SEPARATOR}{name}"
    if name and _VALID.fullmatch(plain) and len(plain) <= _LONGEST and _is_plain(member):
        return plain
    digest = sha256(f"{len(member)}:{member}{name}".encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    stem = _stem(name)[: _LONGEST - _STEM - _DIGEST - 2]
    return _RUNS.sub("_", f"{_stem(member)[:_STEM]}_{stem}_{digest}")


def _is_plain(member: str) -> bool:
    return bool(member) and _SEPARATOR not in member and not member.endswith("_")


def _stem(name: str) -> str:
    return _RUNS.sub("_", name)


def may_name(member: str, name: str) -> bool:
    """Return whether ``name`` could be the catalogue name of an item of ``member``."""
    return name.startswith(_stem(member)[:_STEM])


def catalogue_uri(member: str, uri: str) -> str:
    """Return ``member://MEMBER/URI`` for a URI or a template of URIs."""
    return f"{_SCHEME}{quote(member, safe='', errors='surrogatepass')}/{uri}"


def parse_uri(uri: str) -> tuple[str, str] | None:
    """Return the member and its own URI; `None` for a URI from outside the catalogue."""
    if not uri.startswith(_SCHEME):
        return None
    member, slash, own = uri.removeprefix(_SCHEME).partition("/")
    return (unquote(member, errors="surrogatepass"), own) if slash else None
