"""A timeline as an SVG picture: a row for each request, the caller's view above, the handler's below.

Colours follow the reader's choice of light or dark, by a media query. Names of peers are text and nothing else: cut,
and without characters that an XML reader, a terminal or the direction of text would obey.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Final

from .timed_requests import TimedRequest
from .timeline import Timeline

MOST_ROWS: Final = 300
_LABELS: Final = 260
_WIDTH: Final = 900
_RIGHT: Final = 110
_TOP: Final = 56
_ROW: Final = 30
_MOST_LABEL: Final = 38

_STYLE: Final = """
svg { --paper:#ffffff; --ink:#1f2328; --faint:#8b949e; --grid:#e6e8eb; --band:#f6f8fa;
  --call:#2f6fde; --handler:#2e9e62; --cleanup:#d9822b; --cancel:#cf222e; --failed:#8e2a9c; }
@media (prefers-color-scheme: dark) {
  svg { --paper:#0d1117; --ink:#e6edf3; --faint:#8b949e; --grid:#242b33; --band:#151b23;
    --call:#6ea8fe; --handler:#4cc38a; --cleanup:#f0a35e; --cancel:#ff6b6b; --failed:#d2a8ff; } }
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: var(--ink); direction: ltr; unicode-bidi: isolate; }
.small { font-size: 10px; fill: var(--faint); } .head { font-weight: 600; }
.paper { fill: var(--paper); } .band { fill: var(--band); } .grid { stroke: var(--grid); }
.call { fill: var(--call); } .handler { fill: var(--handler); } .cleanup { fill: var(--cleanup); }
.failed { fill: var(--failed); } .open { opacity: .45; }
.cancel { stroke: var(--cancel); fill: var(--cancel); stroke-width: 1.5; }
.finally { stroke: var(--cleanup); stroke-width: 2; }
.tick { stroke: var(--paper); stroke-width: 2; } .log { fill: var(--paper); } .asks { fill: none; stroke: var(--ink); }
.way { stroke: var(--cancel); stroke-dasharray: 2 2; }
"""


def svg(timeline: Timeline, title: str = "") -> str:
    """Return the picture of ``timeline``, whose first `MOST_ROWS` requests are drawn."""
    return "\n".join(_Drawing(timeline, title).parts()) + "\n"


def shown(text: str, most: int = _MOST_LABEL) -> str:
    """Return ``text`` cut to ``most`` characters, with escapes for all but plain ones, ready for XML."""
    plain = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[: most + 1])
    return escape(plain if len(plain) <= most else plain[: most - 1] + "…")


def duration(seconds: float) -> str:
    """Return a duration in a unit that fits."""
    if abs(seconds) < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.4g} ms" if abs(seconds) < 1 else f"{seconds:.4g} s"


class _Drawing:
    def __init__(self, timeline: Timeline, title: str) -> None:
        self._timeline = timeline
        self._title = title
        self._rows = timeline.requests[:MOST_ROWS]
        self._begin = min((row.begin for row in self._rows), default=0.0)
        end = max((row.end for row in self._rows), default=1.0)
        self._span = max(end - self._begin, 1e-6)

    def _x(self, at: float) -> float:
        return round(_LABELS + (at - self._begin) / self._span * _WIDTH, 2)

    def parts(self) -> Iterator[str]:
        bottom = _TOP + _ROW * len(self._rows)
        width, height = _LABELS + _WIDTH + _RIGHT, bottom + 62
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img">'
        )
        yield f"<title>{shown(self._title or 'Calls on one axis', 200)}</title><style>{_STYLE}</style>"
        yield f'<clipPath id="labels"><rect width="{_LABELS - 8}" height="{height}"/></clipPath>'
        yield f'<rect class="paper" width="{width}" height="{height}"/>'
        yield f'<text class="head" x="12" y="20">{shown(self._title, 120)}</text>'
        yield f'<text class="small" x="12" y="36">{shown(self._sides(), 200)}</text>'
        for number in range(0, len(self._rows), 2):
            yield f'<rect class="band" y="{_TOP + _ROW * number}" width="{width}" height="{_ROW}"/>'
        yield from self._axis(bottom)
        for number, row in enumerate(self._rows):
            yield from self._row(row, _TOP + _ROW * number)
        yield from _legend(bottom + 24)
        more = len(self._timeline.requests) - len(self._rows) + self._timeline.left_out
        if more:
            yield f'<text class="small" x="12" y="{bottom + 50}">and {more:,} more requests</text>'
        yield "</svg>"

    def _sides(self) -> str:
        told = " · ".join(self._timeline.sides)
        if self._timeline.offset is None:
            return told
        return f"{told} · clocks {duration(self._timeline.offset)} apart, ± {duration(self._timeline.uncertainty)}"

    def _axis(self, bottom: float) -> Iterator[str]:
        step = 10 ** math.floor(math.log10(self._span / 4))
        step *= next(factor for factor in (1, 2, 5, 10) if self._span / (step * factor) <= 8)
        for number in range(int(self._span / step) + 1):
            x = self._x(self._begin + number * step)
            yield f'<path class="grid" d="M{x} {_TOP - 6}V{bottom}"/>'
            yield f'<text class="small" x="{x + 3}" y="{_TOP - 8}">{duration(number * step) if number else "0"}</text>'

    def _row(self, row: TimedRequest, y: float) -> Iterator[str]:
        label = f"{row.method} {row.name}".strip() if row.method != "tools/call" or not row.name else row.name
        indent = 12 + 14 * min(row.depth, 6)
        arrow = "↳ " if row.depth else ""
        yield "<g>"
        yield f"<title>{shown(label, 200)}: {escape(_told(row))}</title>"
        yield f'<text clip-path="url(#labels)" x="{indent}" y="{y + 19}">{arrow}{shown(label)}</text>'
        failed = " failed" if row.failed else ""
        ended = row.answered or row.left or row.cancel_sent
        if row.sent is not None:
            yield self._bar(f"call{failed}", row.sent, ended, row.end, y + 4, 9)
        began = row.began or row.received
        if began is not None:
            over = row.done or row.returned or row.replied
            turned = row.finally_began
            yield self._bar("handler", began, turned or over, row.end, y + 16, 9)
            if turned is not None:
                yield self._bar("cleanup", turned, over, row.end, y + 16, 9)
                yield f'<path class="finally" d="M{self._x(turned)} {y + 14}v13"/>'
        for tick in row.ticks:
            x, middle = self._x(tick.at), y + (8.5 if began is None else 20.5)
            match tick.kind:
                case "progress":
                    yield f'<path class="tick" d="M{x} {middle - 4}v8"/>'
                case "log":
                    yield f'<circle class="log" cx="{x}" cy="{middle}" r="2"/>'
                case "asks":
                    yield f'<path class="asks" d="M{x} {middle - 5}l4 5l-4 5l-4 -5z"/>'
        sent, read = row.cancel_sent or row.left, row.cancel_read
        if sent is not None:
            yield f'<path class="cancel" d="M{self._x(sent)} {y + 3}v11m-3 -4l3 4l3 -4"/>'
        if read is not None:
            yield f'<path class="cancel" d="M{self._x(read)} {y + 15}v11m-3 -11h6"/>'
        if sent is not None and read is not None:
            yield f'<path class="way" d="M{self._x(sent)} {y + 13}L{self._x(read)} {y + 16}"/>'
        yield f'<text class="small" x="{self._x(row.end) + 5}" y="{y + 19}">{duration(row.end - row.begin)}</text>'
        yield "</g>"

    def _bar(self, kind: str, begin: float, end: float | None, last: float, y: float, height: float) -> str:
        """Return a bar, pale where its end was not recorded."""
        x = self._x(begin)
        width = max(round(self._x(last if end is None else end) - x, 2), 1.5)
        pale = " open" if end is None else ""
        return f'<rect class="{kind}{pale}" x="{x}" y="{y}" width="{width}" height="{height}" rx="2"/>'


def _told(row: TimedRequest) -> str:
    """Return the times of ``row`` in words, from its beginning on."""
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
    return ", ".join(f"{word} {duration(at - row.begin)}" for at, word in found) + more


def _legend(y: float) -> Iterator[str]:
    x = 12.0
    for kind, words in (
        ("call", "call"),
        ("failed", "failed call"),
        ("handler", "handler"),
        ("cleanup", "finally and cleanup"),
    ):
        yield f'<rect class="{kind}" x="{x}" y="{y - 8}" width="18" height="9" rx="2"/>'
        yield f'<text class="small" x="{x + 23}" y="{y}">{words}</text>'
        x += 40 + 6 * len(words)
    for mark, words in (
        (f'<path class="cancel" d="M{{x}} {y - 10}v11m-3 -4l3 4l3 -4"/>', "cancel sent"),
        (f'<path class="cancel" d="M{{x}} {y - 10}v11m-3 -11h6"/>', "cancel read"),
        (f'<path class="finally" d="M{{x}} {y - 11}v13"/>', "finally"),
        (f'<path class="asks" d="M{{x}} {y - 9}l4 5l-4 5l-4 -5z"/>', "asks its client"),
    ):
        yield mark.format(x=x + 6)
        yield f'<text class="small" x="{x + 15}" y="{y}">{words}</text>'
        x += 34 + 6 * len(words)
    yield f'<text class="small" x="{x}" y="{y}">notches: progress; dots: logs</text>'
