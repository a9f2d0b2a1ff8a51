from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.transports.http import responses
from trio_mcp.transports.http.responses import ConnectionLife, ConnectionPhase, ConnectionStep, IllegalConnectionStep

P, S = ConnectionPhase, ConnectionStep

UNREAD = {S.ASK: P.ASKED, S.AWAIT: P.BODY, S.SERVE: P.SERVED, S.REFUSE: P.REFUSED}
LEGAL = {
    (P.NEW, S.RECEIVE): P.FIRST,
    (P.IDLE, S.RECEIVE): P.HEAD,
    **{(phase, step): after for phase in (P.NEW, P.FIRST, P.IDLE, P.HEAD) for step, after in UNREAD.items()},
    **{(P.ASKED, step): after for step, after in UNREAD.items() if step is not S.ASK},
    (P.BODY, S.SERVE): P.SERVED,
    (P.BODY, S.REFUSE): P.REFUSED,
    (P.SERVED, S.GO_ON): P.IDLE,
    (P.SERVED, S.CLOSE): P.CLOSING,
    (P.REFUSED, S.DROP): P.DROPPING,
    (P.REFUSED, S.LINGER): P.LINGERING,
    (P.REFUSED, S.CLOSE): P.CLOSING,
    (P.DROPPING, S.CLOSE): P.CLOSING,
    (P.CLOSING, S.CLOSE): P.CLOSING,
    **{(phase, S.END): P.OVER for phase in P},
}
WAY_TO = {
    P.NEW: [],
    P.FIRST: [S.RECEIVE],
    P.IDLE: [S.SERVE, S.GO_ON],
    P.HEAD: [S.SERVE, S.GO_ON, S.RECEIVE],
    P.ASKED: [S.ASK],
    P.BODY: [S.AWAIT],
    P.SERVED: [S.SERVE],
    P.REFUSED: [S.REFUSE],
    P.DROPPING: [S.REFUSE, S.DROP],
    P.LINGERING: [S.REFUSE, S.LINGER],
    P.CLOSING: [S.SERVE, S.CLOSE],
    P.OVER: [S.END],
}


def life_in(phase: ConnectionPhase) -> ConnectionLife:
    life = ConnectionLife()
    for step in WAY_TO[phase]:
        life.enter(step)
    assert life.phase is phase
    return life


@pytest.mark.parametrize(("phase", "step"), list(product(P, S)))
def test_http_connection_changes_its_phase_only_by_steps_listed_in_the_phase_table(
    phase: ConnectionPhase, step: ConnectionStep
) -> None:
    life, after = life_in(phase), LEGAL.get((phase, step))
    life.since = 1.0
    if after is None:
        with pytest.raises(IllegalConnectionStep, match=f"step {step.name} is not allowed in phase {phase.name}"):
            life.enter(step)
        assert life.phase is phase
        assert life.since == 1.0
    else:
        life.enter(step)
        assert life.phase is after
        assert life.since is None


def test_phase_table_of_http_connections_in_the_docstring_matches_the_code() -> None:
    assert responses.__doc__ is not None
    rule, head, _, *rows = [
        line for line in responses.__doc__.splitlines() if line.startswith(("=", *P._member_names_, "phase"))
    ]
    starts = [place for place, sign in enumerate(rule) if sign == "=" and rule[place - 1 : place] != "="]
    cells = [[row[start : start + 10].strip() for start in starts] for row in rows if not row.startswith("=")]
    steps = head.split()[1:]
    written = {
        (P[row[0]], S[step]): P[cell] for row in cells for step, cell in zip(steps, row[1:], strict=True) if cell
    }
    assert written == LEGAL


@given(st.lists(st.sampled_from(S)))
def test_http_connection_that_closes_reads_no_further_request_and_stays_closed(
    steps: list[ConnectionStep],
) -> None:
    life, entered = ConnectionLife(), [P.NEW]
    for step in steps:
        try:
            life.enter(step)
        except IllegalConnectionStep:
            continue
        entered.append(life.phase)
    closing = next((place for place, phase in enumerate(entered) if phase >= P.REFUSED), len(entered))
    assert all(phase >= P.REFUSED for phase in entered[closing:])
    if P.OVER in entered:
        assert set(entered[entered.index(P.OVER) :]) == {P.OVER}
