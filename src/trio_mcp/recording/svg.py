"""Draws a timeline as an SVG picture: one row for each request, with the call in the upper half and the handler in the
lower half.

A media query chooses light or dark colours, as the reader prefers. Names that come from peers are only text: they are
cut, and without characters that an XML reader, a terminal or the text direction would interpret.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

from .reading import ProcessStart, Tick, TimedRequest
from .timeline import Timeline

MOST_ROWS: Final = 300
_LEAST_WIDTH: Final = 320
_NARROW: Final = 640
_LABELS: Final = 250
_RIGHT: Final = 64
_LINE: Final = 16
_MOST_LABEL: Final = 38
_MOST_TOLD: Final = 8
"""Maximum number of rows for which marks get labels. With more rows there is too little space."""

_CUT: Final = 0.04
"""The width of a shortened idle gap on the axis, as a fraction of the total time with requests."""
_LONG_GAP: Final = 0.5
"""An idle gap is shortened if it is longer than this fraction of the total time with requests."""

_STYLE: Final = Path(__file__).with_name("timeline.css").read_text("utf-8")


_LEGEND: Final = (
    ('<rect class="start" width="18" height="9" rx="2"/>', "process start"),
    ('<rect class="call" width="18" height="9" rx="2"/>', "call"),
    ('<rect class="failed" width="18" height="9" rx="2"/>', "failed call"),
    ('<rect class="handler" width="18" height="9" rx="2"/>', "handler"),
    ('<rect class="cleanup" width="18" height="9" rx="2"/>', "cleanup"),
    ('<path class="finally" d="M9 -2v13"/>', "finally"),
    ('<path class="cancel" d="M9 -1v11m-3 -4l3 4l3 -4"/>', "cancel"),
    ('<path class="asks" d="M9 0l4 5l-4 5l-4 -5z"/>', "asks its client"),
    ('<rect class="handler" width="18" height="9" rx="2"/><path class="tick" d="M9 .5v8"/>', "progress"),
    ('<rect class="handler" width="18" height="9" rx="2"/><circle class="log" cx="9" cy="4.5" r="2"/>', "log"),
)


def svg(timeline: Timeline, title: str = "", *, width: int = 1000) -> str:
    """Draw ``timeline`` as an SVG picture of ``width`` pixels, with the first `MOST_ROWS` requests.

    In a narrow picture, names are above the bars. If there are few requests, the marks have labels.
    """
    return "\n".join(_Drawing(timeline, title, width).parts()) + "\n"


def shown(text: str, limit: int = _MOST_LABEL) -> str:
    """Escape ``text`` for XML, and replace unprintable characters. The result has at most ``limit`` characters before
    escaping."""
    plain = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[: limit + 1])
    return escape(plain if len(plain) <= limit else plain[: limit - 1] + "…")


def duration(seconds: float) -> str:
    """Format a duration as text, in µs, ms or s."""
    if abs(seconds) < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.4g} ms" if abs(seconds) < 1 else f"{seconds:.4g} s"


def _busy(starts: Sequence[ProcessStart], rows: Sequence[TimedRequest]) -> list[tuple[float, float]]:
    """Return the time spans with requests or a starting server process. Short idle gaps between them are included."""
    times = [(start.started_at, start.ended_at) for start in starts]
    times = sorted([*times, *((row.started_at, row.ended_at) for row in rows)]) or [(0.0, 1.0)]
    merged = [times[0]]
    for begin, end in times[1:]:
        if begin > merged[-1][1]:
            merged.append((begin, end))
        else:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
    longest = _LONG_GAP * sum(end - begin for begin, end in merged)
    segments = [merged[0]]
    for begin, end in merged[1:]:
        if begin - segments[-1][1] > longest:
            segments.append((begin, end))
        else:
            segments[-1] = (segments[-1][0], end)
    return segments


class _Drawing:
    def __init__(self, timeline: Timeline, title: str, width: int) -> None:
        self._timeline = timeline
        self._title = title
        self._rows = timeline.requests[:MOST_ROWS]
        self._starts = timeline.starts[:MOST_ROWS]
        self._segments = _busy(self._starts, self._rows)
        self._begin = self._segments[0][0]
        self._cut = _CUT * sum(end - begin for begin, end in self._segments)
        """Seconds that a shortened idle gap takes on the axis."""
        self._span = max(self._on_axis(self._segments[-1][1]), 1e-6)
        self._width = max(width, _LEAST_WIDTH)
        self._is_narrow = self._width < _NARROW
        """True if names are drawn above their bars, and not before them."""
        self._is_told = len(self._rows) <= _MOST_TOLD
        """True if there is enough space for labels beside the marks."""
        labels = [12 + 7 * len(_start_label(start)) for start in self._starts]
        labels += [_indent(row) + 7 * len(_label(row)[:_MOST_LABEL]) for row in self._rows]
        self._left = 12 if self._is_narrow else min(_LABELS, max(labels, default=0) + 24)
        self._bar = 14 if self._is_told else 9

    def _on_axis(self, at: float) -> float:
        """Convert the time ``at`` to seconds from the beginning of the axis, on which long idle gaps are shortened."""
        passed = 0.0
        for begin, end in self._segments:
            if at < begin:
                return passed - self._cut / 2 if passed else at - begin
            if at <= end:
                return passed + at - begin
            passed += end - begin + self._cut
        return passed - self._cut + at - self._segments[-1][1]

    def _x(self, at: float) -> float:
        return round(self._left + self._on_axis(at) / self._span * (self._width - self._left - _RIGHT), 2)

    def parts(self) -> Iterator[str]:
        heights = [self._height(row) for row in (*self._starts, *self._rows)]
        heads = [*_wrapped(self._sides(), self._width - 24)]
        top = 24 + 14 * len(heads) + 22
        bottom = top + sum(heights)
        legend = list(self._legend(bottom + 24))
        height = bottom + 24 + _LINE * (1 + max((line for line, _ in legend), default=0)) + 4
        more = len(self._timeline.requests) - len(self._rows) + self._timeline.left_out
        width = self._width
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 18 * bool(more)}" width="{width}"'
            f' height="{height + 18 * bool(more)}" role="img">'
        )
        yield f"<title>{shown(self._title or 'Calls on one axis', 200)}</title><style>\n{_STYLE}</style>"
        labels = width - 24 if self._is_narrow else self._left - 8
        yield f'<clipPath id="labels"><rect width="{labels}" height="{height}"/></clipPath>'
        yield f'<rect class="paper" width="{width}" height="{height + 18 * bool(more)}"/>'
        yield f'<text class="head" x="12" y="20">{shown(self._title, (width - 24) // 7)}</text>'
        for number, line in enumerate(heads):
            yield f'<text class="small" x="12" y="{36 + 14 * number}">{shown(line, 200)}</text>'
        y = top
        for number, height_of_row in enumerate(heights):
            if number % 2 == 0:
                yield f'<rect class="band" y="{y}" width="{width}" height="{height_of_row}"/>'
            y += height_of_row
        yield from self._axis(top, bottom)
        y = top
        for row, height_of_row in zip((*self._starts, *self._rows), heights, strict=True):
            yield from self._start_row(row, y) if isinstance(row, ProcessStart) else self._row(row, y)
            y += height_of_row
        yield from (part for _, part in legend)
        if more:
            yield f'<text class="small" x="12" y="{height + 10}">and {more:,} more requests</text>'
        yield "</svg>"

    def _sides(self) -> str:
        told = " · ".join(self._timeline.sides)
        if self._timeline.offset is None:
            return told
        bound = duration(self._timeline.uncertainty)
        apart = f"clock offset below {bound}, not corrected"
        if self._timeline.offset:
            apart = f"clock offset {duration(self._timeline.offset)} ± {bound}, corrected"
        return f"{told} · {apart}"

    def _axis(self, top: int, bottom: int) -> Iterator[str]:
        room = (self._width - self._left - _RIGHT) / 90  # the number of labels that fit on the axis
        step = 10 ** math.floor(math.log10(self._span / room))
        step *= next(factor for factor in (1, 2, 5, 10) if self._span / (step * factor) <= room)
        for begin, end in self._segments:
            first, last = ((at - self._begin) / step for at in (begin, end))
            for number in range(math.ceil(first - 1e-9), int(last + 1e-9) + 1):
                x, words = self._x(self._begin + number * step), duration(number * step) if number else "0"
                yield f'<path class="grid" d="M{x} {top - 6}V{bottom}"/>'
                yield f'<text class="small" x="{x + 3}" y="{top - 8}">{words}</text>'
        for (_, end), (begin, _) in pairwise(self._segments):
            x, idle = round((self._x(end) + self._x(begin)) / 2, 2), duration(begin - end)
            yield f'<path class="cut" d="M{x} {top - 6}V{bottom}"/>'
            yield f'<text class="small" x="{x}" y="{bottom + 10}" text-anchor="middle">idle for {idle}</text>'

    # Rows

    def _height(self, row: ProcessStart | TimedRequest) -> int:
        if isinstance(row, ProcessStart):
            return 12 + self._bar + _LINE * self._is_narrow
        above, below = self._row_text(row)
        return 8 + 2 * self._bar + 2 + _LINE * (self._is_narrow + bool(above) + bool(below))

    def _row_text(self, row: TimedRequest) -> tuple[str, str]:
        """Return the two labels of a request's row. The first contains times at the caller, for example when it sent a
        cancellation, and the second contains times in the handler, for example when its cleanup was done."""
        if not self._is_told:
            return "", ""
        above = {"caller left": row.left if row.cancel_sent is None else None, "cancel sent": row.cancel_sent}
        below = {"cancel read": row.cancel_read, "finally": row.finally_began}
        if row.finally_began is not None or row.cancel_read is not None:
            below["cleanup done"] = row.done
        return self._at(above), self._at(below)

    def _at(self, moments: dict[str, float | None]) -> str:
        found = sorted((at, word) for word, at in moments.items() if at is not None)
        return ", ".join(f"{word} {duration(at - self._begin)}" for at, word in found)

    def _start_row(self, start: ProcessStart, y: int) -> Iterator[str]:
        upper, ended = y + 6 + _LINE * self._is_narrow, None if start.ready_at is None else start.ended_at
        words = "no message" if ended is None else duration(ended - start.started_at)
        yield f"<g><title>{_start_label(start)}: {words}</title>"
        yield f'<text x="12" y="{y + 14 if self._is_narrow else upper + self._bar - 3}">{_start_label(start)}</text>'
        yield self._rect("start", start.started_at, ended, self._segments[-1][1], upper)
        x = self._x(self._segments[-1][1] if ended is None else ended) + 5
        yield f'<text class="small" x="{x}" y="{upper + self._bar - 4}">{words}</text></g>'

    def _row(self, row: TimedRequest, y: int) -> Iterator[str]:
        label, arrow = _label(row), "↳ " if row.depth else ""
        most = ((self._width if self._is_narrow else self._left) - _indent(row) - 20) // 7
        above, below = self._row_text(row)
        yield "<g>"
        yield f"<title>{shown(label, 200)}: {escape(_times_text(row))}</title>"
        upper = y + 4 + _LINE * (self._is_narrow + bool(above))
        lower = upper + self._bar + 2
        height = y + 14 if self._is_narrow else lower + 2
        yield f'<text clip-path="url(#labels)" x="{_indent(row)}" y="{height}">{arrow}{shown(label, most)}</text>'
        failed = " failed" if row.failed else ""
        ended = row.answered or row.left or row.cancel_sent
        if row.sent is not None:
            yield self._rect(f"call{failed}", row.sent, ended, row.ended_at, upper)
        began = row.began or row.received
        turned = row.finally_began
        if began is not None:
            over = row.done or row.returned or row.replied
            yield self._rect("handler", began, turned or over, row.ended_at, lower)
            if turned is not None:
                yield self._rect("cleanup", turned, over, row.ended_at, lower)
                yield f'<path class="finally" d="M{self._x(turned)} {lower - 2}v{self._bar + 4}"/>'
        for tick in row.ticks:
            yield _mark(tick, self._x(tick.at), (upper if began is None else lower) + self._bar / 2)
        sent, read = row.cancel_sent or row.left, row.cancel_read
        if sent is not None and read is not None:  # draw the cancellation from the call's bar to the handler's bar
            way = f"V{upper + self._bar}L{self._x(read)} {lower}V{lower + self._bar + 1}"
            yield f'<path class="cancel" d="M{self._x(sent)} {upper - 1}{way}m-3 -4l3 4l3 -4"/>'
        elif sent is not None:
            yield f'<path class="cancel" d="M{self._x(sent)} {upper - 1}v{self._bar + 2}m-3 -4l3 4l3 -4"/>'
        elif read is not None:
            yield f'<path class="cancel" d="M{self._x(read)} {lower - 1}v{self._bar + 2}m-3 -4l3 4l3 -4"/>'
        if sent is not None:
            yield from self._text(above, sent, upper - 4)
        if below:
            yield from self._text(below, read or turned or row.ended_at, lower + self._bar + 11)
        if row.ended_at > row.started_at:
            x, words = self._x(row.ended_at) + 5, duration(row.ended_at - row.started_at)
            yield f'<text class="small" x="{x}" y="{lower + 6}">{words}</text>'
        yield "</g>"

    def _text(self, words: str, at: float, y: float) -> Iterator[str]:
        """Draw the text ``words`` to the right of the time ``at``. If there is too little space, let the text end at
        the right edge."""
        if words:
            x = max(12.0, min(self._x(at), self._width - 8 - 6.4 * len(words)))
            yield f'<text class="told" x="{round(x, 2)}" y="{y}">{escape(words)}</text>'

    def _rect(self, kind: str, begin: float, end: float | None, last: float, y: float) -> str:
        """Return the SVG of a bar for a time span. The bar is pale if the end of the time span wasn't recorded."""
        x = self._x(begin)
        width = max(round(self._x(last if end is None else end) - x, 2), 1.5)
        pale = " open" if end is None else ""
        return f'<rect class="{kind}{pale}" x="{x}" y="{y}" width="{width}" height="{self._bar}" rx="2"/>'

    # The legend

    def _legend(self, y: float) -> Iterator[tuple[int, str]]:
        """Return the SVG elements of the legend, each with the number of the line in which it is drawn."""
        x, line = 12.0, 0
        seen = {word for row in self._rows for word in _seen(row)}
        if self._starts:
            seen.add("process start")
        for form, words in _LEGEND:
            if words not in seen:
                continue
            if x > 12 and x + 24 + 6 * len(words) > self._width:
                x, line = 12.0, line + 1
            at = y + _LINE * line
            yield line, f'<g transform="translate({x} {at - 9})">{form}</g>'
            yield line, f'<text class="small" x="{x + 23}" y="{at}">{words}</text>'
            x += 36 + 5.8 * len(words)


