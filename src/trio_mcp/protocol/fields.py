"""The fields of the specification's classes: the protocol revisions that have them, and the code that reads and writes
them.

The code that converts JSON objects to instances of this package's attrs classes, and back, is generated. It names each
member and calls its reader or writer, so that one function reads or writes an object. It does what `cattrs.gen`
generates for such a class, but needs neither cattrs nor the code that attrs generates, because servers must start fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import attrs

from ..classes import Field, plain_fields

JSONObject: TypeAlias = dict[str, Any]
"""Type of a JSON object that is kept unchanged."""


def as_object(value: object) -> JSONObject:
    """Return ``value`` if it is a JSON object. Otherwise return an empty object."""
    return cast("JSONObject", value) if isinstance(value, dict) else {}


_TYPES: Final = {bool: "boolean", dict: "object", float: "number", int: "integer", list: "array", str: "string"}
JSON_TYPES: Final = frozenset(("null", *_TYPES.values()))
"""The names of types in JSON Schema."""
_SINCE: Final = "trio_mcp.since"
_UNTIL: Final = "trio_mcp.until"


def json_type(value: Any) -> str:
    """Return the name of the JSON type of a value, one of `JSON_TYPES`.

    Return an empty string if the value isn't JSON data.
    """
    return "null" if value is None else _TYPES.get(cast("Any", type(value)), "")


class AnyInstance(type):
    """Metaclass for classes ``C`` for which ``isinstance(value, C)`` is true for every value.

    msgspec checks the class of a parsed value, and would reject the value otherwise.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def hint_parts(hint: Any) -> Iterator[Any]:
    """Yield a type annotation and, recursively, its type arguments and its metadata."""
    yield hint
    for part in () if get_origin(hint) is Literal else get_args(hint):
        yield from hint_parts(part)


def union_parts(kind: Any) -> tuple[Any, ...]:
    """Return the types in a union type. For any other type, return an empty tuple."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


def since(revision: str, *, until: str | None = None, default: Any = None) -> Any:
    """Return an attrs field that exists in the protocol revisions from ``revision`` to ``until``, both included.

    Converters of other revisions omit the field. The field always has a default, because older peers never send it.
    """
    return attrs.field(default=default, metadata={_SINCE: revision, _UNTIL: until})


def local() -> Any:
    """Return an attrs field that exists only in memory and is never sent.

    Because of `OPEN` in ``readers.py``, it is never parsed from received data either.
    """
    return attrs.field(default=None, metadata={_SINCE: "never"})


def history_of(field: attrs.Attribute[Any] | Field) -> tuple[str | None, str | None]:
    """Return the first and the last protocol revision that have ``field``. `None` means no limit."""
    return cast("tuple[str | None, str | None]", (field.metadata.get(_SINCE), field.metadata.get(_UNTIL)))


def is_in_revision(field: attrs.Attribute[Any] | Field, revision: str) -> bool:
    """Return true if the protocol revision ``revision`` has ``field``."""
    first, last = history_of(field)
    return (first is None or first <= revision) and (last is None or revision <= last)


def fault_text(error: BaseException) -> str:
    """Return the text of ``error``, an exception that a reader of JSON data has raised. A `KeyError` names a missing
    field."""
    return f"missing {wire_name(error.args[0])!r}" if isinstance(error, KeyError) else str(error)


def wire_name(name: str) -> str:
    """Return the JSON name of a Python attribute: its name in camelCase, or ``_meta`` for ``meta``."""
    if name == "meta":
        return "_meta"
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


_PACKAGE: Final = f"{__name__.partition('.')[0]}."


def is_ours(kind: Any) -> bool:
    """Return true if ``kind`` is an attrs class that ``trio_mcp`` defines."""
    return isinstance(kind, type) and kind.__module__.startswith(_PACKAGE) and _fields_of(kind) is not None


def fields_of(kind: Any) -> Sequence[Field]:
    """Return the fields of an attrs class, or an empty sequence for any other type.

    The types of the fields may be strings: see `hints_of`.
    """
    return (_fields_of(kind) or ()) if isinstance(kind, type) else ()


@cache
def _fields_of(kind: type) -> Sequence[Field] | None:
    if (fields := plain_fields(kind)) is None and attrs.has(kind):
        return attrs.fields(kind)
    return fields


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the type annotations of a class's fields, keyed by field name."""
    return get_type_hints(kind, include_extras=True)


