"""Support for pydantic models: reading JSON data as models, writing models as JSON data, and their JSON Schemas.

Only `foreign_types` imports this module, after other code has imported pydantic. A model is read from JSON text, by
pydantic's rules for JSON: for example, a strict date can be read from a string. Rules that a schema can't express, such
as a validator, are enforced when the model is read.

pydantic would report each fault of a value, and a peer decides how many there are. So lists stop at their first fault
here, and the parts of large values are counted first.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from enum import Flag
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError, SchemaValidator

from ..jsonrpc.errors import clean
from ..jsonrpc.sizes import is_checkable
from .fields import AnyInstance, JSONObject, hint_parts

_encoder: Final = msgspec.json.Encoder()

_SMALL: Final = 64 * 1024
"""Number of characters up to which JSON is read without counting its items and members."""
_MOST_PARTS: Final = 100_000
"""Maximum number of items and members of a value that is longer than `_SMALL`."""
_HASHED_ITEMS_LIMIT: Final = 5_000
"""Maximum number of items and members of a large value with sets, or with dict keys that aren't strings: see the
server's `hashed_items_limit`."""
_MOST_FAULTS: Final = 1000
"""Maximum number of faults that an error message describes. Further faults are only counted."""
_TOLD: Final = 5
_LONGEST: Final = 300
"""Maximum number of characters of one fault in an error message."""

_BOUNDS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


class Adapted(metaclass=AnyInstance):
    """Base class of generated classes. Each generated class represents an annotation that only pydantic can parse."""

    adapter: TypeAdapter[Any]


def knows(kind: Any) -> bool:
    """Return true if pydantic must parse and encode values of the class ``kind``, because no other library does."""
    return isinstance(kind, type) and (
        hasattr(kind, "__get_pydantic_core_schema__") or Adapted in kind.__mro__ or _is_dataclass(kind)
    )


def _is_dataclass(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__") and dataclasses.is_dataclass(kind)


def readable(hint: Any) -> Any:
    """Return the type with which msgspec decodes a value of the annotation ``hint``.

    It is ``hint`` itself, or a class that lets pydantic decode the value. This is necessary for some metadata and for
    dataclasses, and to parse models inside other types in one step.

    Raises `TypeError` for an annotation that pydantic can't read.
    """
    inner = [part for part in get_args(hint) if part is not NoneType] if get_origin(hint) in (Union, UnionType) else []
    alone = inner[0] if len(inner) == 1 else hint
    if isinstance(alone, type) and issubclass(alone, BaseModel):
        return hint
    if not any(knows(part) or _is_note(part) for part in hint_parts(hint)):
        return hint
    try:
        return _adapted(hint)
    except TypeError:  # the annotation isn't hashable, so it can't be cached
        return _adapted.__wrapped__(hint)


@lru_cache(maxsize=256)
def _adapted(hint: Any) -> Any:
    try:
        adapter = TypeAdapter[Any](hint)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        if not any(_is_note(part) for part in hint_parts(hint)):
            with suppress(TypeError):  # if msgspec can parse the annotation, pydantic isn't needed
                msgspec.inspect.type_info(hint)
                return hint
        raise TypeError(f"pydantic can't parse this annotation: {str(error).splitlines()[0]}") from None
    adapted: Any = type(repr(hint)[:100], (Adapted,), {"adapter": adapter})
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, msgspec.Meta) and any(getattr(note, bound) is not None for bound in _BOUNDS):
            raise TypeError("pydantic parses this annotation: use pydantic's Field instead of msgspec.Meta")
        if isinstance(note, str | msgspec.Meta):
            adapted = Annotated[adapted, note]
    return adapted


def _is_note(part: Any) -> bool:
    kind = cast("type[Any]", type(part))
    return not isinstance(part, type) and kind.__module__.partition(".")[0] in ("pydantic", "annotated_types")


@cache
def _adapter_of(kind: Any) -> TypeAdapter[Any]:
    return kind.adapter if Adapted in kind.__mro__ else TypeAdapter(kind)


@cache
def _parts_limit(kind: Any) -> int:
    return _HASHED_ITEMS_LIMIT if _hashes_others(_adapter_of(kind).core_schema) else _MOST_PARTS


