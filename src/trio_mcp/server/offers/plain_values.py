"""Values of handlers as plain JSON data."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import PurePath
from typing import Any, Final, cast

import attrs
import msgspec

from ...jsonrpc.errors import NotSerializable
from ...jsonrpc.extent import MOST_LEVELS
from ...jsonrpc.scalars import plain_scalar
from ...protocol.converters import unstructure
from ...protocol.revisions import LATEST_MODERN
from ...protocol.types.content import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent
from ...protocol.types.tools import CallToolResult
from ..asking.input_required import InputRequired

BLOCKS: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)

_ATOMS: Final = frozenset((str, int, float, bool, type(None), bytes))


def to_plain(value: Any) -> Any:
    """Return a handler's value as JSON data: attrs classes, dataclasses, TypedDicts, enums, dates and the like.

    All fields of a dataclass are included, also those that its constructor does not set, and also inside a msgspec
    Struct. Text and numbers of foreign classes (numpy's, for example) become plain text and numbers. Content blocks
    inside of data take the form of the specification. Raises `TypeError` for a value without JSON form, and for a
    `CallToolResult` or `InputRequired` inside of data, since each is a whole result; `NotSerializable` for data that is
    nested too deep.
    """
    try:
        return msgspec.to_builtins(_spelled_out(value), str_keys=True, enc_hook=_encode_foreign)
    except RecursionError:
        raise NotSerializable(f"not serializable as JSON: more than {MOST_LEVELS} levels of nesting") from None


def _spelled_out(value: Any) -> Any:
    """Return ``value`` with plain data in place of all parts that msgspec would write differently."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value)
        return {key: each if type(each) in _ATOMS else _spelled_out(each) for key, each in members.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = cast("list[Any]", value)
        return [each if type(each) in _ATOMS else _spelled_out(each) for each in items]
    if isinstance(value, BLOCKS):
        return unstructure(value, LATEST_MODERN)
    if isinstance(value, CallToolResult | InputRequired):
        raise TypeError(f"{type(value).__name__} is the whole of what a tool returns, and no part of it")
    kind = cast("type[Any]", type(value))
    if dataclasses.is_dataclass(kind):
        return _fields(value, [field.name for field in dataclasses.fields(kind)])
    if attrs.has(kind):
        return _fields(value, [field.name for field in attrs.fields(kind) if not field.name.startswith("_")])
    return _struct(value) if isinstance(value, msgspec.Struct) else value


def _fields(value: Any, names: list[str]) -> dict[str, Any]:
    # A plain default of a field that is in no constructor is an attribute of the class, where msgspec does not look.
    members = {name: getattr(value, name, msgspec.UNSET) for name in names}
    return {name: _spelled_out(member) for name, member in members.items() if member is not msgspec.UNSET}


def _struct(value: msgspec.Struct) -> msgspec.Struct:
    """Return ``value``, a Struct still, with its members spelled out: names, tags and the omission of defaults are left
    to msgspec."""
    spelled = copy.copy(value)
    for field in msgspec.structs.fields(value):
        member = getattr(value, field.name)
        if type(member) not in _ATOMS and member is not field.default and not _is_empty(member):
            msgspec.structs.force_setattr(spelled, field.name, _spelled_out(member))
    return spelled


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set | frozenset) and not value


def _encode_foreign(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    return plain_scalar(value)
