"""How long tests wait for what should have happened."""

from __future__ import annotations

from typing import Final

__all__ = ["LONG", "PATIENCE"]

PATIENCE: Final = 60.0
"""Seconds after which it is taken as never to happen: the bound of last resort, on a machine that does much else. No
measure of speed."""

LONG: Final = 100.0
"""Seconds of a limit that is passed by a jump of the clock, and not by waiting."""
