"""Creates attrs classes that share their methods for comparing, hashing, showing and pickling, so that imports are
faster.

attrs would compile these methods for each class, which takes half of the time to create it. They are rarely called
here, and hosts start many servers. `frozen` and `define` have the same result as in attrs; `value` creates the message
classes. What attrs compiles besides, chiefly ``__init__``, is created when a class is first used: a server has 150
classes, but needs only thirty for its first answer.

For classes with plain fields, `init_of` writes an ``__init__`` that behaves like the one of attrs, but compiles in a
quarter of the time, because attrs creates a whole class for it. The first instances of a class are initialized without
compiling anything: at its start, a program creates instances of forty classes and inspects the fields of ten. `init_of`
writes no ``__init__`` for classes with converters and the like, or for mutable classes with validators: there, attrs
does more than set attributes once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from operator import attrgetter
from reprlib import recursive_repr
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, SupportsIndex, TypeVar, cast, dataclass_transform

import attrs

T = TypeVar("T")

if TYPE_CHECKING:
    from attrs import define as define
    from attrs import frozen as frozen
else:

    def frozen(kind: type | None = None, /, **options: bool) -> Any:
        """Class decorator like `attrs.frozen`, but faster to apply to a class."""
        return _made(attrs.frozen, kind, _hash, _show, options)

    def define(kind: type | None = None, /, **options: bool) -> Any:
        """Class decorator like `attrs.define`, but faster to apply to a class."""
        return _made(attrs.define, kind, None, _show, options)


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def value(kind: type[T]) -> type[T]:
    """Class decorator for a class whose instances don't change, and are compared and hashed by their contents.

    Only the type checker prevents changes. `attrs.frozen` also prevents them at run time, but takes five times as long
    to create an instance: 0.5 µs for a request, with each message of the peer, and 1.3 µs more for an input request and
    its answer.
    """
    return _made(attrs.define, kind, _hash, _show_members, {})


def _made(make: Any, kind: Any, hashed: Any, shown: Any, options: dict[str, bool]) -> Any:
    if kind is None:
        return lambda kind: _made(make, kind, hashed, shown, options)  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]
    methods: dict[str, Any] = {"__repr__": shown, "__getstate__": _contents, "__setstate__": _restore}
    if options.pop("eq", True):
        methods |= {"__eq__": _equal, "__hash__": hashed}
    members = cast("Mapping[str, Any]", vars(kind))
    methods = {name: method for name, method in methods.items() if name not in members}
    options |= {"eq": False, "repr": False, "getstate_setstate": False}
    if _is_plain(kind, members):
        return _made_later(make, kind, options, methods)
    for name, method in methods.items():
        setattr(kind, name, method)
    return make(show_fields(kind), **options)


def _is_plain(kind: type, members: Mapping[str, Any]) -> bool:
    """Return whether attrs can create the class ``kind`` from its fields alone.

    For example, attrs would have to adapt methods that call `super`.
    """
    if "__init__" in members or issubclass(kind, BaseException):
        return False
    for member in members.values():
        if isinstance(member, FunctionType):
            if "__class__" in member.__code__.co_freevars:
                return False
        elif isinstance(member, cached_property):
            return False
    return True


_FROZEN: Final[dict[str, Any]] = {
    name: member
    for name, member in vars(attrs.frozen(type("Frozen", (), {}), eq=False, repr=False, init=False)).items()
    if name in ("__setattr__", "__delattr__")
}
"""The methods that all frozen classes share. If a user's class inherits from a frozen class, attrs recognizes the base
class as frozen by exactly these functions."""
_FEW: Final = 3
_LATE: Final = ("__attrs_attrs__", "__init__", "__match_args__")
_GIVEN: Final = (
    *("__attrs_pre_init__", "__attrs_post_init__"),
    *("__module__", "__qualname__", "__annotations__", "__orig_bases__"),
)


def _made_later(make: Any, kind: type, options: dict[str, bool], methods: dict[str, Any]) -> type:
    """Create a class like ``make`` would create from ``kind``, but compile most of its methods when the class is first
    used.

    The class has slots and ``methods`` from the beginning. `init_of` writes ``__init__``, and `set_fields` initializes
    the first instances. When the fields are first inspected, or if only attrs can write the ``__init__``, attrs creates
    its own class from the fields, whose parts are copied to this class.
    """
    members: dict[str, Any] = {**vars(kind), **methods, "__doc__": FieldsDocumented(kind.__doc__ or "")}
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    names = [name for name, hint in members.get("__annotations__", {}).items() if "ClassVar" not in str(hint)]
    taken = {name for base in kind.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    fields = {name: members.pop(name) for name in names if name in members}
    slots = [name for name in names if name not in taken]
    if options.pop("weakref_slot", True) and not any("__weakref__" in vars(base) for base in kind.__mro__[1:]):
        slots.append("__weakref__")
    late = {name: _LazyMember(name) for name in _LATE if name not in members}
    if "__init__" in late:
        late["__init__"] = _LazyInit("__init__", frozen=make is attrs.frozen)
    hints = {name: members["__annotations__"][name] for name in names}
    own = own_fields(hints, fields, kw_only=options.get("kw_only", False))
    made = type(kind)(
        kind.__name__,
        kind.__bases__,
        members | late | own | (_FROZEN if make is attrs.frozen else {}) | {"__slots__": tuple(slots)},
    )

    def write_init() -> None:
        if (init := init_of(made, frozen=make is attrs.frozen)) is not None:
            cast("Any", made).__init__ = init
        else:
            complete()

    def complete() -> None:
        given = {name: members[name] for name in _GIVEN if name in members}
        fields_alone: Any = type(kind)(kind.__name__, kind.__bases__, given | fields)
        compiled = make(fields_alone, **options)
        for name, member in cast("dict[str, Any]", vars(compiled)).items():
            is_wanted = isinstance(vars(made)[name], _LazyMember) if name in late else name.startswith("__attrs_")
            if is_wanted or name == "__setattr__":
                setattr(made, name, member)

    for name, each in late.items():
        each.complete, each.made = (write_init if name == "__init__" else complete), made
    return made


class _LazyMember:
    """A class attribute whose value is created when the attribute is first read."""

    __slots__ = ("_name", "complete", "made")

    complete: Callable[[], None]
    made: type
    """The class that has the attribute. It is stored here because a subclass may read the attribute through `super`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        self.complete()
        member: Any = vars(self.made)[self._name]
        return member.__get__(instance, owner) if hasattr(member, "__get__") else member


