"""A plugin, ``pytest -p tests.without_posix``, that takes away what Windows lacks before trio_mcp is imported."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import trio.testing  # noqa: F401 - trio itself is for both

MODULES = frozenset(("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"))


class _Missing(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


assert not any(name.startswith("trio_mcp") for name in sys.modules), "too late"
sys.meta_path.insert(0, _Missing())
for name in MODULES:
    sys.modules.pop(name, None)
for place, names in ((os, ("register_at_fork", "O_DIRECTORY", "O_NOCTTY", "geteuid")), (select, ("poll",))):
    for name in names:
        delattr(place, name)
