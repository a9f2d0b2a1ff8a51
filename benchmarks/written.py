"""What a run leaves in this folder: the marked part of README.md, and the charts."""

from __future__ import annotations

from pathlib import Path

from .chart import chart
from .report import report
from .results import Results

__all__ = ["with_results", "write"]

_HERE = Path(__file__).parent
_BEGIN, _END = "<!-- results -->", "<!-- end of results -->"
_CHARTED = ("stdio", "client")


def with_results(page: str, text: str) -> str:
    """``page`` with ``text`` between its marks. Raises `ValueError` when they are not there."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {_BEGIN} and {_END}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def write(results: Results) -> None:
    """Put ``results`` into README.md and draw the charts beside it."""
    text = report(results)
    for suite in _CHARTED:
        if suite in results.samples.figures:
            (_HERE / f"{suite}.svg").write_text(chart(results.samples, suite))
            text += f"\n![{suite}: all subjects beside the floor]({suite}.svg)\n"
    readme = _HERE / "README.md"
    readme.write_text(with_results(readme.read_text(), text))
