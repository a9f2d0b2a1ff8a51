"""Support for types that msgspec doesn't know or rejects, such as pydantic models: parsing, encoding, JSON Schemas.

A library is looked up among the modules that were already imported, and is never imported here: a class of the library
can come only from a file that has imported it.

An `Adapter` parses annotations that msgspec rejects: unions of types that look alike in JSON, enums and literals of any
JSON values, aliases, and classes with such fields. msgspec treats an adapter as an unknown class, and leaves the
reading to it. A client decides what is read, so an adapter reads each value only once, however many unions are around
it.
"""

from __future__ import annotations

import enum
import sys
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from collections.abc import Set as AbstractSet
from functools import cache, lru_cache
from inspect import isclass, signature
from itertools import islice
from numbers import Integral, Real
from pathlib import PurePath
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, Union, cast, get_args, get_origin

import attrs
import msgspec
from msgspec.structs import asdict

from ..jsonrpc.codec import plain_scalar
from ..jsonrpc.errors import NotSerializable
from .fields import AnyInstance, JSONObject


def _pydantic() -> Any:
    """Return the module `pydantic_models` if the program has imported pydantic 2 or later. Otherwise return `None`."""
    return _models() if "pydantic" in sys.modules else None


@cache
def _models() -> Any:
    try:
        from . import pydantic_models  # import the module only here, because it imports pydantic
    except ImportError:
        return None
    return pydantic_models


def is_model(kind: Any) -> bool:
    """Return true if only pydantic can parse and encode instances of the class ``kind``."""
    return (models := _pydantic()) is not None and models.knows(kind)


def readable(hint: Any) -> Any:
    """Return the annotation ``hint``, or a substitute for it that msgspec can parse.

    If pydantic must parse the annotation, or msgspec rejects it, return a substitute class (see `Adapter`), otherwise
    ``hint`` itself. Raises `TypeError` for an annotation that pydantic can't parse.
    """
    models = _pydantic()
    try:
        read = hint if models is None else models.readable(hint)
    except TypeError:
        if (read := adapted(hint)) is hint:
            raise
    return adapted(hint) if read is hint else read


def read_foreign(kind: type, value: Any) -> Any:
    """Parse JSON data as an instance of a class that msgspec doesn't know.

    Raises `TypeError` or `ValueError` for invalid data.
    """
    if (models := _pydantic()) is not None and models.knows(kind):
        return models.read(kind, value)
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if issubclass(kind, Adapter):
        return kind.read(value, read_foreign)
    raise TypeError(f"expected {kind.__name__}")


def write_foreign(value: Any, inner: Callable[[Any], Any] = lambda items: items) -> Any:
    """Convert a value to JSON data if msgspec doesn't know the class of the value.

    The value can be a path, number, string, pydantic model, numpy scalar or array, or another collection. ``inner``
    encodes the items of a collection. Raises `TypeError` for anything else.
    """
    if (models := _pydantic()) is not None and models.knows(type(value)):
        return models.write(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str | Real):
        return plain_scalar(value)
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return value.tolist()
    if isinstance(value, COLLECTIONS):
        return inner(collected(value))
    raise TypeError(_without_form(type(value)))


ITERATED: Final = (deque, range, MappingView, Iterator)
"""Classes whose values are written as JSON lists."""
COLLECTIONS: Final = (*ITERATED, AbstractSet, Mapping)
_MOST_ITEMS: Final = 1_000_000


def collected(value: Any) -> list[Any] | dict[Any, Any]:
    """Return the items of any collection or iterator as a list, and those of a mapping as a dict.

    Raises `NotSerializable` if there are too many items, because an iterator may be endless.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    items: list[Any] = list(islice(value, _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise NotSerializable(f"not serializable as JSON: {type(value).__name__} has more than {_MOST_ITEMS:,} items")
    return items


def schema_of_foreign(kind: type, *, read: bool, prefix: str = "") -> JSONObject:
    """Return the JSON Schema of a class that msgspec doesn't know.

    ``read`` is true for values that are parsed, and false for values that are encoded. See `schema_of_model` for
    ``prefix``. Raises `TypeError` if the class has no schema.
    """
    if issubclass(kind, PurePath):
        return {"type": "string"}
    if (models := _pydantic()) is not None and models.knows(kind):
        return models.schema_of_model(kind, "validation" if read else "serialization", prefix)
    if (schema := _written(kind)) is None:
        raise TypeError(_without_form(kind))
    if read:
        raise TypeError(f"{kind.__name__} can be a result, but not an argument: use a JSON type, such as list[float]")
    return schema


def _without_form(kind: Any) -> str:
    return (
        f"{kind.__name__} has no JSON form. Write a class of attrs, a dataclass or a TypedDict in its place; a result "
        f"may have an encoder, too: Server(..., encoders={{{kind.__name__}: function}})"
    )


def _written(kind: Any) -> JSONObject | None:
    if issubclass(kind, Integral):
        return {"type": "integer"}
    if issubclass(kind, Real):
        return {"type": "number"}
    if issubclass(kind, COLLECTIONS) or kind is Iterable:
        return {"type": "object" if issubclass(kind, Mapping) else "array"}
    if (numpy := sys.modules.get("numpy")) is not None:
        if issubclass(kind, numpy.bool_):
            return {"type": "boolean"}
        if issubclass(kind, numpy.ndarray):
            return {"type": "array", "items": {}}
    return None


_LONGEST: Final = 300
"""Maximum number of characters of the error message of one part of an annotation."""
_Hook: TypeAlias = Callable[[Any, Any], Any]
"""Function that reads JSON data as a class that msgspec doesn't know."""
_FIELDS: Final = ("__attrs_attrs__", "__dataclass_fields__", "__required_keys__", "__struct_fields__", "_fields")
"""Attributes of attrs classes, dataclasses, TypedDicts, Structs and NamedTuples."""


