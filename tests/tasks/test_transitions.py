"""A task goes from phase to phase as the table says, ends once, and loses no answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import isfunction
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.stores.task_store import OnRestart, Outcome, TaskPhase, TaskRecord
from trio_mcp.tasks import transitions
from trio_mcp.tasks.transitions import (
    QuestionLog,
    answered,
    asked,
    cancelled,
    checkpointed,
    made_external,
    reclaimed,
    released,
    with_message,
    with_outcome,
    withdrawn,
)
from trio_mcp.testing.stores.task_store_records import record

NOW = 1_800_000_000_000
LATER = NOW + 5000
OUTCOME = Outcome(b'{"content":[]}')

Step = Callable[[TaskRecord], TaskRecord | None]

WORKING = record(
    "task",
    created_at=NOW,
    updated_at=NOW,
    holder="me",
    epoch=2,
    leased_until=NOW + 9,
    version=7,
    message="old",
    checkpoint=b"1",
)
QUESTIONS = {"a": b"?", "b": b"??"}
ASKING = attrs.evolve(WORKING, phase=TaskPhase.INPUT_REQUIRED, questions=QUESTIONS, asked={"a": (), "b": ("a",)})
RECORDS = {
    TaskPhase.WORKING: WORKING,
    TaskPhase.INPUT_REQUIRED: ASKING,
    TaskPhase.ENDED: attrs.evolve(WORKING, phase=TaskPhase.ENDED, outcome=OUTCOME, holder=None),
    TaskPhase.CANCELLED: attrs.evolve(WORKING, phase=TaskPhase.CANCELLED, holder=None),
}

STEPS: dict[str, Step] = {
    "asked": lambda record: asked(record, LATER, {"c": b"???"}),
    "answered": lambda record: answered(record, LATER, {"a": b"!"}),
    "answered (last)": lambda record: answered(record, LATER, {"a": b"!", "b": b"!"}),
    "withdrawn": lambda record: withdrawn(record, LATER, ["a"]),
    "withdrawn (last)": lambda record: withdrawn(record, LATER, ["a", "b"]),
    "with_message": lambda record: with_message(record, LATER, "new"),
    "checkpointed": lambda record: checkpointed(record, b"2", lambda _: False),
    "with_outcome": lambda record: with_outcome(record, LATER, OUTCOME),
    "cancelled": lambda record: cancelled(record, LATER, "why"),
    "made_external": lambda record: made_external(record, LATER, "new", 5000, 1000),
    "released": released,
    "reclaimed": lambda record: reclaimed(record, LATER, 2, 3),
    "reclaimed (again)": lambda record: reclaimed(attrs.evolve(record, on_restart="again"), LATER, 2, 3),
}

PHASES: dict[str, tuple[TaskPhase | None, TaskPhase | None]] = {
    "asked": (TaskPhase.INPUT_REQUIRED, TaskPhase.INPUT_REQUIRED),
    "answered": (None, TaskPhase.INPUT_REQUIRED),
    "answered (last)": (None, TaskPhase.WORKING),
    "withdrawn": (None, TaskPhase.INPUT_REQUIRED),
    "withdrawn (last)": (None, TaskPhase.WORKING),
    "with_message": (TaskPhase.WORKING, TaskPhase.INPUT_REQUIRED),
    "checkpointed": (TaskPhase.WORKING, TaskPhase.INPUT_REQUIRED),
    "with_outcome": (TaskPhase.ENDED, TaskPhase.ENDED),
    "cancelled": (TaskPhase.CANCELLED, TaskPhase.CANCELLED),
    "made_external": (TaskPhase.WORKING, TaskPhase.INPUT_REQUIRED),
    "released": (TaskPhase.WORKING, TaskPhase.INPUT_REQUIRED),
    "reclaimed": (TaskPhase.ENDED, TaskPhase.ENDED),
    "reclaimed (again)": (TaskPhase.WORKING, TaskPhase.INPUT_REQUIRED),
}
"""The phase after each step of a task that works, and of one that asks; `None`: nothing changes."""


def test_tests_cover_every_task_transition_function():
    assert {name.split(" ")[0] for name in STEPS} == {
        name
        for name, value in vars(transitions).items()
        if isfunction(value) and value.__module__ == transitions.__name__ and name[0] != "_" and name != "phase_after"
    }


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("phase", TaskPhase)
def test_task_transition_leads_to_the_expected_phase(phase: TaskPhase, name: str):
    after = STEPS[name](RECORDS[phase])
    expected = None if phase.is_final else PHASES[name][phase is TaskPhase.INPUT_REQUIRED]
    assert (None if after is None else after.phase) == expected


def test_task_phase_table_in_the_docstring_matches_the_code():
    rows = re.findall(r"^[A-Z_]{5,}.*$", transitions.__doc__ or "", flags=re.MULTILINE)
    columns = {"asked": 15, "answered (last)": 30, "with_outcome": 45, "cancelled": 60}
    told = {
        (row.split()[0], name): row.ljust(80)[column : column + 14].split(" ")[0]
        for row in rows
        for name, column in columns.items()
    }
    assert told == {
        (phase.name, name): after.phase.name if (after := STEPS[name](RECORDS[phase])) else ""
        for phase in TaskPhase
        for name in columns
    }


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("phase", [TaskPhase.WORKING, TaskPhase.INPUT_REQUIRED])
def test_change_of_a_task_record_increments_its_version_but_not_the_number_of_its_claims(phase: TaskPhase, name: str):
    before, after = RECORDS[phase], STEPS[name](RECORDS[phase])
    if after is not None:
        assert (after.version, after.epoch) == (before.version + 1, before.epoch)


@pytest.mark.parametrize("name", STEPS)
def test_task_transition_that_clients_can_see_updates_the_timestamp(name: str):
    before = ASKING if "answered" in name or "withdrawn" in name else WORKING
    after = STEPS[name](before)
    assert after is not None
    assert after.updated_at == (NOW if name in ("checkpointed", "released", "reclaimed (again)") else LATER)


@pytest.mark.parametrize("name", STEPS)
def test_task_lease_ends_only_if_the_task_ends_or_is_released_or_passed_to_an_external_worker(name: str):
    after = STEPS[name](ASKING)
    assert after is not None
    is_last = after.phase.is_final or name in ("made_external", "released")
    owner = (None, 0) if is_last else ("me", NOW + 9)
    assert (after.holder, after.leased_until) == owner


def changes(before: TaskRecord, after: TaskRecord | None) -> dict[str, Any]:
    """The fields that differ, but for those that the tests above are about."""
    assert after is not None
    told = attrs.asdict(after, recurse=False)
    same = ("version", "updated_at", "holder", "leased_until", "phase")
    return {name: value for name, value in told.items() if name not in same and value != getattr(before, name)}


def test_new_input_requests_are_appended_to_the_task_record():
    after = asked(ASKING, LATER, {"c": b"???"})
    assert changes(ASKING, after) == {"questions": {"a": b"?", "b": b"??", "c": b"???"}}
    assert after is not None
    assert list(after.questions) == ["a", "b", "c"]


def test_task_record_does_not_change_if_an_empty_set_of_input_requests_is_added():
    assert asked(WORKING, LATER, {}) is None


def test_adding_an_input_request_to_a_task_record_twice_keeps_existing_requests_and_answers():
    before = attrs.evolve(ASKING, answers={"z": b"!"})
    assert asked(before, LATER, {"a": b"new", "z": b"new"}) is None
    after = asked(before, LATER, {"a": b"new", "z": b"new", "c": b"???"})
    assert changes(before, after) == {"questions": {"a": b"?", "b": b"??", "c": b"???"}}


def test_input_request_of_a_task_record_is_replaced_by_its_answer():
    assert changes(ASKING, answered(ASKING, LATER, {"b": b"!"})) == {"questions": {"a": b"?"}, "answers": {"b": b"!"}}


def test_answers_to_unknown_or_answered_input_requests_do_not_change_a_task_record():
    before = attrs.evolve(ASKING, answers={"z": b"first"})
    assert answered(before, LATER, {"z": b"second", "x": b"!"}) is None
    after = answered(before, LATER, {"z": b"second", "x": b"!", "a": b"!"})
    assert changes(before, after) == {"questions": {"b": b"??"}, "answers": {"z": b"first", "a": b"!"}}


def test_input_request_withdrawn_from_a_task_record_is_removed_without_an_answer():
    assert changes(ASKING, withdrawn(ASKING, LATER, ["b", "x"])) == {"questions": {"a": b"?"}}
    assert withdrawn(ASKING, LATER, ["x"]) is None


def test_status_message_of_a_task_record_is_changed_only_if_different():
    assert changes(ASKING, with_message(ASKING, LATER, "new")) == {"message": "new"}
    assert with_message(ASKING, LATER, "old") is None


def nobody(_: str) -> bool:
    """Nobody waits for an answer."""
    return False


@pytest.mark.parametrize("on_restart", ["fail", "again"])
def test_checkpoint_of_a_task_that_is_not_resumable_changes_only_the_checkpoint(on_restart: OnRestart):
    before = attrs.evolve(ASKING, on_restart=on_restart, answers={"z": b"!"})
    assert changes(before, checkpointed(before, b"2", nobody)) == {"checkpoint": b"2"}


def test_checkpoint_of_a_resumable_task_keeps_only_awaited_answers():
    before = attrs.evolve(
        ASKING,
        on_restart="resume",
        answers={"y": b"!", "z": b"!"},
        asked={"y": (), "a": (), "z": ()},
        continuation=b"[{}]",
    )
    after = checkpointed(before, b"2", lambda key: key == "z")
    expected = {"checkpoint": b"2", "answers": {"z": b"!"}, "asked": {}, "continuation": None}
    assert changes(before, after) == expected
    assert after is not None
    again = reclaimed(after, LATER, 2, 3)
    assert again is not None
    assert (again.questions, again.answers, again.phase) == ({}, {}, TaskPhase.WORKING)


def test_withdrawing_an_input_request_removes_its_answer_from_the_task_record():
    before = attrs.evolve(ASKING, answers={"z": b"!"}, asked={"z": (), "a": (), "b": ()})
    assert changes(before, withdrawn(before, LATER, ["z"])) == {"answers": {}}
    after = withdrawn(before, LATER, ["a"], ["z", "b"])
    assert changes(before, after) == {"answers": {}, "questions": {}, "asked": {"a": ()}}


def test_adding_input_requests_to_a_task_record_stores_their_order_in_the_log_of_the_run():
    before = attrs.evolve(ASKING, answers={"z": b"!"}, asked={"z": (), "a": (), "b": ()})
    log = QuestionLog({"a": ("x",), "gone": (), "c": ("b",)}, {})
    after = asked(before, LATER, {"c": b"???"}, log, ["b"], ["z"])
    assert changes(before, after) == {
        "questions": {"a": b"?", "c": b"???"},
        "answers": {},
        "asked": {"a": (), "b": (), "gone": (), "c": ("b",)},
    }


NOT_NEEDED = {"questions": {}, "params": b"{}", "checkpoint": None, "asked": {}}
"""What nobody needs but another run."""


def test_ended_task_record_keeps_only_the_outcome():
    expected = {**NOT_NEEDED, "outcome": OUTCOME}
    assert changes(ASKING, with_outcome(ASKING, LATER, OUTCOME)) == expected
    assert changes(ASKING, with_outcome(ASKING, LATER, OUTCOME, "done")) == {**expected, "message": "done"}


def test_cancelled_task_record_keeps_only_the_reason_of_the_cancel():
    expected = NOT_NEEDED
    assert changes(ASKING, cancelled(ASKING, LATER, None)) == expected
    assert changes(ASKING, cancelled(ASKING, LATER, "why")) == {**expected, "cancel_reason": "why", "message": "why"}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("phase", [TaskPhase.WORKING, TaskPhase.INPUT_REQUIRED])
def test_task_transition_that_is_applied_twice_changes_nothing_the_second_time(phase: TaskPhase, name: str):
    after = STEPS[name](RECORDS[phase])
    assert after is None or STEPS[name](after) is None


def test_releasing_a_task_record_changes_only_its_lease():
    assert changes(ASKING, released(ASKING)) == {}


def test_task_released_with_counts_false_decrements_its_attempt_number():
    assert changes(ASKING, released(ASKING, counts=False)) == {"attempt": ASKING.attempt - 1}


def test_task_continues_after_any_number_of_graceful_shutdowns():
    record: TaskRecord | None = attrs.evolve(WORKING, on_restart="again")
    for _ in range(100):
        assert record is not None
        record = released(record, counts=False)
        assert record is not None
        claimed = attrs.evolve(record, holder="another", epoch=record.epoch + 1)
        record = reclaimed(claimed, NOW, claimed.attempt + 1, 1)
    assert record is not None
    assert (record.phase, record.attempt) == (TaskPhase.WORKING, 1)


@pytest.mark.parametrize("on_restart", ["again", "resume"])
def test_task_is_restarted_up_to_the_maximum_number_of_attempts(on_restart: OnRestart):
    before = attrs.evolve(ASKING, on_restart=on_restart, attempt=2)
    assert changes(before, reclaimed(before, LATER, 3, 3)) == {"attempt": 3}
    after = reclaimed(before, LATER, 3, 2)
    assert after is not None
    assert after.outcome is not None
    assert after.outcome.is_error


def test_expired_task_is_not_restarted():
    before = attrs.evolve(ASKING, on_restart="again", expires_at=LATER)
    after = reclaimed(before, LATER, 2, 3)
    assert after is not None
    assert after.phase is TaskPhase.ENDED
    assert reclaimed(attrs.evolve(before, expires_at=None), LATER, 2, 3) is not None


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, Step]]:
    """Steps in any order, with few keys: questions are asked again, and answers are to any."""
    keys, steps = st.sampled_from("012345"), list[tuple[str, Step]]()
    last = ("with_outcome", "cancelled", "reclaimed")
    names = ("asked", "answered", "withdrawn", "with_message", "checkpointed", "released", "reclaimed (again)")
    weights = st.sampled_from([*names * 5, *last])
    for number, name in enumerate(draw(st.lists(weights, max_size=40))):
        match name:
            case "asked":
                questions = dict.fromkeys(draw(st.lists(keys, max_size=3)), b"%d?" % number)
                log = QuestionLog(dict.fromkeys(questions, ()), {})
                step = lambda record, questions=questions, log=log: asked(record, LATER, questions, log)  # noqa: E731
            case "answered":
                answers = dict.fromkeys(draw(st.lists(keys, max_size=4)), b"%d" % number)
                step = lambda record, answers=answers: answered(record, LATER, answers)  # noqa: E731
            case "withdrawn":
                given_up = draw(st.lists(keys, max_size=4))
                step = lambda record, given_up=given_up: withdrawn(record, LATER, given_up)  # noqa: E731
            case _:
                step = STEPS[name]
        steps.append((name, step))
    return steps


@given(lives())
def test_task_record_ends_once_and_loses_no_answer_in_any_transition_order(life: list[tuple[str, Step]]):
    now = WORKING
    answers: Mapping[str, bytes] = {}
    for name, step in life:
        after = step(now)
        if now.phase.is_final:
            assert after is None
        if after is None:
            continue
        assert after.version == now.version + 1
        assert set(after.questions).isdisjoint(after.answers), "no key is asked again"
        if name != "withdrawn" and not after.phase.is_final:
            assert answers.items() <= after.answers.items(), "an answer stays as it was given"
        assert set(after.answers) - set(answers) <= set(now.questions), "only questions are answered"
        if name != "withdrawn" and not after.phase.is_final:
            assert set(now.questions) <= {*after.questions, *after.answers}, "no question is lost"
        assert (after.phase is TaskPhase.INPUT_REQUIRED) == bool(after.questions)
        assert (after.phase is TaskPhase.ENDED) == (after.outcome is not None)
        now, answers = after, after.answers


def test_task_that_another_process_completes_has_no_lease_and_expires_at_the_given_ttl():
    given = made_external(WORKING, LATER, "new", 5000, 1000)
    assert given is not None
    assert (given.is_external, given.holder, given.leased_until) == (True, None, 0)
    assert (given.expires_at, given.kept_until) == (WORKING.created_at + 5000, WORKING.created_at + 6000)
    for_ever = made_external(WORKING, LATER, "new", None, 1000)
    assert for_ever is not None
    assert (for_ever.expires_at, for_ever.kept_until) == (None, None)
