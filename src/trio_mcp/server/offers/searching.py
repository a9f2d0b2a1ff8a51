"""Tool search: a server with many tools lists only two tools, one to search for the other tools and one to call them.

The `ToolIndex` ranks tools by BM25 (Robertson and Zaragoza, 2009) over their names, descriptions and parameters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Annotated, Any, Final, cast

import msgspec

from ...jsonrpc.codec import encode_value
from ...protocol.fields import JSONObject, as_object
from ...protocol.types.apps import UI
from ...protocol.types.tools import Tool, ToolAnnotations, ToolError
from ...runtime.requests.scope import current_request
from .registration import Mirror, Registry
from .tools import RegisteredTool, Tools

SEARCH: Final = "search_tools"
CALL: Final = "call_tool"

_WORDS: Final = re.compile(r"[^\W_]+")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""Matches the words in a name like getHTTPStatus."""
_EVERYWHERE: Final = frozenset(
    ("a", "an", "and", "by", "for", "from", "in", "is", "of", "on", "or", "the", "to", "with")
)
_MAX_TERMS: Final = 400
"""Maximum number of a tool's terms that are indexed. Further terms are ignored."""
_MAX_CHARACTERS: Final = 4000
_MAX_PARAMETERS: Final = 50
_MAX_QUERY_TERMS: Final = 20
"""Maximum number of different terms of a query that are used."""
_K1: Final = 1.2
_B: Final = 0.75
_NAME_WEIGHT: Final = 3
_LINE: Final = 160
_SIGNATURE: Final = 400


class ToolSearch:
    """Enables tool search for ``tools``. Clients see two search tools and the ``pinned`` tools in the list of tools."""

    def __init__(self, tools: Tools, pinned: Collection[str]) -> None:
        if isinstance(pinned, str):
            raise TypeError(
                f"pinned must be a list of names:\n    wrong:  pinned={pinned!r}\n    right:  pinned=[{pinned!r}]"
            )
        self._tools = tools
        self._index = ToolIndex()
        read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        self._own = {
            SEARCH: RegisteredTool.of(self.search_tools, {"annotations": read_only}),
            # The tool that `call_tool` calls decides whether the call becomes a task.
            CALL: RegisteredTool.of(call_tool, {"task": "optional"}),
        }
        self.listed: Registry[RegisteredTool] = Registry("tool", None)
        """The tools that clients see."""
        for name, entry in self._own.items():
            tools.registry.check_free(name)
            self.listed.add(name, entry)
        tools.registry.mirror_in(self._index)
        tools.registry.mirror_in(PinnedTools(self.listed, frozenset(pinned)))

    def resolve_call(
        self, name: str, arguments: Any, find: Callable[[str], RegisteredTool | None]
    ) -> tuple[str, Any, RegisteredTool | None]:
        """Return the name, the arguments and the tool of a call of ``search_tools`` or ``call_tool``. For
        ``call_tool``, this is the tool that the client wants to call.

        A call of ``call_tool`` contains the name of another tool in its ``arguments``, which ``find`` looks up.
        """
        entry = self._own.get(name)
        if name != CALL or not isinstance(arguments, dict):
            return name, arguments, entry
        inner = cast("JSONObject", arguments)
        called, given = inner.get("name"), inner.get("arguments", {})
        tool = find(called) if isinstance(called, str) else None
        if tool is None or not isinstance(given, dict) or not _is_for_model(tool.listed):
            # The arguments contain no valid call of another tool. The tool `call_tool` reports this to the client.
            return name, inner, entry
        return tool.listed.name, cast("JSONObject", given), tool

    async def search_tools(
        self,
        query: Annotated[str, "What the tool should do, in a few words"],
        limit: Annotated[int, msgspec.Meta(ge=1, le=20, description="Maximum number of tools to return")] = 8,
    ) -> str:
        """Find tools by what they do. Returns the name, description and parameters of each tool, best match first. A
        parameter with "?" is optional. Call a tool with call_tool."""
        registry = self._tools.registry
        shown = set(registry.listed_for(current_request.get().exchange.peer))
        found = islice((name for name in self._index.ranked(query) if name in shown), limit)
        lines = [in_a_line(entry.listed) for name in found if (entry := registry.get(name)) is not None]
        return "\n".join(lines) or f"No tool fits. Try other words; there are {len(shown)} tools."


def _is_for_model(tool: Tool) -> bool:
    return "model" in UI.of(tool).visible_to


async def call_tool(
    name: Annotated[str, "Name of a tool that search_tools has found"],
    arguments: Annotated[dict[str, Any], "Arguments for its parameters"] = {},  # noqa: B006 - copied for each call
) -> Any:
    """Call a tool that search_tools has found."""
    raise ToolError(f"there is no tool {name[:200]!r}: find one with search_tools")


