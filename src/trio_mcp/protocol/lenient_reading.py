"""Lenient parsing of a peer's data: invalid parts are removed or replaced, so that the rest can be used.

Code reads strictly first, and uses this module only if that has failed. `LenientReading` returns a copy of the data in
which parts that can't be read are removed or replaced, so that strict reading succeeds. Classes that aren't in the
specification are read strictly, because only their authors know which members are dispensable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from operator import methodcaller
from types import NoneType
from typing import Any, Final, cast, get_args, get_origin

import attrs

from ..jsonrpc.errors import clean
from .fields import JSONObject, as_object, fault_text, union_parts, wire_name
from .readers import HookOf, tag_of
from .types import content, elicitation, lifecycle, offers, sampling, tools

_SHOWN: Final = 5
_LONGEST_NAME: Final = 80
_TYPES: Final = f"{__package__}.types."


class Fault(ValueError):
    """Raised for an invalid part of JSON data.

    The message contains the reason and the JSON path.
    """


class LenientReading:
    """Repairs JSON data that violates the specification: it removes or replaces at most ``limit`` invalid parts.

    The strict readers from ``hook_for`` accept the rest.
    """

    def __init__(self, hook_for: HookOf, limit: int) -> None:
        self._hook_for = hook_for
        self._limit = limit
        self._faults: list[str] = []

    def summary(self) -> str:
        """Return a text that lists the paths of the first invalid parts of the JSON data that `repair` has removed or
        replaced.

        It also contains the number of further parts.
        """
        more = len(self._faults) - _SHOWN
        return clean("; ".join(self._faults[:_SHOWN]) + (f"; and {more:,} more" if more > 0 else ""))

    def repair(self, value: Any, kind: Any, place: str = "$") -> Any:
        """Return ``value`` with invalid parts removed or replaced, so that it can be parsed as the type ``kind``.

        Raises `Fault` if that is impossible, or if there are too many faults.
        """
        if (fault := self._fault(value, kind, place)) is None:
            return value
        parts = [part for part in union_parts(kind) or (kind,) if part is not NoneType]
        if kind == content.ResourceContents:
            given = {"text": value} if type(value) is str else as_object(value)
            value = {name: each for name, each in given.items() if each is not None}
            parts = [content.TextResourceContents if "text" in value else content.BlobResourceContents]
        lists = [part for part in parts if get_origin(part) is list]
        if lists and (type(value) is list or len(parts) == 1):
            return self._list(value, get_args(lists[0])[0], place, fault)
        if content.UnknownContent in parts:
            return self._content(value, {tag_of(part): part for part in parts}, place, fault)
        part: Any = parts[0] if len(parts) == 1 else None
        # Don't repair a user's answer to a form, because removing a part would change its meaning.
        if attrs.has(part) and part.__module__.startswith(_TYPES) and part is not elicitation.ElicitResult:
            return self._object(value, part, place, fault)
        raise fault

    def _fault(self, value: Any, kind: Any, place: str) -> Fault | None:
        try:
            self._hook_for(kind)(value, kind)
        except (KeyError, TypeError, ValueError) as error:
            return Fault(f"{fault_text(error)} @ {place}")
        return None

    def _record_fault(self, fault: Fault, item: Any = None) -> None:
        if len(self._faults) >= self._limit:
            raise fault
        about = as_object(item)
        name = about.get("name", about.get("uri"))
        self._faults.append(f"{fault} ({name[:_LONGEST_NAME]!r})" if isinstance(name, str) else str(fault))

    def _list(self, value: Any, kind: Any, place: str, fault: Fault) -> list[Any]:
        """Return the list ``value`` without its invalid items. Convert ``value`` to a list if it isn't one.

        Null becomes an empty list, because Go encodes a nil slice as null. A single object becomes a list with one
        item. A single string does too, if the items may be written as strings.
        """
        if type(value) is not list:
            takes_text = kind in (str, content.ResourceContents, *_TEXTS) or content.UnknownContent in get_args(kind)
            if value is not None and type(value) is not dict and not (takes_text and type(value) is str):
                raise fault
            self._record_fault(fault)
            value = [] if value is None else [value]
        items: list[Any] = []
        for index, item in enumerate(cast("list[Any]", value)):
            try:
                items.append(self.repair(item, kind, f"{place}[{index}]"))
            except Fault as unreadable:
                self._record_fault(unreadable, item)
        return items

    def _content(self, value: Any, kinds: Mapping[Any, Any], place: str, fault: Fault) -> Any:
        """Return a content block that is repaired if possible. A string becomes a text block, and an invalid block
        stays unchanged."""
        if value is None:
            raise fault
        block: Any = {"text": value} if type(value) is str else value
        if "text" in as_object(block):
            block = {"type": "text", **block}
        known = len(self._faults)
        try:
            block = self._object(block, kinds[block["type"]], place, fault)
        except (Fault, KeyError, TypeError):
            block = content.UnknownContent(value)
            del self._faults[known:]
        if len(self._faults) == known:
            self._record_fault(fault)
        return block

    def _object(self, value: Any, kind: Any, place: str, fault: Fault) -> JSONObject:
        """Return the object ``value`` without its invalid optional members, and with replacements for invalid required
        members."""
        if type(value) is str and kind in _TEXTS:
            value = {_TEXTS[kind]: value}
        given = _with_one_block_each(value) if kind is offers.GetPromptResult else as_object(value)
        attrs.resolve_types(kind)
        fields = {wire_name(field.name): field for field in attrs.fields(kind)}
        required = {name for name, field in fields.items() if field.default is attrs.NOTHING}
        replacements = _REPLACEMENTS.get(kind, {})
        essential = required - replacements.keys()
        if type(value) is not dict or (essential and essential.isdisjoint(given)):
            raise fault  # some servers reply to any request with {}, which isn't a usable object
        members = given.copy()
        for name, field in fields.items():
            try:
                if name in given:
                    members[name] = self.repair(given[name], field.type, f"{place}.{name}")
                    if members[name] == [] != given[name] and name not in required:
                        del members[name]  # omit an optional field if none of the items in its list is valid
                    continue
                if name not in required or name not in replacements:
                    continue
                self._record_fault(Fault(f"missing {name!r} @ {place}"))
            except Fault as unreadable:
                if name in required and name not in replacements:
                    raise
                self._record_fault(unreadable)
                del members[name]
            if name in replacements:
                made = replacements[name]
                members[name] = made(given) if callable(made) else copy(made)
            elif kind in _CAPABILITIES and (given[name] == [] or _is_true(given[name])):
                members[name] = {}
        if (missing := self._fault(members, kind, place)) is not None:
            raise missing
        return members


def _is_true(value: object) -> bool:
    """Interpret any value as a boolean: the strings "false", "no", "0" and "" are false."""
    return value.lower() not in ("", "0", "false", "no") if isinstance(value, str) else bool(value)


def _with_one_block_each(prompt: Any) -> JSONObject:
    """Split the messages of a prompt, so that each message has one content block.

    Some servers send several blocks in a message, because model APIs accept that.
    """
    messages: list[Any] = []
    given = as_object(prompt)
    for each in cast("list[Any]", given["messages"]) if type(given.get("messages")) is list else ():
        blocks = as_object(each).get("content")
        several = cast("list[Any]", blocks) if type(blocks) is list else None
        messages += [each] if several is None else [{"role": each.get("role"), "content": block} for block in several]
    return {**given, "messages": messages} if messages else given


_CAPABILITIES: Final = (
    *(lifecycle.ServerCapabilities, lifecycle.ClientCapabilities),
    *(lifecycle.Sampling, lifecycle.Elicitation, lifecycle.TasksCapability),
)
"""Classes whose members are objects that declare a capability by being present. Some peers write ``true``, and PHP
writes an empty object as ``[]``."""

_TEXTS: Final[Mapping[Any, str]] = {
    lifecycle.Icon: "src",
    lifecycle.Implementation: "name",
    offers.PromptArgument: "name",
    offers.PromptMessage: "content",
}
"""For each class, the member that gets the value if a peer sends a string in place of the object."""


def _role(message: JSONObject) -> str:
    return "assistant" if str(message.get("role")).lower() in ("assistant", "model") else "user"


def _as_text(contents: JSONObject) -> str:
    return json.dumps(contents["text"], ensure_ascii=False)


def _is_error(result: JSONObject) -> bool:
    """Return true if the value of ``isError`` in a tool result means a failure.

    An unclear value counts as a failure, because a failure that looks like a success is worse.
    """
    return _is_true(result["isError"])


_NOBODY: Final = {"name": "unknown", "version": ""}
_OPENING: Final = {"capabilities": {}, "clientInfo": _NOBODY, "serverInfo": _NOBODY}
_IS_ERROR: Final = {"isError": _is_error}

_NAMED_BY_URI: Final = {"name": methodcaller("get", "uri")}
_REPLACEMENTS: Final[Mapping[Any, Mapping[str, Any]]] = {
    content.BlobResourceContents: {"uri": ""},
    content.ResourceLink: _NAMED_BY_URI,
    content.TextResourceContents: {"uri": "", "text": _as_text},
    content.ToolResultContent: _IS_ERROR,
    lifecycle.DiscoverResult: _OPENING,
    lifecycle.Implementation: _NOBODY,
    lifecycle.InitializeParams: _OPENING,
    lifecycle.InitializeResult: _OPENING,
    offers.CompleteResult: {"completion": {"values": []}},
    offers.Completion: {"values": []},
    offers.ListPromptsResult: {"prompts": []},
    offers.PromptMessage: {"role": _role},
    offers.ListResourcesResult: {"resources": []},
    offers.ListResourceTemplatesResult: {"resourceTemplates": []},
    offers.Resource: _NAMED_BY_URI,
    offers.ResourceTemplate: {"name": methodcaller("get", "uriTemplate")},
    sampling.CreateMessageResult: {"role": "assistant", "model": "unknown"},
    tools.CallToolResult: _IS_ERROR,
    tools.ListToolsResult: {"tools": []},
    tools.Tool: {"inputSchema": {"type": "object"}},
}
"""For each class, the replacements for required members that are missing or invalid. If a replacement is a function, it
gets the object."""