class _LazyInit(_LazyMember):
    """An ``__init__`` method that is compiled when the fourth instance of its class is created.

    Most classes get only one or two instances during startup.
    """

    __slots__ = ("_frozen", "_instances")

    def __init__(self, name: str, *, frozen: bool) -> None:
        super().__init__(name)
        self._frozen = frozen
        self._instances = 0

    def __get__(self, instance: object, owner: type) -> Any:
        # ``instance`` can be a class, because `inspect.signature` in CPython 3.13 calls ``__get__`` with the class.
        # In free-threaded Python, several threads may count past `_FEW`, which is harmless.
        if instance is None or isinstance(instance, type) or self._instances >= _FEW:
            return super().__get__(instance, owner)
        self._instances += 1

        def initialize(*args: Any, **given: Any) -> None:
            if not set_fields(instance, self.made, args, given, frozen=self._frozen):
                super(_LazyInit, self).__get__(instance, owner)(*args, **given)

        return initialize


def evolve(instance: T, **changes: Any) -> T:
    """Return a copy of an instance with some fields changed, like `attrs.evolve`.

    Unlike `attrs.evolve`, it doesn't make attrs create the fields of the class.
    """
    kind: Any = type(instance)
    if (fields := plain_fields(kind)) is None:
        return attrs.evolve(cast("Any", instance), **changes)
    kept = {field.alias: getattr(instance, field.name) for field in fields if field.init}
    return kind(**kept | changes)