@cache
def _validator_of(kind: Any) -> Any:
    adapter = _adapter_of(kind)
    core: Any = SchemaValidator
    # Don't use the validators that pydantic builds for models, because they don't stop at the first fault.
    for options in ({"_use_prebuilt": False}, {}):
        with suppress(SchemaError, TypeError):  # older releases of pydantic lack the option `_use_prebuilt`
            return core(_stopping(adapter.core_schema), **options)
    return adapter.validator


def _stopping(schema: Any) -> Any:
    """Return a pydantic-core schema that stops at the first invalid item of a list, set, etc.

    Otherwise, validating thousands of invalid items would take a hundred times as long as parsing their JSON.
    """
    if isinstance(schema, dict):
        members = cast("dict[str, Any]", schema)
        stopping = {name: member if name in _VALUES else _stopping(member) for name, member in members.items()}
        return stopping | ({"fail_fast": True} if members.get("type") in _LISTS else {})
    if isinstance(schema, list):
        return list(map(_stopping, cast("list[Any]", schema)))
    return tuple(map(_stopping, cast("tuple[Any, ...]", schema))) if type(schema) is tuple else schema


_LISTS: Final = ("list", "tuple", "set", "frozenset", "dict")
_VALUES: Final = ("default", "expected", "members", "metadata", "serialization")
"""Members of a pydantic-core schema that aren't schemas, or aren't used for reading."""


def _hashes_others(schema: Any) -> bool:
    """Return true if a pydantic-core schema contains a set, or a dict whose keys aren't strings."""
    if isinstance(schema, dict):
        members = cast("dict[str, Any]", schema)
        kind, keys = members.get("type"), members.get("keys_schema", {"type": "str"})
        if kind in ("set", "frozenset") or (kind == "dict" and keys["type"] not in ("str", "literal", "enum")):
            return True
        return any(map(_hashes_others, members.values()))
    return isinstance(schema, list | tuple) and any(map(_hashes_others, cast("list[Any]", schema)))


def read(kind: Any, value: Any) -> Any:
    """Parse JSON data as an instance of ``kind``, a class that pydantic knows.

    Raises `ValueError` with the invalid fields. Raises `RuntimeError` if a validator raises a `TypeError`, which is a
    bug in the validator.
    """
    text = _encoder.encode(value)
    if len(text) > _SMALL and not is_checkable(value, most := _parts_limit(kind)):
        raise ValueError(f"the data is too large: it has more than {most:,} list items and object members")
    try:
        return _validator_of(kind).validate_json(text)
    except ValidationError as error:
        raise ValueError(_errors_text(error)) from None
    except TypeError as error:
        raise RuntimeError(f"a validator of {kind.__name__} raised a TypeError") from error


def _errors_text(error: ValidationError) -> str:
    count = error.error_count()
    if count > _MOST_FAULTS:
        return f"{count:,} faults"
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    told = [_error_text(fault["loc"], fault["msg"]) for fault in faults[:_TOLD]]
    return "; ".join(told + ([f"and {count - _TOLD} more"] if count > _TOLD else []))


def _error_text(place: tuple[int | str, ...], message: str) -> str:
    words = message.removeprefix("Value error, ")
    return clean(f"{'.'.join(map(str, place))}: {words}" if place else words)[:_LONGEST]


def write(value: Any) -> Any:
    """Encode a value of a class that pydantic knows as JSON data. Fields are written under their aliases."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    return _adapter_of(cast("Any", type(value))).dump_python(value, mode="json", by_alias=True)


class _Schema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # omit the titles of fields, which pydantic makes from the field names

    def enum_schema(self, schema: Any) -> JSONObject:
        if self.mode == "serialization" and issubclass(schema["cls"], Flag):
            # Allow any integer for a `Flag`: a combination of flags isn't a member of the enum.
            return {"type": "integer", "title": schema["cls"].__name__}
        return super().enum_schema(schema)


def schema_of_model(kind: Any, mode: Literal["validation", "serialization"], prefix: str) -> JSONObject:
    """Return the JSON Schema of a class that pydantic knows.

    ``mode`` tells whether values are parsed or encoded. References to its ``$defs`` begin with ``prefix``. Raises
    `TypeError` if the class has no schema.
    """
    template = f"#/$defs/{prefix}{{model}}"
    try:
        return _adapter_of(kind).json_schema(mode=mode, ref_template=template, schema_generator=_Schema)
    except (PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise TypeError(f"{kind.__name__} has no JSON Schema: {str(error).splitlines()[0]}") from None
