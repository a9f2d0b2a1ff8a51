"""Lazy imports and lazily compiled regular expressions.

- Optional modules, from extras: if one isn't installed, its first use raises ImportError. A public name can be imported
  without its extra, so that ``from trio_mcp import *``, ``help`` and ``inspect`` work.
- Public names are imported when first used.
- Regular expressions are compiled when first used. Compiling one takes as long as creating a class, and a server needs
  few of its patterns for its first answer.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, AnyStr, Final, NoReturn, cast


def extra(module: str, message: str) -> Any:
    """Import the module ``module``, and return it. If its package isn't installed, return a placeholder.

    Using an attribute of the placeholder raises `ImportError` with ``message``.
    """
    try:
        return import_module(module)
    except ImportError:
        return _Missing(message)


def require(module: object) -> None:
    """Raise `ImportError` if ``module`` is the placeholder that `extra` returns for a package that isn't installed."""
    if isinstance(module, _Missing):
        module.fail()


class _Missing:
    def __init__(self, message: str) -> None:
        self._message: Final = message

    def fail(self) -> NoReturn:
        raise ImportError(self._message)

    def __getattr__(self, name: str) -> NoReturn:
        if name[:2] == "__":  # inspect, copy and pickle expect an AttributeError for a special method that is missing
            raise AttributeError(name)
        self.fail()


def lazy_name(namespace: dict[str, Any], names: Mapping[str, str], name: str) -> Any:
    """Import ``name`` when it is first used, and store the imported object in ``namespace``.

    ``namespace`` is the globals of the importing module. ``names`` maps each name to its module. Used as a module's
    ``__getattr__``.
    """
    package: str = namespace["__name__"]
    module = next((module for module, text in names.items() if name in text.split()), None)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
    # Pause the garbage collector during the import, because nearly all objects of a module are permanent.
    # A running garbage collector would traverse each new object of the module a dozen times.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        value = namespace[name] = getattr(import_module(module, namespace["__package__"]), name)
    finally:
        if was_enabled:
            _make_old()
            gc.enable()
    return value


def _make_old() -> None:
    """Move all objects into the garbage collector's oldest generation, so that the collector doesn't traverse them
    soon.

    Does nothing if the program has frozen objects.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


def lazy_names(
    namespace: dict[str, Any], names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` for a module that imports its names when they are first
    used.

    ``namespace`` is the globals of the module. See `lazy_name`.
    """
    return partial(lazy_name, namespace, names), lambda: namespace["__all__"]


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression that is compiled at its first use.

    Otherwise like `re.compile`. Errors in ``text`` are raised at the first use.
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))


class _LazyPattern:
    """A regular expression that is compiled when one of its methods is first used."""

    def __init__(self, text: Any, flags: int) -> None:
        self._source = (text, flags)

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(*self._source), name)
        setattr(self, name, method)
        return method
