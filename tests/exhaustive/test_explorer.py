"""The explorer visits each state once, and finds the shortest trace of a fault."""

from __future__ import annotations

import attrs
from tests.exhaustive.explorer import Action, Fault, explore


@attrs.define
class Counter:
    """Two counters up to 3, of which some sums are faults."""

    faulty: int = -1
    at_end: bool = False
    left: int = 0
    right: int = 0

    def actions(self) -> list[Action]:
        return [("add", name) for name in ("left", "right") if getattr(self, name) < 3]

    def fork(self) -> Counter:
        return attrs.evolve(self)

    def do(self, action: Action) -> None:
        setattr(self, action[1], getattr(self, action[1]) + 1)
        if self.left * self.right == self.faulty:
            raise Fault(f"{self.left} times {self.right}")

    def check_end(self) -> None:
        if self.at_end:
            raise Fault("the end")

    def key(self) -> tuple[int, int]:
        return self.left, self.right


def test_state_explorer_visits_each_state_once() -> None:
    report = explore(Counter)
    assert (report.states, report.steps, report.ends, report.depth) == (16, 24, 1, 6)
    assert report.is_complete
    assert report.fault is None


def test_state_explorer_reports_the_shortest_sequence_of_steps_that_leads_to_a_fault() -> None:
    fault = explore(lambda: Counter(2)).fault
    assert fault is not None
    assert fault.words in ("1 times 2", "2 times 1")
    assert len(fault.trace) == 3


def test_state_explorer_reports_all_steps_that_lead_to_a_fault_in_the_final_state() -> None:
    report = explore(lambda: Counter(at_end=True))
    assert report.fault is not None
    assert len(report.fault.trace) == 6
    assert not report.is_complete


@attrs.define
class Circle:
    """A place on a way of three places, with or without a circle behind the first one."""

    has_circle: bool
    place: str = "start"

    def actions(self) -> list[Action]:
        ways = {"start": ["end", *(["circle"] if self.has_circle else [])], "circle": ["back"], "back": ["circle"]}
        return [(place,) for place in ways.get(self.place, [])]

    def fork(self) -> Circle:
        return attrs.evolve(self)

    def do(self, action: Action) -> None:
        (self.place,) = action

    def check_end(self) -> None: ...

    def key(self) -> str:
        return self.place


def test_state_explorer_reports_a_state_from_which_no_final_state_can_be_reached() -> None:
    assert explore(lambda: Circle(has_circle=False)).fault is None
    fault = explore(lambda: Circle(has_circle=True)).fault
    assert fault is not None
    assert fault.words == "nothing that can happen leads to an end"
    assert fault.trace == (("circle",),)


def test_state_explorer_reports_an_incomplete_run_if_it_reaches_its_state_limit() -> None:
    assert not explore(Counter, most_states=3).is_complete
