"""Strict readers: functions that parse JSON data as the types of the MCP specification.

A reader takes the data and the type, like a cattrs hook. JSON types are never coerced. `Readers` has the readers of one
revision. cattrs uses the functions of this module, too (`cattrs_converters.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any, Final, Literal, TypeAlias, cast, get_args, get_origin

import attrs

from .fields import JSONObject, fields_of, hints_of, is_ours, reader_of, union_parts, wire_name
from .revisions import Revision
from .types.content import BlobResourceContents, ResourceContents, TextResourceContents, UnknownContent
from .types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, content_fits
from .types.lifecycle import with_good_hints
from .types.notifications import LogLevel, SubscriptionFilter, log_level_rank
from .types.sampling import CreateMessageResult
from .types.tools import CallToolResult, Task

Hook: TypeAlias = Callable[[Any, Any], Any]
HookOf: TypeAlias = Callable[[Any], Hook]
"""Function that returns the reader of a type: a method of `Readers`, or of a cattrs converter."""


class Readers:
    """Creates functions that parse JSON data strictly, for one protocol revision. There is one function per type.

    Members that ``revision`` doesn't have are ignored. Without a revision, members of all revisions are parsed.
    ``others`` returns the reader of a type outside the specification.
    """

    def __init__(self, revision: Revision | None, others: Callable[[Any], Hook]) -> None:
        self._revision = revision
        self._others = others
        self._known: dict[Any, Hook] = {
            **LEAVES,
            **{kind: partial(read, self.get_structure_hook) for kind, read in SPECIAL.items()},
        }

    def get_structure_hook(self, kind: Any, /) -> Hook:
        """Return the function that parses values of the type ``kind``."""
        if (hook := self._known.get(kind)) is None:
            hook = self._known[kind] = self._made(kind)
        return hook

    def _made(self, kind: Any) -> Hook:
        origin = get_origin(kind)
        if is_ours(kind):
            return self._class(kind)
        if origin is list:
            return self._list(get_args(kind)[0])
        if origin is dict and get_args(kind)[0] is str:
            return self._dict(get_args(kind)[1])
        if origin is Literal:
            return one_of(kind)
        if is_plain(kind):
            return plain(kind)
        if is_tagged_union(kind):
            return tagged_union(kind, self.get_structure_hook)
        if len(members := union_parts(kind)) == 2 and NoneType in members:
            return self._optional(next(member for member in members if member is not NoneType))
        return self._others(kind)

    def _class(self, kind: Any) -> Hook:
        revision = None if self._revision is None else self._revision.name
        return around_class(kind, reader_of(kind, revision, self.get_structure_hook, OPEN.get(kind)))

    def _list(self, item_kind: Any) -> Hook:
        read = self.get_structure_hook(item_kind)

        def read_list(value: Any, _: Any) -> Any:
            if type(value) is not list:
                raise not_a_list(item_kind)
            return [read(item, item_kind) for item in cast("list[Any]", value)]

        return read_list

    def _dict(self, member_kind: Any) -> Hook:
        read = self.get_structure_hook(member_kind)

        def read_dict(value: Any, _: Any) -> Any:
            return {name: read(member, member_kind) for name, member in read_object(value, None).items()}

        return read_dict

    def _optional(self, kind: Any) -> Hook:
        read = self.get_structure_hook(kind)
        return lambda value, _: None if value is None else read(value, kind)


_LARGEST_FLOAT: Final = sys.float_info.max
"""Largest integer that is accepted as a number. Dividing a larger integer raises `OverflowError`."""
_SCALARS: Final[dict[Any, str]] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    NoneType: "null",
}


def is_plain(kind: Any) -> bool:
    """Return true if ``kind`` needs no conversion from JSON data: a scalar type, ``dict[str, Any]``, or a union of
    these."""
    return all(part in _SCALARS or part == dict[str, Any] for part in union_parts(kind) or (kind,))


def plain(kind: Any) -> Hook:
    """Return a function that checks JSON data of the type ``kind``. This must be a type for which `is_plain` returns
    true."""
    parts = union_parts(kind) or (kind,)
    accepted = {dict if part == dict[str, Any] else part for part in parts}
    words = "an object" if dict in accepted else " or ".join(_SCALARS[part] for part in parts)
    takes_floats, takes_integers = float in accepted, kind is int
    accepted -= {int} if takes_floats else set()  # integers are checked below

    def check(value: Any, _: Any) -> Any:
        # Compare the exact type, because a Python bool is an int. An integer is also a valid JSON number.
        if type(value) in accepted or (takes_floats and type(value) is int and abs(value) <= _LARGEST_FLOAT):
            return value
        # In JSON Schema, 3.0 is an integer (2020-12 Validation, section 6.1.1).
        if takes_integers and type(value) is float and value.is_integer():
            return int(value)
        raise TypeError(f"expected {words}")

    return check


read_object: Final = plain(dict[str, Any])


def one_of(kind: Any) -> Hook:
    allowed = get_args(kind)

    def check(value: Any, _: Any) -> Any:
        if type(value) is str and value in allowed:
            return value
        raise ValueError(f"expected one of {', '.join(allowed)}")

    return check


def _log_level(value: Any, _: Any) -> LogLevel:
    if type(value) is str and log_level_rank(value) >= 0:
        return LogLevel(value)
    raise ValueError(f"expected one of {', '.join(LogLevel)}")


def not_a_list(item_kind: Any) -> TypeError:
    """Return the error for JSON data that should be a list and isn't."""
    return TypeError(f"expected a list of {getattr(item_kind, '__name__', 'items')}")


