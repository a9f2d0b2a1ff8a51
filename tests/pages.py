"""The pages of the documentation, and their examples: each block of Python whose first line is ``# name.py``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

__all__ = ["ROOT", "USER_PAGES", "Page", "examples_in"]

ROOT = Path(__file__).parent.parent
_CONTRIBUTED = {"architecture", "decisions", "map", "proof", "reference", "rulings"}
USER_PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.parent.name != "reference"
        and page.relative_to(ROOT / "docs").with_suffix("").as_posix() not in _CONTRIBUTED
    ),
]
"""The pages for users, without the API reference."""


def examples_in(text: str) -> dict[str, str]:
    """The code of each example in ``text``, by its file name. Raises `ValueError` for a repeated name."""
    found: list[tuple[str, str]] = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, flags=re.DOTALL)
    names = [name for name, _ in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two examples of one name: {sorted(twice)}")
    return dict(found)


class Page:
    """The page ``docs/NAME``, or all pages in the folder ``docs/NAME``."""

    def __init__(self, name: str) -> None:
        path = ROOT / "docs" / name
        self.text = (
            "\n".join(page.read_text() for page in sorted(path.rglob("*.md"))) if path.is_dir() else path.read_text()
        )
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
