"""`tests.random_schedules` plays steps, finds planted defects, and repeats their schedules from the seed."""

from __future__ import annotations

import re

import pytest
from tests.exhaustive.defects import DEFECTS, changed
from tests.random_schedules import MACHINES, Run, main

STEPS = 300


@pytest.mark.parametrize("machine", MACHINES)
def test_random_schedules_run_the_requested_number_of_steps_without_failures(
    machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([machine, "--steps", str(STEPS)]) == 0
    summary, names = capsys.readouterr().out.splitlines()
    counts = [int(count.replace(",", "")) for count in re.findall(r" ([\d,]+)(?:, |$)", names)]
    assert sum(counts) >= STEPS
    assert f"{machine}: {sum(counts):,} steps" in summary


@pytest.mark.parametrize(
    ("machine", "words"),
    [("http", "a cancel takes the oldest request"), ("tasks", "anybody may write")],
)
def test_run_with_the_printed_seed_finds_a_deliberate_defect_again(
    machine: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (defect,) = (each for each in DEFECTS if each.words == words)
    for owner, name, old, new in defect.patches:
        monkeypatch.setattr(owner, name, changed(owner, name, old, new))
    assert main([machine, "--steps", str(STEPS)]) == 1
    (fault, *_) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("FAULT"))
    found = re.match(r"FAULT: seed (\d+), after step \d+ of \d+: ", fault)
    assert found is not None
    assert main([machine, "--steps", "1", "--seed", found[1]]) == 1
    assert fault in capsys.readouterr().out.splitlines()
    monkeypatch.undo()
    assert Run(MACHINES[machine]).play(int(found[1])) is None
