"""ToolTransform: how a group shows a tool of a member, in place of the server's own words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import attrs

from ..classes import frozen
from ..protocol.fields import JSONObject, as_object
from ..protocol.types.tools import Tool


def _names(given: Collection[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f"hidden_arguments are several:\n    wrong:  {given!r}\n    right:  [{given!r}]")
    return tuple(given)


@frozen(kw_only=True)
class ToolTransform:
    """Rename, hide or describe a tool, and preset or hide its arguments, for `MemberDescription`.

    ToolTransform(name="find", description="Search the manuals.", presets={"folder": "manuals"})
    """

    name: str | None = None
    """The name in place of the server's own, without the name of the member."""
    title: str | None = None
    """The name for people, in place of the server's own."""
    description: str | None = None
    """The description, in place of the server's own."""
    hidden: bool = False
    """True for a tool that nobody may call."""
    presets: Mapping[str, Any] = attrs.field(factory=dict[str, Any], repr=False)
    """Arguments that each call has, whatever its caller sends. They are not in the schema, and their values are shown
    to no caller."""
    hidden_arguments: Collection[str] = attrs.field(default=(), converter=_names)
    """Optional arguments that are not in the schema, and that no caller can send."""

    def __attrs_post_init__(self) -> None:
        if self.name == "":
            raise ValueError("the name of a tool must not be empty")

    def fault_in(self, tool: Tool) -> str | None:
        """Return why ``tool`` cannot be shown so, in words; `None` if it can."""
        required: Any = tool.input_schema.get("required")
        for name in self.hidden_arguments if isinstance(required, list) else ():
            if name in required and name not in self.presets:
                return f"its argument {name!r} is required, so it can't be hidden; give it a value in presets"
        return None

    def apply(self, tool: Tool) -> Tool:
        """Return ``tool`` as it is shown, under its own name."""
        hidden = [*self.presets, *self.hidden_arguments]
        words = {"title": self.title, "description": self.description}
        given = {key: value for key, value in words.items() if value is not None}
        schema = _without(tool.input_schema, hidden) if hidden else tool.input_schema
        return attrs.evolve(tool, input_schema=schema, **given)

    def arguments(self, sent: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the arguments of a call for which the caller has ``sent`` some."""
        hidden = {*self.presets, *self.hidden_arguments}
        return {**{name: value for name, value in (sent or {}).items() if name not in hidden}, **self.presets}


def _without(schema: JSONObject, names: Collection[str]) -> JSONObject:
    """Return the schema of an object without some of its properties."""
    changed = dict(schema)
    if "properties" in schema:
        properties = as_object(schema["properties"])
        changed["properties"] = {name: each for name, each in properties.items() if name not in names}
    if isinstance(required := schema.get("required"), list):
        changed["required"] = [name for name in cast("list[Any]", required) if name not in names]
    return changed