def tag_of(kind: Any) -> str | None:
    """Return the value of the ``type`` field that distinguishes the class in a union, such as ``text``.

    Return `None` if the class has no such field.
    """
    hint = hints_of(kind).get("type") if fields_of(kind) else None
    return get_args(hint)[0] if get_origin(hint) is Literal else None


def is_tagged_union(kind: Any) -> bool:
    return any(tag_of(member) is not None for member in union_parts(kind) if get_origin(member) is not list)


def tagged_union(kind: Any, hook_of: HookOf) -> Hook:
    by_tag = {tag: member for member in union_parts(kind) if (tag := tag_of(member)) is not None}
    list_kind = next((member for member in union_parts(kind) if get_origin(member) is list), None)
    takes_unknown = UnknownContent in union_parts(kind)
    known: dict[Any, Hook] = {}

    def structure_union(value: Any, _: Any) -> Any:
        if type(value) is dict:
            members = cast("dict[str, Any]", value)
            tag = members.get("type")
            if type(tag) is not str or tag not in by_tag:
                raise ValueError(f"the member 'type' must be one of {', '.join(by_tag)}")
            # Create the reader when a value needs it, because a type in the union may contain the union itself.
            if tag not in known:
                known[tag] = hook_of(by_tag[tag])
            return known[tag](members, by_tag[tag])
        if list_kind is not None and type(value) is list:
            return hook_of(list_kind)(cast("Any", value), list_kind)
        # Accept an invalid content block, which lenient parsing has wrapped in an `UnknownContent`.
        if takes_unknown and type(value) is UnknownContent:
            return value
        raise TypeError("expected an object")

    return structure_union


def around_class(kind: Any, read: Hook) -> Hook:
    """Return a function that parses the class ``kind``. It calls ``read``, the class's usual parser.

    It also takes extra steps before or after, if the class needs them.
    """
    with_hints = any(field.name == "cache_scope" for field in fields_of(kind))
    before = _BEFORE.get(kind, with_good_hints if with_hints else None)
    if before is not None:
        return lambda value, kind: read(before(read_object(value, None)), kind)
    if (after := _AFTER.get(kind)) is not None:
        return lambda value, kind: after(read(value, kind), value)
    return read


OPEN: Final = {CallToolResult: "schema_error", CreateMessageResult: "extra", SubscriptionFilter: "extensions"}
"""For some classes, the field that isn't read from the member of the same name. The field holds all unknown members, or
is never sent."""
_SAMPLED: Final = frozenset(wire_name(field.name) for field in fields_of(CreateMessageResult)) - {"extra"}
"""The members of a sampling result that have fields of their own in the class."""


def _with_extras(result: CreateMessageResult, value: JSONObject) -> CreateMessageResult:
    if value.keys() <= _SAMPLED:
        return result
    return attrs.evolve(result, extra={name: member for name, member in value.items() if name not in _SAMPLED})


def _with_extensions(asked: SubscriptionFilter, value: JSONObject) -> SubscriptionFilter:
    names = [name for name, wanted in value.items() if "/" in name and wanted is True]
    return attrs.evolve(asked, extensions=names) if names else asked


def _checked(result: ElicitResult, _: JSONObject) -> ElicitResult:
    # Ignore null values: python-sdk sends null for a field that wasn't filled in.
    if not content_fits({name: each for name, each in (result.content or {}).items() if each is not None}):
        raise ValueError(
            "the content of an elicitation may contain only strings, numbers, booleans and lists of strings"
        )
    return result


_BEFORE: Final[dict[Any, Callable[[JSONObject], JSONObject]]] = {Task: lambda task: {"ttl": None, **task}}
"""For some classes, a function that changes the JSON data before the object is made. A null ``ttl`` of a task means for
ever (2025-11-25 tasks, Task), and mcp 1.x omits a null ``ttl``."""
_AFTER: Final[dict[Any, Callable[[Any, JSONObject], Any]]] = {
    CreateMessageResult: _with_extras,
    SubscriptionFilter: _with_extensions,
    ElicitResult: _checked,
}
"""For some classes, a function that gets the finished object, and the data from which the object was made."""


def _elicit_params(hook_of: HookOf, value: Any, _: Any) -> Any:
    mode = cast("dict[str, Any]", value).get("mode", "form") if type(value) is dict else None
    if mode not in ("url", "form"):
        raise ValueError("the elicitation mode must be form or url")
    kind: Any = ElicitURLParams if mode == "url" else ElicitFormParams
    return hook_of(kind)(value, kind)


def _resource_contents(hook_of: HookOf, value: Any, _: Any) -> Any:
    members = read_object(value, None)
    if "text" not in members and "blob" not in members:
        raise ValueError("resource contents must have a member text or blob")
    kind: Any = TextResourceContents if "text" in members else BlobResourceContents
    return hook_of(kind)(members, kind)


LEAVES: Final[dict[Any, Hook]] = {
    **{kind: plain(kind) for kind in (str, bool, int, float, dict[str, Any])},
    LogLevel: _log_level,
    Any: lambda value, _: value,
}
"""The readers of types that don't contain other types."""
SPECIAL: Final[dict[Any, Callable[[HookOf, Any, Any], Any]]] = {
    ElicitFormParams | ElicitURLParams: _elicit_params,
    ResourceContents: _resource_contents,
}
"""The readers of unions whose members are distinguished by more than a ``type``."""