class FieldsDocumented(str):
    """The docstring of a class. When it is read, descriptions of the class's fields are added to it.

    The object is also a string: for classes with a metaclass, such as a `TypedDict`, `help` bypasses the descriptor.
    """

    __slots__ = ("_owner",)

    _owner: type

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, owner: type) -> str | None:
        # Import this function only here, because few programs read the docstring.
        from .fields_documented import documented

        return documented(owner, str(self))

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        """Return the whole docstring without tabs.

        `inspect.cleandoc` calls this method first when `help` shows the docstring.
        """
        return (self.__get__(None, self._owner) or "").expandtabs(tabsize)


def show_fields(kind: type[T]) -> type[T]:
    """Make `help` show the fields of the class ``kind``, or the keys of a `TypedDict`."""
    kind.__doc__ = doc = FieldsDocumented(kind.__doc__ or "")
    doc.__set_name__(kind, "__doc__")
    return kind


class Renamed:
    """A descriptor for an attribute that other SDKs have and this class lacks.

    Reading it raises `AttributeError` with the code to write instead. `dir` of an instance doesn't list it. Unlike
    ``__getattr__``, this descriptor doesn't slow down reading other attributes.
    """

    __slots__ = ("_instead", "_name")

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        cast("Any", owner).__dir__ = _names_without_renamed

    def __get__(self, instance: object, owner: type) -> NoReturn:
        words = f"{owner.__name__!r} object has no attribute {self._name!r}; write {self._instead}"
        raise AttributeError(words, name=self._name, obj=instance)


def _names_without_renamed(self: object) -> list[str]:
    renamed = {name for kind in type(self).__mro__ for name, item in vars(kind).items() if isinstance(item, Renamed)}
    return [name for name in object.__dir__(self) if name not in renamed]


def positive(_: Any, attribute: attrs.Attribute[Any], number: float) -> None:
    """Raise `ValueError` if the value of a setting isn't greater than 0.

    Use this function as the ``validator`` of an attrs field.
    """
    if not number > 0:
        raise ValueError(f"{attribute.name} must be greater than 0, not {number!r}")


def not_negative(_: Any, attribute: attrs.Attribute[Any], number: float) -> None:
    """Raise `ValueError` if the value of a setting is less than 0 or not a number.

    Use this function as the ``validator`` of an attrs field.
    """
    if not number >= 0:
        raise ValueError(f"{attribute.name} must not be negative, not {number!r}")


@cache
def _compared(kind: Any) -> Callable[[Any], Any]:
    names = [field.name for field in attrs.fields(kind) if field.eq]
    return attrgetter(*names) if names else lambda _: ()


def _equal(self: Any, other: object) -> Any:
    kind = self.__class__
    compared = _compared(kind)
    return compared(self) == compared(other) if other.__class__ is kind else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self.__class__)(self))


def _fields(self: Any) -> tuple[attrs.Attribute[Any], ...]:
    return attrs.fields(self.__class__)


def _contents(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, field.name) for field in _fields(self))


def _restore(self: Any, values: tuple[Any, ...]) -> None:
    for field, item in zip(_fields(self), values, strict=True):
        object.__setattr__(self, field.name, item)


@recursive_repr()
def _show(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in _fields(self) if field.repr)
    return f"{type(self).__qualname__.rpartition('>.')[2]}({', '.join(shown)})"


def _show_members(self: Any) -> str:
    """Return the ``repr`` of an instance. Fields whose value is `None` are left out."""
    told = ((field.name, getattr(self, field.name)) for field in _fields(self))
    return f"{type(self).__name__}({', '.join(f'{name}={item!r}' for name, item in told if item is not None)})"


# Fields, and the ``__init__`` that sets them

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
