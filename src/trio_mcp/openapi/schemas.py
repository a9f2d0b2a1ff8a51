"""Converts the schemas of an OpenAPI document to JSON Schema 2020-12.

An OpenAPI 3.0 schema is an older JSON Schema with keywords of its own. Each component is converted once, and named in
``$defs``, because many tools share the components of a large document.
"""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from functools import cache, cached_property
from typing import Any, Final, cast

import jsonschema_rs

from ..jsonrpc.errors import clean
from ..jsonrpc.sizes import MOST_LEVELS, is_too_deep
from ..protocol.fields import JSONObject, as_object
from ..protocol.inlining import portable
from ..protocol.schema_growth import SchemaGrowth
from ..protocol.schema_validator import SchemaValidator
from .document import Document, items_of, legal_name

_ONE: Final = frozenset(("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")) | {
    "unevaluatedItems",
    "unevaluatedProperties",
}
_LISTED: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_NAMED: Final = frozenset(("properties", "patternProperties", "dependentSchemas"))
_BY_PATTERN: Final = ("patternProperties", "additionalProperties", "unevaluatedProperties")
_PLAIN: Final = frozenset(
    (
        *("type", "enum", "const", "format", "title", "description", "default", "examples", "deprecated", "required"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
        *("minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties"),
        *("dependentRequired", "contentEncoding", "contentMediaType"),
    )
)
_MAX_DEFINITIONS: Final = 50
"""Maximum number of definitions that one schema includes. The limit matters because each client reads all of them in
each list of tools."""
_MAX_PARTS: Final = 500
"""Maximum number of parts of one schema, from references and ``allOf``. Schemas in real documents have a tenth of that
number."""
_REFUSED: Final = ("$dynamicRef", "$recursiveRef", "$id")


class Schemas:
    """Converts the schemas of an OpenAPI document to JSON Schema, for requests or for responses.

    Properties with the keyword ``excluded`` are left out: ``readOnly`` for requests, ``writeOnly`` for responses.
    """

    def __init__(self, document: Document, excluded: str) -> None:
        self._document = document
        self._excluded = excluded
        self._names: dict[tuple[str, str], str] = {}
        """The names of the document's components, by document and JSON pointer."""
        self._taken: set[str] = set()
        self._ahead: list[tuple[str, Any, str]] = []
        """Components that have a name but haven't been converted yet."""
        self._definitions: dict[str, Any] = {}
        self._portable: dict[str, Any] = {}
        """Definitions reduced to portable keywords. The definitions with their original formats show which properties
        are files."""
        self._mentioned: dict[str, list[str]] = {}
        """The components that each component refers to, by name."""
        self._mentions: list[str] = []
        self._are_left_out: dict[int, bool] = {}
        """True if a schema excludes properties, by the `id` of the schema. The document keeps the schema alive."""

    def converted(self, schema: Any, base: str) -> Any:
        """Convert ``schema``, a schema in the document ``base``, to JSON Schema.

        References in the result need definitions, which `complete` adds. Raises `ValueError` if the schema can't be
        read.
        """
        self._mentions = []
        made = self._converted(schema, base)
        while self._ahead:
            name, value, where = self._ahead.pop()
            self._mentions = []
            self._definitions[name] = self._converted(value, where)
            self._mentioned[name] = self._mentions
        return made

    def complete(self, schema: JSONObject) -> JSONObject:
        """Return a schema from `converted`, with all definitions added that its references need.

        If there are too many, only the nearest are kept; the others become schemas that allow anything. Raises
        `ValueError` for a schema that can't be sent.
        """
        needed: dict[str, Any] = {}
        ahead = deque(_references(schema))
        while ahead:
            name = ahead.popleft()
            if name in needed:
                continue
            if len(needed) < _MAX_DEFINITIONS:
                if name not in self._portable:
                    self._portable[name] = self._checked(portable(self._definitions[name]), MOST_LEVELS - 2)
                needed[name] = self._portable[name]
                ahead += self._mentioned[name]
            else:
                needed[name] = {}
        schema = self._checked(portable(schema), MOST_LEVELS)
        return {**schema, "$defs": needed} if needed else schema

    def _checked(self, schema: Any, levels: int) -> Any:
        """Check that ``schema`` is a valid JSON Schema, without following its references, and return it. Raises
        `ValueError` if it is invalid."""
        if is_too_deep(schema, levels):
            raise ValueError(f"a schema has more than {MOST_LEVELS} levels")
        try:
            jsonschema_rs.meta.validate(schema)
        except jsonschema_rs.ValidationError as error:
            what = "arguments" if self._excluded == "readOnly" else "answer"
            raise ValueError(f"the schema of the {what} is invalid: {clean(error.message)[:200]}") from None
        return schema

    def multiply(self, schemas: Iterable[JSONObject]) -> bool:
        """Return true if expanding the references in any of ``schemas`` may make it too large for validation.
        ``schemas`` are results of `complete`.

        Checking all schemas together is much faster, since they share definitions.
        """
        roots: JSONObject = {str(number): {**schema, "$defs": {}} for number, schema in enumerate(schemas)}
        try:
            SchemaGrowth({"properties": roots, "$defs": self._definitions})
        except ValueError:
            return True
        return False

    def resolved(self, schema: Any) -> Any:
        """Return ``schema``. If it is a reference, return the definition that it refers to."""
        seen: set[str] = set()
        while isinstance(schema, dict) and (name := _name_in(cast("JSONObject", schema))) and name not in seen:
            seen.add(name)
            schema = self._definitions[name]
        return cast("Any", schema)

    def _converted(self, node: Any, base: str, gone: Collection[str] = ()) -> Any:
        """Convert the OpenAPI schema ``node`` to JSON Schema.

        Leave out each property that is in ``gone`` or has the excluded keyword (``readOnly`` or ``writeOnly``).
        """
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise ValueError(f"a schema must be an object, not {reprlib.repr(node)}")  # noqa: TRY004 - a document's fault
        schema = cast("JSONObject", node)
        if refused := [keyword for keyword in _REFUSED if keyword in schema]:
            raise ValueError(f"a schema has the keyword {refused[0]}, which is not supported")
        if not all(map(_is_usable, map(str, as_object(schema.get("patternProperties"))))):
            # Leave out keywords with regular expressions that can't be used. The API itself checks the property names.
            schema = {keyword: said for keyword, said in schema.items() if keyword not in _BY_PATTERN}
        made: JSONObject = {}
        if "$ref" in schema:
            if gone:
                target, where, _ = self._document.target(schema["$ref"], base)
                made["allOf"] = [self._converted(target, where, gone)]
            else:
                made["$ref"] = f"#/$defs/{self._name_of(schema['$ref'], base)}"
            if self._document.is_old:  # OpenAPI 3.0 ignores keywords next to a $ref
                return made
        if "allOf" in schema or "properties" in schema:
            gone = {*gone, *self._excluded_properties(schema, base)}
        for keyword, said in schema.items():
            if said is None and keyword not in ("default", "const"):
                continue  # some generators of OpenAPI documents write null for a missing value
            if keyword in _PLAIN:
                made[keyword] = said
            elif keyword in _ONE:
                made[keyword] = self._converted(said, base)
            elif keyword == "allOf":
                parts = items_of(schema, keyword)
                made[keyword] = [*made.get(keyword, ()), *(self._part(each, base, gone) for each in parts)]
            elif keyword in _LISTED:
                # Convert oneOf to anyOf, because model providers don't support oneOf.
                # The API itself checks that only one of the oneOf alternatives matches.
                name = "anyOf" if keyword == "oneOf" and "anyOf" not in schema else keyword
                made[name] = [self._converted(each, base) for each in items_of(schema, keyword)]
            elif keyword in _NAMED:
                made[keyword] = {str(name): self._converted(each, base) for name, each in as_object(said).items()}
            elif keyword == "pattern" and isinstance(said, str) and _is_usable(said):
                made[keyword] = said
            elif keyword == "example":
                made.setdefault("examples", [said])
        for name in gone:
            made.get("properties", {}).pop(name, None)
        self._require(schema, made, gone)
        return _modern(schema, made) if self._document.is_old else made

    def _part(self, node: Any, base: str, gone: Collection[str]) -> Any:
        """Convert ``node``, one of the schemas in an ``allOf``. If ``node`` requires a property in ``gone``, leave out
        all properties in ``gone``.

        In this case, a reference to a component is replaced by a copy of the component without these properties.
        """
        required = {name for part, _ in self._parts_of(node, base) for name in _required_in(part)} if gone else ()
        return self._converted(node, base, gone if any(name in gone for name in required) else ())

    def _excluded_properties(self, schema: JSONObject, base: str) -> Iterator[str]:
        """Yield the names of the ``readOnly`` or ``writeOnly`` properties of ``schema``, which are left out of the
        converted schema."""
        for part, where in self._parts_of(schema, base):
            for name, each in as_object(part.get("properties")).items():
                if (is_left_out := self._are_left_out.get(id(each))) is None:
                    parts = self._parts_of(each, where)
                    is_left_out = self._are_left_out[id(each)] = any(inner.get(self._excluded) for inner, _ in parts)
                if is_left_out:
                    yield name

    def _parts_of(self, schema: Any, base: str) -> Iterator[tuple[JSONObject, str]]:
        """Yield ``schema``, and all schemas that it includes by ``$ref`` or ``allOf``. Each schema comes with the URI
        of its document."""
        seen: set[tuple[str, str]] = set()
        ahead: list[tuple[Any, str]] = [(schema, base)]
        for node, where in ahead:  # which grows meanwhile
            if len(ahead) > _MAX_PARTS:
                raise ValueError(f"a schema may include at most {_MAX_PARTS} schemas through allOf and $ref")
            part = as_object(node)
            yield part, where
            ahead += [(each, where) for each in items_of(part, "allOf")]
            if "$ref" in part:
                target, uri, pointer = self._document.target(part["$ref"], where)
                if (uri, pointer) not in seen:
                    seen.add((uri, pointer))
                    ahead.append((target, uri))

    def _require(self, schema: JSONObject, made: JSONObject, gone: Collection[str]) -> None:
        """Set the keyword ``required`` in ``made``, the result of converting ``schema``. Properties in ``gone`` aren't
        required."""
        required = [name for name in _required_in(schema) if name not in gone]
        tag = as_object(schema.get("discriminator")).get("propertyName")
        # OpenAPI 3.1.1, 4.8.25: the discriminator's property is required, so mark it as required for the model.
        if self._excluded == "readOnly" and isinstance(tag, str) and tag not in {*gone, *required}:
            required.append(tag)
        made.pop("required", None)
        if required:
            made["required"] = required

    def _name_of(self, reference: Any, base: str) -> str:
        value, uri, pointer = self._document.target(reference, base)
        if (uri, pointer) not in self._names:
            name = legal_name(pointer.rpartition("/")[2] or uri, self._taken)
            self._taken.add(name)
            self._names[uri, pointer] = name
            self._ahead.append((name, value, uri))
        name = self._names[uri, pointer]
        self._mentions.append(name)
        return name


def _required_in(schema: JSONObject) -> list[str]:
    """Return the names in the keyword ``required`` of a schema.

    Return an empty list if ``required`` isn't a list, because ``required`` is a boolean in older drafts. Raises
    `ValueError` if a name isn't a string.
    """
    required: Any = schema.get("required")
    if not isinstance(required, list):
        return []
    if faults := [name for name in cast("list[Any]", required) if not isinstance(name, str)]:
        raise ValueError(f"the keyword 'required' must list only strings, not {reprlib.repr(faults[0])}")
    return cast("list[str]", required)


def _modern(schema: JSONObject, made: JSONObject) -> JSONObject:
    """Convert keywords of OpenAPI 3.0 in ``made`` that have another meaning in JSON Schema, and return the result.

    ``schema`` is the original schema.
    """
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(is_exclusive := made.get(exclusive), bool):
            del made[exclusive]
            if is_exclusive and bound in made:
                made[exclusive] = made.pop(bound)
    if schema.get("nullable") is not True:
        return made
    if any(keyword in made for keyword in ("allOf", "anyOf", "oneOf")):
        return {"anyOf": [made, {"type": "null"}]}
    if isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    if isinstance(made.get("enum"), list) and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    return made


class LateValidator:
    """A schema validator that compiles its schema when the first value is validated. This makes documents with hundreds
    of operations load faster."""

    def __init__(self, schema: JSONObject) -> None:
        self._schema = schema

    @cached_property
    def _made(self) -> SchemaValidator | ValueError:
        try:
            return SchemaValidator(self._schema)
        except ValueError as error:
            return error.with_traceback(None)

    def check(self) -> None:
        """Raise `ValueError` if the schema cannot be used to validate values."""
        if isinstance(self._made, ValueError):
            raise self._made

    def faults(self, value: Any) -> str | None:
        """Return what is wrong with ``value``. If the schema is unusable, return what is wrong with the schema. See
        `SchemaValidator.faults`."""
        return str(self._made) if isinstance(self._made, ValueError) else self._made.faults(value)


@cache
def _is_usable(pattern: str) -> bool:
    """Return whether the regular expression ``pattern`` can be matched in linear time. All other patterns are left to
    the API to check."""
    try:
        SchemaValidator({"pattern": pattern})
    except ValueError:
        return False
    return True


def _name_in(schema: JSONObject) -> str | None:
    reference: Any = schema.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None


def _references(schema: Any) -> list[str]:
    """Return the names of the definitions that ``schema``, converted to JSON Schema, refers to."""
    found: list[str] = []
    ahead: list[tuple[Any, bool]] = [(schema, True)]
    while ahead:
        node, is_schema = ahead.pop()
        if isinstance(node, list):
            ahead += [(each, True) for each in cast("list[Any]", node)]
        elif isinstance(node, dict):
            members = cast("JSONObject", node)
            if is_schema and (name := _name_in(members)) is not None:
                found.append(name)
            for keyword, said in members.items():
                if not is_schema or keyword in _ONE or keyword in _LISTED:
                    ahead.append((said, True))
                elif keyword in _NAMED:
                    ahead.append((said, False))
    return found
