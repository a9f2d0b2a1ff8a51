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
_SCHEME: Final = re.compile(r"\b(bearer|basic|dpop)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


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
        """Return a copy of plain ``data`` without secrets: the values of keys that name one, and credentials after a
        scheme of HTTP in any text. The schema of a property with such a name stays."""
        if isinstance(data, dict):
            members = cast("dict[str, Any]", data)
            return {key: self._member(key, value) for key, value in members.items()}
        if isinstance(data, list):
            return [self.masked(each) for each in cast("list[Any]", data)]
        if isinstance(data, str) and " " in data:
            return _SCHEME.sub(lambda found: f"{found[1]} {self._mask(found[0])}", data)
        return data

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
