"""``__init__`` of attrs classes, written without attrs: it does what that of attrs does."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any, get_type_hints

import attrs
import pytest

import trio_mcp
from trio_mcp.classes import define, evolve, frozen, init_of, positive


@define
class Base:
    """Fields with the defaults there are."""

    first: int
    second: list[int] = attrs.field(factory=list)
    _private: str = "private"
    counted: int = attrs.field(default=3, init=False)
    absent: int = attrs.field(init=False)
    doubled: int = attrs.field(default=attrs.Factory(lambda self: self.first * 2, takes_self=True))
    named: str = attrs.field(default="named", kw_only=True)


@define
class Derived(Base):
    """An overridden field stands where it is overridden."""

    second: list[int] = attrs.field(factory=lambda: [1])
    third: int = 3


@frozen(kw_only=True)
class Named:
    """Fields that are given by name."""

    one: int
    two: int = 2
    sum: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "sum", self.one + self.two)


@frozen
class FrozenBase:
    one: int


@frozen
class DerivedOfFrozen(FrozenBase):
    two: list[int] = attrs.field(factory=list)


@frozen
class FrozenChecked:
    low: int = attrs.field(validator=positive)
    high: int = attrs.field(validator=attrs.validators.instance_of(int))
    sum: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "sum", self.low + self.high)


@define
class Checked:
    number: int = attrs.field(validator=attrs.validators.instance_of(int))


def test_generated_init_sets_given_fields_and_defaults():
    one, two = Base(4), Base(1, [7], "p", 9, named="n")
    assert [one.first, one.second, one._private, one.counted, one.doubled, one.named] == [
        *(4, [], "private", 3, 8, "named"),
    ]
    assert [two.first, two.second, two._private, two.doubled, two.named] == [1, [7], "p", 9, "n"]
    assert not hasattr(one, "absent")
    assert one.second is not Base(4).second


def many_fields() -> Any:
    @define
    class Fields:
        first: int
        second: list[int] = attrs.field(factory=list)
        _private: str = "private"
        counted: int = attrs.field(default=3, init=False)
        absent: int = attrs.field(init=False)
        doubled: int = attrs.field(default=attrs.Factory(lambda self: self.first * 2, takes_self=True))
        named: str = attrs.field(default="named", kw_only=True)

    return Fields


def checked_fields() -> Any:
    @frozen
    class Fields:
        first: int = attrs.field(validator=positive)
        named: int = attrs.field(default=2, kw_only=True)
        sum: int = attrs.field(init=False)

        def __attrs_post_init__(self) -> None:
            object.__setattr__(self, "sum", self.first + self.named)

    return Fields


@pytest.mark.parametrize("make", [many_fields, checked_fields])
@pytest.mark.parametrize(
    ("args", "given"),
    [
        ((1,), {}),
        ((1,), {"named": 4}),
        ((), {"first": 1}),
        ((1, [2], "p", 5), {}),
        ((1, [2]), {"doubled": 7, "private": "q"}),
        ((1, attrs.NOTHING), {}),
        ((-1,), {}),
        ((), {}),
        ((1,), {"first": 1}),
        ((1,), {"other": 1}),
        ((1,), {"counted": 1}),
        ((1, 2, 3, 4, 5), {}),
    ],
)
def test_instances_created_before_and_after_the_init_is_generated_have_equal_values(
    make: Any, args: tuple[Any, ...], given: dict[str, Any]
):
    def made() -> Any:
        try:
            new = kind(*args, **given)
        except (TypeError, ValueError) as error:
            return repr(error)
        return {name: getattr(new, name) for name in kind.__slots__ if name != "__weakref__" and hasattr(new, name)}

    kind = make()
    first = made()
    assert [made() for _ in range(4)] == [first] * 4


def test_signature_of_a_class_does_not_change_when_instances_are_created():
    kind = many_fields()
    kind(1)
    assert [*inspect.signature(kind).parameters] == ["first", "second", "private", "doubled", "named"]


def test_generated_init_sets_inherited_fields_in_the_order_of_attrs():
    kind: Any = Derived  # type checkers have the order of dataclasses
    made = kind(1, "p", 2, [3], 4, named="n")
    assert [made.first, made._private, made.doubled, made.second, made.third, made.named] == [1, "p", 2, [3], 4, "n"]
    assert Derived(1).second == [1]
    assert get_type_hints(Derived.__init__)["second"] == list[int]


def test_generated_init_accepts_keyword_only_fields_and_calls_post_init():
    assert Named(one=1).sum == 3
    with pytest.raises(TypeError, match=r"Named.__init__\(\) takes 1 positional argument"):
        Named(1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"Named.__init__\(\) missing 1 required keyword-only argument: 'one'"):
        Named()  # pyright: ignore[reportCallIssue]


def test_generated_init_sets_the_fields_of_a_class_with_a_frozen_base():
    made = DerivedOfFrozen(1)
    assert (made.one, made.two) == (1, [])
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.two = []  # pyright: ignore[reportAttributeAccessIssue]


def test_generated_init_of_a_frozen_class_runs_validators_if_they_are_not_disabled():
    assert init_of(FrozenChecked, frozen=True) is not None
    made = FrozenChecked(1, 2)
    assert (made.low, made.high, made.sum) == (1, 2, 3)
    with pytest.raises(ValueError, match="low must be greater than 0, not -1"):
        FrozenChecked(-1, 2)
    with pytest.raises(TypeError, match="'high' must be <class 'int'>"):
        FrozenChecked(1, "2")  # pyright: ignore[reportArgumentType]
    with attrs.validators.disabled():
        assert FrozenChecked(-1, 2).low == -1
    assert [field.name for field in attrs.fields(FrozenChecked)] == ["low", "high", "sum"]
    with pytest.raises(ValueError, match="low must be greater than 0"):
        attrs.evolve(made, low=0)


@pytest.mark.parametrize("instance", [Named(one=1), FrozenChecked(1, 2), DerivedOfFrozen(1, [2]), Checked(3)])
def test_evolve_function_of_the_package_returns_the_same_as_attrs_evolve(instance: Any):
    name = attrs.fields(type(instance))[0].name
    assert evolve(instance) == attrs.evolve(instance) == instance
    assert evolve(instance, **{name: 7}) == attrs.evolve(instance, **{name: 7}) != instance


def test_class_with_a_validator_keeps_the_init_method_of_attrs():
    assert init_of(Checked, frozen=False) is None
    with pytest.raises(TypeError, match="must be <class 'int'>"):
        Checked("1")  # pyright: ignore[reportArgumentType]
    made = Checked(1)
    with pytest.raises(TypeError, match="must be <class 'int'>"):
        made.number = "1"  # pyright: ignore[reportAttributeAccessIssue]


def every_class() -> dict[str, Any]:
    """Return the attrs classes of the package, by their names."""
    found: dict[str, Any] = {}
    for module in pkgutil.walk_packages(trio_mcp.__path__, "trio_mcp."):
        if module.name.endswith("__main__"):
            continue
        try:
            members = vars(importlib.import_module(module.name))
        except ImportError:  # an extra that isn't installed
            continue
        found |= {
            f"{module.name}.{name}": each
            for name, each in members.items()
            if isinstance(each, type) and each.__module__ == module.name and "__own_fields__" in vars(each)
        }
    return found


def test_signature_of_each_class_equals_the_signature_generated_by_attrs():
    classes = every_class()
    assert len(classes) > 300
    assert sum(init_of(kind, frozen=False) is not None for kind in classes.values()) > 250
    for name, kind in classes.items():
        init = init_of(kind, frozen=True)
        if init is None:
            continue
        parameters = list(inspect.signature(init).parameters.values())[1:]
        fields = [field for field in attrs.fields(kind) if field.init]
        fields.sort(key=lambda field: field.kw_only)
        assert [(each.name, each.kind is each.KEYWORD_ONLY, each.default is each.empty) for each in parameters] == [
            (field.alias, field.kw_only, field.default is attrs.NOTHING) for field in fields
        ], name
        for each, field in zip(parameters, fields, strict=True):
            if field.default is not attrs.NOTHING:
                made = isinstance(field.default, attrs.Factory)  # pyright: ignore[reportArgumentType]
                assert each.default is (attrs.NOTHING if made else field.default), name


@pytest.mark.parametrize("is_read_first", [False, True])
def test_user_class_derived_from_a_frozen_class_is_frozen(is_read_first: bool) -> None:
    @frozen
    class Base:
        name: str = "a"

    if is_read_first:
        attrs.fields(Base)

    @attrs.define
    class Derived(Base):
        tag: str = "x"

    derived = Derived("b")
    assert (derived.name, derived.tag, hash(derived)) == ("b", "x", hash(Derived("b")))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        derived.tag = "y"
