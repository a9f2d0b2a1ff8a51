"""Masking takes secrets out of messages before messages are written down.

The same secret of one recording has the same mask, so that a `requestState` can be followed from its answer to its
retry; a mask says nothing of the secret, since its key is made for each recording and forgotten.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any, Final, cast

MASK: Final = "masked:"
"""Beginning of each text in the place of a secret."""

_NAMES: Final = frozenset(("auth", "cookie", "setcookie", "dpop", "passphrase", "pin", "requeststate", "xapikey"))
_PARTS: Final = ("authorization", "password", "passwd", "secret", "apikey", "privatekey", "credential", "accesskey")
_NO_SECRETS: Final = frozenset(("progresstoken", "maxtokens", "totaltokens", "inputtokens", "outputtokens"))
_SIGN: Final = re.compile("[^a-z0-9]")
_IN_TEXT: Final = re.compile(
    r"""
    (?P<scheme>\b(?:bearer|basic|dpop)\s+)[A-Za-z0-9._~+/=-]{8,}   # RFC 9110 section 11: credentials behind a scheme
    | (?P<user>\b[a-z][a-z0-9+.-]{1,20}://)[^\s/?\#@]{1,500}(?=@)    # RFC 3986 section 3.2.1: userinfo of a URL
    | (?P<query>[?&\#;][a-z_-]{0,30}(?:token|secret|password|passwd|api_?key|signature|auth|sig|code)=)[^\s&\#;"'<>]{4,}
    | \beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?  # RFC 7519: a token with claims
    | \b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk-|hf_|npm_|pypi-)[A-Za-z0-9_-]{16,}   # tokens of services
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | -----BEGIN[ ][A-Z ]{0,30}PRIVATE[ ]KEY-----[^-]{0,20000}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_HINTS: Final = re.compile("[ @=]|eyJ|_|-|AKIA|ASIA")
"""Signs that texts without a secret mostly lack; looking for a sign takes less time than looking for secrets."""


def names_secret(key: str) -> bool:
    """Return whether the value under ``key`` is taken for a secret, by its name alone."""
    plain = _SIGN.sub("", key[:100].lower())
    if plain in _NO_SECRETS:
        return False
    return plain in _NAMES or plain.endswith(("token", "tokens")) or any(part in plain for part in _PARTS)


class Masking:
    """The masks of one recording."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def masked(self, data: Any) -> Any:
        """Return a copy of plain ``data`` without secrets: the values of keys that name one, and in any text what
        stands behind a scheme of HTTP, the secrets in URLs, and tokens that are known by their form. The schema of a
        property with such a name stays."""
        if isinstance(data, dict):
            members = cast("dict[str, Any]", data)
            return {key: self._member(key, value) for key, value in members.items()}
        if isinstance(data, list):
            return [self.masked(each) for each in cast("list[Any]", data)]
        if isinstance(data, str) and _HINTS.search(data):
            return _IN_TEXT.sub(self._hidden, data)
        return data

    def _hidden(self, found: re.Match[str]) -> str:
        before = found["scheme"] or found["user"] or found["query"] or ""
        return before + self._mask(found[0][len(before) :])

    def _member(self, key: str, value: Any) -> Any:
        if key == "properties" and isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            if all(isinstance(each, dict) for each in members.values()):  # of a JSON Schema: names, with schemas
                return {name: self.masked(each) for name, each in members.items()}
        if value is None or isinstance(value, bool) or not names_secret(key):
            return self.masked(value)
        return self._mask(repr(cast("object", value)))

    def _mask(self, text: str) -> str:
        return MASK + hashlib.blake2b(text.encode("utf-8", "replace"), key=self._key, digest_size=5).hexdigest()