class PinnedTools(Mirror[RegisteredTool]):
    """The tools that are listed even though tool search is enabled.

    They are the tools with pinned names, even if added later, and all tools that aren't for the model: views can only
    call listed tools, and hosts hide these from the model.
    """

    def __init__(self, listed: Registry[RegisteredTool], pinned: frozenset[str]) -> None:
        super().__init__(listed, str, lambda entry: entry)
        self._pinned = pinned

    def check_free(self, name: str) -> None:
        """Raise `ValueError` if ``name`` is reserved: clients of a searchable server find and call its tools with two
        tools of the server."""
        if name in (SEARCH, CALL):
            raise ValueError(f"server.searchable() uses the tool name {name!r}: choose another name for this tool")

    def add(self, name: str, item: RegisteredTool) -> None:
        """List the new tool in ``tools/list`` if it is pinned, or if it is hidden from the model and therefore not
        found by searches. See `Mirror.add`."""
        if name in self._pinned or not _is_for_model(item.listed):
            super().add(name, item)

    def remove(self, name: str) -> None:
        """Stop listing a tool. See `Mirror.remove`."""
        if name in self._shown:
            super().remove(name)


class ToolIndex(Mirror[RegisteredTool]):
    """An index that finds tools by their search terms. It contains only tools that the model can see.

    The index is updated on each change, so a search looks up only the terms of the query.
    """

    def __init__(self) -> None:
        self._places: dict[str, dict[str, int]] = {}
        """The tools that contain each term, with the weight of the term in the tool."""
        self._terms: dict[str, Counter[str]] = {}

    def check_free(self, name: str) -> None:
        """Accept every name of a tool, because this search index reserves no names."""

    def add(self, name: str, item: RegisteredTool) -> None:
        """Index a tool if the model can see it. See `Mirror.add`."""
        if not _is_for_model(item.listed):
            return
        terms = self._terms[name] = terms_of(item.listed)
        for term, count in terms.items():
            self._places.setdefault(term, {})[name] = count

    def remove(self, name: str) -> None:
        """Remove a tool from the index. See `Mirror.remove`."""
        for term in self._terms.pop(name, ()):
            del self._places[term][name]
            if not self._places[term]:
                del self._places[term]

    def ranked(self, query: str) -> list[str]:
        """Return the names of the tools that contain a term of ``query``, best first."""
        scores: Counter[str] = Counter()
        number = len(self._terms)
        average = sum(len(terms) for terms in self._terms.values()) / max(number, 1)
        for term in list(dict.fromkeys(words_in(query)))[:_MAX_QUERY_TERMS]:
            places = self._places.get(term, {})
            rarity = math.log(1 + (number - len(places) + 0.5) / (len(places) + 0.5))
            for name, count in places.items():
                length = 1 - _B + _B * len(self._terms[name]) / average
                scores[name] += rarity * count * (_K1 + 1) / (count + _K1 * length)  # pyright: ignore[reportArgumentType] a float
        return [name for name, _ in scores.most_common()]


def words_in(text: str) -> Iterator[str]:
    """Return the search terms of a text: its words in lower case, without plural ``s`` and stop words. A name is split
    into its words."""
    for found in _WORDS.finditer(text[:_MAX_CHARACTERS]):
        for part in _PARTS.findall(found[0]) if found[0].isascii() else [found[0]]:
            word = part.lower()
            if word not in _EVERYWHERE:
                yield word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def terms_of(tool: Tool) -> Counter[str]:
    """Return the search terms of a tool, each with its weight."""
    terms: Counter[str] = Counter()
    texts = [tool.name] * _NAME_WEIGHT + [tool.title or "", tool.description or ""]
    for name, schema in _parameters(tool.input_schema):
        texts += [name, str(schema.get("description", ""))]
    for text in texts:
        for word in words_in(text):
            if len(terms) >= _MAX_TERMS:
                return terms
            terms[word] += 1
    return terms


def in_a_line(tool: Tool) -> str:
    """Return one line that describes a tool in a search result: its name, its parameters and the first line of its
    description, each truncated."""
    required: Any = tool.input_schema.get("required")
    needed = cast("list[Any]", required) if isinstance(required, list) else []
    parts = [
        f"{name}{'' if name in needed else '?'}: {_kind(schema)}" for name, schema in _parameters(tool.input_schema)
    ]
    described = (tool.description or tool.title or "").strip().partition("\n")[0]
    return f"{tool.name}({_cut(', '.join(parts), _SIGNATURE)}) - {_cut(described, _LINE)}"


def _parameters(schema: JSONObject) -> Iterator[tuple[str, JSONObject]]:
    properties = schema.get("properties")
    items = as_object(properties).items()
    for name, each in islice(items, _MAX_PARAMETERS):
        yield name, as_object(each)


def _kind(listed: Any, depth: int = 2) -> str:
    """Return a short description of the type in a parameter's schema, for a model."""
    schema: JSONObject = as_object(listed)
    options: Any = schema.get("enum")
    if isinstance(options, list):
        return "|".join(_cut(encode_value(each).decode(), 40) for each in cast("list[Any]", options)[:20])
    unions: Any = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(unions, list) and depth:
        return "|".join(_kind(each, depth - 1) for each in cast("list[Any]", unions)[:5])
    if schema.get("type") == "array" and depth and isinstance(schema.get("items"), dict):
        return f"[{_kind(schema['items'], depth - 1)}]"
    if depth and isinstance(schema.get("properties"), dict):
        return "{" + ", ".join(f"{name}: {_kind(each, depth - 1)}" for name, each in _parameters(schema)) + "}"
    kind: Any = schema.get("type")
    kinds = cast("list[Any]", kind)[:5] if isinstance(kind, list) else [kind]
    return "|".join(each[:20] for each in kinds if isinstance(each, str)) or "any"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
