"""Type adapters read annotations that msgspec refuses: unions of types that look alike in JSON, enums and literals of
any JSON values, classes with such fields, and aliases.

msgspec takes an `Adapter` for a class of its own, and leaves the reading to it. A client decides what is read, so an
adapter reads each value once, however many unions are around it.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    is_typeddict,
)
from typing import get_type_hints as hints_of

import attrs
import msgspec

from .fields import JSONObject

_LONGEST: Final = 300
"""Characters of the fault of one part."""
_here: Final = threading.local()


class _AnyInstance(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return True  # for msgspec, which checks the class of the value that was read


class Adapter(metaclass=_AnyInstance):
    """An annotation that is read by trying its parts in order. A part that doesn't know all members of an object is
    tried last."""

    hint: ClassVar[Any]
    """The annotation as written."""
    parts: ClassVar[tuple[Any, ...]]
    make: ClassVar[Callable[[Any], Any]]
    """Makes the value of what a part has read."""
    choices: ClassVar[list[Any] | None] = None
    """The JSON values of an enum."""
    _infos: ClassVar[list[msgspec.inspect.Type] | None] = None
    _is_described: ClassVar[bool] = False

    @classmethod
    def read(cls, value: Any, hook: Callable[[type, Any], Any]) -> Any:
        """Return JSON data as the annotation. Raises `ValueError` with the faults of all parts."""
        known: dict[Any, tuple[Any, ...]] | None = getattr(_here, "known", None)
        if known is None:
            _here.known = {}
            try:
                return cls.read(value, hook)
            finally:
                del _here.known
        if (found := known.get((id(value), cls))) is None:
            found = cls._read(value, hook)
            if isinstance(value, dict | list):  # other values are quickly read, and may share their ids
                known[id(cast("Any", value)), cls] = (*found, value)  # which keeps its id for as long
        if found[1] is not None:
            raise ValueError(found[1])
        return found[0]

    @classmethod
    def _read(cls, value: Any, hook: Callable[[type, Any], Any]) -> tuple[Any, str | None]:
        faults: list[str] = []
        members = cast("JSONObject", value).keys() if isinstance(value, dict) else frozenset[str]()
        lacks = [(names := _names_in(info)) is not None and bool(members - names) for info in cls.infos()]
        for _, part in sorted(zip(lacks, cls.parts, strict=True), key=itemgetter(0)):
            try:
                return cls.make(msgspec.convert(value, part, str_keys=True, dec_hook=hook)), None
            except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
                faults.append(str(error)[:_LONGEST])
        return None, "; or: ".join(dict.fromkeys(faults))

    @classmethod
    def infos(cls) -> list[msgspec.inspect.Type]:
        """Return what msgspec knows of the parts, the same objects in each call."""
        cls._infos = cls._infos or list(map(msgspec.inspect.type_info, cls.parts))
        return cls._infos

    @classmethod
    def schema(cls, of: Callable[[Any], JSONObject]) -> JSONObject:
        """Return the JSON Schema, made of those of the parts, which ``of`` returns."""
        if cls.choices is not None or cls._is_described:  # the latter: a class that is made of itself
            return {"type": "object"} if cls.choices is None else {"enum": cls.choices}
        cls._is_described = True
        try:
            schemas = list(map(of, cls.parts))
        finally:
            cls._is_described = False
        return {"anyOf": schemas} if len(schemas) > 1 else schemas[0]


def adapted(hint: Any) -> Any:
    """Return the annotation ``hint``, or one that is read in the same way, with adapters in place of what msgspec
    refuses."""
    try:
        return hint if _is_known(hint) else _adapted(hint, repr(hint))  # equal unions may have another order
    except TypeError:  # a note that can't be hashed
        return _adapt(hint, {})


@lru_cache(maxsize=1024)
def _adapted(hint: Any, _: str) -> Any:
    return _adapt(hint, {})


def _adapt(hint: Any, seen: dict[Any, Any]) -> Any:
    """Return ``hint`` as `adapted` does. ``seen``: the adapters of the classes and aliases around it."""
    origin: Any = get_origin(hint)
    parts: tuple[Any, ...] = get_args(hint)
    if _is_alias(kind := origin or hint):
        return _adapt(Any if kind in seen else unaliased(hint), {**seen, kind: Any})
    if inspect.isclass(hint) and hint in seen:
        return seen[hint]
    if _is_read(hint):
        return hint
    if origin is Annotated:
        return Annotated[(_adapt(parts[0], seen), *hint.__metadata__)]
    if origin is Literal or (inspect.isclass(hint) and issubclass(hint, enum.Enum)):
        return _of_choices(hint)
    parts = tuple(_adapt(part, seen) for part in parts)
    if origin in (Union, UnionType):
        whole = Union[parts]  # noqa: UP007, made
        return whole if _is_read(whole) else _adapter(hint, parts)
    if origin is not None and parts:
        return origin[parts]
    return cast("Any", _of_class(hint, seen) if is_typeddict(hint) or _fields_of(hint) else hint)


def _is_read(hint: Any) -> bool:
    try:
        msgspec.json.schema_components([hint], schema_hook=lambda _: {"description": "known to others"})
    except (TypeError, RecursionError):
        return False
    except NameError:  # reported at the declaration
        return True
    return True


_is_known: Final = lru_cache(maxsize=1024)(_is_read)


def _is_alias(kind: Any) -> bool:
    return type(kind).__name__ == "TypeAliasType"


def unaliased(hint: Any) -> Any:
    """Return what a ``TypeAliasType`` stands for; any other annotation as it is."""
    if not _is_alias(alias := get_origin(hint) or hint):
        return hint
    if alias.__name__ == "JsonValue" and alias.__module__.startswith("pydantic"):
        return Any
    holder = SimpleNamespace(__annotations__={"it": alias.__value__})
    try:
        value = hints_of(holder, vars(sys.modules[alias.__module__]), include_extras=True)["it"]
    except NameError:  # it names a class of a function, or itself in one
        return Any
    return unaliased(value[get_args(hint)] if get_args(hint) else value)


def _adapter(hint: Any, parts: tuple[Any, ...], make: Callable[[Any], Any] = lambda value: value) -> type[Adapter]:
    made = cast("type[Adapter]", type(getattr(hint, "__name__", repr(hint)[:100]), (Adapter,), {}))
    made.hint, made.parts, made.make = hint, parts, staticmethod(make)
    return made


def _names_in(info: Any) -> frozenset[str] | None:
    """Return the names of the fields of a type; `None` for one without fields."""
    while isinstance(info, msgspec.inspect.CustomType) and issubclass(info.cls, Adapter) and len(info.cls.parts) == 1:
        (info,) = info.cls.infos()
    fields = getattr(info, "fields", None)
    return None if fields is None else frozenset(field.encode_name for field in fields)


def _of_choices(hint: Any) -> type[Adapter]:
    members: list[Any] = list(get_args(hint) or hint)
    values = [member.value if isinstance(member, enum.Enum) else member for member in members]
    plain = msgspec.json.decode(msgspec.json.encode(values))

    def choose(value: Any) -> Any:
        for each, member in zip(plain, members, strict=True):
            if each == value and isinstance(each, bool) == isinstance(value, bool):
                return member
        raise ValueError(f"expected one of {', '.join(map(str, plain))}"[:_LONGEST])

    made = _adapter(hint, (Any,), choose)
    made.choices = plain
    return made


_NONE: Final = (dataclasses.MISSING, attrs.NOTHING, msgspec.NODEFAULT)


def _fields_of(kind: Any) -> list[Any]:
    """Return the fields of a class of attrs, a dataclass or a Struct that its constructor takes."""
    if inspect.isclass(kind) and issubclass(kind, msgspec.Struct):
        return list(msgspec.structs.fields(kind))
    has_fields = hasattr(kind, "__dataclass_fields__")
    known: Any = attrs.fields(kind) if attrs.has(kind) else dataclasses.fields(cast("Any", kind)) if has_fields else ()
    return [field for field in known if field.init]


def _of_class(kind: Any, seen: dict[Any, Any]) -> type[Adapter]:
    made = _adapter(kind, ())
    hints, fields = hints_of(kind, include_extras=True), {field.name: field for field in _fields_of(kind)}
    names = {name: getattr(fields.get(name), "alias", name) for name in fields or hints}
    members: list[Any] = []
    for name in names:
        hint = hints.get(name, Any)
        wrapper = get_origin(hint)
        if name in fields:
            given = [getattr(fields[name], each, _NONE[0]) for each in ("default", "default_factory")]
            is_required = not name.startswith("_") and all(each in _NONE for each in given)  # private: never written
        else:
            is_required = wrapper is Required or (name in kind.__required_keys__ and wrapper is not NotRequired)
            hint = get_args(hint)[0] if wrapper in (Required, NotRequired) else hint
        hint = _adapt(hint, {**seen, kind: made})
        optional = Union[hint, msgspec.UnsetType]  # noqa: UP007, made
        members.append((name, hint) if is_required else (name, optional, msgspec.UNSET))
    written = {name: getattr(fields.get(name), "encode_name", name) for name in names}
    doc = "" if (kind.__doc__ or "").startswith(f"{kind.__name__}(") else kind.__doc__  # that of a dataclass
    struct = msgspec.defstruct(kind.__name__, members, kw_only=True, rename=written, namespace={"__doc__": doc})

    def make(value: Any) -> Any:
        given = msgspec.structs.asdict(value).items()
        return kind(**{names[name]: each for name, each in given if each is not msgspec.UNSET})

    made.parts, made.make = (struct,), staticmethod(make)
    return made
