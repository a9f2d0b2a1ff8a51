"""``python -m tests.random_schedules http|tasks --steps 1000000`` plays random schedules of events, one seed after
another, until so many steps were played, and exits with 1 if a schedule had a fault.

``http``: clients of both eras call over HTTP, abandon calls, answer elicitation requests and lose connections.
``tasks``: servers that share a task store run tasks, restart, and lose calls to the store or their acknowledgements.

For each fault, the program prints the seed and the step. To repeat the schedule, pass ``--seed SEED --steps 1``.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import trio
import trio._core._run as scheduler
from tests.interaction import test_http_random as http
from tests.tasks import test_state_machine as tasks
from trio.testing import MockClock

__all__ = ["MACHINES", "Run", "main"]

PROGRESS: Final = 10_000
"""How many steps lie between two lines of progress, at least."""


@attrs.frozen
class Machine:
    """What plays schedules. Each kind of step lists the choices for its name and for its arguments."""

    kinds: Sequence[Sequence[Sequence[Any]]]
    longest: int
    """The number of steps of the longest schedule."""
    play: Callable[[Iterator[Any], random.Random], None]


def _play_http(script: Iterator[Any], chance: random.Random) -> None:
    cuts = chance.random() < 0.5
    trio.run(lambda: http.play(script, cuts=cuts), clock=MockClock(autojump_threshold=0))


def _play_tasks(script: Iterator[Any], chance: random.Random) -> None:
    tasks.live(script, chance.choice(tasks.SLOWNESS))


MACHINES: Final = {
    "http": Machine([http.STEP], 300, _play_http),
    "tasks": Machine(tasks.STEPS, 100, _play_tasks),
}


@attrs.define
class Run:
    """The schedules that ``machine`` has played so far."""

    machine: Machine
    steps: int = 0
    seeds: int = 0
    faults: int = 0
    played: Counter[str] = attrs.Factory(Counter[str])
    """The number of steps of each name."""

    def play(self, seed: int) -> str | None:
        """Play the schedule of a seed. Return the fault and its traceback, if there was a fault."""
        chance = random.Random(seed)
        random.seed(seed)  # used for the delays between retries
        scheduler._r.seed(seed)  # trio runs its tasks in an order of this random generator
        script = [
            tuple(map(chance.choice, chance.choice(self.machine.kinds)))
            for _ in range(chance.randint(1, self.machine.longest))
        ]
        begun = self.steps
        self.seeds += 1
        logging.disable(logging.CRITICAL)  # of connections that are cut
        try:
            self.machine.play(self._count(script), chance)
        except Exception:
            self.faults += 1
            step = self.steps - begun
            return f"{traceback.format_exc()}FAULT: seed {seed}, after step {step} of {len(script)}: {script[step - 1]}"
        finally:
            logging.disable(logging.NOTSET)
        return None

    def _count(self, script: Sequence[Any]) -> Iterator[Any]:
        for step in script:
            self.steps += 1
            self.played[step[0]] += 1
            yield step

    def __str__(self) -> str:
        return f"{self.steps:,} steps, {self.seeds:,} seeds, {self.faults} faults"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.random_schedules",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("machine", choices=tuple(MACHINES))
    parser.add_argument("--steps", type=int, default=1_000_000, help="number of steps after which the run ends")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first schedule")
    options = parser.parse_args(arguments)
    run, begun, due = Run(MACHINES[options.machine]), time.monotonic(), PROGRESS
    while run.steps < options.steps:
        if (fault := run.play(options.seed + run.seeds)) is not None:
            print(fault, flush=True)
        if run.steps >= due:
            print(f"{run}, {time.monotonic() - begun:.0f} s", flush=True)
            due += PROGRESS
    print(f"{options.machine}: {run}, {time.monotonic() - begun:.0f} s")
    print(", ".join(f"{name} {count:,}" for name, count in sorted(run.played.items())))
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
