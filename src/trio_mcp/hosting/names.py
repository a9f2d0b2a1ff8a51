"""Names in the catalogue: valid, and never two things under one."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

__all__ = ["catalogue_name", "catalogue_uri", "may_name", "parse_uri"]

_SEPARATOR: Final = "__"
_LONGEST: Final = 128
_DIGEST: Final = 16
_STEM: Final = 24
_SCHEME: Final = "member://"
# 2025-11-25 tools, Tool Names: letters, digits, underscore, hyphen and dot; 1 to 128 of them.
_VALID: Final = re.compile(r"[A-Za-z0-9_.-]+")
_RUNS: Final = re.compile(r"[^A-Za-z0-9.-]+")  # underscores, too


def catalogue_name(member: str, name: str) -> str:
    """``member__name``; where that would not do, both are cut to what is valid, and a digest tells them apart.

    The name depends on nothing but these two, so other members never change it. The first ``__`` of the usual
    form ends the member, because no member that gets it holds one or ends in ``_``; the other form holds none at all.
    So the two never meet, whatever names a server thinks up, and within the second form the digest decides.
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
    """Whether ``name`` could be that of something of ``member``."""
    return name.startswith(_stem(member)[:_STEM])


def catalogue_uri(member: str, uri: str) -> str:
    """``member://MEMBER/URI``, of a URI or a template of URIs."""
    return f"{_SCHEME}{quote(member, safe='', errors='surrogatepass')}/{uri}"


def parse_uri(uri: str) -> tuple[str, str] | None:
    """The member and its own URI; `None` for what is not from the catalogue."""
    if not uri.startswith(_SCHEME):
        return None
    member, slash, own = uri.removeprefix(_SCHEME).partition("/")
    return (unquote(member, errors="surrogatepass"), own) if slash else None
