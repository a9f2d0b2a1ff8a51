"""How a class of the specification is declared, and since when, and until when, a field of it exists."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar, cast, dataclass_transform

import attrs

__all__ = ["JSONObject", "history_of", "since", "wire", "wire_name"]

T = TypeVar("T")

JSONObject: TypeAlias = dict[str, Any]
"""A JSON object that is kept verbatim."""

_SINCE: Final = "trio_mcp.since"
_UNTIL: Final = "trio_mcp.until"


def since(revision: str, *, until: str | None = None, default: Any = None) -> Any:
    """A field that only ``revision`` and later ones can say, up to and including ``until``.

    Converters of other revisions leave it out. It always has a default, since older peers never send it.
    """
    return attrs.field(default=default, metadata={_SINCE: revision, _UNTIL: until})


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def wire(kind: type[T]) -> type[T]:
    """`attrs.frozen` for the classes of the specification.

    There are some ninety of them, and what attrs writes and compiles for each is half of what importing this
    package takes. Comparing, hashing, showing and pickling are rare here, so the classes share one way to do it.
    """
    made = cast("Any", attrs.frozen(kind, eq=False, repr=False, getstate_setstate=False))
    made.__eq__, made.__hash__, made.__repr__ = _equal, _hash, _show
    made.__getstate__, made.__setstate__ = _values, _restore
    return made


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, field.name) for field in attrs.fields(cast("Any", type(self))))


def _restore(self: Any, values: tuple[Any, ...]) -> None:
    for field, value in zip(attrs.fields(cast("Any", type(self))), values, strict=True):
        object.__setattr__(self, field.name, value)


def _equal(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _show(self: Any) -> str:
    """Absent members stay unsaid: most members of most objects are."""
    told = [
        f"{field.name}={getattr(self, field.name)!r}"
        for field in attrs.fields(cast("Any", type(self)))
        if getattr(self, field.name) is not None
    ]
    return f"{type(self).__name__}({', '.join(told)})"


def history_of(field: attrs.Attribute[Any]) -> tuple[str | None, str | None]:
    """The first and the last revision that have ``field``; `None` where there is no such bound."""
    return cast("tuple[str | None, str | None]", (field.metadata.get(_SINCE), field.metadata.get(_UNTIL)))


def wire_name(name: str) -> str:
    """The JSON member of an attribute: camelCase, and ``_meta`` for ``meta``."""
    if name == "meta":
        return "_meta"
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)
