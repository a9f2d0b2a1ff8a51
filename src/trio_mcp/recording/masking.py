"""Masking takes secrets out of messages before messages are written down.

The same secret of one recording has the same mask, so that a `requestState` can be followed from its answer to its
retry; a mask says nothing of the secret, since its key is made for each recording and forgotten.

A peer may send a message that is made to be slow. So each step over a text takes linear time, and a text longer than
`LONGEST` isn't searched but masked whole.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from itertools import pairwise
from typing import Any, Final, cast

import msgspec

from .secret_texts import MASK, is_count, names_secret, without_secrets

LONGEST: Final = 256 * 1024
"""Maximum characters of a text that is searched. A search can't be interrupted, and blocks every thread."""

_NAMES: Final = frozenset(("name", "key", "header", "variable", "env"))
_VALUES: Final = frozenset(("value", "values", "default", "defaultvalue", "currentvalue"))
"""Members whose value is named by another member: ``{"name": "API_KEY", "value": "…"}``."""
_OF_SCHEMAS: Final = frozenset(
    (
        *("type", "title", "description", "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "items"),
        *("minItems", "maxItems", "uniqueItems", "anyOf", "oneOf", "allOf", "not", "$ref", "$comment", "required"),
        *("additionalProperties", "properties", "readOnly", "writeOnly", "deprecated", "nullable", "contentEncoding"),
        *("contentMediaType", "x-mcp-header"),
    )
)
"""Keywords of a secret's schema that don't contain a value of the secret."""
_JSON: Final = re.compile(r"[ \t\r\n]*+[\[{]")
_HINTS: Final = re.compile("[:=@]|eyJ|_|-|AKIA|ASIA|(?i:bearer|basic|dpop|negotiate|ntlm) |<")
"""Signs that most texts without a secret lack. Searching for a sign is faster than searching for secrets."""
_any: Final = msgspec.json.Decoder()


class Masking:
    """The masks of one recording."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def masked(self, data: Any) -> Any:
        """Return a copy of plain ``data`` without secrets. Raises `RecursionError`.

        Secrets are values whose name matches `names_secret`, in data and in texts; credentials after an HTTP scheme;
        users in URLs; private keys; and tokens with a known form. JSON in a text is searched as JSON. The schema of a
        property that is named like a secret stays."""
        if isinstance(data, dict):
            return self._members(cast("dict[str, Any]", data))
        if isinstance(data, list):
            return self._items(cast("list[Any]", data))
        return self._text(data) if isinstance(data, str) else data

    def _members(self, members: dict[str, Any]) -> dict[str, Any]:
        named = members.get("isSecret") is True or any(
            isinstance(value, str) and key.lower() in _NAMES and names_secret(value) for key, value in members.items()
        )
        return {
            self._text(key): self._hidden(value) if named and key.lower() in _VALUES else self._member(key, value)
            for key, value in members.items()
        }

    def _member(self, key: str, value: Any) -> Any:
        if key == "properties" and isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            if all(isinstance(each, dict) for each in members.values()):  # of a JSON Schema: names, with schemas
                return {self._text(name): self._schema(name, each) for name, each in members.items()}
        if not names_secret(key) or (isinstance(value, int | float) and is_count(key)):
            return self.masked(value)
        return self._hidden(value)

    def _schema(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a secret property without values of the secret, such as its default."""
        if not names_secret(name):
            return self._members(schema)
        return {
            self._text(key): self._member(key, value) if key in _OF_SCHEMAS else self._hidden(value)
            for key, value in schema.items()
        }

    def _items(self, items: list[Any]) -> list[Any]:
        if items and all(_is_pair(each) for each in items):  # for example headers
            return [[self._text(name), self._member(name, value)] for name, value in items]
        masked = [self.masked(each) for each in items]
        for index, (option, value) in enumerate(pairwise(items), 1):
            if isinstance(option, str) and option.startswith("-") and "=" not in option and names_secret(option):
                masked[index] = self._hidden(value)  # arguments of a command
        return masked

    def _text(self, text: str) -> str:
        if len(text) > LONGEST:
            return self._whole(text)
        if not _HINTS.search(text):
            return text
        if _JSON.match(text):
            try:
                data = _any.decode(text)
                masked = self.masked(data)
                if masked != data:
                    return msgspec.json.encode(masked).decode()
            except (msgspec.MsgspecError, UnicodeError):
                pass  # looked like JSON, but isn't
            except RecursionError:
                return self._whole(text)
        return without_secrets(text, self._mask)

    def _whole(self, text: str) -> str:
        """Return the mask for a text that isn't searched."""
        return f"{self._mask(text)} ({len(text)} characters)"

    def _hidden(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        return self._mask(value if isinstance(value, str) else repr(value))

    def _mask(self, text: str) -> str:
        return MASK + hashlib.blake2b(text.encode("utf-8", "replace"), key=self._key, digest_size=5).hexdigest()


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(cast("list[Any]", item)) == 2 and isinstance(item[0], str)
