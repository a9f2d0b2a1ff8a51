"""Command line arguments of ``python -m benchmarks``."""

import pytest
from benchmarks.__main__ import _arguments
from benchmarks.suites import ENOUGH_ROUNDS, SUITES

NAMES = [suite.name for suite in SUITES]


def test_benchmark_help_lists_each_suite_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # lines end at hyphens, too
    with pytest.raises(SystemExit):
        _arguments(["--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    after = words[words.index("one:") : words.index("--json", words.index("one:"))]
    assert [word for word in after if word in NAMES] == NAMES
    assert len(set(NAMES)) == len(NAMES)
    assert all(name.replace("-", "").isalpha() for name in NAMES)


@pytest.mark.parametrize("name", [suite.name for suite in SUITES if suite.only_full])
def test_benchmark_suite_that_measures_nothing_in_a_short_run_requires_the_full_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        _arguments(["--suite", "stdio", "--suite", name])
    assert f"nothing is measured of {name} without --full" in capsys.readouterr().err
    assert _arguments(["--suite", name, "--full"]).suite == [name]


def test_benchmark_suites_that_run_by_default_have_the_recommended_number_of_rounds() -> None:
    assert {suite.rounds for suite in SUITES if not suite.only_full} == {ENOUGH_ROUNDS}
    assert _arguments([]).rounds is None


def test_benchmark_command_refuses_an_unknown_suite_and_lists_the_known_suites(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        _arguments(["--suite", "carrier-pigeon"])
    assert "choose from" in capsys.readouterr().err