def _start_label(start: ProcessStart) -> str:
    return f"start of process {start.pid}"


def _label(row: TimedRequest) -> str:
    name = f"{row.method} {row.name}".strip() if row.method != "tools/call" or not row.name else row.name
    return f"{name} #{row.id}" if row.state_brought is None else f"{name}, retry #{row.id}"


def _indent(row: TimedRequest) -> int:
    return 12 + 14 * min(row.depth, 6)


def _seen(row: TimedRequest) -> Iterator[str]:
    """Yield the legend entries that the picture of the request ``row`` needs."""
    if row.sent is not None:
        yield "failed call" if row.failed else "call"
    if row.began is not None or row.received is not None:
        yield "handler"
    if row.finally_began is not None:
        yield from ("finally", "cleanup")
    if row.cancel_sent is not None or row.left is not None or row.cancel_read is not None:
        yield "cancel"
    for tick in row.ticks:
        yield "asks its client" if tick.kind == "asks" else tick.kind


def _mark(tick: Tick, x: float, y: float) -> str:
    match tick.kind:
        case "progress":
            return f'<path class="tick" d="M{x} {y - 4}v8"/>'
        case "log":
            return f'<circle class="log" cx="{x}" cy="{y}" r="2"/>'
        case "asks":
            return f'<path class="asks" d="M{x} {y - 5}l4 5l-4 5l-4 -5z"/>'


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Wrap ``text`` into lines. The lines break only at the dots ( · ) in the text."""
    line = ""
    for part in text.split(" · "):
        longer = f"{line} · {part}" if line else part
        if line and 5.4 * len(longer) > width:
            yield line
            line = part
        else:
            line = longer
    yield line


def _times_text(row: TimedRequest) -> str:
    """Return the times of ``row`` as text, each as the duration since the first one."""
    words = {
        "sent": row.sent,
        "received": row.received,
        "handler": row.began,
        "caller left": row.left,
        "cancel sent": row.cancel_sent,
        f"cancel read ({row.cause or 'by the peer'})": row.cancel_read,
        "finally": row.finally_began,
        "handler returned": row.returned,
        "cleanup done": row.done,
        "answer sent": row.replied,
        "answer received": row.answered,
    }
    found = sorted((at, word) for word, at in words.items() if at is not None)
    more = f"; {len(row.ticks) + row.more_ticks} ticks" if row.ticks else ""
    return ", ".join(f"{word} {duration(at - row.started_at)}" for at, word in found) + more
