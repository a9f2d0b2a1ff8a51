"""Estimates how many evaluations of subschemas the validation of a value with a JSON Schema takes, before it starts.

References make a schema larger than its text. Forty definitions that each refer to the next one twice are evaluated
10¹² times. Two alternatives that both refer to the schema itself are evaluated twice as often with each level of the
value. jsonschema-rs does all of this in one call, which can't be interrupted. So the evaluations are calculated
beforehand. The schema is a graph, whose edges stay in the same place of a value, or lead down to an item or a member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

from .fields import JSONObject
from .inlining import at_pointer

_MOST: Final = 10_000_000
"""Maximum number of evaluations of subschemas for one value, which take half a second."""
_FEW: Final = 100
"""Number of evaluations per part of a value up to which nothing is calculated, because the size of values is limited as
well."""
_MOST_COMPILED: Final = 10_000
"""Maximum number of evaluations for one part of a value, for schemas with keywords that depend on which members or
items were evaluated."""
_TOO_MANY: Final = _MOST + 1
_MOST_STEPS: Final = 2_000_000
"""Maximum number of steps of the calculation for one schema."""

_HERE: Final = frozenset(("not", "if", "then", "else"))
_HERE_LISTED: Final = frozenset(("allOf", "anyOf", "oneOf"))
_HERE_NAMED: Final = frozenset(("dependentSchemas", "dependencies"))
_REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
_ITEM: Final = frozenset(("items", "prefixItems", "additionalItems"))
"""JSON Schema keywords with several schemas, of which one is used for each item."""
_ITEM_TOO: Final = frozenset(("contains", "unevaluatedItems"))
_DEAR: Final = frozenset(("unevaluatedItems", "unevaluatedProperties"))
_MEMBER_TOO: Final = frozenset(("unevaluatedProperties", "propertyNames"))
_EDGES: Final = frozenset(("properties", "patternProperties", "additionalProperties")).union(
    *(_HERE, _HERE_LISTED, _HERE_NAMED, _REFERENCES, _ITEM, _ITEM_TOO, _MEMBER_TOO)
)
_NAMES: Final = frozenset(("$anchor", "$dynamicAnchor", "$id", "id", "$recursiveAnchor"))
SCHEMA_KEYWORDS: Final = _EDGES | _NAMES | {"minContains", "maxContains", "$schema", "$defs", "definitions"}
"""JSON Schema keywords that contain schemas, or refer to schemas."""


class SchemaGrowth:
    """Estimates how much work it takes to validate values with ``schema``.

    Raises `ValueError` if the schema needs too many evaluations for a single part of a value.
    """

    def __init__(self, schema: JSONObject) -> None:
        self._root, parts = _graph_of(schema)
        _calculate(parts)
        # Allow fewer evaluations if the schema has a keyword that jsonschema-rs compiles slowly.
        most = _MOST_COMPILED if any(part.is_dear for part in parts) else _MOST
        if max(part.most for part in parts) > most:
            raise ValueError(
                "the JSON Schema can't be used: it has so many nested references that validation would take too long"
            )
        self._is_harmless = self._root.most <= _FEW and all(
            part.most <= _FEW and part.each_level <= 1 for part in parts if part.is_endless
        )

    def exceeded(self, value: Any) -> bool:
        """Return true if validating ``value`` may take too many evaluations of subschemas.

        The estimate counts all alternatives, even if validation stops early.
        """
        if self._is_harmless:
            return False
        evaluations = 0
        level: list[tuple[Any, Counter[_Part], int]] = [(value, Counter({self._root: 1}), 0)]
        while level:
            below: list[tuple[Any, Counter[_Part], int]] = []
            for part, entries, others in level:
                others += sum(count * entry.most for entry, count in entries.items())
                evaluations += max(1, others)
                if evaluations > _MOST:
                    return True
                if isinstance(part, dict):
                    for name, member in cast("JSONObject", part).items():
                        below.append((member, _down(entries, name), others))
                elif isinstance(part, list):
                    below += [(item, _down(entries, None), others) for item in cast("list[Any]", part)]
            level = below
        return False


class _Part:
    """One subschema, as a node in the graph of a JSON Schema.

    It has links to the subschemas that are evaluated for the same value, its items, and its members.
    """

    __slots__ = (
        *("each_level", "here", "inside", "is_dear", "is_endless", "item"),
        *("item_too", "member_too", "most", "named", "other"),
    )

    def __init__(self) -> None:
        self.here: list[_Part] = []
        self.item: list[_Part] = []
        """Subschemas of which one is evaluated for each item."""
        self.item_too: list[_Part] = []
        self.named: dict[str, _Part] = {}
        self.other: list[_Part] = []
        """Subschemas that are evaluated for members that aren't in ``named``."""
        self.member_too: list[_Part] = []
        self.is_dear = False
        """True if the subschema has a keyword that depends on which members or items were evaluated."""
        # What is reckoned:
        self.is_endless = True
        """True if the subschema refers to itself, directly or indirectly, or to a subschema that does."""
        self.inside: Counter[_Part] = Counter()
        """The subschemas that are evaluated for the same part of a value, including this one, with the number of
        evaluations."""
        self.most = 0
        """Number of evaluations for one part of a value and everything inside it, without those of recursive subschemas
        inside."""
        self.each_level = 0
        """Number of evaluations of recursive subschemas for one part of a value at the next level."""

    def below(self) -> Iterator[_Part]:
        """Yield the subschemas that are evaluated for the items and members of a value."""
        yield from (*self.item, *self.item_too, *self.named.values(), *self.other, *self.member_too)


