"""Which runs of a scenario `--wires=pairs` and `--wires=one` keep."""

from __future__ import annotations

from itertools import product

from tests.interaction.covering import cover, first_wire

WIRES = ("stdio", "websocket", "bridged", "http")
ERAS = ("legacy", "modern")
GRID = [{"transport": wire, "era": era} for wire, era in product(WIRES, ERAS)]


def pairs(name: str) -> set[tuple[str, str]]:
    return {(GRID[index]["transport"], GRID[index]["era"]) for index in cover(GRID, name)}


def test_selection_of_scenarios_covers_each_transport_and_revision_with_the_fewest_runs() -> None:
    for number in range(20):
        chosen = pairs(f"test {number}")
        assert len(chosen) == len(WIRES)
        assert {wire for wire, _ in chosen} == set(WIRES)
        assert {era for _, era in chosen} == set(ERAS)


def test_selected_test_runs_depend_only_on_the_test_name_and_cover_all_pairs_over_many_names() -> None:
    assert cover(GRID, "test") == cover(GRID, "test")
    assert set().union(*(pairs(f"test {number}") for number in range(20))) == set(product(WIRES, ERAS))


def test_selected_test_runs_combine_each_extra_parameter_with_every_transport_and_revision() -> None:
    runs = [{**run, "case": case} for case in (1, 2, 3) for run in GRID]
    chosen = [runs[index] for index in cover(runs, "test")]
    assert len(chosen) == 3 * len(WIRES)
    assert {(run["case"], run["transport"]) for run in chosen} == set(product((1, 2, 3), WIRES))
    assert {(run["case"], run["era"]) for run in chosen} == set(product((1, 2, 3), ERAS))


def test_selected_test_runs_include_runs_that_have_no_transport_or_revision_parameter() -> None:
    assert cover([{"case": 1}, {"case": 2}], "test") == [0, 1]
    assert cover([{}], "test") == [0]


def test_selected_test_runs_cover_all_transports_and_revisions_if_some_transports_lack_revisions() -> None:
    runs = [{"transport": "stdio", "revision": str(number)} for number in range(5)]
    runs += [{"transport": "http", "revision": "4"}, {"transport": "websocket", "revision": "4"}]
    chosen = [runs[index] for index in cover(runs, "test")]
    assert {run["revision"] for run in chosen} == set("01234")
    assert {run["transport"] for run in chosen} == {"stdio", "http", "websocket"}
    assert len(chosen) <= 7


def test_selected_test_runs_of_the_first_transport_include_each_of_its_revisions() -> None:
    assert [GRID[index] for index in first_wire(GRID)] == [{"transport": "stdio", "era": era} for era in ERAS]
    assert first_wire([{"transport": "http", "era": "modern"}, {"transport": "websocket", "era": "modern"}]) == [0]
    assert first_wire([{"case": 1}, {"case": 2}]) == [0, 1]
