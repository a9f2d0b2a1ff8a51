"""Fewer runs of a scenario that many wires and eras could run: each wire and each era at least once.

The product of wires and eras takes most of the time of `tests/interaction`, and finds only what one wire does in one
era alone. A cover finds what a wire does and what an era does. The name of the test decides which era a wire gets, so
over all tests each wire meets each era.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from zlib import crc32

__all__ = ["cover", "first_wire"]

WIRES = ("transport", "way", "reached")
"""Parameters that choose the wire of a whole scenario."""

ERAS_AND_WIRES = {*WIRES, "wire", "era", "revision", "front_era", "back_era"}
"""Parameters of which each value needs one run only, whatever the values of the others are."""


def cover(runs: Sequence[Mapping[str, Hashable]], name: str) -> list[int]:
    """Return the indices of a few of ``runs`` that have each wire and each era of all of them.

    Runs that differ in another parameter are different scenarios, each of which gets a cover of its own. The choice is
    the same in every process, and depends on ``name`` where several runs would do.
    """
    scenarios: dict[frozenset[tuple[str, Hashable]], list[int]] = {}
    for index, run in enumerate(runs):
        others = frozenset(pair for pair in run.items() if pair[0] not in ERAS_AND_WIRES)
        scenarios.setdefault(others, []).append(index)
    chosen: list[int] = []
    for indices in scenarios.values():
        left = {
            index: {pair for pair in runs[index].items() if pair[0] in ERAS_AND_WIRES}
            for index in sorted(indices, key=lambda index: crc32(f"{name} {index}".encode()))
        }
        missing = set[tuple[str, Hashable]]().union(*left.values())
        while True:
            best = max(left, key=lambda index: len(missing & left[index]))
            chosen.append(best)
            missing -= left[best]
            if not missing:
                break
    return sorted(chosen)


def first_wire(runs: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """Return the indices of those of ``runs`` that have the wire of the first one."""
    wire = {name: runs[0].get(name) for name in WIRES}
    return [index for index, run in enumerate(runs) if all(run.get(name) == wire[name] for name in WIRES)]
