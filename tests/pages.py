"""The examples of a page of the documentation as modules: each block of Python whose first line is ``# name.py``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

__all__ = ["Page"]

ROOT = Path(__file__).parent.parent


class Page:
    """The page ``docs/NAME``."""

    def __init__(self, name: str) -> None:
        self.text = (ROOT / "docs" / name).read_text()
        self.blocks: dict[str, str] = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", self.text, flags=re.DOTALL))
        """The text of each example, by the name of its module."""

    def write(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
        """Write the examples into ``folder``, where they can be imported until the fixture ends."""
        for name, code in self.blocks.items():
            (folder / f"{name}.py").write_text(code)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        yield self
        for name in self.blocks:
            sys.modules.pop(name, None)

    def load(self, name: str) -> ModuleType:
        """Import the example ``name``."""
        assert name in self.blocks, f"the page has no example {name}"
        return import_module(name)
