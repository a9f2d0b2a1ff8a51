"""The examples of `docs/clients/agent-frameworks.md`, whose first lines name the package that they need. That package
is in no environment of ours, so no type checker of ours reads them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["blocks_of_the_page"]

PAGE = Path(__file__).parents[3] / "docs" / "clients" / "agent-frameworks.md"


def blocks_of_the_page() -> dict[str, str]:
    """The text of each example, by the name of its module."""
    blocks = re.findall(r"```python\n# (\w+)\.py, with [\w-]+\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == PAGE.read_text().count("```python")
    return dict(blocks)
