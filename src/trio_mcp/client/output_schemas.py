"""OutputSchemas: the output schemas of the tools that a server has listed, for checks of their results.

A client SHOULD validate structured results (2025-11-25 and 2026-07-28 tools, Output Schema). The server isn't trusted:
schemas that are large or have many patterns aren't checked, nor are values beyond the bounds of `SchemaValidator`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import attrs

from ..concurrency.bounded_dict import BoundedDict
from ..jsonrpc.errors import clean
from ..jsonrpc.sizes import is_small
from ..protocol.fields import JSONObject
from ..protocol.types.tools import CallToolResult

if TYPE_CHECKING:
    from .cache import Change

logger = logging.getLogger("trio_mcp")

_MOST_BYTES: Final = 8 * 1024 * 1024
"""Bound of all schemas, about."""
_PARTS: Final = 2000
_CHARACTERS: Final = 50_000
_LEVELS: Final = 64
_MOST_COMPILED: Final = 20
"""Compiled schemas: those of the tools that were called last."""
_MOST_PATTERNS: Final = 20
_MOST_OF_PATTERN: Final = 256 * 1024
_LONGEST_FAULT: Final = 500


class OutputSchemas:
    """The output schemas of tools, as far as they can be checked."""

    def __init__(self) -> None:
        self.known: dict[str, JSONObject] = {}
        """The schemas by the names of their tools."""
        self._free_bytes = _MOST_BYTES
        self._checks: BoundedDict[str, _Check] = BoundedDict(_MOST_COMPILED)
        self._logged: set[str] = set()

    def changed(self, change: Change) -> None:
        """Forget all schemas after a change of the tools."""
        if change.kind == "tools":
            self.known.clear()
            self._checks.clear()
            self._logged.clear()
            self._free_bytes = _MOST_BYTES

    def add_page(self, page: object) -> None:
        """Take the schemas of a page of ``tools/list``, a result as JSON data."""
        tools: Any = cast("JSONObject", page).get("tools") if isinstance(page, dict) else None
        for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
            members = cast("JSONObject", tool) if isinstance(tool, dict) else {}
            name, schema = members.get("name"), members.get("outputSchema")
            if not isinstance(name, str) or self.known.get(name) == schema:
                continue
            self.known.pop(name, None)
            self._checks.pop(name, None)
            if isinstance(schema, dict) and is_small([name, schema], _PARTS, _CHARACTERS, _LEVELS):
                self._free_bytes -= len(name) + len(repr(cast("JSONObject", schema)))
                if self._free_bytes > 0:
                    self.known[name] = cast("JSONObject", schema)

    def checked(self, name: str, result: CallToolResult) -> CallToolResult:
        """Return the ``result`` of a tool, with `CallToolResult.schema_error` if it doesn't fit. The first such result
        of a tool is logged."""
        if result.is_error or (schema := self.known.get(name)) is None:
            return result
        if name not in self._checks:
            self._checks[name] = _check_of(schema)
        if (fault := self._checks[name](result.structured_content)) is None:
            return result
        if name not in self._logged:
            self._logged.add(name)
            logger.warning("the result of tool %s doesn't fit its output schema: %s", clean(name[:200]), fault)
        return attrs.evolve(result, schema_error=fault)


_Check: TypeAlias = Callable[[Any], str | None]
"""Returns the fault of a value; `None` if there is none, or the value isn't checked."""


def _check_of(schema: JSONObject) -> _Check:
    from ..protocol.schema_growth import objects_in  # late: only tools with output schemas need these
    from ..protocol.schema_validator import TOO_LARGE, SchemaValidator

    named = [node.get("patternProperties") for node in objects_in(schema)]
    patterns = sum(len(cast("JSONObject", each)) for each in named if isinstance(each, dict))
    patterns += sum("pattern" in node for node in objects_in(schema))
    if patterns > _MOST_PATTERNS:
        return lambda value: None
    try:
        validator = SchemaValidator(schema, pattern_limit=_MOST_OF_PATTERN)
    except ValueError as error:
        # A pattern may be too large for us, and fine for others.
        unusable = None if patterns else f"the output schema is unusable: {error}"[:_LONGEST_FAULT]
        return lambda value: unusable

    def check(value: Any) -> str | None:
        fault = validator.faults(value)
        if fault is None or fault.startswith(TOO_LARGE):
            return None
        return "there is no structured content" if value is None else clean(fault[:_LONGEST_FAULT])

    return check
