"""Matching URIs against RFC 6570 templates: simple ``{name}`` and reserved ``{+name}`` expressions."""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = ["UriTemplate"]

_EXPRESSION = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)(\*?)\}")


class UriTemplate:
    """``{name}`` stands for one segment, without slashes; ``{+name}`` and ``{name*}`` for anything.

    Raises `ValueError` for other expressions, naming them.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self.names: tuple[str, ...] = tuple(match[2] for match in _EXPRESSION.finditer(template))
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"{template}: a name stands twice")
        pattern, end = "", 0
        for match in _EXPRESSION.finditer(template):
            pattern += re.escape(self._literal(template[end : match.start()]))
            pattern += f"(?P<{match[2]}>{'.+' if match[1] or match[3] else '[^/?#]+'})"
            end = match.end()
        self._pattern = re.compile(pattern + re.escape(self._literal(template[end:])))

    def _literal(self, text: str) -> str:
        if "{" in text or "}" in text:
            raise ValueError(f"{self.template}: only {{name}}, {{+name}} and {{name*}} can be matched")
        return text

    @staticmethod
    def is_template(uri: str) -> bool:
        """Whether ``uri`` has expressions."""
        return "{" in uri

    def match(self, uri: str) -> dict[str, str] | None:
        """The values, percent-decoded, or `None`."""
        match = self._pattern.fullmatch(uri)
        return None if match is None else {name: unquote(value) for name, value in match.groupdict().items()}
