"""Encoders: functions of a server's author that write values of classes without a JSON form."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, cast

from msgspec import inspect as kinds

from ...protocol.foreign_types import write_foreign


class Encoders:
    """The functions by the classes whose values they write as JSON data; one of a class holds for its subclasses.

    Raises `TypeError` for what is no class, for a class that has a JSON form without a function, and for a function
    that is async.
    """

    def __init__(self, functions: Mapping[type, Callable[[Any], Any]]) -> None:
        self._write = singledispatch(write_foreign)
        for kind, function in functions.items():
            _check(kind, function)
            self._write.register(kind, function)

    def write(self, value: Any) -> Any:
        """Return a value of a class that msgspec does not know as data, which may hold such values again."""
        return self._write(value)

    def returned(self, kind: type) -> Any:
        """Return the annotation of what the function for ``kind`` returns; `None` for a class without a function."""
        function = self._write.dispatch(kind)
        if function is write_foreign:
            return None
        if isinstance(function, type):
            return cast("Any", function)
        try:
            return typing.get_type_hints(function).get("return", Any)
        except NameError as error:
            raise TypeError(f"the encoder of {kind.__name__}: an annotation could not be resolved: {error}") from None


def _check(kind: Any, function: Any) -> None:
    if not isinstance(kind, type) or not callable(function):
        raise TypeError(
            "encoders are functions by classes:\n    wrong:  encoders=[encode_frame]\n"
            "    right:  encoders={Frame: encode_frame}"
        )
    if not isinstance(kinds.type_info(cast("Any", kind)), kinds.CustomType):
        raise TypeError(f"{kind.__name__} has a JSON form already: an encoder is for a class that has none")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"the encoder of {kind.__name__} is async: write a plain function, which does not wait")
