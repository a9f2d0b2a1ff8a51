"""How many random examples a test takes: a part of the number that is named in the test, or all with
``--hypothesis-profile=thorough``, by hand or at night."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["THOROUGH", "examples"]

THOROUGH = 100
"""Examples of a test that names no number, where all are taken."""


def examples(number: int) -> int:
    """The part of ``number`` that is taken in this run."""
    return max(1, number * settings.default.max_examples // THOROUGH)
