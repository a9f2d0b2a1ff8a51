"""Convert a tool's return value to a tool result, and any handler's value to plain JSON data."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, ItemsView, Iterable, Mapping, Sequence
from functools import partial, singledispatch
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, Final, TypeAlias, Union, cast, get_args, get_origin

import attrs
import msgspec
from msgspec import inspect as kinds

from ...jsonrpc.codec import encode_readable
from ...jsonrpc.errors import NotSerializable
from ...jsonrpc.sizes import MOST_LEVELS
from ...protocol.converters import unstructure
from ...protocol.fields import JSONObject, hint_parts
from ...protocol.foreign_types import ITERATED, collected, is_model, readable, write_foreign
from ...protocol.revisions import LATEST_MODERN
from ...protocol.types.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    UnknownContent,
)
from ...protocol.types.tools import CallToolResult
from ...protocol.user_types import schema_of
from ...tasks.task_state import TaskState
from ..annotations import fielded_classes
from ..context.input_required import InputRequired


class Encoders:
    """The encoders of a server: functions that convert the instances of a class, and of its subclasses, to JSON data.

    Raises `TypeError` for a key that isn't a class, for a class that already has a JSON form, and for an async
    function.
    """

    def __init__(self, functions: Mapping[type, Callable[[Any], Any]]) -> None:
        self.write = singledispatch(write_foreign)
        """Function that converts a value whose class msgspec doesn't support. The result may contain more such values,
        which aren't converted yet."""
        for kind, function in functions.items():
            _check(kind, function)
            self.write.register(kind, function)

    def returned(self, kind: type) -> Any:
        """Return the return annotation of the encoder function for the class ``kind``. Return `None` if the class has
        no encoder."""
        function = self.write.dispatch(kind)
        if function is write_foreign:
            return None
        if isinstance(function, type):
            return cast("Any", function)
        try:
            return typing.get_type_hints(function).get("return", Any)
        except NameError as error:
            raise TypeError(f"the encoder of {kind.__name__}: an annotation could not be resolved: {error}") from None


def _check(kind: Any, function: Any) -> None:
    if not isinstance(kind, type) or not callable(function):
        raise TypeError(
            "encoders must be a dict of functions by class:\n    wrong:  encoders=[encode_frame]\n"
            "    right:  encoders={Frame: encode_frame}"
        )
    if not isinstance(kinds.type_info(cast("Any", kind)), kinds.CustomType):
        raise TypeError(
            f"{kind.__name__} must not have an encoder, because it is converted to JSON without one: remove the encoder"
        )
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"the encoder of {kind.__name__} is async: write a plain function, with def instead of async def"
        )


ToResult: TypeAlias = Callable[[Any], CallToolResult]


def text_result(text: str) -> CallToolResult:
    """Return a tool result that consists of one text block."""
    return CallToolResult([TextContent(text)])


def error_result(text: str) -> CallToolResult:
    """Return a tool result with ``isError``. The model sees ``text``, so that it can correct its call."""
    return CallToolResult([TextContent(text)], is_error=True)


def result_maker(
    returns: Any, output_schema: JSONObject | None, encoders: Encoders | None = None
) -> tuple[JSONObject | None, ToResult]:
    """Return a tool's output schema, and a function that converts the tool's return values to tool results.

    An explicit schema is kept unchanged. Otherwise the return annotation decides. The result is unstructured for text,
    content blocks, types that contain content blocks, `CallToolResult`, `None`, and without an annotation. It is
    structured for all other types; a type that isn't an object is wrapped as ``{"result": …}``. Raises `TypeError` for
    an annotation without a JSON Schema. The returned function raises `UnreadMedia`.
    """
    schema, make = _schema_and_maker(returns, output_schema, encoders)
    return schema, make if encoders is None else partial(make, encoders=encoders)


def _schema_and_maker(
    returns: Any, output_schema: JSONObject | None, encoders: Encoders | None
) -> tuple[JSONObject | None, Callable[..., CallToolResult]]:
    if output_schema is not None:
        return output_schema, _structured
    returns = _data_type(returns)
    if returns in (Parameter.empty, object) or _is_text(returns):
        return None, unstructured_result
    if _is_any_list(returns):
        return None, _listed
    if _names_blocks(returns):
        return None, _content
    if _MEDIA in sys.modules and any(kind.__module__ == _MEDIA for kind in fielded_classes(returns)):
        raise TypeError(_NO_DATA)
    if (parts := get_args(returns)) and _is_iterated(get_origin(returns)):
        # A generator, or a view such as dict.values(), is sent as a list of its values.
        returns = list[tuple[parts]] if get_origin(returns) is ItemsView else list[parts[0]]
    returns = readable(returns)
    schema = schema_of(returns, read=False, encoders=encoders)
    if not set(BLOCKS).isdisjoint(fielded_classes(returns)):
        return None, _content
    if schema.get("type") == "object":
        return schema, _structured
    definitions = schema.pop("$defs", None)
    wrapped: JSONObject = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    if definitions:
        wrapped["$defs"] = definitions
    return wrapped, _wrapped


