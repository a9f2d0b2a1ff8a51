"""Notes beside a type that other packages read and this package does not: refused, since nobody would check such
notes."""

from __future__ import annotations

import dataclasses
from inspect import Parameter
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

import attrs
import msgspec

from ...protocol.plain_classes import is_plain_class

_PACKAGES: Final = frozenset(("pydantic", "pydantic_core", "annotated_types"))
_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def check_notes(name: str, parameter: Parameter, hint: Any) -> None:
    """Raise `TypeError` for a constraint in the ``Annotated`` or the default of a ``parameter`` of ``name``, or of a
    field of a class in the annotation, that is not msgspec's. Notes that do not constrain the value are passed over
    (PEP 593)."""
    _check(f"{name}: parameter {parameter.name!r}", parameter.name, hint, parameter.default)
    check_fields(f"{name}: parameter {parameter.name!r}", hint)


def check_fields(where: str, hint: Any) -> None:
    """Raise `TypeError`, which begins with ``where``, for such a constraint in a field of a class in ``hint``."""
    for kind in _classes_in(hint):
        defaults = _defaults_of(kind)
        for field, annotated in _hints_of(kind).items():
            _check(f"{where}: field {field!r} of {kind.__name__}", field, annotated, defaults.get(field))


def _check(where: str, name: str, hint: Any, default: Any) -> None:
    found = [note for note in _notes_in(hint) if _constrains(note)]
    if _is_field(default):
        found.append(default)
    if found:
        kind = cast("type[Any]", type(found[0]))
        raise TypeError(
            f"{where}: {kind.__name__} of {kind.__module__.partition('.')[0]} is not read "
            "here. Write what it says with msgspec:\n"
            f"    wrong:  {name}: int = Field(3, ge=1, description='How many.')\n"
            f"    right:  {name}: Annotated[int, msgspec.Meta(ge=1, description='How many.')] = 3"
        )


def _classes_in(hint: Any) -> list[type[Any]]:
    """Return the classes with fields that ``hint`` is made of, classes in fields of other classes included."""
    found: dict[type[Any], None] = {}
    ahead = [hint]
    while ahead:
        each = ahead.pop()
        kind = get_origin(each) or each
        ahead += get_args(each)
        if isinstance(kind, type) and kind not in found and (is_plain_class(kind) or attrs.has(kind)):
            found[kind] = None
            ahead += _hints_of(kind).values()
    return list(found)


def _hints_of(kind: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:  # reported by `schema_of`
        return {}


def _defaults_of(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return {field.name: field.default for field in dataclasses.fields(kind)}
    if attrs.has(kind):
        return {field.name: field.default for field in attrs.fields(kind)}
    if issubclass(kind, msgspec.Struct):
        return {field.name: field.default for field in msgspec.structs.fields(kind)}
    return getattr(kind, "_field_defaults", {})  # of a NamedTuple; a TypedDict has none


def _notes_in(hint: Any) -> list[Any]:
    own: list[Any] = list(hint.__metadata__) if get_origin(hint) is Annotated else []
    return own + [note for argument in get_args(hint) for note in _notes_in(argument)]


def _constrains(note: Any) -> bool:
    if isinstance(note, msgspec.Meta | type):
        return False
    return _is_field(note) or any(getattr(note, constraint, None) is not None for constraint in _CONSTRAINTS)


def _is_field(note: Any) -> bool:
    kind = cast("type[Any]", type(note))
    package = kind.__module__.partition(".")[0]
    return package in _PACKAGES or (package != "msgspec" and kind.__name__ in ("Field", "FieldInfo"))
