"""Statistics over several rounds."""

from pathlib import Path

import pytest
from benchmarks.measures import Goal, Measure
from benchmarks.results import Results, Samples, Spread

RATE = Measure("stdio", "echo", "echo", "/s", "more", Goal(0.8, 0.95))


def samples(**figures: list[float]) -> Samples:
    """The figures of `RATE`; ``ours`` are those of trio-mcp."""
    made = Samples()
    for subject, values in figures.items():
        for value in values:
            made.add("stdio", "echo", {"ours": "trio-mcp"}.get(subject, subject), value)
    return made


def test_benchmark_spread_has_the_median_minimum_and_maximum_of_the_values() -> None:
    assert Spread.of([5, 1, 2]) == Spread(2, 1, 5)


def test_benchmark_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() -> None:
    assert Spread.of([1, 2, 4, 100]).middle == 3


def test_benchmark_spread_of_no_values_raises_value_error() -> None:
    with pytest.raises(ValueError, match="no figures"):
        Spread.of([])


def test_benchmark_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # The machine was slow in the second round, for both: the ratio of medians would say 0.5.
    ratio = samples(floor=[100, 10, 200], ours=[50, 9, 160]).ratio(RATE, "trio-mcp")
    assert ratio == Spread(0.8, 0.5, 0.9)


def test_benchmark_ratio_without_a_baseline_result_is_none() -> None:
    assert samples(ours=[50]).ratio(RATE, "trio-mcp") is None


def test_benchmark_ratio_of_different_numbers_of_rounds_raises_value_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        samples(floor=[100], ours=[50, 60]).ratio(RATE, "trio-mcp")


@pytest.mark.parametrize(("other", "overlaps"), [(Spread(3, 2, 4), True), (Spread(7, 5.1, 8), False)])
def test_overlap_of_two_benchmark_spreads_is_symmetric(other: Spread, overlaps: bool) -> None:
    assert Spread(3, 1, 5).overlaps(other) is overlaps
    assert other.overlaps(Spread(3, 1, 5)) is overlaps


def test_benchmark_goal_is_a_minimum_for_rates_and_a_maximum_for_latencies() -> None:
    assert RATE.reached(0.8, 0.81)
    assert not RATE.reached(0.8, 0.79)
    latency = Measure("stdio", "cancel", "cancel", "µs", "less", Goal(1.3, 1.1))
    assert latency.reached(1.3, 1.29)
    assert not latency.reached(1.3, 1.31)


def test_saved_benchmark_results_can_be_loaded(tmp_path: Path) -> None:
    kept = Results("today", {"python": "3.11"}, {"floor": {"trio": "0.35"}}, samples(floor=[1.5], ours=[2.5]))
    kept.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == kept


def test_benchmark_results_of_a_selected_suite_list_only_versions_of_programs_measured_in_the_suite() -> None:
    figures = {"stdio": {"echo": {"floor": [1.0]}}, "http": {"post_1": {"floor": [2.0], "mcp": [3.0]}}}
    versions = {"floor": {"trio": "0.35"}, "mcp": {"mcp": "2.3"}, "fastmcp": {"fastmcp": "4.1"}}
    taken = Results("today", {}, versions, Samples(figures))
    part = taken.of(lambda suite: suite == "http")
    assert part == Results(
        "today", {}, {name: versions[name] for name in ("floor", "mcp")}, Samples({"http": figures["http"]})
    )
    assert list(taken.of(lambda suite: suite == "stdio").versions) == ["floor"]