def _data_type(returns: Any) -> Any:
    """Return the return annotation without `InputRequired`, `TaskState` and `CallToolResult`, because these classes
    aren't data for the client."""
    members = get_args(returns) if get_origin(returns) in (Union, types.UnionType) else (returns,)
    results = tuple(member for member in members if member not in (InputRequired, TaskState, CallToolResult))
    if len(results) == len(members):
        return returns
    return Union[results] if results else Parameter.empty  # noqa: UP007, made


def _is_text(returns: Any) -> bool:
    """Return whether the return annotation ``returns`` allows only text, or only text and `None`. It may be written in
    any form, such as a union."""
    origin = get_origin(returns)
    if origin is Annotated:
        return _is_text(get_args(returns)[0])
    if origin in (Union, types.UnionType):
        return all(map(_is_text, get_args(returns)))
    return returns in (str, Any, None, type(None))


def _is_any_list(returns: Any) -> bool:
    """Return whether the return annotation ``returns`` is a list without an item type. The items of such a list may be
    content blocks."""
    origin, parts = get_origin(returns), get_args(returns)
    if origin in (Union, types.UnionType):
        return all(_is_any_list(part) or _is_text(part) for part in parts)
    is_list = (origin or returns) in (list, tuple, Sequence) or _is_iterated(origin or returns)
    return is_list and all(part in (Any, object, ..., NoneType) for part in parts)


def _is_iterated(kind: Any) -> bool:
    return kind is Iterable or (isinstance(kind, type) and issubclass(kind, ITERATED) and kind is not range)


def _names_blocks(returns: Any) -> bool:
    kinds = [part for part in hint_parts(returns) if isinstance(part, type)]
    return any(kind in BLOCKS or issubclass(kind, media_kinds()) for kind in kinds)


_MEDIA: Final = f"{__package__}.media"
_NO_DATA: Final = (
    "media, such as an Image, are content of a result, not data: return them alone or in a list, -> list[str | Image]"
)


class UnreadMedia(Exception):
    """Raised if a handler returns media in a file: the file must be read first, by `read_media`. The argument of the
    exception is the handler's return value."""


def media_kinds() -> tuple[type, ...]:
    """Return the media classes of this package and of pillow, if their modules have been imported."""
    ours, pillow = sys.modules.get(_MEDIA), sys.modules.get("PIL.Image")
    return (*(() if ours is None else (ours.Media,)), *(() if pillow is None else (pillow.Image,)))


def unstructured_result(value: Any, encoders: Encoders | None = None) -> CallToolResult:
    """Return the tool result for ``value``, the return value of a handler. The handler's annotation doesn't say whether
    ``value`` is content or structured data.

    A list or tuple is content if it's empty or contains a content block.
    """
    if type(value) is str:
        return CallToolResult([TextContent(value)])
    items = _items(value)
    if items and not _has_blocks(items):
        return CallToolResult([_as_text(to_plain(items, encoders))])
    return value if isinstance(value, CallToolResult) else _blocks([value] if items is None else items, encoders)


def _listed(value: Any, encoders: Encoders | None = None) -> CallToolResult:
    """Return the tool result of a function whose return annotation is a list without an item type. The list is content
    if it contains a content block, and otherwise data."""
    items = _items(value)
    if items and _has_blocks(items):
        return _blocks(items, encoders)
    return _wrapped(value if items is None else items, encoders)


def _items(value: Any) -> list[Any] | None:
    """Return the items of a list or a similar iterable. Return `None` for any other value."""
    if isinstance(value, list | tuple):
        return cast("list[Any]", value)
    if isinstance(value, _SINGLE):  # for these common types, skip the slower `isinstance` check that follows
        return None
    return cast("list[Any]", collected(value)) if isinstance(value, ITERATED) else None


def _has_blocks(items: list[Any]) -> bool:
    return any(isinstance(item, (*BLOCKS, *media_kinds())) for item in items)


