from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.requests.test_abort_signal import a_request

from trio_mcp.runtime.requests.scope import RequestScope
from trio_mcp.state import requests
from trio_mcp.state.requests import IllegalStep, Phase, Step

LEGAL = {
    (Phase.WAITING, Step.START): Phase.RUNNING,
    (Phase.WAITING, Step.MUTE): Phase.MUTED,
    (Phase.RUNNING, Step.PARK): Phase.PARKED,
    (Phase.RUNNING, Step.MUTE): Phase.MUTED,
    (Phase.PARKED, Step.COME_BACK): Phase.WAITING,
    (Phase.PARKED, Step.MUTE): Phase.MUTED,
    (Phase.MUTED, Step.MUTE): Phase.MUTED,
    (Phase.MUTED, Step.END): Phase.OVER,
}
WAY_TO = {
    Phase.WAITING: [],
    Phase.RUNNING: [Step.START],
    Phase.PARKED: [Step.START, Step.PARK],
    Phase.MUTED: [Step.MUTE],
    Phase.OVER: [Step.MUTE, Step.END],
}


def life_in(phase: Phase) -> RequestScope:
    life = a_request()
    for step in WAY_TO[phase]:
        life.advance(step)
    assert life.phase is phase
    assert life.sends is (phase is Phase.RUNNING)
    return life


@pytest.mark.parametrize(("phase", "step"), list(product(Phase, Step)))
def test_request_phase_changes_only_by_steps_listed_in_the_phase_table(phase: Phase, step: Step) -> None:
    life, after = life_in(phase), LEGAL.get((phase, step))
    if after is None:
        with pytest.raises(IllegalStep, match=f"invalid step {step.name} for a request in the phase {phase.name}"):
            life.advance(step)
        assert life.phase is phase
    else:
        life.advance(step)
        assert life.phase is after


def test_phase_table_of_requests_in_the_docstring_matches_the_code() -> None:
    assert requests.__doc__ is not None
    rule, head, _, *rows = [
        line for line in requests.__doc__.splitlines() if line.startswith(("=", *Phase._member_names_, "phase"))
    ]
    starts = [place for place, sign in enumerate(rule) if sign == "=" and rule[place - 1 : place] != "="]
    cells = [[row[start : start + 10].strip() for start in starts] for row in rows if not row.startswith("=")]
    steps = head.split()[1:]
    written = {
        (Phase[row[0]], Step[step]): Phase[cell]
        for row in cells
        for step, cell in zip(steps, row[1:], strict=True)
        if cell
    }
    assert written == LEGAL


@given(st.lists(st.sampled_from(Step)))
def test_finished_or_cancelled_request_never_runs_again(steps: list[Step]) -> None:
    life, phases = a_request(), [Phase.WAITING]
    for step in steps:
        try:
            life.advance(step)
        except IllegalStep:
            continue
        phases.append(life.phase)
    if Phase.MUTED in phases:
        assert set(phases[phases.index(Phase.MUTED) :]) <= {Phase.MUTED, Phase.OVER}
    if Phase.OVER in phases:
        assert phases[phases.index(Phase.OVER) :] == [Phase.OVER]
