"""Front matter: the YAML between two lines ``---`` at the top of a ``SKILL.md``, as JSON.

YAML here is that of version 1.2 with its core schema (YAML 1.2.2, section 10.3.2), the JSON of which all readers agree
on: PyYAML reads the grammar, as events, and the values are made here. So ``yes`` and ``2026-11-27`` are texts, and keys
keep their order. A peer may have written it: nothing is recursive, and aliases, a few of which would make gigabytes of
a line, are refused.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, cast

from ..extras import extra, require
from ..protocol.fields import JSONObject

if TYPE_CHECKING:
    import yaml
else:
    yaml = extra("yaml", "skills need PyYAML: install trio-mcp[skills]")

LONGEST: Final = 32 * 1024
"""Characters that front matter may have."""
_DEEPEST: Final = 32
_FENCED: Final = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_BREAKS: Final = re.compile("[\x85\u2028\u2029]")
"""Ends of lines to YAML 1.1, which PyYAML reads, and characters like others to YAML 1.2."""

_PREFIX: Final = "tag:yaml.org,2002:"
_NULL: Final = re.compile(r"null|Null|NULL|~|")
_BOOL: Final = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]{1,100}|0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}")
_FLOAT: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


def check_extra() -> None:
    """Raise `ImportError` unless PyYAML is installed."""
    require(yaml)


def front_matter_of(text: str) -> JSONObject:
    """Return the front matter of the ``text`` of a ``SKILL.md``. Raises `ValueError` for a text without front matter,
    and for front matter that isn't a mapping of strings to JSON values; `ImportError` without PyYAML."""
    check_extra()
    found = _FENCED.match(text)
    if found is None:
        raise ValueError("it begins with no front matter: YAML between two lines ---")
    written = found[1]
    if len(written) > LONGEST:
        raise ValueError(f"its front matter has more than {LONGEST} characters")
    if _BREAKS.search(written):
        raise ValueError("its front matter has a line separator that readers of YAML do not agree on")
    try:
        said = _value_of(written)
    except yaml.YAMLError as error:
        raise ValueError(f"its front matter is no YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(said, dict):
        raise ValueError("its front matter is no mapping")  # noqa: TRY004 - of a file, not of an argument
    return cast("JSONObject", said)


def _value_of(written: str) -> Any:
    """Return the value of the one document in ``written``."""
    top: list[Any] = []
    open_now: list[Any] = [top]
    """The collections around the next value, and, behind each mapping that waits for the value of a key, the key."""
    documents = 0
    parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the loader of libyaml is ten times as fast
    for event in cast("Any", yaml).parse(written, parser):
        match type(event):
            case yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise ValueError("its front matter is more than one document")
            case yaml.AliasEvent:
                raise ValueError("its front matter has an alias: write the value out")
            case yaml.MappingStartEvent | yaml.SequenceStartEvent:
                is_mapping = type(event) is yaml.MappingStartEvent
                if event.tag not in (None, "!", f"{_PREFIX}{'map' if is_mapping else 'seq'}"):
                    raise ValueError(f"its front matter has the tag {event.tag[:100]}, which JSON has not")
                made: Any = {} if is_mapping else []
                _put(open_now, made, None)
                open_now.append(made)
                if len(open_now) > 2 * _DEEPEST:
                    raise ValueError(f"its front matter is nested in more than {_DEEPEST} levels")
            case yaml.MappingEndEvent | yaml.SequenceEndEvent:
                del open_now[-1]
            case yaml.ScalarEvent:
                _put(open_now, _scalar(event), event.value)
            case _:  # pyright: ignore[reportUnknownVariableType] - the begin and the end of the whole
                pass
    return top[0] if top else None


class _MappingKey(str):
    __slots__ = ()


def _put(open_now: list[Any], value: Any, written: str | None) -> None:
    """Put a value into the collection that is open: as an item, as a key, or as the value of the key before it.
    ``written`` is the text of a scalar, which a key is by."""
    now: Any = open_now[-1]
    if type(now) is list:
        cast("list[Any]", now).append(value)
    elif type(now) is _MappingKey:
        del open_now[-1]
        open_now[-1][str(now)] = value
    else:
        if written is None:
            raise ValueError("a key of its front matter is no text")
        if written in now:
            raise ValueError(f"its front matter has the key {written[:100]!r} twice")
        open_now.append(_MappingKey(written))


def _scalar(event: Any) -> Any:
    """Return the value of a scalar by the core schema: that of its tag, else of its form, where it is plain."""
    text: str = event.value
    tag: str | None = event.tag
    if tag not in (None, "!"):
        kind = tag.removeprefix(_PREFIX)
    elif tag == "!" or not event.implicit[0]:
        kind = "str"
    else:
        kind = next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(text)), "str")
    pattern = _KINDS.get(kind)
    if kind == "str":
        return text
    if pattern is None:
        raise ValueError(f"its front matter has the tag {kind[:100]}, which JSON has not")
    if not pattern.fullmatch(text):
        raise ValueError(f"its front matter has {text[:100]!r}, which is no {kind}")
    match kind:
        case "null":
            return None
        case "bool":
            return text in ("true", "True", "TRUE")
        case "int":
            return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
        case _:
            number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            if not math.isfinite(number):
                raise ValueError(f"its front matter has the number {text[:100]}, which JSON has not")
            return number


_KINDS: Final = {"null": _NULL, "bool": _BOOL, "int": _INT, "float": _FLOAT}
