"""Create the ``__init__`` of attrs classes with plain fields. This ``__init__`` behaves like the one that attrs
generates, but compiles in a quarter of the time. The first instances of a class are initialized without compiling
anything.

To create this method, attrs creates a whole class. At its start, a program creates instances of forty classes and
inspects the fields of ten. `init_of` writes no ``__init__`` for classes with converters and the like, or for mutable
classes with validators: there, attrs does more than set attributes once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import FunctionType, MappingProxyType
from typing import Any, Final, NamedTuple, cast

import attrs

_OWN: Final = "__own_fields__"
_NOTHING_MORE: Final[Mapping[Any, Any]] = MappingProxyType({})


class _OwnFields(NamedTuple):
    """The fields that the body of a class declares, without inherited fields.

    They have annotations, and default values or `attrs.field` calls.
    """

    hints: dict[str, Any]
    given: dict[str, Any]
    kw_only: bool


class Field(NamedTuple):
    """A field of an attrs class. Its attributes have the names of the attributes of `attrs.Attribute`.

    ``type`` may be a string.
    """

    name: str
    type: Any
    default: Any
    kw_only: bool = False
    init: bool = True
    metadata: Mapping[Any, Any] = _NOTHING_MORE
    validator: Callable[[Any, Any, Any], Any] | None = None

    @property
    def alias(self) -> str:
        """The name of the ``__init__`` parameter for this field."""
        return self.name.lstrip("_")


def own_fields(hints: dict[str, Any], given: dict[str, Any], *, kw_only: bool) -> dict[str, Any]:
    """Return a dictionary with one class attribute, which describes the fields of a class. If the class has this
    attribute, `init_of` finds the fields."""
    return {_OWN: _OwnFields(hints, given, kw_only)}


def init_of(kind: type, *, frozen: bool) -> FunctionType | None:
    """Return an ``__init__`` method that sets the fields of the class ``kind``. `own_fields` creates the class
    attribute that describes the fields.

    Return `None` if only attrs can generate the method.
    """
    fields = _settable_fields(kind, frozen)
    return None if fields is None else _compiled(kind, fields, frozen)


def set_fields(instance: object, kind: type, args: tuple[Any, ...], given: dict[str, Any], *, frozen: bool) -> bool:
    """Set the fields of a new instance as the ``__init__`` from `init_of` does, but without compiling a function.

    If the arguments don't fit, or only attrs can generate the ``__init__``, return false and change nothing.
    """
    fields = _settable_fields(kind, frozen)
    if fields is None:
        return False
    by_alias = {field.alias: field for field in fields}
    taken = {name: field for name, field in by_alias.items() if field.init}
    positional = [name for name, field in taken.items() if not field.kw_only]
    known = given | dict(zip(positional, args, strict=False))
    required = {name for name, field in taken.items() if field.default is attrs.NOTHING}
    if len(known) != len(given) + len(args) or not required <= known.keys() <= taken.keys():
        return False
    for name, field in by_alias.items():
        value = known.get(name, attrs.NOTHING)
        if value is attrs.NOTHING:
            value = field.default
            if isinstance(value, attrs.Factory):  # pyright: ignore[reportArgumentType]
                value = value.factory(instance) if value.takes_self else value.factory()
        if value is not attrs.NOTHING:
            object.__setattr__(instance, field.name, value)
    for field in fields:
        if field.validator is not None and not attrs.validators.get_disabled():
            field.validator(instance, field, getattr(instance, field.name))
    if hasattr(kind, "__attrs_post_init__"):
        cast("Any", instance).__attrs_post_init__()
    return True


def _settable_fields(kind: type, frozen: bool) -> tuple[Field, ...] | None:
    fields = plain_fields(kind)
    if fields is None or (not frozen and any(field.validator is not None for field in fields)):
        return None
    return fields


@cache
def plain_fields(kind: type) -> tuple[Field, ...] | None:
    """Return the fields that `own_fields` has stored for a class and its base classes.

    Return `None` if one of the fields needs attrs itself.
    """
    fields: dict[str, Field] = {}
    if _OWN not in vars(kind) or hasattr(kind, "__attrs_pre_init__"):
        return None
    for base in reversed(kind.__mro__):
        own: _OwnFields | None = vars(base).get(_OWN)
        if own is None:
            if "__attrs_attrs__" in vars(base):
                return None
            continue
        # Releases of attrs differ on whether `kw_only=True` applies to inherited fields, so let attrs itself decide.
        if own.kw_only and fields:
            return None
        for field in _read(own):
            if field is None:
                return None
            fields.pop(field.name, None)  # a field that overrides an inherited field gets a new position
            fields[field.name] = field
    return tuple(fields.values())


def _read(own: _OwnFields) -> Iterator[Field | None]:
    """Yield the fields that a class itself declares.

    `None` stands for a field that only attrs supports.
    """
    for name, hint in own.hints.items():
        given = own.given.get(name, attrs.NOTHING)
        if type(given) is not _FIELD:
            yield Field(name, hint, given, own.kw_only)
        elif given.converter or given.on_setattr or given.alias:
            yield None
        else:
            kw_only = bool(given.kw_only) or own.kw_only
            yield Field(name, hint, given._default, kw_only, given.init, given.metadata, given._validator)


_FIELD: Final = cast("type[Any]", type(attrs.field()))


def _compiled(kind: type, fields: tuple[Field, ...], frozen: bool) -> FunctionType:
    # The annotations refer to names in the module of the class.
    names: dict[str, Any] = dict(vars(sys.modules[kind.__module__]))
    names |= {"NOTHING": attrs.NOTHING, "_bound": object.__setattr__.__get__}
    positional: list[str] = []
    by_name: list[str] = []
    body: list[str] = ["_set = _bound(self)"] if frozen else []
    hints: dict[str, Any] = {}

    def assign(name: str, item: str, indent: str = "") -> None:
        body.append(f"{indent}_set({name!r}, {item})" if frozen else f"{indent}self.{name} = {item}")

    for field in fields:
        name, default, argument, source = field.name, field.default, field.alias, f"_default_{field.name}"
        made = isinstance(default, attrs.Factory)  # pyright: ignore[reportArgumentType]
        names[source] = default.factory if made else default
        item = f"{source}({'self' if default.takes_self else ''})" if made else source
        if not field.init:
            if default is not attrs.NOTHING:
                assign(name, item)
            continue
        hints[argument] = field.type
        shown = "NOTHING" if made else source
        parameter = argument if default is attrs.NOTHING else f"{argument}={shown}"
        (by_name if field.kw_only else positional).append(parameter)
        if made:
            body.append(f"if {argument} is NOTHING:")
            assign(name, item, "  ")
            body.append("else:")
        assign(name, argument, "  " if made else "")
    if checked := [field for field in fields if field.validator is not None]:
        names |= {"checked": checked, "is_off": attrs.validators.get_disabled}
        body += [
            "if not is_off():",
            "  for field in checked:",
            "    field.validator(self, field, getattr(self, field.name))",
        ]
    if hasattr(kind, "__attrs_post_init__"):
        body.append("self.__attrs_post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *by_name] if by_name else [])])
    source = f"def __init__({parameters}):\n  " + ("\n  ".join(body) or "pass")
    exec(compile(source, f"<__init__ of {kind.__qualname__}>", "exec"), names)  # noqa: S102, as attrs does
    init: FunctionType = names["__init__"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    init.__annotations__ = {**hints, "return": None}
    return init