def _down(entries: Counter[_Part], name: str | None) -> Counter[_Part]:
    """Count how many times validation evaluates each recursive subschema for one list item, or for the object member
    ``name``.

    ``entries`` are the subschemas that are evaluated for the list or object around it.
    """
    found: Counter[_Part] = Counter()
    for entry, times in entries.items():
        for part, count in entry.inside.items():
            if name is None:
                ahead = [*part.item, *part.item_too]
            else:
                named = part.named.get(name)
                ahead = [*part.member_too, *(part.other if named is None else (named,))]
            for each in ahead:
                if each.is_endless:
                    found[each] += times * count
    return found


# The graph

_Add: TypeAlias = Callable[[Any], "_Part | None"]


def _graph_of(schema: JSONObject) -> tuple[_Part, list[_Part]]:
    """Return the graph of ``schema``: the node of the whole schema, and all nodes."""
    parts: dict[int, _Part] = {}
    pending: list[JSONObject] = []
    leaf = _Part()  # the shared node of the many subschemas that contain no other subschemas

    def part_of(said: Any) -> _Part | None:
        if not isinstance(said, dict):
            return None
        node = cast("JSONObject", said)
        if _EDGES.isdisjoint(node):
            return leaf
        if (part := parts.get(id(node))) is None:
            part = parts[id(node)] = _Part()
            pending.append(node)
        return part

    root = part_of(schema)
    assert root is not None
    anchors, targets = anchors_in(schema), dict[str, list[_Part]]()
    while pending:
        node = pending.pop()
        part = parts[id(node)]
        part.is_dear = not _DEAR.isdisjoint(node)
        for keyword, said in node.items():
            if keyword in _REFERENCES and isinstance(said, str):
                if said not in targets:
                    targets[said] = _parts_of(targets_of(schema, said, anchors), part_of)
                part.here += targets[said]
            elif keyword in _HERE:
                part.here += _parts_of([said], part_of)
            elif keyword in _HERE_LISTED or keyword in _HERE_NAMED:
                part.here += _parts_of(_listed(said), part_of)
            elif keyword in _ITEM:
                part.item += _parts_of([said] if isinstance(said, dict) else _listed(said), part_of)
            elif keyword in _ITEM_TOO:
                part.item_too += _parts_of([said], part_of)
            elif keyword == "properties" and isinstance(said, dict):
                for name, below in cast("JSONObject", said).items():
                    if (found := part_of(below)) is not None:
                        part.named[name] = found
            elif keyword == "additionalProperties":
                part.other += _parts_of([said], part_of)
            elif keyword in _MEMBER_TOO:
                part.member_too += _parts_of([said], part_of)
            elif keyword == "patternProperties":
                part.member_too += _parts_of(_listed(said), part_of)
    return root, [*parts.values(), leaf]


def _parts_of(said: Iterable[Any], part_of: _Add) -> list[_Part]:
    return [part for each in said if (part := part_of(each)) is not None]


def _listed(said: Any) -> list[Any]:
    if isinstance(said, dict):
        return list(cast("JSONObject", said).values())
    return cast("list[Any]", said) if isinstance(said, list) else []


def anchors_in(schema: JSONObject) -> dict[str, list[JSONObject]]:
    """Return the subschemas that have an anchor or an ``$id``.

    The keys of the result are the anchors, and the last parts of the ``$id`` URIs.
    """
    found: dict[str, list[JSONObject]] = {}
    for node in objects_in(schema):
        if _NAMES.isdisjoint(node):
            continue
        for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
            if isinstance(name := node.get(keyword), str):
                found.setdefault(_last(name), []).append(node)
        if node.get("$recursiveAnchor") is True:
            found.setdefault("", []).append(node)
    return found


