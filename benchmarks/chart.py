"""The chart: all subjects beside the floor, measure by measure, as SVG."""

from __future__ import annotations

import math
from html import escape

from .measures import MEASURES, Measure
from .report import number
from .results import Samples
from .subjects import FLOOR, OURS_NAME

__all__ = ["chart", "standing"]

_COLOURS = ("#0f766e", "#b45309", "#7c3aed", "#be123c", "#0369a1")
_LEFT, _WIDTH, _ROW, _TOP = 300, 520, 24, 70
_TICKS = (0.001, 0.01, 0.1, 1, 10)


def standing(samples: Samples, measure: Measure, subject: str) -> float | None:
    """How ``subject`` does beside the floor: 1 as well, 2 twice as well, whichever way the measure goes."""
    ratio = samples.ratio(measure, subject)
    if ratio is None or ratio.middle <= 0:
        return None
    return ratio.middle if measure.better == "more" else 1 / ratio.middle


def chart(samples: Samples, suite: str) -> str:
    """Dots on a logarithmic scale: right is better."""
    measures = [measure for measure in MEASURES if measure.suite == suite and len(samples.of(measure)) > 1]
    subjects = sorted(
        {name for measure in measures for name in samples.of(measure)} - {FLOOR},
        key=lambda name: (name != OURS_NAME, name),
    )
    colours: dict[str, str] = dict(zip(subjects, _COLOURS, strict=False))
    height = _TOP + _ROW * len(measures) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 40} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="15">Beside the floor (1): right is better. {escape(suite)}</text>',
        *_legend(colours),
        *_grid(height),
    ]
    for row, measure in enumerate(measures):
        y = _TOP + _ROW * row + _ROW // 2
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(measure.title)}</text>')
        for subject, colour in colours.items():
            value = standing(samples, measure, subject)
            if value is not None:
                parts.append(
                    f'<circle cx="{_x(value):.1f}" cy="{y}" r="5" fill="{colour}" fill-opacity="0.85">'
                    f"<title>{escape(subject)}: {number(value)}</title></circle>"
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(value: float) -> float:
    first, last = math.log10(_TICKS[0]), math.log10(_TICKS[-1] * 2)
    share = (math.log10(value) - first) / (last - first)
    return _LEFT + _WIDTH * min(1.0, max(0.0, share))


def _legend(colours: dict[str, str]) -> list[str]:
    parts: list[str] = []
    for index, (subject, colour) in enumerate(colours.items()):
        x = _LEFT + 110 * index
        parts.append(f'<circle cx="{x}" cy="42" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 10}" y="46">{escape(subject)}</text>')
    return parts


def _grid(height: int) -> list[str]:
    parts: list[str] = []
    for tick in _TICKS:
        x, colour = _x(tick), "#111" if tick == 1 else "#ddd"
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - 24}" stroke="{colour}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick:g}</text>')
    return parts