def reader_of(kind: Any, revision: str | None, hook_for: Callable[[Any], Any], skipped: str | None) -> Any:
    """Generate and return a function that parses JSON data as an instance of ``kind``.

    It raises `TypeError` for data that isn't an object, and `KeyError` for a missing member.

    ``hook_for`` returns the reader of a type. The field ``skipped``, and fields that ``revision`` doesn't have, aren't
    read.
    """
    names: dict[str, Any] = {"kind": kind}
    arguments: list[str] = []
    in_order = True  # pass positional arguments, because they are faster than keyword arguments
    for field in fields_of(kind):
        if not field.init or field.name == skipped or not (revision is None or is_in_revision(field, revision)):
            in_order = False
            continue
        name, member, hint = field.name, wire_name(field.name), hints_of(kind)[field.name]
        names[f"type_{name}"], names[f"read_{name}"] = hint, _hook(names, f"read_{name}", field, hint, hook_for)
        argument = f"read_{name}(data[{member!r}], type_{name})"
        if field.default is None:
            argument += f" if {member!r} in data else None"
        elif field.default is not attrs.NOTHING:
            is_made = isinstance(field.default, attrs.Factory)  # pyright: ignore[reportArgumentType]
            names[f"default_{name}"] = field.default.factory if is_made else field.default
            argument += f" if {member!r} in data else default_{name}{'()' if is_made else ''}"
        in_order = in_order and not field.kw_only
        arguments.append(argument if in_order else f"{field.alias}={argument}")
    check = "if type(data) is not dict:\n    raise TypeError('expected an object')"
    return _compiled(kind, f"def run(data, _):\n  {check}\n  return kind({', '.join(arguments)})", names)


def writer_of(kind: Any, revision: str, hook_for: Callable[[Any], Any], unchanged: Any) -> Any:
    """Generate and return a function that encodes an instance of ``kind`` as a JSON object for the protocol revision
    ``revision``.

    ``hook_for`` returns the writer of a type, or ``unchanged`` if values stay as they are. A field whose default is
    `None` is omitted while it is `None`.
    """
    names: dict[str, Any] = {}
    always: list[str] = []
    lines: list[str] = []
    for field in fields_of(kind):
        if not field.init or not is_in_revision(field, revision):
            continue
        name, member, hint = field.name, wire_name(field.name), hints_of(kind)[field.name]
        if field.default is None and len(parts := get_args(hint)) == 2 and NoneType in parts:
            hint = parts[0] if parts[1] is NoneType else parts[1]
        names[f"write_{name}"] = write = _hook(names, f"write_{name}", field, hint, hook_for)
        source = "item" if field.default is None else f"value.{name}"
        item = source if write is unchanged else f"write_{name}({source})"
        if field.default is None:
            lines += [f"if (item := value.{name}) is not None:", f"  data[{member!r}] = {item}"]
        else:
            always.append(f"{member!r}: {item}")
    body = "\n  ".join((f"data = {{{', '.join(always)}}}", *lines, "return data"))
    return _compiled(kind, f"def run(value):\n  {body}", names)


def _hook(names: dict[str, Any], name: str, field: Field, hint: Any, hook_for: Callable[[Any], Any]) -> Any:
    """Return the function that encodes or decodes the values of the field ``name``.

    If the field is optional and its type is a class, create the function only when a value occurs, because most
    capabilities are never declared.
    """
    if field.default is not None or not _has_class(hint):
        return hook_for(hint)

    def first(*arguments: Any) -> Any:
        names[name] = hook = hook_for(hint)
        return hook(*arguments)

    return first


def _has_class(hint: Any) -> bool:
    return is_ours(hint) or any(map(_has_class, get_args(hint)))


def _compiled(kind: type, source: str, names: dict[str, Any]) -> Any:
    exec(compile(source, f"<converter of {kind.__qualname__}>", "exec"), names)  # noqa: S102, as cattrs does
    return names["run"]
