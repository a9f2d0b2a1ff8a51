"""What a run leaves in this folder: the marked part of README.md, and the charts."""

from __future__ import annotations

from pathlib import Path

from .chart import chart
from .report import report
from .results import Results

__all__ = ["with_results", "write"]

_HERE = Path(__file__).parent
_OVER_HTTP = ("http", "http-legacy")
_CHARTED = ("stdio", "client")


def with_results(page: str, text: str, marks: str = "results") -> str:
    """``page`` with ``text`` between its ``marks``. Raises `ValueError` when they are not there."""
    first, last = f"<!-- {marks} -->", f"<!-- end of {marks} -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {first} and {last}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def write(results: Results) -> None:
    """Put ``results`` into README.md and draw the charts beside it. What was not measured stays as it is there."""
    readme = _HERE / "README.md"
    page = readme.read_text()
    over_http = results.of(lambda suite: suite in _OVER_HTTP)
    if over_http.samples.figures:
        page = with_results(page, report(over_http), "results over HTTP")
    others = results.of(lambda suite: suite not in _OVER_HTTP)
    if others.samples.figures:
        page = with_results(page, report(others) + _charts(others))
    readme.write_text(page)


def _charts(results: Results) -> str:
    text = ""
    for suite in _CHARTED:
        if suite in results.samples.figures:
            (_HERE / f"{suite}.svg").write_text(chart(results.samples, suite))
            text += f"\n![{suite}: all subjects beside the floor]({suite}.svg)\n"
    return text
