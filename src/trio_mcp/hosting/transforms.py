"""ToolTransform: changes the name, description or arguments of a server's tool in a group's catalogue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import attrs

from ..classes import frozen
from ..protocol.fields import JSONObject, as_object
from ..protocol.types.tools import Tool


def _names(given: Collection[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f"hidden_arguments must be a list of names:\n    wrong:  {given!r}\n    right:  [{given!r}]")
    return tuple(given)


@frozen(kw_only=True)
class ToolTransform:
    """Changes to one server's tool in a group. You can rename, hide or describe the tool.

    You can also preset or hide its arguments. Use it in `MemberDescription`.

    ToolTransform(name="find", description="Search the manuals.", presets={"folder": "manuals"})
    """

    name: str | None = None
    """The name that replaces the server's own name for the tool, without the name of the member."""
    title: str | None = None
    """The title that replaces the server's own title, which people see."""
    description: str | None = None
    """The description that replaces the server's own description."""
    hidden: bool = False
    """True if the tool is hidden, so that it can't be called."""
    presets: Mapping[str, Any] = attrs.field(factory=dict[str, Any], repr=False)
    """Arguments that each call of the tool has, whatever its caller sends. They aren't in the schema, and callers don't
    see their values."""
    hidden_arguments: Collection[str] = attrs.field(default=(), converter=_names)
    """Optional arguments that are removed from the schema, so that callers can't send them."""

    def __attrs_post_init__(self) -> None:
        if self.name == "":
            raise ValueError("the name of a tool must not be empty")

    def fault_in(self, tool: Tool) -> str | None:
        """Return the reason why this transform doesn't fit ``tool``. Return `None` if it fits."""
        required: Any = tool.input_schema.get("required")
        for name in self.hidden_arguments if isinstance(required, list) else ():
            if name in required and name not in self.presets:
                return f"its argument {name!r} is required, so it can't be hidden; give it a value in presets"
        return None

    def apply(self, tool: Tool) -> Tool:
        """Return a copy of ``tool`` with the title, description and input schema that this transform gives it. The copy
        keeps the name that the server uses, even if the transform renames the tool."""
        hidden = [*self.presets, *self.hidden_arguments]
        words = {"title": self.title, "description": self.description}
        given = {key: value for key, value in words.items() if value is not None}
        schema = _without(tool.input_schema, hidden) if hidden else tool.input_schema
        return attrs.evolve(tool, input_schema=schema, **given)

    def arguments(self, sent: Mapping[str, Any] | None) -> dict[str, Any]:
        """Convert the arguments ``sent``, with which the group's tool is called, to the arguments for the server's
        tool.

        Hidden arguments are removed, and preset arguments are added.
        """
        hidden = {*self.presets, *self.hidden_arguments}
        return {**{name: value for name, value in (sent or {}).items() if name not in hidden}, **self.presets}


def _without(schema: JSONObject, names: Collection[str]) -> JSONObject:
    """Return the JSON schema of an object (``schema``) without the properties ``names``."""
    changed = dict(schema)
    if "properties" in schema:
        properties = as_object(schema["properties"])
        changed["properties"] = {name: each for name, each in properties.items() if name not in names}
    if isinstance(required := schema.get("required"), list):
        changed["required"] = [name for name in cast("list[Any]", required) if name not in names]
    return changed
