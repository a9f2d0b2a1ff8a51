"""cattrs converters: they convert the attrs classes of extensions, and find the invalid parts of any data.

Importing cattrs takes a twentieth of a server's startup time, and few servers need it. For the classes of the
specification, see `readers.py` and `converters.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import list_structure_factory
from cattrs.cols import mapping_structure_factory as _mapping_factory  # pyright: ignore[reportUnknownVariableType] untyped there
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from ..lazy import lazy_pattern
from .fields import fault_text, is_in_revision, is_ours, wire_name
from .foreign_types import is_model
from .readers import (
    LEAVES,
    OPEN,
    SPECIAL,
    Hook,
    around_class,
    is_plain,
    is_tagged_union,
    not_a_list,
    one_of,
    plain,
    read_object,
    tagged_union,
)
from .revisions import Revision
from .types.notifications import LogLevel
from .user_types import convert, is_plain_class

_Writer: TypeAlias = Callable[[Any], Callable[[Any], Any]]
_Refusal: TypeAlias = Callable[[Any, Revision], Callable[[Any], Any] | None]


def faults_in(data: Any, kind: Any) -> list[str]:
    """Return all reasons why JSON data can't be parsed as the type ``kind``, each with a JSON path to the invalid part.

    Return an empty list if the data is valid.
    """
    try:
        structurer(None, detailed=True).structure(data, kind)
    except (TypeError, ValueError, cattrs.BaseValidationError) as error:
        faults = cattrs.transform_error(error, format_exception=lambda each, _: fault_text(each))
        return [_on_the_wire(fault) for fault in faults]
    return []


_PART: Final = lazy_pattern(r"\['(?:[^']|'(?!\]))*+|\.(\w++)")
"""Pattern of a key or a field name. An unterminated key extends to the end of the text, so that each character is read
only once."""


def _on_the_wire(fault: str) -> str:
    """Return the text of a fault with JSON names in its path: ``$.maxTokens`` instead of ``$.max_tokens``."""
    words, at, place = fault.rpartition(" @ ")
    return words + at + _PART.sub(lambda m: f".{wire_name(m[1])}" if m[1] else m[0], place)


@cache
def structurer(revision: Revision | None, *, detailed: bool = False) -> cattrs.Converter:
    """Return a cattrs converter that parses JSON data by the rules of the class `Readers`.

    If ``detailed`` is true, the converter collects all faults.
    """
    converter = cattrs.Converter(detailed_validation=detailed)
    for kind in (str, bool, int, float, LogLevel):
        converter.register_structure_hook(kind, LEAVES[kind])
    converter.register_structure_hook_factory(is_plain, plain)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is list, _list)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is dict and kind != dict[str, Any], _dict)
    converter.register_structure_hook_factory(lambda kind: get_origin(kind) is Literal, one_of)
    converter.register_structure_hook_factory(is_tagged_union, _union)
    converter.register_structure_hook_factory(attrs.has, partial(_read_class, revision))
    converter.register_structure_hook_func(is_plain_class, convert)
    converter.register_structure_hook_func(is_model, convert)
    for kind, read in SPECIAL.items():
        converter.register_structure_hook(kind, partial(read, converter.get_structure_hook))
    return converter


def _union(kind: Any, converter: cattrs.Converter) -> Hook:
    return tagged_union(kind, converter.get_structure_hook)


def _list(kind: Any, converter: cattrs.Converter) -> Hook:
    (item_kind,) = get_args(kind)
    make = list_structure_factory(kind, converter)

    def read_list(value: Any, kind: Any) -> Any:
        if type(value) is not list:
            raise not_a_list(item_kind)
        return make(value, kind)

    return read_list


def _dict(kind: Any, converter: cattrs.Converter) -> Hook:
    make: Hook = _mapping_factory(kind, converter)
    return lambda value, kind: make(read_object(value, kind), kind)


def _read_class(revision: Revision | None, kind: Any, converter: cattrs.Converter) -> Hook:
    renames = {
        field.name: override(
            rename=wire_name(field.name), omit=revision is not None and not is_in_revision(field, revision.name)
        )
        for field in attrs.fields(kind)
    }
    if kind in OPEN:
        renames[OPEN[kind]] = override(omit=True)
    make: Hook = make_dict_structure_fn(kind, converter, **renames)  # pyright: ignore[reportArgumentType]
    return around_class(kind, lambda value, kind: make(read_object(value, None), kind))


@cache
def unstructurer(revision: Revision, write_ours: _Writer, refusal: _Refusal) -> cattrs.Converter:
    """Return a cattrs converter that encodes objects as JSON data for the protocol revision ``revision``.

    ``write_ours`` returns the encoder of a class of this package. ``refusal`` returns an encoder that raises, for a
    subclass of a class that the revision doesn't have.
    """
    converter = cattrs.Converter()
    converter.register_unstructure_hook(Enum, lambda member: member.value)
    converter.register_unstructure_hook_func(lambda kind: kind == dict[str, Any], lambda value: value)
    converter.register_unstructure_hook_factory(attrs.has, partial(_write_class, revision, refusal))
    converter.register_unstructure_hook_factory(is_ours, write_ours)
    return converter


def _write_class(revision: Revision, refusal: _Refusal, kind: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    if (refuse := refusal(kind, revision)) is not None:
        return refuse
    attrs.resolve_types(kind)
    overrides: dict[str, Any] = {
        field.name: override(rename=wire_name(field.name), omit_if_default=field.default is None)
        if is_in_revision(field, revision.name)
        else override(omit=True)
        for field in attrs.fields(kind)
    }
    return make_dict_unstructure_fn(kind, converter, **overrides)  # pyright: ignore[reportArgumentType]