class Adapter(metaclass=AnyInstance):
    """Parses values of an annotation that msgspec rejects. It tries each part of the annotation, such as each type of a
    union.

    A part that doesn't know all members of an object is tried last.
    """

    hint: ClassVar[Any]
    """The annotation as written."""
    parts: ClassVar[tuple[Any, ...]]
    make: ClassVar[Callable[[Any], Any]]
    """Function that makes the value from the result of the part that has read the data."""
    _infos: ClassVar[list[msgspec.inspect.Type] | None] = None
    _is_described: ClassVar[bool] = False

    @classmethod
    def read(cls, value: Any, hook: _Hook) -> Any:
        """Parse JSON data as a value of the annotation.

        ``hook`` parses other classes. Raises `ValueError` with the faults of all parts.
        """
        known: dict[Any, tuple[Any, str, Any]] = {}

        def read_once(kind: Any, value: Any) -> Any:
            if not issubclass(kind, Adapter):
                return hook(kind, value)
            if (found := known.get((id(value), kind))) is None:
                # Store the value, too: if it were freed, another value could get its id.
                found = (*kind._read(value, read_once), value)
                # Cache only the results of lists and objects, because other values are parsed quickly.
                if isinstance(value, dict | list):
                    known[id(cast("Any", value)), kind] = found
            if found[1]:
                raise ValueError(found[1])
            return found[0]

        return read_once(cls, value)

    @classmethod
    def _read(cls, value: Any, hook: _Hook) -> tuple[Any, str]:
        """Try the parts of the annotation in order. Return the value of the first part that matches, or the faults of
        all parts."""
        faults: dict[str, None] = {}
        for part, _ in sorted(zip(cls.parts, cls.infos(), strict=True), key=lambda each: _lacks(each[1], value)):
            try:
                return cls.make(msgspec.convert(value, part, str_keys=True, dec_hook=hook)), ""
            except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
                faults[str(error)[:_LONGEST] or "unreadable"] = None
        return None, "; or: ".join(faults)

    @classmethod
    def infos(cls) -> list[msgspec.inspect.Type]:
        """Return msgspec's type information about the parts of the annotation.

        Each call returns the same objects.
        """
        cls._infos = cls._infos or list(map(msgspec.inspect.type_info, cls.parts))
        return cls._infos

    @classmethod
    def schema(cls, of: Callable[[Any], JSONObject]) -> JSONObject:
        """Return the JSON Schema of the annotation, combined from the schemas of its parts.

        ``of`` returns the schema of a part.
        """
        if cls._is_described:  # a recursive class
            return {"type": "array" if hasattr(cls.hint, "_fields") else "object"}
        cls._is_described = True
        try:
            schemas = list(map(of, cls.parts))
        finally:
            cls._is_described = False
        return {"anyOf": schemas} if len(schemas) > 1 else schemas[0]


def adapted(hint: Any) -> Any:
    """Return the annotation ``hint``, with each part that msgspec rejects replaced by an adapter.

    If msgspec rejects no part, return ``hint`` itself.
    """
    try:
        # The repr is a part of the cache key, because equal unions may list their types in different order.
        found = _adapted(hint, repr(hint))
    except TypeError:  # the annotation isn't hashable, so it can't be cached
        return _adapt(hint, {})
    # Callers compare annotations by identity: return ``hint`` itself, not an equal annotation from the cache.
    return hint if found == hint else found


@lru_cache(maxsize=1024)
def _adapted(hint: Any, _: str) -> Any:
    return _adapt(hint, {})


