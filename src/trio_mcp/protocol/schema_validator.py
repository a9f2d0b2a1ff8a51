"""Validation of values with JSON Schemas. jsonschema-rs does the work, with schemas that are compiled once.

The dialect is the schema's own ``$schema``, by default 2020-12. Drafts 4, 6, 7 and 2019-09 are supported too. No peer
can block the server: references to other documents are never fetched (2026-07-28 basic, $ref Resolution: MUST NOT),
regular expressions run in linear time, only values of limited size are checked, and references must not multiply
(`SchemaGrowth`).

jsonschema-rs checks a value in one call that holds the interpreter lock. No other task runs, and the check can't be
stopped. Some keywords take a hundred times as long for a number as decoding it did, and ``uniqueItems`` compares each
pair of numbers. So, except for cheap keywords, only values of limited size are checked (`SchemaBounds`).

jsonschema-rs evaluates a part of a schema again for each path that leads to it, and paths may multiply with each level
of a value. If there are too many paths (`SchemaGrowth`), keywords that contain schemas are evaluated here, with a cache
(`SchemaEvaluation`), and jsonschema-rs evaluates the others part by part. That takes longer for each part, so its limit
is lower.

jsonschema-rs reports at once, and without copying, whether a value is valid. For the reasons, it first collects all
faults, each with a copy of the invalid value, and the faults of all alternatives in all alternatives: 11 GiB for 16 MiB
of numbers in place of strings. So reasons are requested only for small parts, and the invalid part is found by checking
parts one by one (`SchemaFaults`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

from ..jsonrpc.errors import clean
from ..jsonrpc.sizes import MOST_LEVELS, is_checkable, is_small, is_too_deep
from .fields import JSONObject, as_object
from .inlining import at_pointer
from .schema_growth import SCHEMA_KEYWORDS, SchemaGrowth, anchors_in, objects_in, targets_of
from .schema_reading import allowed_values

_MOST_EVALUATIONS: Final = 50_000
"""Maximum number of evaluations of subschemas for one value, which take half a second."""
TOO_LARGE: Final = "too large to be checked"
"""The beginning of the error message for a value that was too large to be validated. The value may be valid."""
_DEPENDENT: Final = frozenset(("$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"))
"""JSON Schema keywords whose result depends on the path that leads to them, or on which members or items were
evaluated."""
_OLD: Final = ("draft-04", "draft-06", "draft-07")


_Steps: TypeAlias = Generator[tuple[Any, Any], bool, bool]


class TooManyEvaluations(Exception):
    """Raised if validating a value takes too many evaluations of subschemas."""


class SchemaEvaluation:
    """Validates one value with ``schema``. Each subschema is evaluated only once for each part of the value.

    ``compiled`` makes the validators for keywords that don't contain schemas.
    """

    def __init__(self, schema: JSONObject, compiled: Callable[[JSONObject], Any]) -> None:
        self._schema = schema
        self._compiled = compiled
        self._anchors = anchors_in(schema)
        dialect = schema.get("$schema")
        self._dialect: JSONObject = {} if dialect is None else {"$schema": dialect}
        self._is_old = isinstance(dialect, str) and any(name in dialect for name in _OLD)
        self._known: dict[tuple[int, int], bool | None] = {}
        """The result for each part of the schema and part of the value. `None` while it is being determined."""
        self._validators: dict[int, Any] = {}
        self._patterns: dict[str, Any] = {}
        if any("$id" in node or "id" in node for nodes in self._anchors.values() for node in nodes if node != schema):
            raise TooManyEvaluations  # a nested $id changes the base URI of references, which isn't supported here

    def fits(self, node: Any, value: Any) -> bool:
        """Return true if ``value`` is valid for the subschema ``node``.

        Raises `TooManyEvaluations` if the limit is exceeded.
        """
        # Use a loop, not recursion: a value has up to 256 levels, each of which may take several steps.
        known = self._known
        fits = self._known_of(node, value)
        open_ones: list[tuple[tuple[int, int], _Steps]] = []
        while True:
            if fits is None:
                key = id(node), id(value)
                known[key] = None
                open_ones.append((key, self._evaluated(node, value)))
            elif not open_ones:
                return fits
            try:
                node, value = open_ones[-1][1].send(cast("bool", fits))  # `None` begins
            except StopIteration as end:
                key, _ = open_ones.pop()
                fits = known[key] = bool(end.value)
            else:
                fits = self._known_of(node, value)

    def _known_of(self, node: Any, value: Any) -> bool | None:
        """Return whether ``value`` is valid for the subschema ``node``, if that is already known. Otherwise return
        `None`."""
        if not isinstance(node, dict):
            return bool(node)
        key = id(cast("JSONObject", node)), id(value)
        if key in self._known:
            found = self._known[key]
            if found is None:  # the schema refers to itself endlessly for this value
                raise TooManyEvaluations
            return found
        if len(self._known) >= _MOST_EVALUATIONS or not _DEPENDENT.isdisjoint(cast("JSONObject", node)):
            raise TooManyEvaluations
        return None

    def _evaluated(self, node: JSONObject, value: Any) -> _Steps:
        """Evaluate ``value`` with the subschema ``node``.

        This generator yields each inner subschema with its value. The caller sends back whether the value is valid.
        """
        if "$ref" in node:
            targets = targets_of(self._schema, node["$ref"], self._anchors)
            if len(targets) != 1:
                raise TooManyEvaluations
            fits = yield targets[0], value
            if self._is_old or not fits:  # before JSON Schema 2019-09, all keywords beside a $ref are ignored
                return fits
        if not self._plainly_fits(node, value) or not (yield from self._fits_here(node, value)):
            return False
        if isinstance(value, dict):
            return (yield from self._members_fit(node, cast("JSONObject", value)))
        return (yield from self._items_fit(node, cast("list[Any]", value))) if isinstance(value, list) else True

    def _plainly_fits(self, node: JSONObject, value: Any) -> bool:
        """Return true if ``value`` is valid for all keywords of ``node`` that don't contain schemas."""
        validator = self._validators.get(id(node))
        if validator is None:
            rest = {keyword: said for keyword, said in node.items() if keyword not in SCHEMA_KEYWORDS}
            needed: Any = node.get("dependencies")
            if isinstance(needed, dict):
                names = cast("JSONObject", needed).items()
                rest["dependencies"] = {name: cast("Any", said) for name, said in names if isinstance(said, list)}
            validator = self._validators[id(node)] = self._compiled(self._dialect | rest)
        return validator.is_valid(value)

    def _fits_here(self, node: JSONObject, value: Any) -> _Steps:
        for said in node.get("allOf", ()):
            if not (yield said, value):
                return False
        if "anyOf" in node and not (yield from _count(node["anyOf"], value, 1)):
            return False
        if "oneOf" in node and (yield from _count(node["oneOf"], value, 2)) != 1:
            return False
        if "not" in node and (yield node["not"], value):
            return False
        if "if" in node:
            follows = node.get("then" if (yield node["if"], value) else "else", True)
            if not (yield follows, value):
                return False
        if isinstance(value, dict):
            needed: dict[str, Any] = {**node.get("dependencies", {}), **node.get("dependentSchemas", {})}
            for name, said in needed.items():
                if name in value and not isinstance(said, list) and not (yield said, value):
                    return False
        return True

    def _members_fit(self, node: JSONObject, value: JSONObject) -> _Steps:
        named: JSONObject = node.get("properties", {})
        patterns: JSONObject = node.get("patternProperties", {})
        other, names = node.get("additionalProperties", True), node.get("propertyNames", True)
        for name, member in value.items():
            matching = [said for pattern, said in patterns.items() if self._matches(pattern, name)]
            if name in named:
                matching.append(named[name])
            for said in matching or (other,):
                if not (yield said, member):
                    return False
            if not (yield names, name):
                return False
        return True

    def _matches(self, pattern: str, name: str) -> bool:
        validator = self._patterns.get(pattern)
        if validator is None:
            validator = self._patterns[pattern] = self._compiled(self._dialect | {"pattern": pattern})
        return validator.is_valid(name)

    def _items_fit(self, node: JSONObject, value: list[Any]) -> _Steps:
        first: Any = node.get("prefixItems", ())
        rest: Any = node.get("items", True)
        if isinstance(rest, list):  # until 2019-09
            first, rest = cast("list[Any]", rest), node.get("additionalItems", True)
        for index, item in enumerate(value):
            if not (yield first[index] if index < len(first) else rest, item):
                return False
        if "contains" not in node:
            return True
        count = 0
        for item in value:
            count += yield node["contains"], item
        return node.get("minContains", 1) <= count <= node.get("maxContains", len(value))


