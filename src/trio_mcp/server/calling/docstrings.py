"""Docstrings with sections, in the style of Google, NumPy or Sphinx: the section about parameters goes into the schema.

griffe reads the sections, and is imported for a docstring that has some (extra ``trio-mcp[docstrings]``). Without it
such a docstring stays whole in the description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ...lazy import lazy_pattern

_STYLES: Final = {
    "google": lazy_pattern(r"^(?:Args|Arguments|Params|Parameters):[ \t]*$", re.MULTILINE),
    "numpy": lazy_pattern(r"^Parameters[ \t]*\n-{3,}[ \t]*$", re.MULTILINE),
    "sphinx": lazy_pattern(r"^:param ", re.MULTILINE),
}


def parameters_in(doc: str | None) -> tuple[str | None, dict[str, str]]:
    """Return ``doc`` without its section about parameters, and the descriptions of the parameters by name."""
    style = next((name for name, section in _STYLES.items() if doc is not None and section.search(doc)), None)
    if doc is None or style is None:
        return doc, {}
    try:
        from griffe import Docstring, Parser  # late: most docstrings have no sections
    except ImportError:
        return doc, {}

    parts: list[str] = []
    found: dict[str, str] = {}
    for section in Docstring(doc).parse(Parser(style), warnings=False):
        if section.kind.value in ("parameters", "other parameters"):
            found |= {each.name: " ".join(each.description.split()) for each in section.value if each.description}
        else:
            parts += _words(section.kind.value, section.title, section.value)
    return "\n\n".join(parts) or None, found


def _words(kind: str, title: str | None, value: Any) -> Iterator[str]:
    """Yield the words of another section, for a description."""
    match kind:
        case "text":
            yield value
        case "returns" | "yields":
            yield "\n".join(f"{kind.capitalize()}: {each.description}" for each in value)
        case "raises" | "warns":
            yield "\n".join(f"{kind.capitalize()} {each.annotation}: {each.description}" for each in value)
        case "examples":
            yield "\n".join(("Examples:", *(text for _, text in value)))
        case "admonition":
            yield f"{title}: {value.contents}"
        case _:  # attributes, classes and the like are no matter of a function
            pass