def _adapt(hint: Any, seen: dict[Any, Any]) -> Any:
    """Return the annotation ``hint``, with each part that msgspec rejects replaced by an adapter.

    ``seen`` has the adapters of the classes and aliases that contain ``hint``.
    """
    origin: Any = get_origin(hint)
    parts: tuple[Any, ...] = get_args(hint)
    if (meant := unaliased(hint)) is not hint:
        alias = origin or hint
        return _adapt(Any if alias in seen else meant, {**seen, alias: Any})
    if isclass(hint) and hint in seen:
        return seen[hint]
    if _is_read(hint):
        return hint
    if origin is Annotated:
        return Annotated[(_adapt(parts[0], seen), *hint.__metadata__)]
    if origin is Literal or (isclass(hint) and issubclass(hint, enum.Enum)):
        return _of_choices(hint)
    parts = tuple(_adapt(part, seen) for part in parts)
    if origin in (Union, UnionType):
        whole = Union[parts]  # noqa: UP007, made
        return whole if _is_read(whole) else _adapter(hint, parts)
    if origin is not None and parts:
        return origin[parts[0] if len(parts) == 1 else parts]
    has_fields = isclass(hint) and any(hasattr(hint, name) for name in _FIELDS)
    return cast("Any", _of_class(hint, seen) if has_fields else hint)


def _is_read(hint: Any) -> bool:
    try:
        msgspec.json.schema_components([hint], schema_hook=lambda _: {"description": "known to others"})
    except NameError:  # reported at the declaration
        pass
    except (TypeError, RecursionError):
        return False
    return True


def unaliased(hint: Any) -> Any:
    """Return the annotation that a ``TypeAliasType`` names. Any other annotation is returned unchanged."""
    alias: Any = get_origin(hint) or hint
    if type(alias).__name__ != "TypeAliasType":
        return hint
    if alias.__name__ == "JsonValue" and alias.__module__.startswith("pydantic"):
        return Any
    holder = SimpleNamespace(__annotations__={"it": alias.__value__})
    try:
        value = typing.get_type_hints(holder, vars(sys.modules[alias.__module__]), include_extras=True)["it"]
    except NameError:  # `get_type_hints` fails if an alias in a function refers to itself or a local class
        return Any
    return unaliased(value[get_args(hint)] if get_args(hint) else value)


def _adapter(hint: Any, parts: tuple[Any, ...], make: Callable[[Any], Any] = lambda value: value) -> type[Adapter]:
    members = {"hint": hint, "parts": parts, "make": staticmethod(make)}
    return cast("type[Adapter]", type(getattr(hint, "__name__", repr(hint)[:100]), (Adapter,), members))


def _lacks(info: Any, value: Any) -> bool:
    """Return true if an object has a member for which the class of ``info`` has no field.

    Return false for types without fields.
    """
    if isinstance(info, msgspec.inspect.CustomType) and issubclass(info.cls, Adapter):
        return all(_lacks(part, value) for part in info.cls.infos())
    names = {field.encode_name for field in getattr(info, "fields", ())}
    return hasattr(info, "fields") and isinstance(value, dict) and not cast("JSONObject", value).keys() <= names


def _of_choices(hint: Any) -> type[Adapter]:
    members: list[Any] = list(get_args(hint) or hint)
    plain = msgspec.json.decode(msgspec.json.encode(members))

    def choose(value: Any) -> Any:
        for each, member in zip(plain, members, strict=True):
            if each == value and isinstance(each, bool) == isinstance(value, bool):
                return member
        raise ValueError(f"expected one of {', '.join(map(str, plain))}"[:_LONGEST])

    return _adapter(hint, (Annotated[Any, msgspec.Meta(extra_json_schema={"enum": plain})],), choose)


def _of_class(kind: Any, seen: dict[Any, Any]) -> type[Adapter]:
    made = _adapter(kind, (), lambda value: kind(**{n: v for n, v in asdict(value).items() if v is not msgspec.UNSET}))
    hints = typing.get_type_hints(kind, include_extras=True)
    is_struct = issubclass(kind, msgspec.Struct)
    fields: Any = msgspec.structs.fields(kind) if is_struct else attrs.fields(kind) if attrs.has(kind) else ()
    names = {getattr(field, "alias", field.name): getattr(field, "encode_name", field.name) for field in fields}
    # Only a TypedDict has `__required_keys__`. It has no signature, so use its annotations.
    keys = cast("Any", getattr(kind, "__required_keys__", None))
    parameters = signature(kind).parameters if keys is None else dict.fromkeys(hints)
    members: list[Any] = []
    for name, parameter in parameters.items():
        is_required = name in (keys or ()) if parameter is None else parameter.default is parameter.empty
        written = names.get(name, name)
        hint = hints.get(name, hints.get(written, Any))
        if (qualifier := get_origin(hint)) in (typing.Required, typing.NotRequired):
            hint, is_required = get_args(hint)[0], qualifier is typing.Required
        hint = _adapt(hint, {**seen, kind: made})
        optional = Union[hint, msgspec.UnsetType]  # noqa: UP007, made
        # A private attrs field can be missing, because it isn't encoded.
        is_required = is_required and not written.startswith("_")
        members.append((name, hint) if is_required else (name, optional, msgspec.UNSET))
    doc = "" if (kind.__doc__ or "").startswith(f"{kind.__name__}(") else kind.__doc__  # that of a dataclass
    options: Any = {"kw_only": True, "rename": names, "array_like": hasattr(kind, "_fields")}
    made.parts = (msgspec.defstruct(kind.__name__, members, namespace={"__doc__": doc}, **options),)
    return made