def objects_in(schema: JSONObject) -> Iterator[JSONObject]:
    """Yield ``schema`` and each JSON object inside it. Later members are yielded before earlier ones."""
    pending: list[Any] = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield cast("JSONObject", item)
        pending += [each for each in _listed(item) if isinstance(each, dict | list)]


def _last(name: str) -> str:
    return name.rstrip("#").rpartition("#")[2].rpartition("/")[2]


def targets_of(schema: JSONObject, reference: str, anchors: dict[str, list[JSONObject]]) -> list[Any]:
    """Return all subschemas of ``schema`` to which ``reference`` may point.

    If in doubt, a subschema is included. ``anchors`` is the result of `anchors_in`.
    """
    document, _, fragment = reference.partition("#")
    roots = [schema] if not document else anchors.get(_last(document), [])
    if not fragment:
        return [*roots, *([] if document else anchors.get("", []))]
    if not fragment.startswith("/"):
        return list(anchors.get(fragment, []))
    # A JSON Pointer in a `$ref` may be relative to any subschema that has an `$id`.
    roots = [*roots, *(node for nodes in anchors.values() for node in nodes if "$id" in node or "id" in node)]
    return [target for root in roots if (target := at_pointer(root, unquote(fragment))) is not None]


# What is reckoned


def _calculate(parts: list[_Part]) -> None:
    """Calculate how often each of the subschemas ``parts`` is evaluated, inner ones before outer ones.

    If a part refers to itself for the same value, or the calculation takes too many steps, its number is `_TOO_MANY`.
    """
    work = _GrowthCalculator()
    for part in _innermost_first(parts, lambda part: [*part.here, *part.below()]):
        part.is_endless = False
        work.calculate(part)
    endless = [part for part in parts if part.is_endless]
    for part in endless:
        part.most = _TOO_MANY
    for part in _innermost_first(endless, lambda part: [each for each in part.here if each.is_endless]):
        work.calculate(part)


def _innermost_first(parts: list[_Part], ahead_of: Callable[[_Part], list[_Part]]) -> list[_Part]:
    """Sort ``parts``, subschemas of a JSON Schema. Each comes after all subschemas that ``ahead_of`` returns for it.

    Parts on cycles, or leading to cycles, are omitted.
    """
    before: dict[_Part, list[_Part]] = {part: [] for part in parts}
    missing: dict[_Part, int] = {}
    for part in parts:
        ahead = ahead_of(part)
        missing[part] = len(ahead)
        for each in ahead:
            before[each].append(part)
    found = [part for part in parts if not missing[part]]
    for part in found:  # which grows meanwhile
        for each in before[part]:
            missing[each] -= 1
            if not missing[each]:
                found.append(each)
    return found


class _GrowthCalculator:
    """Calculates how often subschemas are evaluated, in a limited number of steps.

    The number is limited because a schema may come from an untrusted peer.
    """

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def calculate(self, part: _Part) -> None:
        """Calculate how often the subschema ``part`` is evaluated.

        Call this first for all parts to which it leads, except recursive ones for items and members.
        """
        part.most = _TOO_MANY
        if self._left < 0:
            return
        inside: Counter[_Part] = Counter()  # don't write Counter({part: 1}), which takes ten times as long
        inside[part] = 1
        for each in part.here:
            self._left -= len(each.inside)
            for inner, count in each.inside.items():
                inside[inner] = min(inside[inner] + count, _TOO_MANY)
        part.inside = inside
        below = self._in_one_place(inside, lambda each: 0 if each.is_endless else each.most)
        part.most = min(max(inside.total(), below), _TOO_MANY)
        if part.is_endless:  # for a schema without recursion, `each_level` stays 0
            part.each_level = self._in_one_place(inside, lambda each: 1 if each.is_endless else 0)

    def _in_one_place(self, inside: Counter[_Part], weight: Callable[[_Part], int]) -> int:
        """Return the largest total ``weight`` of the subschemas that validation evaluates for a single list item or
        object member. ``inside`` counts how many times each schema is evaluated for the list or object."""
        item, member = 0, 0
        names: Counter[str] = Counter()
        for part, count in inside.items():
            self._left -= 1 + len(part.named)
            if not (part.item or part.item_too or part.named or part.other or part.member_too):
                continue
            item += count * (max(map(weight, part.item), default=0) + sum(map(weight, part.item_too)))
            other = sum(map(weight, part.other))
            member += count * (other + sum(map(weight, part.member_too)))
            for name, below in part.named.items():
                names[name] += count * (weight(below) - other)
        return max(item, member + max(names.values(), default=0), member)
