"""Classes: attrs classes that share the methods for comparing, hashing, showing and pickling.

attrs would write and compile these methods for each class, which takes half of the time to make one; they are rarely
called here, and hosts start servers by the dozen. `frozen` and `define` make what attrs makes, `value` the classes of
messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import attrs

T = TypeVar("T")

if TYPE_CHECKING:
    from attrs import define as define
    from attrs import frozen as frozen
else:

    def frozen(kind: type | None = None, /, **options: bool) -> Any:
        """Make what `attrs.frozen` makes."""
        return _made(attrs.frozen, kind, _hash, _show, options)

    def define(kind: type | None = None, /, **options: bool) -> Any:
        """Make what `attrs.define` makes."""
        return _made(attrs.define, kind, None, _show, options)


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def value(kind: type[T]) -> type[T]:
    """Make ``kind`` a class whose instances are compared and hashed by their contents, and never changed.

    Only the type checker prevents changes. `attrs.frozen` would prevent changes at run time, too, and would take five
    times as long to make an instance: 0.5 µs for a request, with each message of the peer, and 1.3 µs more for a
    question and its answer.
    """
    return _made(attrs.define, kind, _hash, _show_members, {})


def _made(make: Any, kind: Any, hashed: Any, shown: Any, options: dict[str, bool]) -> Any:
    if kind is None:
        return lambda kind: _made(make, kind, hashed, shown, options)  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]
    methods: dict[str, Any] = {"__repr__": shown, "__getstate__": _contents, "__setstate__": _restore}
    if options.pop("eq", True):
        methods |= {"__eq__": _equal, "__hash__": hashed}
    for name, method in methods.items():
        if name not in vars(kind):
            setattr(kind, name, method)
    return make(kind, eq=False, repr=False, getstate_setstate=False, **options)


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
    """Return the ``repr``, without the members that are `None`: most members of most objects are."""
    told = ((field.name, getattr(self, field.name)) for field in _fields(self))
    return f"{type(self).__name__}({', '.join(f'{name}={item!r}' for name, item in told if item is not None)})"
