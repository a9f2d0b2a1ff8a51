"""Inspect a function's annotations when the function is registered: types, constraints, and descriptions from
docstrings.

Constraints that only other packages understand are rejected, since nothing would enforce them.

Docstrings may have sections in Google, NumPy or Sphinx style; the section on parameters goes into the schema. griffe
parses the sections (extra ``trio-mcp[docstrings]``), and is imported only if a docstring has some. Without griffe, the
whole docstring stays in the description.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import suppress
from inspect import Parameter, signature
from operator import is_
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin, is_typeddict

import attrs
import msgspec
from msgspec import inspect as kinds

from ..lazy import lazy_pattern
from ..protocol.fields import hint_parts
from ..protocol.foreign_types import Adapter, is_model, readable
from ..protocol.user_types import hints_of, inside, is_plain_class


def _kinds(*names: str) -> tuple[Any, ...]:
    return tuple(getattr(kinds, f"{name}Type") for name in names)


_SALTED = _kinds("Str", "Bytes", "Date", "DateTime", "Time", "Enum", "Literal", "Bool", "None")
"""Types of set items and dict keys that can't be used for a hash-collision attack: Python randomizes their hashes, or
they have few values."""
_KEYS = (*_SALTED[:-2], *_kinds("Any", "Int", "Float", "TimeDelta", "UUID", "Decimal"))
"""Types that can be parsed from the key of a JSON object, which is always a string."""

_MAX_NUMBERS: Final = 100_000
_MAX_OTHERS: Final = 5_000
_MAX_MODELS: Final = 20_000


def needs_options(found: list[kinds.Type]) -> bool:
    """Return whether an annotation includes a dict with non-string keys, or a class that msgspec doesn't support.

    ``found`` lists the types in the annotation, as `types_in` returns them.
    """
    return any(
        isinstance(kind, kinds.CustomType)
        or (isinstance(kind, kinds.DictType) and not isinstance(kind.key_type, kinds.StrType | kinds.AnyType))
        for kind in found
    )


def check_keys(found: list[kinds.Type]) -> None:
    """Raise `TypeError` if an annotation includes a dict whose keys cannot be parsed from strings.

    ``found`` lists the types in the annotation, as `types_in` returns them.
    """
    for kind in found:
        if isinstance(kind, kinds.DictType):
            key = kind.key_type
            for one in key.types if isinstance(key, kinds.UnionType) else (key,):
                if not isinstance(one, _KEYS):
                    name = type(one).__name__.removesuffix("Type").lower()
                    raise TypeError(
                        f"dict keys of type {name} are not supported, because JSON keys are strings: write dict[str, …]"
                    )


def hashed_items_limit(found: list[kinds.Type]) -> int | None:
    """Return the maximum number of items and members in an argument. Return `None` (no maximum) unless the argument's
    types include a set, or another type that takes long to build from many items.

    `is_checkable` counts the items and members. ``found`` lists the argument's types.

    Python randomizes the hashes of strings only. For all other types, a peer can send values with equal hashes, so that
    each item is compared with all earlier items. Integers of up to 64 bits hardly collide, so they need no limit.
    """
    hashed: list[kinds.Type] = []
    keys: list[kinds.Type] = []
    arguments, *others = found
    nested = [kind for kind in others if not isinstance(kind, kinds.UnionType)]
    inner = [each for kind in nested for part in inside(kind) for each in _members_of(part)]
    most = _MAX_MODELS if any(is_model(getattr(each, "cls", None)) for each in inner) else None
    for kind in (arguments, *others):
        if isinstance(kind, kinds.SetType | kinds.FrozenSetType):
            hashed += _members_of(kind.item_type)
        # Keys of type Any stay strings, as in JSON.
        elif isinstance(kind, kinds.DictType) and not isinstance(kind.key_type, kinds.AnyType):
            keys += _members_of(kind.key_type)
    if all(isinstance(kind, _SALTED) for kind in (*hashed, *keys)):
        return most
    if all(isinstance(kind, (*_SALTED, kinds.IntType, kinds.FloatType)) for kind in hashed) and all(
        isinstance(kind, _SALTED) for kind in keys
    ):
        return most or _MAX_NUMBERS
    return _MAX_OTHERS


def _members_of(kind: Any) -> tuple[Any, ...]:
    return kind.types if isinstance(kind, kinds.UnionType) else (kind,)


_OTHER_SDKS: Final = frozenset(("mcp", "mcp_types", "fastmcp"))


def check_foreign_classes(where: str, hint: Any) -> None:
    """Raise `TypeError` if an annotation contains a class of another MCP SDK. ``where`` is the beginning of the error
    message."""
    for part in hint_parts(hint):
        if isinstance(part, type) and (package := part.__module__.partition(".")[0]) in _OTHER_SDKS:
            from ..mistakes import import_for

            raise TypeError(f"{where}: {part.__name__} of {package} cannot be used here; {import_for(part.__name__)}")


_METADATA_PACKAGES: Final = frozenset(("pydantic", "pydantic_core", "annotated_types"))
_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def check_metadata(name: str, parameter: Parameter, hint: Any) -> None:
    """Raise `TypeError` if ``parameter`` has a constraint of a package other than msgspec, such as pydantic's
    ``Field(ge=1)``. ``name`` is the name of the function.

    The constraint may be in ``Annotated``, in the default, or in a field of a class. Other metadata in ``Annotated`` is
    ignored (PEP 593).
    """
    _check(f"{name}: parameter {parameter.name!r}", parameter.name, hint, parameter.default)
    check_fields(f"{name}: parameter {parameter.name!r}", hint)


def check_fields(where: str, hint: Any) -> None:
    """Raise `TypeError` if a field of a class in the annotation ``hint`` has a constraint of a package other than
    msgspec, such as pydantic's ``Field(ge=1)``.

    The error message begins with ``where``.
    """
    for kind in fielded_classes(hint):
        if is_model(kind):
            raise TypeError(
                f"{where}: the validators of the pydantic dataclass {kind.__name__} would not run, because msgspec "
                "validates the class that contains this dataclass: write a BaseModel instead"
            )
        parameters: Any = {} if is_typeddict(kind) else signature(kind).parameters
        for field, annotated in hints_of(kind).items():
            default = getattr(parameters.get(field), "default", None)
            _check(f"{where}: field {field!r} of {kind.__name__}", field, annotated, default)


def as_msgspec(hint: Any, default: Any) -> tuple[Any, Any]:
    """Return the annotation and default of a parameter, converted to a form that msgspec supports.

    Constraints, and pydantic's ``Field``, become `msgspec.Meta` if msgspec can express them. If it can't, and for
    models inside other types, the annotation is replaced by a class that pydantic validates as a whole. Other metadata
    stays. Raises `TypeError` for an alias, and for an annotation that pydantic doesn't support.
    """
    if _is_field_info(default):
        hint, default = Annotated[hint, default], _default_of(default)
    for note in _own_metadata(hint):
        if _is_field_info(note):
            default = _default_of(note) if default is Parameter.empty else default
            if note.validation_alias is not None:
                words = "a parameter must not have an alias: remove the alias, and rename the parameter to"
                raise TypeError(f"{words} {note.alias or 'the name that clients use'}")
    with suppress(TypeError, NameError):  # ignore types whose values msgspec can't limit, such as Decimal
        said = _with_metas(hint)
        if readable(said) is said:
            kinds.type_info(said)
            return said, default
    return readable(hint), default


def _own_metadata(hint: Any) -> tuple[Any, ...]:
    return hint.__metadata__ if get_origin(hint) is Annotated else ()


def _is_field_info(note: Any) -> bool:
    return _package_of(note) == "pydantic" and hasattr(note, "is_required")


def _default_of(field: Any) -> Any:
    if field.is_required():
        return Parameter.empty
    factory = field.default_factory
    return field.default if factory is None else msgspec.field(default_factory=factory)


def _with_metas(hint: Any) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind = _with_metas(parts[0])
        for note in parts[1:]:
            said = _meta_arguments(note) if _package_of(note) in _METADATA_PACKAGES else None
            kind = Annotated[kind, note] if said is None else _annotated_with(kind, said)
        return kind
    if origin not in (Union, UnionType, list, dict, set, frozenset, tuple):
        return hint
    new = tuple(map(_with_metas, parts))
    if all(map(is_, new, parts)):
        return hint
    return Union[new] if origin in (Union, UnionType) else cast("Any", origin)[new]  # noqa: UP007, made


_BESIDE: Final = ("title", "description", "examples", "extra_json_schema")


def _meta_arguments(note: Any) -> dict[str, Any] | None:
    """Convert a constraint of another package, such as pydantic, to arguments of `msgspec.Meta`.

    Return `None` if msgspec cannot express the whole constraint.
    """
    if not _is_field_info(note):
        members = note if dataclasses.is_dataclass(note) else None
        names = vars(note) if members is None else [field.name for field in dataclasses.fields(members)]
        said = {name: value for name in names if (value := getattr(note, name)) is not None}
        if not said or not isinstance(said.get("pattern", ""), str):
            return None
        if said.get("strict") is True:  # drop "strict", because this package always validates strictly
            del said["strict"]
        return said if said.keys() <= set(_CONSTRAINTS) else None
    if note.discriminator is not None or callable(note.json_schema_extra):
        return None
    said = {"title": note.title, "description": note.description, "examples": note.examples}
    said["extra_json_schema"] = note.json_schema_extra
    for each in note.metadata:
        if (more := _meta_arguments(each)) is None:
            return None
        said |= more
    return {name: value for name, value in said.items() if value is not None}


def _annotated_with(kind: Any, meta: dict[str, Any]) -> Any:
    """Return the type annotation ``kind`` with the `msgspec.Meta` arguments ``meta`` added.

    In a union, the constraints are added to each member except None.
    """
    bounds = {name: value for name, value in meta.items() if name not in _BESIDE}
    beside = {name: value for name, value in meta.items() if name in _BESIDE}
    if bounds and get_origin(kind) in (Union, UnionType):
        parts = [part if part is NoneType else Annotated[part, msgspec.Meta(**bounds)] for part in get_args(kind)]
        kind = Union[tuple(parts)]  # noqa: UP007, made
    elif bounds:
        kind = Annotated[kind, msgspec.Meta(**bounds)]
    return Annotated[kind, msgspec.Meta(**beside)] if beside else kind


def _check(where: str, name: str, hint: Any, default: Any) -> None:
    found = [note for part in hint_parts(hint) for note in _own_metadata(part) if _constrains(note)]
    if _is_field(default):
        found.append(default)
    if found:
        kind = cast("type[Any]", type(found[0]))
        raise TypeError(
            f"{where}: {kind.__name__} of {kind.__module__.partition('.')[0]} is not supported "
            "here. Write the parameter with msgspec:\n"
            f"    wrong:  {name}: int = Field(3, ge=1, description='How many.')\n"
            f"    right:  {name}: Annotated[int, msgspec.Meta(ge=1, description='How many.')] = 3"
        )


def fielded_classes(hint: Any) -> list[type[Any]]:
    """Return all classes with fields, such as dataclasses, that the annotation ``hint`` contains. Classes in the
    annotations of their fields are included."""
    found: dict[type[Any], None] = {}
    ahead = [hint]
    while ahead:
        each = ahead.pop()
        kind = get_origin(each) or each
        ahead += (kind.hint,) if isinstance(kind, type) and issubclass(kind, Adapter) else get_args(each)
        if isinstance(kind, type) and kind not in found and (is_plain_class(kind) or attrs.has(kind)):
            found[kind] = None
            ahead += hints_of(kind).values()
    return list(found)


def _constrains(note: Any) -> bool:
    if isinstance(note, msgspec.Meta | type):
        return False
    return _is_field(note) or any(getattr(note, constraint, None) is not None for constraint in _CONSTRAINTS)


def _is_field(note: Any) -> bool:
    package = _package_of(note)
    return package in _METADATA_PACKAGES or (package != "msgspec" and type(note).__name__ in ("Field", "FieldInfo"))


def _package_of(note: Any) -> str:
    return cast("type[Any]", type(note)).__module__.partition(".")[0]


_STYLES: Final = {
    "google": lazy_pattern(r"^(?:Args|Arguments|Params|Parameters):[ \t]*$", re.MULTILINE),
    "numpy": lazy_pattern(r"^Parameters[ \t]*\n-{3,}[ \t]*$", re.MULTILINE),
    "sphinx": lazy_pattern(r"^:param ", re.MULTILINE),
}


def parameters_in(doc: str | None) -> tuple[str | None, dict[str, str]]:
    """Split the docstring ``doc`` into two parts: the text without the section on parameters, and a dict with the
    description of each parameter."""
    style = next((name for name, section in _STYLES.items() if doc is not None and section.search(doc)), None)
    if doc is None or style is None:
        return doc, {}
    try:
        from griffe import Docstring, Parser  # lazy import: most docstrings have no sections, and need no parser
    except ImportError:
        return doc, {}

    parts: list[str] = []
    found: dict[str, str] = {}
    for section in Docstring(doc).parse(Parser(style), warnings=False):
        if section.kind.value in ("parameters", "other parameters"):
            found |= {each.name: " ".join(each.description.split()) for each in section.value if each.description}
        else:
            parts += _words(section.kind.value, section.title, section.value)
    return "\n\n".join(parts) or None, found


def _words(kind: str, title: str | None, value: Any) -> Iterator[str]:
    """Yield the text that a docstring section adds to the tool's description. Yield nothing for the section on
    parameters, and for sections that don't apply to functions."""
    match kind:
        case "text":
            yield value
        case "returns" | "yields":
            yield "\n".join(f"{kind.capitalize()}: {each.description}" for each in value)
        case "raises" | "warns":
            yield "\n".join(f"{kind.capitalize()} {each.annotation}: {each.description}" for each in value)
        case "examples":
            yield "\n".join(("Examples:", *(text for _, text in value)))
        case "admonition":
            yield f"{title}: {value.contents}"
        case _:  # leave out other sections, such as parameters and "Attributes"
            pass
