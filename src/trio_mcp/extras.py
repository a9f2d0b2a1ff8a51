"""Optional modules of extras. If a module isn't installed, its first use raises ImportError.

A public name can be imported without its extra, so that ``from trio_mcp import *``, ``help`` and ``inspect`` work.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NoReturn


def extra(module: str, message: str) -> Any:
    """Return ``module``, or a placeholder that raises `ImportError` with ``message`` when you use it."""
    try:
        return import_module(module)
    except ImportError:
        return _Missing(message)


def require(module: object) -> None:
    """Raise `ImportError` if ``module``, which `extra` returned, isn't installed."""
    if isinstance(module, _Missing):
        module.fail()


class _Missing:
    def __init__(self, message: str) -> None:
        self._message: Final = message

    def fail(self) -> NoReturn:
        raise ImportError(self._message)

    def __getattr__(self, name: str) -> NoReturn:
        if name[:2] == "__":  # for inspect, copy and pickle, which handle AttributeError
            raise AttributeError(name)
        self.fail()
