"""How long tests wait for what should have happened."""

from __future__ import annotations

from typing import Final

__all__ = ["PATIENCE"]

PATIENCE: Final = 60.0
"""Seconds after which it is taken as never to happen: the bound of last resort, on a machine that does much else. No
measure of speed."""
