"""The life of a task in the process that runs the task."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.state.requests import IllegalStep
from trio_mcp.tasks.transitions import RunPhase, RunStep, phase_after

ENDED = {RunPhase.PERSISTING, RunPhase.CLOSING, RunPhase.OVER}


def written() -> dict[tuple[RunPhase, RunStep], RunPhase]:
    """The table in the docstring."""
    assert RunPhase.__doc__ is not None
    lines = [line.strip() for line in RunPhase.__doc__.splitlines()]
    rule, head, _, *rows = [line for line in lines if line.startswith(("=", *RunPhase._member_names_, "phase "))]
    starts = [place for place, sign in enumerate(rule) if sign == "=" and rule[place - 1 : place] != "="]
    cells = [[row[start : start + 10].strip() for start in starts] for row in rows if not row.startswith("=")]
    assert [row[0] for row in cells] == RunPhase._member_names_
    assert head.split()[1:] == RunStep._member_names_
    return {
        (RunPhase[row[0]], step): RunPhase[cell]
        for row in cells
        for step, cell in zip(RunStep, row[1:], strict=True)
        if cell
    }


@pytest.mark.parametrize(("phase", "step"), list(product(RunPhase, RunStep)))
def test_each_step_of_a_task_run_leads_to_the_phase_in_the_docstring_table_or_raises(
    phase: RunPhase, step: RunStep
) -> None:
    after = written().get((phase, step))
    if after is None:
        with pytest.raises(IllegalStep, match=f"step {step.name} is not allowed for a task in phase {phase.name}"):
            phase_after(phase, step)
    else:
        assert phase_after(phase, step) is after


@given(st.lists(st.sampled_from(RunStep)))
def test_task_run_ends_once_and_never_runs_again_after_losing_its_lease(steps: list[RunStep]) -> None:
    phases = [RunPhase.POSSIBLE]
    for step in steps:
        try:
            phases.append(phase_after(phases[-1], step))
        except IllegalStep:
            continue
    for final in ({RunPhase.LOST, *ENDED}, ENDED, {RunPhase.OVER}, {RunPhase.DECLINED}):
        first = next((place for place, phase in enumerate(phases) if phase in final), len(phases))
        assert set(phases[first:]) <= final
    if RunPhase.POSSIBLE in phases[1:]:
        assert RunPhase.RUNNING not in phases[: phases.index(RunPhase.POSSIBLE, 1)]