def _count(listed: list[Any], value: Any, limit: int) -> Generator[tuple[Any, Any], bool, int]:
    """Count the schemas in ``listed`` for which ``value`` is valid, up to ``limit``.

    This generator yields each schema with the value. The caller sends back whether the value is valid.
    """
    count = 0
    for said in listed:
        count += yield said, value
        if count == limit:
            break
    return count


class SchemaValidator:
    """A compiled JSON Schema that validates values.

    Raises `ValueError` if the schema is invalid, references another document, or has so many nested references that
    validation would take too long. ``pattern_limit`` is the maximum size of a compiled regular expression in bytes.
    """

    def __init__(self, schema: JSONObject, *, pattern_limit: int | None = None) -> None:
        import jsonschema_rs  # import jsonschema-rs only here: it loads slowly, and most servers don't need it

        patterns = jsonschema_rs.RegexOptions(size_limit=pattern_limit, dfa_size_limit=pattern_limit)

        def compiled(make: Callable[..., Any], schema: JSONObject = schema) -> Any:
            return make(schema, retriever=_never, pattern_options=patterns)

        self._schema = schema
        self._growth = SchemaGrowth(schema)
        self._compiled = partial(compiled, jsonschema_rs.validator_for)
        try:
            self._validator = self._compiled(schema)
        except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
            raise ValueError(f"the JSON Schema can't be used: {clean(str(error).splitlines()[0])}") from None
        self._bounds = SchemaBounds(schema)
        self._faults = SchemaFaults(schema, lambda: compiled(jsonschema_rs.validator_map_for))

    def faults(self, value: Any) -> str | None:
        """Validate ``value``. Return its faults as one line of text, or `None` if it is valid.

        The text contains the first few faults, and fewer for a large value: see `SchemaFaults`. A value that is too
        large to be checked is a fault: see `SchemaBounds`.
        """
        if (fault := self._bounds.exceeded(value)) is not None:
            return fault
        if is_too_deep(value):  # the validator recurses
            return f"there are more than {MOST_LEVELS} levels of nesting"
        if self._growth.exceeded(value):
            return self._evaluated(value)
        return None if self._validator.is_valid(value) else self._faults.describe(value)

    def _evaluated(self, value: Any) -> str | None:
        """Return the faults of ``value`` like `faults`, but evaluate each subschema only once for each part of the
        value.

        This is for values with too many paths through the schema.
        """
        try:
            evaluation = SchemaEvaluation(self._schema, self._compiled)
            if evaluation.fits(self._schema, value):
                return None
            return self._faults.locate(value, evaluation.fits)
        except TooManyEvaluations:
            return f"{TOO_LARGE}: the references of the schema multiply with each level of nesting"


