"""Modules of extras: imported where they are installed; elsewhere their first use raises ImportError.

A public name is importable without its extra, so that ``from trio_mcp import *``, ``help`` and ``inspect`` work.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NoReturn


def extra(module: str, message: str) -> Any:
    """Return ``module``, or a stand-in that raises `ImportError` with ``message`` when anything in it is used."""
    try:
        return import_module(module)
    except ImportError:
        return _Missing(message)


def require(module: object) -> None:
    """Raise the `ImportError` of a ``module`` that `extra` returned, unless the module is installed."""
    if isinstance(module, _Missing):
        module.fail()


class _Missing:
    def __init__(self, message: str) -> None:
        self._message: Final = message

    def fail(self) -> NoReturn:
        raise ImportError(self._message)

    def __getattr__(self, name: str) -> NoReturn:
        if name[:2] == "__":  # of inspect, copy and pickle, which take an AttributeError for an answer
            raise AttributeError(name)
        self.fail()