def _content(value: Any, encoders: Encoders | None = None) -> CallToolResult:
    """Return a tool result whose content is ``value`` or, if ``value`` is a list, the items of the list.

    Text and content blocks stay, and everything else becomes JSON text.
    """
    items = _items(value)
    return value if isinstance(value, CallToolResult) else _blocks([value] if items is None else items, encoders)


def _blocks(items: list[Any], encoders: Encoders | None) -> CallToolResult:
    try:
        return CallToolResult([_block(item, encoders) for item in items if item is not None])
    except UnreadMedia:
        raise UnreadMedia(items) from None  # use items instead of value, because a generator can't be read twice


def _block(value: Any, encoders: Encoders | None = None) -> ContentBlock:
    if isinstance(value, BLOCKS):
        return value
    if isinstance(value, media_kinds()):
        raise UnreadMedia(value)
    return _as_text(value if isinstance(value, str) else to_plain(value, encoders))


def _structured(value: Any, encoders: Encoders | None = None, *, is_wrapped: bool = False) -> CallToolResult:
    if isinstance(value, CallToolResult):
        return value
    plain = to_plain(value, encoders)
    # For clients without structured content, also send the data as text (recommended by MCP 2025-06-18).
    return CallToolResult([_as_text(plain)], structured_content={"result": plain} if is_wrapped else plain)


_wrapped: Final = partial(_structured, is_wrapped=True)


def _as_text(plain: Any) -> TextContent:
    return TextContent(plain if isinstance(plain, str) else encode_readable(plain).decode())


BLOCKS: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource, UnknownContent)

_SINGLE: Final = (str, dict, *BLOCKS)
_ATOMS: Final = frozenset((str, int, float, bool, type(None), bytes))


def to_plain(value: Any, encoders: Encoders | None = None) -> Any:
    """Convert a handler's return value to JSON data. Supports attrs classes, dataclasses, TypedDicts, enums, dates etc.

    All fields of a dataclass are included, even if its constructor doesn't set them, and even inside a msgspec Struct.
    Strings and numbers of foreign classes, such as numpy's, become plain ones. Content blocks inside data get the form
    of the specification.

    Raises:
        TypeError: For a value without a JSON form, and for a `CallToolResult` or `InputRequired` inside data.
        NotSerializable: If the data is nested too deeply.
    """
    write: Callable[[Any], Any] = _WRITE if encoders is None else lambda each: _spelled_out(encoders.write(each))
    try:
        return msgspec.to_builtins(_spelled_out(value), str_keys=True, enc_hook=write)
    except RecursionError:
        raise NotSerializable(f"not serializable as JSON: more than {MOST_LEVELS} levels of nesting") from None


def _spelled_out(value: Any) -> Any:
    """Return a copy of ``value`` that contains only plain data. Content blocks, and other objects that msgspec wouldn't
    encode as clients expect, are replaced by plain data."""
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
        raise TypeError(f"a tool must return {type(value).__name__} as its whole result, not inside other data")
    kind = cast("type[Any]", type(value))
    if dataclasses.is_dataclass(kind):
        if is_model(kind):
            return write_foreign(value)
        return _fields(value, [field.name for field in dataclasses.fields(kind)])
    if attrs.has(kind):
        if kind.__module__ == _MEDIA:
            raise TypeError(_NO_DATA)
        return _fields(value, [field.name for field in attrs.fields(kind) if not field.name.startswith("_")])
    return _struct(value) if isinstance(value, msgspec.Struct) else value


_WRITE: Final = partial(write_foreign, inner=_spelled_out)


def _fields(value: Any, names: list[str]) -> dict[str, Any]:
    # A dataclass field that the constructor doesn't set may have a class attribute as its default. msgspec ignores it.
    members = {name: getattr(value, name, msgspec.UNSET) for name in names}
    return {name: _spelled_out(member) for name, member in members.items() if member is not msgspec.UNSET}


def _struct(value: msgspec.Struct) -> msgspec.Struct:
    """Return a copy of the msgspec Struct ``value`` with its fields converted to plain data. msgspec later handles
    names, tags and omitted defaults."""
    spelled = copy.copy(value)
    for field in msgspec.structs.fields(value):
        member = getattr(value, field.name)
        if type(member) not in _ATOMS and member is not field.default and not _is_empty(member):
            msgspec.structs.force_setattr(spelled, field.name, _spelled_out(member))
    return spelled


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set | frozenset) and not value
