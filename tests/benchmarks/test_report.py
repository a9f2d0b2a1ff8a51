"""Tables and charts of benchmark results."""

from xml.etree import ElementTree

import pytest
from benchmarks.chart import chart, standing
from benchmarks.measures import MEASURES
from benchmarks.report import comparison, goals, number, report, table
from benchmarks.results import Results, Samples
from benchmarks.suites import ENOUGH_ROUNDS
from benchmarks.written import with_results

ECHO = next(measure for measure in MEASURES if (measure.suite, measure.name) == ("stdio", "echo"))
CANCEL = next(measure for measure in MEASURES if (measure.suite, measure.name) == ("stdio", "cancel_p50"))


def samples(scale: float = 1.0) -> Samples:
    made = Samples()
    for noise in (0.98, 1, 1.02):
        made.add("stdio", "echo", "floor", 10_000 * noise)
        made.add("stdio", "echo", "trio-mcp", 9000 * noise * scale)
        made.add("stdio", "echo", "fastmcp", 1000 * noise)
        made.add("stdio", "cancel_p50", "floor", 50 * noise)
        made.add("stdio", "cancel_p50", "trio-mcp", 100 * noise / scale)
    return made


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.1234, "0.123"), (1, "1"), (99.94, "99.9"), (1234.4, "1234"), (45_678, "45.7k"), (1_154_000, "1.15M")],
)
def test_benchmark_report_shows_numbers_with_three_significant_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_benchmark_table_has_a_row_per_measure_and_a_column_per_program() -> None:
    head, _, echo, cancel = table(samples(), "stdio").splitlines()
    assert [cell.strip() for cell in head.split("|")][1:-1] == [
        "measure",
        "floor",
        "trio-mcp",
        "fastmcp",
        "trio-mcp : floor",
    ]
    assert [cell.strip() for cell in echo.split("|")][2:-1] == ["10k", "9000", "1000", "0.9 (0.9–0.9)"]
    assert [cell.strip() for cell in cancel.split("|")][2:-1] == ["50", "100", "", "2 (2–2)"]


def test_benchmark_goals_table_shows_which_goals_were_reached() -> None:
    _, _, echo, cancel = goals(samples()).splitlines()
    assert [cell.strip() for cell in echo.split("|")][3:-1] == ["≥ 0.85", "yes", "≥ 1", "no"]
    assert [cell.strip() for cell in cancel.split("|")][3:-1] == ["≤ 1.25", "NO", "≤ 1.1", "no"]


def test_benchmark_report_warns_that_results_of_few_rounds_vary() -> None:
    few, enough = samples(), samples()
    for _ in range(ENOUGH_ROUNDS):
        enough.add("client", "calls", "floor", 10_000)
    enough.figures.pop("stdio")
    texts = [report(Results("today", {}, {}, each)) for each in (few, enough)]
    assert ["Rounds: 3. Medians of fewer than 13 may" in text for text in texts] == [True, False]
    assert "Rounds: 13.\n" in texts[1]


def test_benchmark_comparison_marks_better_and_worse_results() -> None:
    for scale, verdict in ((1.5, "better"), (0.5, "WORSE"), (1.0, "")):
        rows = comparison(samples(), samples(scale)).splitlines()[2:]
        assert [row.split("|")[-2].strip() for row in rows] == [verdict, verdict]


def test_benchmark_comparison_marks_no_change_if_spreads_overlap() -> None:
    old, new = samples(), samples()
    new.figures["stdio"]["echo"]["trio-mcp"] = [6000, 12_000, 12_500]
    echo, _ = comparison(old, new).splitlines()[2:]
    assert "+33.3%" in echo
    assert "better" not in echo


def test_benchmark_score_is_relative_to_the_baseline_and_higher_is_better() -> None:
    assert standing(samples(), ECHO, "trio-mcp") == pytest.approx(0.9)
    assert standing(samples(), CANCEL, "trio-mcp") == pytest.approx(0.5)


def test_benchmark_chart_has_a_dot_for_each_result() -> None:
    image = ElementTree.fromstring(chart(samples(), "stdio"))
    titles = [title.text for title in image.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["trio-mcp: 0.9", "fastmcp: 0.1", "trio-mcp: 0.5"]


def test_benchmark_report_contains_versions_and_the_machine() -> None:
    text = report(Results("today", {"python": "CPython 3.11"}, {"floor": {"trio": "0.35.0"}}, samples()))
    for part in ("Taken today", "- python: CPython 3.11", "- floor: trio 0.35.0", "### Stdio"):
        assert part in text


def test_benchmark_results_replace_only_the_text_between_the_page_markers() -> None:
    page = "before\n<!-- results -->\nold\n<!-- end of results -->\nafter\n"
    written = with_results(page, "new")
    assert written == "before\n<!-- results -->\n\nnew\n<!-- end of results -->\nafter\n"
    assert with_results(written, "new") == written


def test_benchmark_results_over_http_replace_only_the_text_between_the_http_markers() -> None:
    page = "<!-- results -->\n<!-- end of results -->\n<!-- results over HTTP -->\n<!-- end of results over HTTP -->\n"
    written = with_results(page, "new", "results over HTTP")
    assert written.startswith("<!-- results -->\n<!-- end of results -->\n")
    assert "<!-- results over HTTP -->\n\nnew\n<!-- end" in written


def test_benchmark_results_written_to_a_page_without_markers_raise_value_error() -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        with_results("nothing here", "new")
