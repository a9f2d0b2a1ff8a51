"""Notes beside a type that other packages read and this one does not: refused, since nobody would check them."""

from __future__ import annotations

from inspect import Parameter
from typing import Annotated, Any, Final, cast, get_args, get_origin

import msgspec

__all__ = ["check_notes"]

_PACKAGES: Final = frozenset(("pydantic", "pydantic_core", "annotated_types"))
_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def check_notes(name: str, parameter: Parameter, hint: Any) -> None:
    """Raise `TypeError` for a constraint in the ``Annotated`` or the default of a ``parameter`` of ``name`` that is
    none of msgspec's. Notes that say nothing of the value are passed over (PEP 593)."""
    found = [note for note in _notes_in(hint) if _constrains(note)]
    if _is_field(parameter.default):
        found.append(parameter.default)
    if found:
        kind = cast("type[Any]", type(found[0]))
        raise TypeError(
            f"{name}: parameter {parameter.name!r}: {kind.__name__} of {kind.__module__.partition('.')[0]} is not read "
            "here. Write what it says with msgspec:\n"
            f"    wrong:  {parameter.name}: int = Field(3, ge=1, description='How many.')\n"
            f"    right:  {parameter.name}: Annotated[int, msgspec.Meta(ge=1, description='How many.')] = 3"
        )


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
