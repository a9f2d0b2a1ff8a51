"""``python -m tests.simulation --steps 10000000`` simulates fleets, or with ``--of extensions`` clients and servers of
extensions, one seed after another, until so many steps are taken, and ends with 1 where anything happened that may
not."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation import chaos
from tests.simulation.extensions import world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of tasks, in all")
    parser.add_argument("--each", type=int, default=20_000, help="steps of one simulation")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--of", choices=("fleets", "extensions"), default="fleets", help="what is simulated")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of a storage that fails at each turn
    simulate = world.simulate if options.of == "extensions" else chaos.simulate
    begun, steps, faults, seed = time.monotonic(), 0, 0, options.seed
    outcomes: Counter[str] = Counter()
    while steps < options.steps:
        report = simulate(seed, options.each)
        for fault in report.faults:
            print(f"seed {seed}: {fault}")
        steps, faults, seed = steps + report.steps, faults + len(report.faults), seed + 1
        outcomes += report.outcomes
    print(f"{steps} steps, {seed - options.seed} seeds, {time.monotonic() - begun:.0f} s, {faults} faults")
    print(", ".join(f"{name} {count}" for name, count in sorted(outcomes.items())))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