def _never(uri: str) -> Any:
    raise ValueError(f"the schema refers to {clean(uri[:200])}: referenced documents are never fetched")


_MOST_PARTS: Final = 100_000
"""Maximum number of items and members of a checked value. With this number, the slowest keywords take less than half a
second."""
_FEW_ALTERNATIVES: Final = 10
"""Number of alternatives that can be tried in the time allotted to each item."""

_SAY_NOTHING: Final = frozenset(
    ("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description")
) | {"examples", "readOnly", "title", "writeOnly"}
_COUNT: Final = frozenset(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"))
_CHEAP: Final = _SAY_NOTHING | _COUNT | {"required", "type"}
_BELOW: Final = frozenset(("additionalProperties", "items", "prefixItems", "properties"))
_NULL: Final = {"type": "null"}
_LISTS: Final = frozenset(("allOf", "anyOf", "enum", "oneOf", "patternProperties", "dependentSchemas", "dependencies"))


class SchemaBounds:
    """Limits the size of the values that are validated with ``schema``.

    If possible, members of an object that are quick to validate don't count towards the limit.
    """

    def __init__(self, schema: JSONObject) -> None:
        tried = (_tried(said) for node in objects_in(schema) for keyword, said in node.items() if keyword in _LISTS)
        self._limit = max(1, _MOST_PARTS * _FEW_ALTERNATIVES // max(_FEW_ALTERNATIVES, *tried, 0))
        self._apart = _is_cheap({keyword: said for keyword, said in schema.items() if keyword != "properties"})
        properties = cast("JSONObject", schema.get("properties") or {}) if self._apart else {}
        self._dear = [name for name, below in properties.items() if not _is_cheap(below)]

    def exceeded(self, value: Any) -> str | None:
        """Return an error message if ``value`` is too large to be validated. Otherwise return `None`."""
        dear: list[Any] = [value]
        if self._apart:
            members = as_object(value)
            dear = [members[name] for name in self._dear if name in members]
        if is_checkable(dear, self._limit + len(dear)):
            return None
        return (
            f"{TOO_LARGE}: more than {self._limit} items and members that the schema checks for more than "
            "their type (an integer of more than 64 bits counts as at least 1000 of them)"
        )


def _is_cheap(schema: Any) -> bool:
    """Return true if validation with this schema takes only a few steps for each part of any value."""
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, dict):
            if not isinstance(node, bool):
                return False
            continue
        for keyword, said in cast("JSONObject", node).items():
            if keyword in _BELOW:
                pending += _schemas(keyword, said)
            # An `anyOf` may need many steps, but not if it has only null and one other schema (an optional value).
            elif keyword == "anyOf" and _NULL in said and len(said) == 2:
                pending += said
            elif keyword not in _CHEAP and not (keyword == "enum" and all(map(_is_looked_up, said))):
                return False
    return True


def _schemas(keyword: str, said: Any) -> list[Any]:
    if keyword == "properties" and isinstance(said, dict):
        return list(cast("JSONObject", said).values())
    return cast("list[Any]", said) if isinstance(said, list) else [said]


def _tried(said: Any) -> int:
    """Return how many of the alternatives in ``said`` a validator may have to try one after another.

    The list is the value of a keyword such as ``anyOf`` or ``enum``. A list of only strings counts 0, because strings
    are looked up.
    """
    if isinstance(said, list):
        choices = cast("list[Any]", said)
        return 0 if all(map(_is_looked_up, choices)) else len(choices)
    return len(cast("JSONObject", said)) if isinstance(said, dict) else 0


def _is_looked_up(choice: Any) -> bool:
    return choice is None or isinstance(choice, str)


_FAULTS_SHOWN: Final = 5
_LONGEST_FAULT: Final = 300
"""Maximum number of characters of the description of a fault, which quotes the invalid value."""
_LONGEST_VALUE: Final = 150
"""Maximum number of characters of the description of a fault that lists the allowed values after the invalid one."""
_SMALL_PARTS: Final = 1000
_CHARACTERS: Final = 20_000
_LOOKED_AT: Final = 10_000
"""Maximum number of items of one list that are searched for a fault."""
_STEPS: Final = 6
"""Maximum number of steps into a value, from a list or object to its items or members. Each step may validate nearly
the whole value again."""
_HOPS: Final = 32
"""Maximum number of references that are followed one after another."""
_REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
_ALTERNATIVES: Final = frozenset(("allOf", "anyOf", "contains", "dependentSchemas", "if", "not", "oneOf"))


class SchemaFaults:
    """Explains why values are invalid for ``schema``.

    ``compiled`` returns the validators of the parts of the schema, keyed by JSON Pointer. It is called on first use.
    """

    def __init__(self, schema: JSONObject, compiled: Callable[[], Any]) -> None:
        self._schema = schema
        self._compiled = compiled
        self._validators: Any = None
        self._levels = MOST_LEVELS

    def describe(self, value: Any) -> str:
        """Return the first few faults of an invalid ``value`` as one line of text.

        For a large value, return one fault.
        """
        if self._validators is None:
            self._validators = self._compiled()
            # If the schema nests alternatives (such as anyOf) in alternatives, even a small value may have many faults.
            found = set[str]().union(*objects_in(self._schema))
            if not found.isdisjoint(_REFERENCES) and not found.isdisjoint(_ALTERNATIVES):
                self._levels = 1
        pointer, place, part, steps = "#", "", value, 0
        while not is_small(part, _SMALL_PARTS, _CHARACTERS, self._levels):
            node, pointer = self._resolved(pointer)
            steps += 1
            for step, below, item in _parts(node, pointer, part) if steps <= _STEPS else ():
                validator = self._validators.get(below)
                if validator is not None and not validator.is_valid(item):
                    pointer, place, part = below, place + step, item
                    break
            else:
                return _at(place, _short_fault(node, part))
        faults = [
            _at(place + "".join(map(_step, error.instance_path)), self._fault_text(pointer, error))
            for error in islice(self._validators.get(pointer).iter_errors(part), _FAULTS_SHOWN)
        ]
        return "; ".join(faults)

    def _fault_text(self, pointer: str, error: Any) -> str:
        message: str = error.message
        if error.kind.name not in ("anyOf", "oneOf") and not message.endswith(" other candidates"):
            return message
        choices = ""
        with suppress(AttributeError, TypeError):  # an unknown keyword of the schema may contain any value
            choices = allowed_values(self._schema, _node(self._schema, pointer), error.instance_path)
        return message.partition(" is not one of ")[0][:_LONGEST_VALUE] + choices if choices else message

    def locate(self, value: Any, fits: Callable[[Any, Any], bool]) -> str:
        """Return one line of text that tells where ``value`` violates the schema.

        ``fits`` returns whether a part is valid for a subschema.
        """
        node, place, part = self._schema, "", value
        for _ in range(_STEPS):
            for step, below, item in _parts(node, "#", part):
                inner = _node(node, below)
                if inner and not fits(inner, item):
                    node, place, part = inner, place + step, item
                    break
            else:
                break
        return _at(place, _short_fault(node, part))

    def _resolved(self, pointer: str) -> tuple[JSONObject, str]:
        """Return the subschema at the JSON Pointer ``pointer``, and the JSON Pointer of the returned subschema.

        If the subschema is a reference, return the subschema to which it refers instead.
        """
        node = _node(self._schema, pointer)
        for _ in range(_HOPS):
            reference = node.get("$ref")
            target = unquote(reference) if isinstance(reference, str) else ""
            if not target.startswith("#") or self._validators.get(target) is None:
                break
            node, pointer = _node(self._schema, target), target
        return node, pointer


def _parts(node: JSONObject, pointer: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the parts of ``value`` that have a subschema.

    With each part, yield the step that leads to it, and the JSON Pointer of the subschema.
    """
    if isinstance(value, dict):
        members = cast("JSONObject", value)
        for name in cast("JSONObject", node.get("properties") or {}):
            if name in members:
                below = f"{pointer}/properties/{name.replace('~', '~0').replace('/', '~1')}"
                yield _step(name), below, members[name]
    elif isinstance(value, list):
        for index, item in enumerate(islice(cast("list[Any]", value), _LOOKED_AT)):
            yield _step(index), f"{pointer}/items", item


def _node(schema: JSONObject, pointer: str) -> JSONObject:
    return as_object(at_pointer(schema, pointer))


def _short_fault(node: JSONObject, part: Any) -> str:
    """Describe why the large value ``part`` is invalid, although all of its items or members are valid.

    The reason is a missing member, or unknown.
    """
    required: Any = node.get("required")
    if isinstance(part, dict) and isinstance(required, list):
        for name in cast("list[Any]", required):
            if name not in part:
                return f'"{name}" is a required property'
    return "a value is invalid for the schema, and too large or too deep to explain why"


def _step(step: str | int) -> str:
    return f".{step}" if isinstance(step, str) else f"[{step}]"


def _at(place: str, fault: str) -> str:
    fault = fault if len(fault) <= _LONGEST_FAULT else f"{fault[:_LONGEST_FAULT]}…"
    return fault + (f" at {place.removeprefix('.')}" if place else "")
