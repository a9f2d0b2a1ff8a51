"""Matching URIs against RFC 6570 templates: simple ``{name}`` and reserved ``{+name}`` expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_to_bytes

from ...jsonrpc.errors import INVALID_PARAMS, CodedError

LONGEST_URI: Final = 8192
"""Limit in characters. A URI is matched against each template, and kept for as long as its subscription, so its length
is bounded."""

_EXPRESSION: Final = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)(\*?)\}")
_DELIMITERS: Final = frozenset("/?#")
_RESERVED: Final = re.compile(r"[:@!$&'()*+,;=\[\]]")
"""Further characters that values of a ``{name}`` hold percent-encoded only (RFC 6570, 3.2.2)."""
_MALFORMED: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SLASH: Final = re.compile(r"[/\\]")


def check_length(uri: str) -> None:
    """Raise `CodedError` (-32602) for a URI of a peer that has more than `LONGEST_URI` characters."""
    if len(uri) > LONGEST_URI:
        raise CodedError(INVALID_PARAMS, f"Invalid params: a URI has at most {LONGEST_URI} characters")


class UriTemplate:
    """A URI with names in the place of some of its parts.

    ``{name}`` stands for one segment, which is one or more characters other than ``/``, ``?`` and ``#``. ``{+name}``,
    or ``{name*}``, stands for one or more characters of any kind. A URI is matched as written; then the text of each
    name is percent-decoded once. The URI does not match where the decoding gives

    - anything but UTF-8, or a control character;
    - for ``{name}``: a slash or a backslash, ``.`` or ``..``;
    - for ``{+name}``: a slash or a backslash at its beginning, or ``..`` as a segment, for slashes and backslashes as
    separators.

    Between two names stands text with ``/``, ``?`` or ``#`` in it; or, behind a ``{name}``, with another character that
    is percent-encoded in its values, ``&`` or ``,`` for example, and then the first occurrence of that character ends
    the name. One name at most is a ``{+name}``. All other templates are ambiguous: some URIs would fit in two ways. In
    templates that are not ambiguous, the end of a name is known before the rest of the URI is read, so matching takes
    time in proportion to the length of the URI.

    Raises `ValueError` for an ambiguous template, a name that stands twice, and other expressions, which the error
    names.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        found = list(_EXPRESSION.finditer(template))
        self.names: tuple[str, ...] = tuple(match[2] for match in found)
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"{template}: a name stands twice")
        self._fits: dict[str, Callable[[str], bool]] = {}
        pattern = re.escape(self._literal(template[: found[0].start()])) if found else ""
        for match, following in zip(found, [*found[1:], None], strict=False):
            is_path = bool(match[1] or match[3])
            if is_path and _is_path in self._fits.values():
                raise ValueError(f"{template} is ambiguous: only one of its names can hold slashes")
            literal, others = self._literal(template[match.end() : following and following.start()]), "/?#"
            if following is not None and _DELIMITERS.isdisjoint(literal):
                end = None if is_path else _RESERVED.search(literal)
                if end is None:
                    raise ValueError(
                        f"{template} is ambiguous: nothing says where {{{match[2]}}} ends and {following[0]} begins. "
                        f"Put a slash between them, {template[: match.end()]}/{following[0]} for example."
                    )
                others += re.escape(end[0])
            pattern += f"(?P<{match[2]}>{'.+' if is_path else f'[^{others}]+'}){re.escape(literal)}"
            self._fits[match[2]] = _is_path if is_path else _is_segment
        self._pattern = re.compile(pattern or re.escape(self._literal(template)))

    def _literal(self, text: str) -> str:
        if "{" in text or "}" in text:
            raise ValueError(f"{self.template}: only {{name}}, {{+name}} and {{name*}} can be matched")
        return text

    @staticmethod
    def is_template(uri: str) -> bool:
        """Return whether ``uri`` has expressions."""
        return "{" in uri or "}" in uri

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the value of each name, or `None` where ``uri`` does not fit."""
        match = self._pattern.fullmatch(uri)
        if match is None:
            return None
        values: dict[str, str] = {}
        for name, fits in self._fits.items():
            value = _decoded(match[name])
            if value is None or not fits(value):
                return None
            values[name] = value
        return values


def _decoded(text: str) -> str | None:
    """Return ``text`` with its percent-encodings decoded once, or `None` for text that is malformed or no UTF-8."""
    if _MALFORMED.search(text):
        return None
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError:
        return None


def _is_segment(text: str) -> bool:
    return text not in (".", "..") and not _CONTROL.search(text) and not _SLASH.search(text)


def _is_path(text: str) -> bool:
    return not _SLASH.match(text) and not _CONTROL.search(text) and ".." not in _SLASH.split(text)
